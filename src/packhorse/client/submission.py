# SPDX-License-Identifier: MIT
"""Submit calls: build a job from each, with its defaults, an id and a trace, and store them.

A store serves others between two transactions, so a bulk submit is cut into parts of bounded size,
unless the caller wants it stored all or none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from packhorse.batches.progress import ProgressWatchers
from packhorse.call import NO_CHOICES, Call, not_alone
from packhorse.client.declarations import Declarations
from packhorse.client.registry import TaskDefinition
from packhorse.client.store_access import Connection
from packhorse.client.transactions import Within
from packhorse.core.clock import new_ids
from packhorse.core.codec import PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_WARNING
from packhorse.core.interpreter import in_event_loop, user_stacklevel
from packhorse.core.job import IdempotencyRule, JobOptions, NewJob
from packhorse.core.keys import taken_key
from packhorse.errors import ConfigError, PackhorseError, PayloadError, TenantRequired, UsageError
from packhorse.handle import JobHandle
from packhorse.unique import Unique, payload_digest, unique_rule

R = TypeVar("R")

#: Jobs, and bytes of their payloads, in one transaction of a bulk submit.
PART_JOBS_MAX: Final = 1_000
PART_BYTES_MAX: Final = 4 * 1024 * 1024
#: The same for one transaction (`atomic`), while which other writers may have to wait.
ATOMIC_JOBS_MAX: Final = 5_000
ATOMIC_BYTES_MAX: Final = 16 * 1024 * 1024
#: Choices that leave the job itself as it is.
_TX_ALONE: Final = {"tx": None}.keys()
_UNCHANGED: Final = "nothing was stored"
#: Tasks and queues of which a warning was considered; it is not considered for more.
_WARNED_MAX: Final = 1_000


class PreparedJobs(NamedTuple):
    """Jobs to store together, and how to store them."""

    jobs: list[NewJob]
    wait_us: int | None = None  #: how long to wait for room; None is what the queue says
    ids_are_new: bool = False  #: no job in the store has one of their ids
    within: Within | None = None  #: the user's transaction that they are part of
    calls: Sequence[Call[Any]] = ()  #: what the jobs were made from, if from calls
    atomic: bool = True  #: all or none; else in parts


class Submission:
    """Submits calls for an app; warns once of large payloads and of blocked event loops."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.subscribers: dict[str, dict[str, Call[Any]]] = {}  #: of topics, by the task's name
        #: Entered around each submit, with its jobs, where submits are traced.
        self.around: Callable[[list[NewJob]], AbstractContextManager[list[NewJob]]] = nullcontext
        self._warned: set[str] = set()  # a task each, a chosen queue each, and one for blocking
        self.watchers = ProgressWatchers()  #: of batches that this process has begun

    def traced(self, jobs: Sequence[NewJob]) -> AbstractContextManager[list[NewJob]]:
        """Return a context to store jobs in; it yields the jobs with their trace, if any."""
        return self.around(list(jobs)) if jobs else nullcontext([])

    def store(
        self, batch: PreparedJobs, verb: str, *, tenant: str | None = None
    ) -> list[JobHandle[Any]]:
        """Store checked jobs, and return a handle for each; `verb` is what the user called."""
        made, wait_us, ids_are_new, within, calls, atomic = batch
        if not made:
            return []
        connection = self.connection
        handles: list[JobHandle[Any]] = []
        with self.around(made) as jobs:
            if within is not None:
                for written in map(within.written, parts(jobs, atomic=False)):
                    connection.transactions.write(connection.store, within.tx, written)
                return [JobHandle(job.id, None, connection, tenant) for job in jobs]
            if in_event_loop():
                self.warn_of_blocking(verb)
            try:
                for part in parts(jobs, atomic=atomic):
                    answers = connection.submit(part, wait_us=wait_us, ids_are_new=ids_are_new)
                    handles += [
                        JobHandle(one.job_id, one.deduplicated, connection, tenant)
                        for one in answers
                    ]
            except PackhorseError as error:
                cut_short(error, calls, jobs, handles)
                raise
        return handles

    async def astore(
        self, batch: PreparedJobs, *, tenant: str | None = None
    ) -> list[JobHandle[Any]]:
        """As `store`, without blocking the event loop."""
        made, wait_us, ids_are_new, within, calls, atomic = batch
        if not made:
            return []
        connection = self.connection
        handles: list[JobHandle[Any]] = []
        with self.around(made) as jobs:
            if within is not None:
                store = await connection.astore()
                for written in map(within.written, parts(jobs, atomic=False)):
                    await connection.transactions.awrite(store, within.tx, written)
                return [JobHandle(job.id, None, connection, tenant) for job in jobs]
            try:
                for part in parts(jobs, atomic=atomic):
                    answers = await connection.asubmit(
                        part, wait_us=wait_us, ids_are_new=ids_are_new
                    )
                    handles += [
                        JobHandle(one.job_id, one.deduplicated, connection, tenant)
                        for one in answers
                    ]
            except PackhorseError as error:
                cut_short(error, calls, jobs, handles)
                raise
        return handles

    def prepared(
        self, made: Iterable[Call[Any]], *, atomic: bool = False, tx: object = None
    ) -> PreparedJobs:
        """Build and check the jobs of calls; the least patient call says how long to wait.

        They are stored in parts, or all or none if `atomic`. With `tx`, or where the calls name
        one, they are stored when that transaction commits.
        """
        calls = list(made)
        for call in calls:
            if type(call) is not Call:
                raise not_alone(call)
        declarations, ids = self.connection.declarations, new_ids(len(calls))
        jobs = [new_job(one, declarations, new) for one, new in zip(calls, ids, strict=True)]
        self.check(jobs)
        chosen = [call.choices.values for call in calls]
        if tx is None and not any(chosen):
            return PreparedJobs(jobs, None, True, None, calls, atomic)
        self._warn_of_queues(calls)
        within = Within.of(chosen, tx)
        if within is not None:
            return PreparedJobs(jobs, None, False, within, calls, atomic)
        wait_us = min((values["wait"] for values in chosen if "wait" in values), default=None)
        ids_are_new = [job.id for job in jobs] == ids
        return PreparedJobs(jobs, wait_us, ids_are_new, None, calls, atomic)

    def checked(self, jobs: Iterable[NewJob]) -> list[NewJob]:
        """Jobs that were not made from calls, checked, each with the trace id its queue wants."""
        of = self.connection.declarations.of
        found = [
            msgspec.structs.replace(job, trace_id=job.id) if of(job.queue).unique_traces else job
            for job in jobs
        ]
        self.check(found)
        return found

    def check(self, jobs: Sequence[NewJob]) -> None:
        """Refuse jobs without the tenant their queue demands, and payloads that are too large."""
        declarations = self.connection.declarations
        for job in jobs:
            if declarations.demanding and not job.tenant and declarations.demands_tenant(job.queue):
                raise TenantRequired(job.task, job.queue)
            size = len(job.payload)
            if size > PAYLOAD_BYTES_MAX:
                raise PayloadError(
                    f"the payload of task {job.task} is {size} bytes, and {PAYLOAD_BYTES_MAX} "
                    "are allowed; nothing was stored: keep the data elsewhere and pass a reference"
                )
            if size > PAYLOAD_BYTES_WARNING:
                self._warn_of_size(job.task, size)

    def _warn_of_queues(self, calls: Iterable[Call[Any]]) -> None:
        """Warn once of each chosen queue whose name looks mistyped."""
        for call in calls:
            queue = call.choices.values.get("queue", call.definition.queue)
            if queue == call.definition.queue or (noted := f"queue {queue}") in self._warned:
                continue
            if len(self._warned) < _WARNED_MAX:  # a program may have a queue for each customer
                self._warned.add(noted)
                warn_of_mistyped_queue(self.connection, queue)

    def _warn_of_size(self, task: str, size: int) -> None:
        if task in self._warned:
            return
        self._warned.add(task)
        message = (
            f"a payload of task {task} is {size} bytes; above {PAYLOAD_BYTES_WARNING} they slow "
            "the queue down: keep the data elsewhere and pass a reference"
        )
        import logging  # noqa: PLC0415 - rarely needed, so submitting does not pay for it

        logging.getLogger("packhorse").warning(message)
        warnings.warn(message, UserWarning, stacklevel=user_stacklevel())

    def warn_of_blocking(self, verb: str) -> None:
        """Warn once that a sync verb blocks the event loop it was called on."""
        if "" in self._warned:
            return
        self._warned.add("")
        warnings.warn(
            f"{verb}() blocks the running event loop until the store has written; "
            f"await a{verb}() instead",
            RuntimeWarning,
            stacklevel=user_stacklevel(),
        )


