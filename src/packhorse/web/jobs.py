# SPDX-License-Identifier: MIT
"""Routes about jobs and dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from packhorse.client.documents import document_of, job_document, shown_job
from packhorse.client.operations import has_end
from packhorse.core.access import Permission
from packhorse.core.clock import from_datetime
from packhorse.core.job import LOOK_MAX, PAGE_MAX, TERMINAL, DeadReason, JobStatus
from packhorse.core.redaction import Redact, redacted, redacted_text
from packhorse.errors import ConfigError, JobConflict, JobError, KeyUnavailable
from packhorse.protocol import TaskExecutionResult, to_wire
from packhorse.stores.requests import JobFilter
from packhorse.web.calls import ApiAnswer, ApiCall, Text, answers, given_fields
from packhorse.web.problems import WebRefusal

#: The longest wait of one request; ask again.
WAIT_MAX_S: Final = 60.0
#: Jobs that one request runs again; the answer says where to continue.
REDRIVE_MAX: Final = 1_000

Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
#: With a time zone.
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class JobsMeant(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """Which jobs are meant; what is left out does not narrow them."""

    queue: Text | None = None
    task: Text | None = None
    tenant: str | None = None
    tag: Text | None = None
    created_before: Instant | None = None


class DeadMeant(JobsMeant, frozen=True):
    """Which dead letters are meant."""

    reason: DeadReason | None = None
    shelf: Text | None = None


class DeadQuery(DeadMeant, frozen=True):
    """Which dead letters to list."""

    limit: Limit = 50
    after: Text | None = None


class JobsQuery(JobsMeant, frozen=True):
    """Which jobs to list; `status` may be repeated."""

    status: tuple[JobStatus, ...] = ()
    created_by: Text | None = None
    limit: Limit = 50
    after: Text | None = None


class JobQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to show a job."""

    values: bool = False  #: unmasked; needs the permission `jobs.values`


class WaitQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait."""

    timeout: Annotated[float, msgspec.Meta(ge=0, le=WAIT_MAX_S)] = 30.0


class SubmitOrder(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """A call to submit: a task, its arguments by name or by position, and options."""

    task: Text
    args: dict[str, Any] | list[Any] = {}
    queue: Text | None = None
    priority: Text | None = None
    delay: str | float | None = None  #: seconds, or a text such as `5m`
    scheduled_at: Instant | None = None
    timeout: str | float | None = None
    tenant: str | None = None
    tags: list[str] | None = None
    job_id: Text | None = None
    ordering_key: Text | None = None
    concurrency_key: Text | None = None
    trace_id: Text | None = None


class RetryOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """How a job is run again."""

    reset_budget: bool = False


class SignalOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signal for `ctx.wait_for(name)`."""

    name: Text
    value: Any = None


class DecisionOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to note beside a decision; who decided is who asks."""

    note: str = ""


class RedriveOrder(DeadMeant, frozen=True):
    """Which dead letters to run again, and how many at most."""

    error: Text | None = None  #: its type
    place: Text | None = None  #: where it came from, as `mail.py:17 in send`
    #: How many are read; those with another error or place are not run again.
    limit: Annotated[int, msgspec.Meta(ge=1, le=REDRIVE_MAX)] = 100
    after: Text | None = None
    dry_run: bool = False
    reset_budget: bool = False


@answers("JobPage", "List jobs, the newest first")
async def list_jobs(call: ApiCall, query: JobsQuery) -> ApiAnswer:
    """List a page of jobs, the newest first, without arguments; read 5,000 at most."""
    chosen = job_filter(call, query, statuses=query.status, created_by=query.created_by)
    return await _page(call, chosen, query)


@answers("JobPage", "List dead letters")
async def dead_letters(call: ApiCall, query: DeadQuery) -> ApiAnswer:
    """List a page of dead letters, the newest jobs first."""
    return await _page(call, _dead_filter(call, query), query)


def _dead_filter(call: ApiCall, asked: DeadMeant) -> JobFilter:
    dead = (JobStatus.DEAD,)
    return job_filter(call, asked, statuses=dead, dead_reason=asked.reason, dead_letter=asked.shelf)


def job_filter(call: ApiCall, asked: JobsMeant, **more: Any) -> JobFilter:
    """Build the filter of a query or an order, within what the principal may see."""
    before = asked.created_before
    return JobFilter(
        queue=asked.queue,
        task=asked.task,
        tenant=call.tenant(asked.tenant),
        tag=asked.tag,
        created_before_us=None if before is None else from_datetime(before),
        **more,
    )


async def _page(call: ApiCall, chosen: JobFilter, query: JobsQuery | DeadQuery) -> ApiAnswer:
    page = await call.insights.ajobs(chosen, limit=query.limit, after=query.after, most=LOOK_MAX)
    redact = call.app.bus.redact
    jobs = [job_document(shown_job(job, redact)) for job in page.jobs]
    body = {"jobs": jobs, "after": page.after, "stoppedAfter": page.stopped_after}
    return ApiAnswer(body=body)


@answers("SubmittedJob", "Submit a call", status=201)
async def submit(call: ApiCall, order: SubmitOrder) -> ApiAnswer:
    """Submit a call; its arguments are checked against the contract before anything is stored."""
    view = call.view_of(call.tenant(order.tenant))
    definition = call.app.registry.get(order.task)
    if definition is None:
        raise ConfigError(f"the app has no task {order.task!r}; see /api/v1/tasks")
    task = call.app.tasks[definition.name]
    given = order.args
    using = task.using(**call_options(call, order))
    made = using.call(**given) if isinstance(given, dict) else using.call(*given)
    [handle] = await view.aenqueue_many([made])
    body = {"id": handle.id, "deduplicated": handle.deduplicated}
    place = f"{call.request.scope.get('root_path', '')}/api/v1/jobs/{quote(handle.id, safe='')}"
    status = 200 if handle.deduplicated else 201
    return ApiAnswer(body=body, status=status, headers={"Location": place}, after=body)


def call_options(call: ApiCall, order: SubmitOrder) -> Any:
    """Return the options of `task.using` that an order gives."""
    options = given_fields(order)
    for name in ("task", "args", "tenant"):
        options.pop(name, None)
    if call.idempotency_key is not None:
        options["idempotency_key"] = call.idempotency_key
    return {"created_by": call.principal.name, **options}


@answers("WholeJob", "Show one job")
async def read_job(call: ApiCall, query: JobQuery) -> ApiAnswer:
    """Show one job with its arguments, its result and every attempt; secrets are masked."""
    whole = query.values
    if whole and not call.principal.may(Permission.JOBS_VALUES):
        raise WebRefusal(403, "FORBIDDEN", "to see values as they are needs jobs.values")
    return ApiAnswer(body=await whole_job(call, whole=whole))


async def whole_job(call: ApiCall, *, whole: bool = False) -> dict[str, Any]:
    """Describe the job that the path names; `whole` leaves secrets unmasked."""
    redact: Redact = (lambda value: value) if whole else call.app.bus.redact
    handle = call.job()
    detail = await call.insights.ajob(handle.id)
    payload: Any = None
    try:
        payload = redacted(redact, (await handle.awire()).payload)
    except KeyUnavailable as error:
        payload = f"[encrypted with key {error.key!r}, which is not here]"
    history = [_attempt(line, redact) for line in detail.history]
    return {
        **job_document(shown_job(detail.info, redact)),
        "payload": payload,
        "result": next((line["result"] for line in history if "result" in line), None),
        "history": history,
    }


def _attempt(line: TaskExecutionResult, redact: Redact) -> dict[str, Any]:
    document = to_wire(line)
    if "result" in document:
        document["result"] = redacted(redact, document["result"])
    if isinstance(error := document.get("error"), dict):
        shown = {
            name: redacted(redact, error[name]) for name in ("message", "stack") if name in error
        }
        document["error"] = {**error, **shown}
    return document


@answers("JobLogs", "Tell what a job's handler logged")
async def read_logs(call: ApiCall) -> ApiAnswer:
    """Show what the attempts of a job logged; secrets are masked when stored and again here."""
    lines = [document_of(line) for line in await call.job().alogs()]
    shown = [
        {**line, "message": redacted_text(call.app.bus.redact, line["message"])} for line in lines
    ]
    return ApiAnswer(body={"lines": shown})


@answers("Explanation", "Tell why a job is not running")
async def explain(call: ApiCall) -> ApiAnswer:
    """Explain why a job is not running now, or what it does instead."""
    return ApiAnswer(body=document_of(await call.job().aexplain()))


@answers("WaitedJob", "Wait until a job has finished")
async def wait(call: ApiCall, query: WaitQuery) -> ApiAnswer:
    """Show the job once it has finished, or after the timeout: `finished` says which."""
    handle = call.job()
    finished = (await handle.astatus()) in TERMINAL
    if not finished:
        with suppress(JobError):  # it failed, or did not finish in time: `finished` says which
            await handle.aresult(timeout=query.timeout)
        finished = (await handle.astatus()) in TERMINAL
    return ApiAnswer(body={"finished": finished, "job": await whole_job(call)})


@answers("ActedJob", "Cancel a job")
async def cancel(call: ApiCall) -> ApiAnswer:
    """Cancel a job, or have its worker stop it; a finished job is a conflict."""
    handle = call.job()
    before = await handle.astatus()
    if not await handle.acancel():
        raise JobConflict(
            f"job {handle.id} had finished already; nothing was changed", job_id=handle.id
        )
    return await _acted(call, before)


async def _acted(call: ApiCall, before: JobStatus, **more: Any) -> ApiAnswer:
    handle = call.job()
    after = await handle.astatus()
    body = {"id": handle.id, "status": after, **more}
    return ApiAnswer(body=body, before={"status": before}, after={"status": after, **more})


@answers("ActedJob", "Run a finished job again, or a waiting one now")
async def retry(call: ApiCall, order: RetryOrder) -> ApiAnswer:
    """Run a finished job again with fresh budgets, or a waiting one now."""
    handle = call.job()
    before = await handle.astatus()
    await handle.aretry(reset_budget=order.reset_budget)
    return await _acted(call, before)


@answers("ActedJob", "Run a dead job again")
async def redrive(call: ApiCall, order: RetryOrder) -> ApiAnswer:
    """Run a dead job again; one that is not dead is a conflict."""
    handle = call.job()
    status = await handle.astatus()
    if status is not JobStatus.DEAD:
        raise JobConflict(f"job {handle.id} is {status}, not dead", job_id=handle.id)
    return await retry(call, order)


@answers("ActedJob", "Let a job go on that needs a person")
async def approve(call: ApiCall, order: DecisionOrder) -> ApiAnswer:
    """Let a job go on that needs a person."""
    return await _decided(call, call.job().aapprove, order.note)


@answers("ActedJob", "End a job that needs a person")
async def decline(call: ApiCall, order: DecisionOrder) -> ApiAnswer:
    """End a job that needs a person."""
    return await _decided(call, call.job().adecline, order.note)


async def _decided(call: ApiCall, verb: Callable[..., Awaitable[bool]], note: str) -> ApiAnswer:
    before = await call.job().astatus()
    waited = await verb(by=call.principal.name, note=note)
    return await _acted(call, before, waited=waited)


@answers("ActedJob", "Send a job a signal")
async def signal(call: ApiCall, order: SignalOrder) -> ApiAnswer:
    """Send a job a signal."""
    handle = call.job()
    before = await handle.astatus()
    key = call.idempotency_key
    await handle.asignal(
        order.name, order.value, idempotency_key=key and f"{call.principal.name} {key}"
    )
    return await _acted(call, before, signal=order.name)


@answers("Redriven", "Run dead letters again that fit")
async def redrive_many(call: ApiCall, order: RedriveOrder) -> ApiAnswer:
    """Run matching dead letters again; `after` says where to continue while there are more."""
    chosen = _dead_filter(call, order)
    page = await call.insights.ajobs(chosen, limit=order.limit, after=order.after, most=LOOK_MAX)
    found = [job for job in page.jobs if has_end(job, order.error, order.place)]
    answers: Counter[str] = Counter()
    for job in [] if order.dry_run else found:
        try:
            await call.view.job(job.id).aretry(reset_budget=order.reset_budget)
        except JobError:  # redriven or removed meanwhile, or another job has its key
            answers["refused"] += 1
        else:
            answers["redriven"] += 1
    body = {
        "matched": len(found),
        "redriven": answers["redriven"],
        "refused": answers["refused"],
        "after": page.after,
    }
    return ApiAnswer(body=body, after={**body, "filter": msgspec.to_builtins(order)})
