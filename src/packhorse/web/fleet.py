# SPDX-License-Identifier: MIT
"""Routes about queues, tasks, workers, breakers, counts and the audit log."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any, Final

import msgspec
from starlette.responses import PlainTextResponse

from packhorse.client.audit import AuditLog
from packhorse.client.documents import bytes_document, document_of, queue_document, worker_document
from packhorse.client.worker_signals import (
    WorkerGone,
    aask_stacks,
    quiet_put,
    read_stacks,
    stacks_id,
)
from packhorse.contract import Contract
from packhorse.core.access import Permission
from packhorse.core.job import PAGE_MAX
from packhorse.insights import QueueInfo, WorkerInfo
from packhorse.protocol import to_wire
from packhorse.runtime.supervisor.exposition import labels_text
from packhorse.web.calls import ApiAnswer, ApiCall, Text, answers, given_fields
from packhorse.web.problems import WebRefusal

#: How long a request waits for a worker's answer; the page shows a later one.
_STACKS_S: Final = 3.0
#: Fields of a queue that operators change; with counts every ETag would be outdated at once.
_EDITED = ("priority", "paused", "closed", "overridden", "pausedKeys", "pausedTenants", "limits")


class PartOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs of a queue are meant; all of them where neither is given."""

    key: Text | None = None
    tenant: Text | None = None


