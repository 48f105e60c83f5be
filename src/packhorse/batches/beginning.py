# SPDX-License-Identifier: MIT
"""Begin a batch: from a task, its options and an iterator to jobs in the store."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict

import msgspec

from packhorse.batches.changes import Filler
from packhorse.batches.handle import Batch
from packhorse.batches.progress import OnProgress, follow
from packhorse.call import Call, Choices
from packhorse.client.registry import TaskDefinition
from packhorse.client.submission import Submission, new_job
from packhorse.core.batches import BATCH_QUEUE, BATCH_SIZE, BatchDocument
from packhorse.core.clock import new_id
from packhorse.core.interpreter import in_event_loop
from packhorse.core.job import JobOptions, NewJob
from packhorse.core.options import chosen_options, key_text
from packhorse.errors import ConfigError, TenantRequired
from packhorse.steps.cursor import asynchronous

#: Options that identify one job, and so cannot be given to the many jobs of a batch.
_NOT_FOR_MEMBERS: Final = (
    *("job_id", "idempotency_key", "idempotency_window", "unique", "tx", "notify", "wait"),
    *("ordering_key", "trace_id"),
)
_SIZE_MAX: Final = 100_000
_CONCURRENCY_MAX: Final = 1_000


class MapOptions(TypedDict, total=False):
    """What `task.map(items, ...)` takes."""

    id: str | None  #: of the batch; a new one
    on_progress: OnProgress | None  #: called in this process after each job
    on_success: Call[Any] | None  #: submitted once all items have succeeded
    on_complete: Call[Any] | None  #: submitted once all jobs have ended
    on_death: Call[Any] | None  #: submitted once the first item has failed for good


class BatchOptions(MapOptions, total=False):
    """What `app.batch(task, items, ...)` takes."""

    batch_size: int | None  #: items of one job; 100
    parallel: bool | None  #: False: one job after the other, in order
    stop_on_error: bool | None  #: no further job starts once an item has failed for good
    item_concurrency: int | None  #: items of a job at once; 1
    queue: str | None  #: "batch"
    priority: Literal["critical", "high", "normal", "low", "background"] | None


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that is to begin: its task, the choices for its jobs, and its options."""

    submission: Submission
    task: TaskDefinition
    choices: Choices
    options: Mapping[str, Any]
    single: bool = False  #: a job for each item, as `task.map` makes them

    def begin(self, items: Iterable[Any]) -> Batch[Any]:
        """Store the items as jobs, and return a handle on the batch."""
        connection = self.submission.connection
        if in_event_loop():
            self.submission.warn_of_blocking("map" if self.single else "batch")
        document = self._document(items)
        connection.submit(())  # it declares queues and limits first
        batch = self._watched(document)
        with self._traced(document) as carrying:
            batch.fill(Filler(connection.store, self.task, carrying), items)
        return batch

    async def abegin(self, items: Iterable[Any] | AsyncIterable[Any]) -> Batch[Any]:
        """As `begin`, without blocking the event loop."""
        connection = self.submission.connection
        document = self._document(items)
        await connection.adeclare()
        batch, store = self._watched(document), await connection.astore()
        with self._traced(document) as carrying:
            await batch.afill(Filler(store, self.task, carrying), asynchronous(items))
        return batch

    def _watched(self, document: BatchDocument) -> Batch[Any]:
        """Have `on_progress` called, by a worker of this process or by a thread."""
        connection, watchers = self.submission.connection, self.submission.watchers
        tenant = document.job.tenant
        batch: Batch[Any] = Batch(document.id, connection, tenant=tenant, task=self.task)
        function = self.options.get("on_progress")
        if function is not None:
            watchers.add(batch.id, function)
            following = follow(watchers, batch.id, batch.adocument, connection)
            threading.Thread(target=following, name="packhorse-progress", daemon=True).start()
        return batch

    @contextmanager
    def _traced(self, batch: BatchDocument) -> Iterator[BatchDocument]:
        """Yield the batch with its jobs and callbacks in the trace of the caller."""
        with self.submission.traced([batch.job, *batch.callbacks.values()]) as (job, *callbacks):
            named = dict(zip(batch.callbacks, callbacks, strict=True))
            yield msgspec.structs.replace(batch, job=job, callbacks=named)

    def _document(self, items: object) -> BatchDocument:
        single, connection = self.single, self.submission.connection
        where = f"{self.task.name}.map()" if single else f"app.batch({self.task.name})"
        chosen = chosen_options(self.options, MapOptions if single else BatchOptions, where)
        callbacks = {
            kind: new_job(_call(call, f"{where}: on_{kind}"), connection.declarations, "")
            for kind in ("success", "complete", "death")
            if (call := chosen.get(f"on_{kind}")) is not None
        }
        job = self._template(chosen, where)
        if job.tenant:  # callbacks are the tenant's too
            callbacks = {kind: _of_tenant(each, job.tenant) for kind, each in callbacks.items()}
        return BatchDocument(
            id=key_text(chosen.get("id") or new_id(), f"{where}: id"),
            job=job,
            created_us=connection.clock.now_us(),
            batch_size=_number(chosen, "batch_size", BATCH_SIZE, _SIZE_MAX, where),
            single=single,
            parallel=bool(chosen.get("parallel", True)),
            stop_on_error=bool(chosen.get("stop_on_error", False)),
            concurrency=_number(chosen, "item_concurrency", 1, _CONCURRENCY_MAX, where),
            callbacks=callbacks,
            expected=len(items) if isinstance(items, Sized) else 0,
            producer=new_id(),
        )

    def _template(self, chosen: Mapping[str, Any], where: str) -> NewJob:
        """Make the template of all members."""
        task = self.task
        for name in _NOT_FOR_MEMBERS:
            if name in self.choices.values:
                raise ConfigError(
                    f"{where}: {name}= is for one job, and a batch has many: leave it out"
                )
        own = {name: chosen[name] for name in ("queue", "priority") if name in chosen}
        fields = self.choices.using(own, where).fields()
        fields.setdefault("queue", task.queue if self.single else BATCH_QUEUE)
        if task.bound is not None:
            task.bound.limit(fields)
        retry, version = fields.pop("retry", None), task.version
        options = JobOptions(retry=retry, max_crashes=task.max_crashes, version=version)
        fields["options"] = None if options == JobOptions() else options
        job = NewJob("", task.name, b"", timeout_us=task.timeout_us)
        job = msgspec.structs.replace(job, **fields)
        declarations = self.submission.connection.declarations
        if declarations.demanding and not job.tenant and declarations.demands_tenant(job.queue):
            raise TenantRequired(job.task, job.queue)
        return job


def _call(value: object, where: str) -> Call[Any]:
    if not isinstance(value, Call):
        raise ConfigError(f"{where}: {value!r} is not a call; make one with task.call(...)")
    return value


def _of_tenant(job: NewJob, tenant: str) -> NewJob:
    if job.tenant not in ("", tenant):
        raise ConfigError(
            f"a callback of task {job.task} is for tenant {job.tenant!r}, and its batch for "
            f"{tenant!r}: leave its tenant out"
        )
    return msgspec.structs.replace(job, tenant=tenant)


def _number(chosen: Mapping[str, Any], name: str, default: int, most: int, where: str) -> int:
    value = chosen.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"{where}: {name} is {value!r}; give a whole number from 1 to {most}")
    return value
