# SPDX-License-Identifier: MIT
"""What a handler may know and say about its job: `ctx`, the first parameter of those who want it.

    ctx.job                 id, attempt, fence, tenant, trace_id, deadline, queue, task, ...
    ctx.progress(3, 10)     how far it is; the newest always arrives
    ctx.cancel_requested    the work is not wanted any more: cancelled, timed out, or shutting down
    ctx.wait_cancelled(5)   wait, but not longer than the job is wanted; `await_cancelled` awaits
    ctx.lease_lost          others may hold the job by now: stop side effects
    ctx.still_mine()        ask the store whether that is so
    ctx.idempotency_key("charge")   for outside systems: the same on every attempt
    ctx.step("charge", fn)  call fn once per job: later attempts get what it returned
    ctx.each(items)         go through items, behind those that an earlier attempt was through with
    ctx.sleep("cool", "1h") end this attempt, and go on behind this line in an hour
    ctx.wait_for("paid")    the same, until `job.signal("paid", value)` comes
    ctx.flow.add(call)      add a node to the workflow that the job is a node of
    ctx.transaction()       rows of your own and the end of the job, committed together
    ctx.artifacts.put("a.pdf", data)   keep it beside the store, and a reference with the job
    ctx.snooze("5m")        call me again later
    ctx.breaker("stripe")   call another system, unless it has failed too often of late
    ctx.log                 a logger whose lines carry the job's fields
    ctx.state               what the lifespan hooks yielded
    ctx.tools["search"](q)  a function registered with `app.tool`, if the contract allows it
    ctx.spend(tokens=300)   count what was spent; beyond the contract's `max_tokens` the job ends
    ctx.budget              how much that is: spent, limit, remaining
    ctx.approval            who approved what the handler asked a person; None before

A context is made for one attempt and never shared.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from packhorse.artifacts import Artifacts
from packhorse.attempt_host import AttemptHost, DetachedHost
from packhorse.breaker import Breaker
from packhorse.core.approvals import Approval
from packhorse.core.clock import SECOND_US, new_trace_id, optional_datetime
from packhorse.core.durations import Duration, microseconds
from packhorse.core.job import Job, checked_progress, options_of
from packhorse.core.job_logs import RunningJob
from packhorse.core.outcome import Outcome
from packhorse.signals import Snooze
from packhorse.steps import StepRunner, StepVerbs
from packhorse.tools import NO_TOOLS, Tools
from packhorse.transaction import JobTransaction

if TYPE_CHECKING:
    import asyncio

#: What a middleware awaits besides its context; it returns how the attempt ended.
Proceed = Callable[[], Awaitable[Outcome]]

_NO_STATE: Final[Mapping[str, Any]] = MappingProxyType({})
_LOGGER: Final = "packhorse.job"
#: Hexadecimal digits of an idempotency key: as many as a UUID has.
_KEY_DIGITS: Final = 32
#: The job whose code this task or thread runs; set where that begins.
RUNNING: Final[ContextVar[RunningJob | None]] = ContextVar("packhorse_job", default=None)


class JobView(msgspec.Struct, frozen=True):
    """What a handler may know of its job."""

    id: str
    task: str
    queue: str
    attempt: int  #: from 1
    fence: int  #: rises with every claim; give it to systems that can refuse an older one
    tenant: str = ""
    trace_id: str = ""
    upstream_request_id: str | None = None
    deadline: datetime | None = None
    scheduled_for: datetime | None = None  #: when the fire of its schedule was due


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines carry the job's fields, besides what each call adds."""

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[object, MutableMapping[str, Any]]:
        """Put the job's fields under those the call itself gives."""
        kwargs["extra"] = {**(self.extra or {}), **kwargs.get("extra", {})}
        return msg, kwargs


def job_fields() -> dict[str, Any]:
    """The fields of the job whose code calls this, as log lines carry them; empty outside jobs."""
    running = RUNNING.get()
    return {} if running is None else _fields(running.job, running.worker, running.worker_id)


