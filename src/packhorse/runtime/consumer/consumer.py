# SPDX-License-Identifier: MIT
"""The verbs of a runtime of one's own: fetch, mark_complete, retry_job, mark_failed, and others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from packhorse import logs
from packhorse.client.store_access import Connection
from packhorse.core.clock import SECOND_US, Chance, Clock, new_id
from packhorse.core.config import WorkerOptions
from packhorse.core.durations import Duration, microseconds
from packhorse.core.options import key_tuple, queue_text, text_tuple
from packhorse.core.outcome import Outcome, Released, Succeeded
from packhorse.errors import ConfigError, ContractError, JobConflict, PayloadError, UsageError
from packhorse.events import EventBus, ObserverFailed
from packhorse.logs.formats import EventRecord
from packhorse.protocol import WorkerResponse
from packhorse.runtime.consumer.fetched import (
    DEADLINE,
    JOB_TIMEOUT,
    FetchedJob,
    failed_for_good,
    failed_once,
)
from packhorse.runtime.consumer.runtime import ConsumerRuntime
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.environment import Environment
from packhorse.runtime.worker.executor import answered, moved_aside
from packhorse.runtime.worker.handlers import rules_of, too_large
from packhorse.runtime.worker.outcomes import as_error_object, returned_error
from packhorse.stores.requests import EVERY_TASK

#: How long a fetch waits for a job, and so how soon a loop around it sees its own stop flag.
_FETCH_S: Final = 1.0
#: How long a job waits that its runtime wants retried.
_RETRY_S: Final = 5.0
_STILL_OPEN: Final = "the job is still open: give another result, or mark_failed()"


class Consumer:
    """Fetches jobs for a runtime of one's own; any number of loops may share one.

    It opens with the first fetch, or as an async context manager, and belongs to that event loop.
    While a fetched job is open its lease is renewed from a thread, up to the job's hold limit
    (timeout + 30 s): a job that is forgotten is fetched again then. The verbs that say what became
    of a job answer False when it had been given away by then; nothing was changed.
    """

    def __init__(
        self, connection: Connection, chance: Chance, settings: ConsumerSettings, version: str
    ) -> None:
        self.id = new_id()  #: as a worker, in the store and in events
        self._connection = connection
        self._chance = chance
        self._settings = settings
        self._version = version
        self._opening = asyncio.Lock()
        self._runtime: ConsumerRuntime | None = None
        self._closed = False
        self._silence: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def fetch(self, timeout: Duration = _FETCH_S) -> FetchedJob | None:
        """The next job, or None when there is none within `timeout` or the consumer is closed.

        The store is looked at once at least, which may take up to a second longer. Trouble with
        the store is told as `store.trouble`, and looks like an empty queue here.
        """
        timeout_s = microseconds(timeout, setting="fetch(): timeout") / SECOND_US
        runtime = await self._opened()
        return await runtime.fetch(timeout_s)

    async def mark_complete(
        self, job: FetchedJob | str, result: Any = None, latency_s: Duration | None = None
    ) -> bool:
        """It is done, with this result: any JSON value.

        An exception or a TaskError as a result is a failure, and a deadline that has passed is
        dead `expired`; neither is ever a success. `NeedsHuman`, or an answer `needs_human`, makes
        the job wait for a person, as that of a handler does.
        `latency_s` is the duration events tell; the time since the fetch if it is left out.
        """
        runtime, attempt = self._found(job)
        outcome = await self._bounded(attempt, self._completed(runtime, attempt, result))
        outcome = await runtime.asked(attempt, outcome)
        return await runtime.settle(attempt, outcome, latency_s=_seconds(latency_s, "latency_s"))

    async def retry_job(
        self,
        job: FetchedJob | str,
        delay_s: Duration | None = _RETRY_S,
        reason: str = JOB_TIMEOUT,
        details: object = None,
    ) -> bool:
        """Run it again after `delay_s`, or after the policy's own delay if that is None.

        Counts as a failure: without a retry left the job is dead, `poison_message`. The reason is
        stored with the attempt; `job_timeout` makes it a timeout, which a policy may not retry.
        """
        runtime, attempt = self._found(job)
        outcome = failed_once(reason, details, attempt.timeout_s)
        delay_us = None if delay_s is None else microseconds(delay_s, setting="delay_s")
        return await runtime.settle(attempt, outcome, retry_us=delay_us)

    async def mark_failed(self, job: FetchedJob | str, reason: str, details: object = None) -> bool:
        """Give it up for good: dead `rejected`, or `poison_message` if no retry was left anyway."""
        runtime, attempt = self._found(job)
        rule = rules_of(attempt.job, attempt.handler).retry
        last = attempt.job.failures >= rule.max_retries
        outcome = failed_for_good(reason, details, attempt.timeout_s, last=last)
        return await runtime.settle(attempt, outcome)

    async def release(self, job: FetchedJob | str) -> bool:
        """Give it back: ready at once, in its old place, and nothing counts as failed."""
        runtime, attempt = self._found(job)
        return await runtime.settle(attempt, Released(started=True))

    async def spend(self, job: FetchedJob | str, *, tokens: int) -> None:
        """Count tokens that the job has spent, as `ctx.spend` does: kept before this returns.

        Beyond the contract's `max_tokens` it raises `BudgetExceeded`: whichever verb follows then
        makes the job a dead letter, `rejected`.
        """
        runtime, attempt = self._found(job)
        await runtime.context(attempt).aspend(tokens=tokens)

    def cancel_requested(self, job: FetchedJob | str) -> bool:
        """Whether an open job is to be cancelled; any verb then finishes it as cancelled."""
        return self._found(job)[1].cancelling

    async def close(self) -> None:
        """End fetches under way with None, give back what is open, and leave. May be repeated."""
        self._closed = True
        async with self._opening:
            if self._runtime is None or self._silence is None:
                return
            await self._runtime.close()
            self._silence()
            self._silence = None

    async def _opened(self) -> ConsumerRuntime:
        async with self._opening:
            if self._closed:
                raise UsageError("this consumer is closed; make another one with app.consumer(...)")
            if self._runtime is None:
                self._runtime = await self._open()
        return self._here(self._runtime)

    async def _open(self) -> ConsumerRuntime:
        connection = self._connection
        await connection.adeclare()
        env = Environment(
            store=await connection.astore(),
            registry=connection.registry,
            bus=connection.bus,
            clock=connection.clock,
            chance=self._chance,
            queues=connection.queues,
            version=self._version,
            declare=connection.declare_all,
            places=connection.places,
            outboxes=connection.outboxes,
        )
        runtime = ConsumerRuntime(self.id, env, self._settings.options, self._settings.tasks)
        # Failures are logged, unless an observer is registered for them.
        heard = connection.bus.wants(ObserverFailed)
        self._silence = _nothing if heard else attach_log(connection.bus, connection.clock)
        runtime.start()
        return runtime

    def _found(self, job: FetchedJob | str) -> tuple[ConsumerRuntime, Attempt]:
        if self._runtime is None:
            raise UsageError("this consumer has fetched nothing yet; fetch a job first")
        runtime = self._here(self._runtime)
        if isinstance(job, FetchedJob):
            return runtime, job.origin
        return runtime, _only(runtime.open(job), job)

    def _here(self, runtime: ConsumerRuntime) -> ConsumerRuntime:
        if runtime.loop is not asyncio.get_running_loop():
            raise UsageError(
                "a consumer belongs to the event loop that opened it; make one per event loop"
            )
        return runtime

    def _completed(self, runtime: ConsumerRuntime, attempt: Attempt, result: Any) -> Outcome:
        if as_error_object(result):
            return returned_error(result)
        if isinstance(result, WorkerResponse):
            return answered(attempt.handler, result, job_id=attempt.job.id)
        if runtime.deadline_passed(attempt):
            return failed_once(DEADLINE, None, attempt.timeout_s)
        try:
            # A runtime that has no result to tell says nothing about it.
            text = "null" if result is None else attempt.handler.encode_result(result)
        except (PayloadError, ContractError) as error:
            raise PayloadError(
                f"the result of job {attempt.job.id} is refused: {error}; {_STILL_OPEN}",
                field=error.field,
            ) from error
        return Succeeded(text)

    async def _bounded(self, attempt: Attempt, outcome: Outcome) -> Outcome:
        problem = too_large(attempt.handler, outcome)
        if problem is None:
            return outcome
        places = self._connection.places
        moved = await asyncio.to_thread(moved_aside, places, attempt, outcome)
        if moved is None:
            raise PayloadError(f"{problem}; job {attempt.job.id}: {_STILL_OPEN}", field="return")
        return moved


def _only(found: list[Attempt], job_id: str) -> Attempt:
    if len(found) == 1:
        return found[0]
    if found:
        fences = ", ".join(str(each.job.fence) for each in found)
        raise JobConflict(
            f"job {job_id} was fetched more than once here (fences {fences}); give the fetched "
            "job itself instead of its id",
            job_id=job_id,
        )
    raise JobConflict(
        f"no fetch of job {job_id} is open here: it was never fetched by this consumer, is "
        "settled, or was held beyond its limit; look at it with app.job(job_id)",
        job_id=job_id,
    )


def _seconds(value: Duration | None, setting: str) -> float | None:
    return None if value is None else microseconds(value, setting=setting) / SECOND_US


def _nothing() -> None:
    """Leave the log to the observer."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Which jobs it fetches, and for how long they are its own."""

    options: WorkerOptions
    tasks: tuple[str, ...]  #: `*` is every task


