# SPDX-License-Identifier: MIT
"""The verbs of a runtime of one's own: fetch, mark_complete, retry_job, mark_failed, release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from packhorse.clock import SECOND_US, Chance, new_id
from packhorse.connection import Connection
from packhorse.consumer import log_names
from packhorse.consumer.crew import ConsumerParts, Crew
from packhorse.consumer.fetched import FetchedJob
from packhorse.consumer.plans import ConsumerPlans
from packhorse.consumer.reasons import DEADLINE, JOB_TIMEOUT, failed_for_good, failed_once
from packhorse.consumer.settings import ConsumerSettings
from packhorse.durations import Duration, microseconds
from packhorse.errors import JobConflict, PayloadError, UsageError
from packhorse.events import ObserverFailed
from packhorse.outcome import Outcome, Released, Succeeded
from packhorse.worker.attempt import Attempt
from packhorse.worker.failures import as_error_object, returned_error
from packhorse.worker.plans import limits_of

__all__ = ["Consumer"]

#: How long a fetch waits for a job, and so how soon a loop around it sees its own stop flag.
_FETCH_S: Final = 1.0
#: How long a job waits that its runtime wants retried.
_RETRY_S: Final = 5.0


class Consumer:
    """Fetches jobs for a runtime of one's own; any number of loops may share one.

    It opens with the first fetch, or as an async context manager, and belongs to that event loop.
    While a fetched job is open its lease is renewed from a thread, up to the job's hold limit
    (timeout + 30 s): a job that is forgotten goes to somebody else then. The verbs that say what
    became of a job answer False when it was somebody else's by then; nothing was changed.
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
        self._crew: Crew | None = None
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
        crew = await self._opened()
        attempt = await crew.claimer.fetch(timeout_s)
        return None if attempt is None else await crew.hand_over(attempt)

    async def mark_complete(
        self, job: FetchedJob | str, result: Any = None, latency_s: Duration | None = None
    ) -> bool:
        """It is done, with this result: any JSON value.

        An exception or an error object as a result is a failure, and a deadline that has passed is
        dead `expired`; neither is ever a success. `latency_s` is the duration events tell; the time
        since the fetch if it is left out.
        """
        crew, attempt = self._found(job)
        outcome = self._completed(crew, attempt, result)
        return await crew.settle(attempt, outcome, latency_s=_seconds(latency_s, "latency_s"))

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
        crew, attempt = self._found(job)
        outcome = failed_once(reason, details, attempt.timeout_s)
        delay_us = None if delay_s is None else microseconds(delay_s, setting="delay_s")
        return await crew.settle(attempt, outcome, delay_us=delay_us)

    async def mark_failed(self, job: FetchedJob | str, reason: str, details: object = None) -> bool:
        """Give it up for good: dead `rejected`, or `poison_message` if no retry was left anyway."""
        crew, attempt = self._found(job)
        rule = limits_of(attempt.job, attempt.plan).retry
        last = attempt.job.failures >= rule.max_retries
        outcome = failed_for_good(reason, details, attempt.timeout_s, last=last)
        return await crew.settle(attempt, outcome)

    async def release(self, job: FetchedJob | str) -> bool:
        """Give it back: ready at once, in its old place, and nothing counts as failed."""
        crew, attempt = self._found(job)
        return await crew.settle(attempt, Released(started=True))

    def cancel_requested(self, job: FetchedJob | str) -> bool:
        """Whether somebody wants an open job cancelled; any verb then finishes it as cancelled."""
        return self._found(job)[1].cancelling

    async def close(self) -> None:
        """End fetches under way with None, give back what is open, and leave. May be repeated."""
        self._closed = True
        async with self._opening:
            if self._crew is None or self._silence is None:
                return
            await self._crew.close()
            self._silence()
            self._silence = None

    async def _opened(self) -> Crew:
        async with self._opening:
            if self._closed:
                raise UsageError("this consumer is closed; make another one with app.consumer(...)")
            if self._crew is None:
                self._crew = await self._open()
        return self._here(self._crew)

    async def _open(self) -> Crew:
        connection, settings = self._connection, self._settings
        await connection.adeclare()
        store = await connection.astore()
        states = await store.arun(store.queues.queues())
        queues = {state.settings.name: state.settings for state in states} | connection.queues
        parts = ConsumerParts(
            store=store,
            bus=connection.bus,
            clock=connection.clock,
            chance=self._chance,
            plans=ConsumerPlans(connection.registry, queues, settings.options.default_timeout_us),
            tasks=settings.tasks,
            version=self._version,
        )
        crew = Crew(self.id, parts, settings.options)
        # Trouble is logged, unless somebody has taken it on himself to hear of it.
        heard = connection.bus.wants(ObserverFailed)
        self._silence = _nothing if heard else log_names.attach(connection.bus, connection.clock)
        crew.start()
        return crew

    def _found(self, job: FetchedJob | str) -> tuple[Crew, Attempt]:
        if self._crew is None:
            raise UsageError("this consumer has fetched nothing yet; fetch a job first")
        crew = self._here(self._crew)
        if isinstance(job, FetchedJob):
            return crew, job.origin
        return crew, _only(crew.custody.of(job), job)

    def _here(self, crew: Crew) -> Crew:
        if crew.loop is not asyncio.get_running_loop():
            raise UsageError(
                "a consumer belongs to the event loop that opened it; make one per event loop"
            )
        return crew

    def _completed(self, crew: Crew, attempt: Attempt, result: Any) -> Outcome:
        if as_error_object(result):
            return returned_error(result)
        if crew.custody.deadline_passed(attempt):
            return failed_once(DEADLINE, None, attempt.timeout_s)
        try:
            return Succeeded(attempt.plan.encode_result(result))
        except PayloadError as error:
            raise PayloadError(
                f"the result of job {attempt.job.id} cannot be written as JSON: "
                f"{error.__cause__}; the job is still open: give another result, or mark_failed()",
                field=error.field,
            ) from error


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
    """Somebody else logs."""