class Context(StepVerbs):
    """One attempt, as its handler sees it."""

    __slots__ = (
        *("_awaited", "_cancelled", "_job", "_link", "_log", "_steps", "_view", "_waited"),
        *("_max_tokens", "_transaction", "_worker", "approval", "state", "tools"),
    )

    def __init__(
        self,
        job: Job,
        link: AttemptHost,
        *,
        worker: str = "",
        worker_id: str = "",
        state: Mapping[str, Any] = _NO_STATE,
        tools: Tools = NO_TOOLS,
        max_tokens: int | None = None,
    ) -> None:
        self.state = state  #: what the lifespan hooks yielded
        self.tools = tools  #: the app's tools that the task's contract allows
        self.approval: Approval | None = None  #: of what the handler asked; None before
        self._max_tokens = max_tokens
        self._job = job
        self._link = link
        self._worker = (worker, worker_id or job.task)
        self._cancelled = False
        self._view: JobView | None = None
        self._log: JobLog | None = None
        self._steps: StepRunner | None = None
        self._transaction: JobTransaction | None = None
        # Made only for a handler that waits: most never do.
        self._waited: threading.Event | None = None
        self._awaited: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @classmethod
    def detached(
        cls, task: str = "", *, state: Mapping[str, Any] = _NO_STATE, tools: Tools = NO_TOOLS
    ) -> Context:
        """A context for a direct call: no job, no store, and no way to cancel it."""
        return cls(detached_job(task), DetachedHost(), state=state, tools=tools)

    @property
    def job(self) -> JobView:
        """The job this is an attempt of."""
        if self._view is None:
            self._view = _view(self._job)
        return self._view

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far the job is; cheap to call often, and the newest always arrives.

        Numbers are from 0 to `PROGRESS_MAX`; what is not is a `PayloadError`. A note is cut at
        `NOTE_LENGTH_MAX` characters.
        """
        self._link.note_progress(checked_progress(done, total, note))

    def idempotency_key(self, step: str = "") -> str:
        """A key for an outside system, so that what it has done once it does not do again.

        The same on every attempt of this job, and another one for each step. A job that was
        submitted with an idempotency key has the keys of that, as has a later job of the same one.
        """
        job = self._job
        own = options_of(job.options).idempotency_key
        whose = [job.trace_id, job.id] if own is None else [job.tenant, job.task, own]
        return _digest([*whose, step])

    def transaction(self) -> JobTransaction:
        """Write rows and complete the job in one commit; see `JobTransaction`.

        `async with` in coroutines, `with` in plain functions. A block that was rolled back may be
        followed by another.
        """
        self._transaction = JobTransaction.following(self._transaction, self._link)
        return self._transaction

    @property
    def overspent(self) -> bool:
        """Whether the job has spent more than it may; for the worker."""
        return self._steps is not None and self._steps.overspent

    @property
    def steps(self) -> StepRunner:
        """The runner of the steps; for the worker."""
        if self._transaction is not None:
            self._transaction.let_steps()
        if self._steps is None:
            self._steps = StepRunner(self._job, self._link, self, self._max_tokens)
        return self._steps

    def let_go(self) -> None:
        """Forget what holds this context, since the attempt is over; for the worker."""
        if self._steps is not None:
            self._steps.let_go()
            self._steps = None

    @property
    def unwritten_steps(self) -> StepRunner | None:
        """Who writes the steps that share a write and have not been written; for the worker."""
        steps = self._steps
        return steps if steps is not None and steps.has_unwritten else None

    def breaker(
        self,
        name: str,
        *,
        failures: int = 5,
        window: Duration = "30s",
        open_for: Duration = "1m",
        tenant: str = "",
        trip_on: tuple[type[Exception], ...] = (Exception,),
    ) -> Breaker:
        """A circuit breaker for calls to another system: `with`, `async with`, or call it.

        After `failures` within `window`, of any worker of the store, it is open: it raises
        `BreakerOpen`, which makes the job wait and uses up nothing. After `open_for` one call at a
        time is let through, and closes it if it succeeds. Exceptions other than `trip_on` are no
        failures of that system. One name, and tenant if given, is one breaker.
        """
        return Breaker(
            *(self._link.breakers, name),
            failures=failures,
            window=window,
            open_for=open_for,
            tenant=tenant,
            trip_on=trip_on,
        )

    @property
    def host(self) -> AttemptHost:
        """Who runs this attempt; for the worker."""
        return self._link

    @property
    def artifacts(self) -> Artifacts:
        """Keep large values beside the store: `ctx.artifacts.put(name, data)`, or `aput`."""
        return Artifacts(self._job, self._link, self._link.place)

    def snooze(self, delay: Duration) -> NoReturn:
        """End this attempt, and be called again after `delay`; no retry is used up."""
        raise Snooze(delay)

    @property
    def cancel_requested(self) -> bool:
        """Whether the work is not wanted any more: cancelled, timed out, or shutting down."""
        return self._cancelled

    def wait_cancelled(self, timeout: Duration | None = None) -> bool:
        """Wait in a thread until the job is not wanted any more, or `timeout`; says which."""
        if self._waited is None:
            self._waited = threading.Event()
        # Looked at only now: `cancel` sets the flag first and looks for waiters after.
        return self._cancelled or self._waited.wait(_seconds(timeout))

    async def await_cancelled(self, timeout: Duration | None = None) -> bool:
        """As `wait_cancelled`, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

        if self._awaited is None:
            self._awaited = (asyncio.get_running_loop(), asyncio.Event())
        if not self._cancelled:
            try:
                await asyncio.wait_for(self._awaited[1].wait(), _seconds(timeout))
            except TimeoutError:
                return self._cancelled
        return True

    @property
    def lease_lost(self) -> bool:
        """Whether others may hold the job by now, so that its side effects should stop.

        True a little before the store would give the job away, also while the event loop is
        blocked or the store cannot be reached.
        """
        return self._link.lease_lost()

    def still_mine(self) -> bool:
        """Ask the store whether this attempt still holds the job; coroutines use `astill_mine`."""
        return self._link.ask(self._link.still_mine)

    async def astill_mine(self) -> bool:
        """As `still_mine`, without blocking the event loop."""
        return await self._link.aask(self._link.still_mine)

    @property
    def log(self) -> JobLog:
        """A logger whose lines carry the fields of the job: job_id, worker, worker_id, task, ..."""
        if self._log is None:
            self._log = JobLog(logging.getLogger(_LOGGER), _fields(self._job, *self._worker))
        return self._log

    def request_cancel(self) -> None:
        """Tell the handler to stop; the worker that runs the job calls it."""
        self._cancelled = True
        if self._waited is not None:
            self._waited.set()
        if self._awaited is not None:
            loop, event = self._awaited
            loop.call_soon_threadsafe(event.set)