class LimitsOrder(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """Limits of a queue; what is left out stays, null takes a limit away."""

    priority: int | msgspec.UnsetType | None = msgspec.UNSET
    concurrency: int | msgspec.UnsetType | None = msgspec.UNSET
    rate_limit: str | msgspec.UnsetType | None = msgspec.UNSET  #: such as `100/60s`
    tenant_rate_limit: str | msgspec.UnsetType | None = msgspec.UNSET
    max_depth: int | msgspec.UnsetType | None = msgspec.UNSET
    max_bytes: int | str | msgspec.UnsetType | None = msgspec.UNSET  #: such as `500MB`
    on_full: str | msgspec.UnsetType | None = msgspec.UNSET
    soft_depth: int | msgspec.UnsetType | None = msgspec.UNSET
    fair: bool | msgspec.UnsetType | None = msgspec.UNSET
    weights: dict[str, float] | msgspec.UnsetType | None = msgspec.UNSET
    ageing: str | float | msgspec.UnsetType | None = msgspec.UNSET
    on_dead: str | msgspec.UnsetType | None = msgspec.UNSET


class AuditQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which page of the audit log."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = 50
    after: Text | None = None


def etag_of(value: Any) -> str:
    """Return an ETag that changes with a value."""
    return f'"{hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:32]}"'


# ----------------------------------------------------------------------------------------- queues


@answers("QueueList", "List queues")
async def list_queues(call: ApiCall) -> ApiAnswer:
    """List every queue, its counts and settings."""
    found = await call.insights.aqueues()
    return ApiAnswer(body={"queues": [queue_document(queue) for queue in found]})


@answers("Queue", "Show one queue")
async def read_queue(call: ApiCall) -> ApiAnswer:
    """Show one queue; its ETag changes with its settings, not with its jobs."""
    document = queue_document(await _queue(call))
    return ApiAnswer(body=document, etag=_edited_tag(document))


async def _queue(call: ApiCall) -> QueueInfo:
    name = call.path["name"]
    for queue in await call.insights.aqueues():
        if queue.name == name:
            return queue
    raise WebRefusal(404, "QUEUE_NOT_FOUND", f"no queue {name!r} is declared or holds a job")


def _edited_tag(document: dict[str, Any]) -> str:
    return etag_of({name: document[name] for name in _EDITED})


async def _changed(
    call: ApiCall, change: Callable[..., Awaitable[bool]], **given: Any
) -> ApiAnswer:
    """Change the queue if it is as If-Match says, and describe it."""
    before = queue_document(await _queue(call))
    call.require_match(_edited_tag(before))
    changed = await change(call.path["name"], **given)
    document = queue_document(await _queue(call))
    return ApiAnswer(
        body={**document, "changed": changed},
        etag=_edited_tag(document),
        before={name: before[name] for name in _EDITED},
        after={name: document[name] for name in _EDITED},
    )


@answers("ChangedQueue", "Stop giving out a queue's jobs")
async def pause_queue(call: ApiCall, order: PartOrder) -> ApiAnswer:
    """Stop giving out a queue's jobs, or those of a key or a tenant; running ones go on."""
    return await _changed(call, call.app.apause, **given_fields(order))


@answers("ChangedQueue", "Give out a queue's jobs again")
async def resume_queue(call: ApiCall, order: PartOrder) -> ApiAnswer:
    """Give out again what a pause with the same part stopped."""
    return await _changed(call, call.app.aresume, **given_fields(order))


@answers("ChangedQueue", "Take no new jobs for a queue")
async def close_queue(call: ApiCall) -> ApiAnswer:
    """Take no new jobs; those in the queue go on."""
    return await _changed(call, call.app.aclose_queue)


@answers("ChangedQueue", "Take new jobs for a queue again")
async def open_queue(call: ApiCall) -> ApiAnswer:
    """Take new jobs again."""
    return await _changed(call, call.app.aopen_queue)


@answers("ChangedQueue", "Set limits of a queue")
async def set_limits(call: ApiCall, order: LimitsOrder) -> ApiAnswer:
    """Set limits for all workers, at once; they override the declared ones."""
    options = given_fields(order, missing=msgspec.UNSET)
    if not options:
        raise WebRefusal(400, "BAD_REQUEST", "name at least one limit")
    return await _changed(call, call.app.aset_limits, **options)


@answers("ChangedQueue", "End what was set of a queue")
async def unset_limits(call: ApiCall) -> ApiAnswer:
    """Remove what was set: the declared limits hold again."""
    return await _changed(call, lambda name: call.app.aset_limits(name, None))


# ------------------------------------------------------------------------------ tasks and workers


@answers("TaskList", "List tasks")
async def list_tasks(call: ApiCall) -> ApiAnswer:
    """List the tasks that the app declares."""
    tasks = call.app.tasks
    return ApiAnswer(
        body={
            "tasks": [
                {"name": name, "queue": tasks[name].definition.queue} for name in sorted(tasks)
            ]
        }
    )


@answers("DeclaredTask", "Show a task and its contract")
async def read_task(call: ApiCall) -> ApiAnswer:
    """Show one task and its contract."""
    name = call.path["name"]
    task = call.app.tasks.get(name)
    if task is None:
        raise WebRefusal(404, "TASK_NOT_FOUND", f"the app has no task {name!r}")
    contract: Contract = task.contract
    document = {"name": name, "queue": task.definition.queue, "contract": contract.document()}
    return ApiAnswer(body=document)


@answers("WorkerList", "List workers")
async def list_workers(call: ApiCall) -> ApiAnswer:
    """List the workers that the store knows, live or not."""
    found = await call.insights.aworkers()
    return ApiAnswer(body={"workers": [worker_document(worker) for worker in found]})


@answers("ToldWorker", "Have a worker claim nothing more", status=202)
async def quiet_worker(call: ApiCall) -> ApiAnswer:
    """Have a worker claim nothing more, wherever it runs; what it runs goes on."""
    return await _ordered(call, quiet=True)


@answers("ToldWorker", "Have a worker claim again", status=202)
async def resume_worker(call: ApiCall) -> ApiAnswer:
    """Have a worker claim jobs again, wherever it runs."""
    return await _ordered(call, quiet=False)


@answers("WorkerStacks", "Ask a worker where its handlers are")
async def worker_stacks(call: ApiCall) -> ApiAnswer:
    """Where the handlers of a worker are right now, wherever it runs; no values are told."""
    worker = await _worker(call)
    found = await aask_stacks(
        call.app.store, worker.id, by=call.principal.name, timeout_s=_STACKS_S
    )
    return ApiAnswer(body=document_of(found), after={"id": worker.id, "answered": found.answered})


async def worker(call: ApiCall) -> ApiAnswer:
    """One worker, and what it answered when it was last asked where its handlers are."""
    found = [one for one in await call.insights.aworkers() if one.id == call.path["id"]]
    if not found:
        raise WorkerGone(call.path["id"])
    stacks = None
    if call.principal.may(Permission.WORKERS_STACKS):
        record = call.app.store.records.record(stacks_id(found[0].id))
        stacks = read_stacks(await call.app.store.arun(record))
    shown = None if stacks is None else document_of(stacks)
    return ApiAnswer(body={"worker": worker_document(found[0]), "stacks": shown})


async def _ordered(call: ApiCall, *, quiet: bool) -> ApiAnswer:
    worker, store = await _worker(call), call.app.store
    order = quiet_put(worker.id, quiet=quiet, by=call.principal.name)
    await store.arun(store.records.change((order,)))
    body = {"id": worker.id, "quiet": quiet}
    return ApiAnswer(body=body, status=202, before={"quiet": worker.quiet}, after=body)


async def _worker(call: ApiCall) -> WorkerInfo:
    for worker in await call.insights.aworkers():
        if worker.id == call.path["id"] and worker.live:
            return worker
    raise WorkerGone(call.path["id"])


# ----------------------------------------------------------------------------------------- counts


@answers("WorkerStats", "Count what was done and what waits")
async def stats(call: ApiCall) -> ApiAnswer:
    """Count what was done and what waits, in the shape of the worker protocol."""
    body = to_wire(await call.insights.astats())
    return ApiAnswer(body={**body, **bytes_document(await call.insights.astore_bytes())})


@answers("BreakerList", "List circuit breakers")
async def breakers(call: ApiCall) -> ApiAnswer:
    """List circuit breakers that are open or have counted failures recently."""
    found = await call.insights.abreakers()
    return ApiAnswer(body={"breakers": [document_of(one) for one in found]})


@answers("ScaleList", "The load of every queue, for scalers")
async def scale(call: ApiCall) -> ApiAnswer:
    """Show the load of every queue, and how many workers its `autoscale` wants."""
    found = await call.insights.ascaling()
    return ApiAnswer(body={"queues": [document_of(one) for one in found]})


@answers("ScaleSignal", "The load of one queue, for scalers")
async def scale_of(call: ApiCall) -> ApiAnswer:
    """Show the load of one queue, for scalers; an empty queue has a demand of 0."""
    name = call.path["name"]
    for one in await call.insights.ascaling():
        if one.queue == name:
            return ApiAnswer(body=document_of(one))
    queue = await _queue(call)  # raises if there is none
    nothing = {"ready": 0, "running": 0, "demand": 0, "workers": 0, "wanted": None}
    return ApiAnswer(body={"queue": queue.name, **nothing})


@answers("", "Depths and ages, for Prometheus", media="text/plain")
async def metrics(call: ApiCall) -> ApiAnswer:
    """Show depths and ages of all queues, in the text format of Prometheus."""
    lines = list(_metric_lines(await call.insights.aqueues(), await call.insights.aworkers()))
    text = "\n".join(lines) + "\n"
    kind = "text/plain; version=0.0.4"
    return ApiAnswer(response=PlainTextResponse(text, media_type=kind))


def _metric_lines(queues: tuple[QueueInfo, ...], workers: tuple[WorkerInfo, ...]) -> Iterator[str]:
    yield "# TYPE packhorse_store_jobs gauge"
    for queue in queues:
        for status, number in queue.counts.items():
            labels = labels_text(queue=queue.name, status=status.value)
            yield f"packhorse_store_jobs{labels} {number}"
    yield "# TYPE packhorse_store_oldest_ready_seconds gauge"
    for queue in queues:
        waited = queue.oldest_ready_s or 0
        labels = labels_text(queue=queue.name)
        yield f"packhorse_store_oldest_ready_seconds{labels} {waited:g}"
    yield "# TYPE packhorse_store_workers gauge"
    yield f"packhorse_store_workers {sum(worker.live for worker in workers)}"


@answers("AuditPage", "List what was done through the web")
async def audit(call: ApiCall, query: AuditQuery) -> ApiAnswer:
    """List what was done through the web, the newest first."""
    log = AuditLog(call.app.store)
    page = await log.anotes(tenant=call.principal.tenant, limit=query.limit, after=query.after)
    return ApiAnswer(body={"notes": [document_of(one) for one in page.notes], "after": page.after})