def new_job(call: Call[Any], declarations: Declarations, job_id: str) -> NewJob:
    """Build the job of a call, with the id its caller chose or else `job_id`."""
    task = call.definition
    fields: dict[str, Any] = {}
    values = call.choices.values
    if task.adds_fields or not (call.choices is NO_CHOICES or values.keys() == _TX_ALONE):
        fields = _fields(call, declarations)
    if declarations.tracing and declarations.of(fields.get("queue", task.queue)).unique_traces:
        fields["id"] = fields["trace_id"] = _one_name(fields, task.queue) or job_id
    job_id = fields.get("id", job_id)
    job = NewJob(
        job_id,
        task.name,
        call.payload,
        task.queue,
        timeout_us=task.timeout_us,
        trace_id=job_id.replace("-", ""),  # as unique as the id
    )
    return msgspec.structs.replace(job, **fields) if fields else job


def _one_name(fields: Mapping[str, Any], queue: str) -> str | None:
    """Return the one id of job and trace: unique as a job id, so as a trace id too."""
    queue, job_id = fields.get("queue", queue), fields.get("id")
    trace_id = fields.get("trace_id")
    if job_id is not None and trace_id not in (None, job_id):
        raise ConfigError(
            f"queue {queue!r} has unique_traces, where a job's trace id is its id; a call gives "
            f"job_id {job_id!r} and trace_id {trace_id!r}; nothing was stored: give one of them"
        )
    return job_id or trace_id