def detached_job(task: str) -> Job:
    """What stands for the job of a function that is called directly."""
    return Job(
        id="detached",
        task=task,
        queue="",
        fence=0,
        payload="{}",
        priority=2,
        tenant="",
        attempts=0,
        failures=0,
        crashes=0,
        lone_crashes=0,
        snoozes=0,
        timeout_us=None,
        deadline_us=None,
        trace_id=new_trace_id(),  # of its own: a direct call is no repetition
        upstream_request_id=None,
        options=None,
        ready_us=0,
    )


def _view(job: Job) -> JobView:
    return JobView(
        id=job.id,
        task=job.task,
        queue=job.queue,
        attempt=job.attempt,
        fence=job.fence,
        tenant=job.tenant,
        trace_id=job.trace_id,
        upstream_request_id=job.upstream_request_id,
        deadline=optional_datetime(job.deadline_us),
        scheduled_for=optional_datetime(options_of(job.options).scheduled_for_us),
    )


#: What `_fields` may hold; the last ones only where a job has them.
JOB_FIELDS: Final = (
    *("job_id", "worker", "worker_id", "queue", "task", "attempt", "trace_id"),
    *("tenant", "upstream_request_id"),
)


def _fields(job: Job, worker: str, worker_id: str) -> dict[str, Any]:
    """The job's fields as every log line about it carries them."""
    values = (job.id, worker, worker_id, job.queue, job.task, job.attempt, job.trace_id)
    fields: dict[str, Any] = dict(zip(JOB_FIELDS, values, strict=False))
    if job.tenant:
        fields["tenant"] = job.tenant
    if job.upstream_request_id is not None:
        fields["upstream_request_id"] = job.upstream_request_id
    return fields


def _digest(parts: list[str]) -> str:
    import hashlib  # noqa: PLC0415 - most handlers never ask

    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:_KEY_DIGITS]


def _seconds(timeout: Duration | None) -> float | None:
    return None if timeout is None else microseconds(timeout, setting="timeout") / SECOND_US