def consumer_settings(
    queues: Iterable[str],
    tasks: Iterable[str] | None,
    *,
    tenants: Iterable[str] | None = None,
    lease: Duration,
    default_timeout: Duration,
) -> ConsumerSettings:
    """The arguments of `app.consumer(...)` as a consumer takes them."""
    named = (EVERY_TASK,) if tasks is None else text_tuple(tasks, "consumer(): tasks")
    if not named:
        raise ConfigError(
            "consumer(): tasks is empty, so nothing would ever be fetched; name some, or leave it "
            "out for every task"
        )
    served = () if tenants is None else key_tuple(tenants, "consumer(): tenants")
    if tenants is not None and not (served and all(served)):
        raise ConfigError(
            f"consumer(): tenants is {list(served)!r}; name at least one tenant, each a non-empty "
            "text, or leave it out for the jobs of every tenant"
        )
    options = WorkerOptions(
        queues=key_tuple(queues, "consumer(): queues", queue_text),
        tenants=served,
        lease_us=microseconds(lease, setting="consumer(): lease"),
        default_timeout_us=microseconds(default_timeout, setting="consumer(): default_timeout"),
    )
    return ConsumerSettings(options, named)


LOGGER: Final = "packhorse.consumer"

#: What a record's `log_name` is, by its event.
_LOG_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "job.started": "job_fetched",
        "job.completed": "job_completed",
        "job.retried": "job_retried",
        "job.failed": "job_failed",
        "job.timed_out": "job_failed",
        "job.dead": "job_failed",
        "job.released": "job_released",
    }
)


def attach_log(bus: EventBus, clock: Clock) -> Callable[[], None]:
    """Log what happens on a bus; returns what ends it."""
    logger = logging.getLogger(LOGGER)
    logger.addFilter(_name)
    detach = logs.attach(bus, logger, clock=clock)

    def end() -> None:
        detach()
        logger.removeFilter(_name)

    return end


def _name(record: logging.LogRecord) -> bool:
    name = _LOG_NAMES.get(getattr(record, "event", ""))
    if name is not None and isinstance(record, EventRecord):
        record.fields["log_name"] = name
        record.__dict__["log_name"] = name
    return True