def _fields(call: Call[Any], declarations: Declarations) -> dict[str, Any]:
    """Return the job fields that the caller chose or the task adds."""
    task, fields = call.definition, call.choices.fields()
    for name in ("wait_us", "tx", "notify"):
        fields.pop(name, None)
    if task.bound is not None:
        task.bound.complete(fields, call.payload)
    keys = taken_keys(task, call.payload, fields.pop("unique", None))
    retry, key, version = fields.pop("retry", None), fields.get("idempotency_key"), task.version
    if any(each is not None for each in (retry, key, version, task.max_crashes)):
        # The crash limit travels with the job: a worker that rescues it may not know the task.
        fields["options"] = JobOptions(
            retry=retry, max_crashes=task.max_crashes, idempotency_key=key, version=version
        )
    fields["idempotency"] = idempotency_rule(
        task,
        call.payload,
        fields.get("queue", task.queue),
        declarations,
        key=fields.pop("idempotency_key", None),
        window_us=fields.pop("idempotency_window_us", None),
    )
    return {**keys, **fields}


def taken_keys(
    task: TaskDefinition, payload: bytes, unique: Unique | None = None
) -> dict[str, Any]:
    """Return the keys that a task takes from its arguments; most tasks take none."""
    keys: dict[str, Any] = {}
    if task.concurrency_key is not None:
        keys["concurrency_key"] = taken_key(task.concurrency_key, task, payload)
    if task.rate_key is not None:
        keys["rate_key"] = taken_key(task.rate_key, task, payload)
    chosen = unique or task.unique
    if chosen is not None:
        keys["unique"] = unique_rule(chosen, task, payload)
    return keys


def idempotency_rule(
    task: TaskDefinition,
    payload: bytes,
    queue: str,
    declarations: Declarations,
    *,
    key: str | None,
    window_us: int | None = None,
) -> IdempotencyRule | None:
    """Return the idempotency rule of a job, if it has a key."""
    if key is None:
        if window_us is not None:
            raise ConfigError(
                f"a call of task {task.name} has an idempotency_window and no idempotency_key, so "
                "the window says nothing; give a key, or leave the window out"
            )
        return None
    window_us = declarations.idempotency_window_us(task, queue, window_us)
    return IdempotencyRule(key, payload_digest(task.name, task, payload), window_us)


def warn_of_mistyped_queue(connection: Connection, queue: str) -> None:
    """Warn of a queue that this app does not declare, if it nearly has the name of one it does.

    It is no error: another program may declare it.
    """
    meant = connection.declarations.meant_by(queue)
    if meant is not None:
        warnings.warn(
            f"no queue {queue!r} is declared here; did you mean {meant!r}? If not, declare it with "
            f"app.queue({queue!r})",
            UserWarning,
            stacklevel=user_stacklevel(),
        )


def parts(jobs: Sequence[NewJob], *, atomic: bool) -> Iterable[Sequence[NewJob]]:
    """Split jobs into transactions; `atomic`: one, or `UsageError` if it is too large."""
    if len(jobs) == 1:
        return (jobs,)
    sizes = [len(job.payload) for job in jobs]
    if atomic:
        _refuse_large(len(jobs), sum(sizes))
    if atomic or (len(jobs) <= PART_JOBS_MAX and sum(sizes) <= PART_BYTES_MAX):
        return (jobs,) if jobs else ()
    return _cut(jobs, sizes)


def _cut(jobs: Sequence[NewJob], sizes: Sequence[int]) -> Iterator[Sequence[NewJob]]:
    begin, taken = 0, 0
    for index, size in enumerate(sizes):
        if index - begin == PART_JOBS_MAX or (taken + size > PART_BYTES_MAX and index > begin):
            yield jobs[begin:index]
            begin, taken = index, 0
        taken += size
    yield jobs[begin:]


def cut_short(
    error: PackhorseError,
    calls: Sequence[Call[Any]],
    jobs: Sequence[NewJob],
    stored: Sequence[Any],
) -> None:
    """Say in the error that ended a bulk submit what was stored before, and what remains."""
    if not calls:  # stored all or none
        return
    remaining = zip(calls[len(stored) :], jobs[len(stored) :], strict=True)
    error.stored = tuple(stored)
    error.rest = tuple(call.using(job_id=job.id) for call, job in remaining)
    if stored:
        said = f"only the first {len(stored)} of {len(jobs)} jobs were stored"
        text = str(error).replace(_UNCHANGED, said)
        text = text if said in text else f"{text}; {said} for certain"
        error.args = (f"{text}; error.stored has their handles, error.rest the other calls",)


def _refuse_large(count: int, size: int) -> None:
    if count <= ATOMIC_JOBS_MAX and size <= ATOMIC_BYTES_MAX:
        return
    raise UsageError(
        f"enqueue_many(atomic=True) was given {count} jobs with {size} bytes of arguments, and one "
        f"transaction takes at most {ATOMIC_JOBS_MAX} and {ATOMIC_BYTES_MAX}: others wait for it; "
        "nothing was stored: leave atomic out, or submit fewer at once"
    )
