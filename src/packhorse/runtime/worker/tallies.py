# SPDX-License-Identifier: MIT
"""Count attempts, for the worker's report, the history and scrapes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from packhorse.alerts import DELIVER_TASK
from packhorse.core.clock import SECOND_US
from packhorse.core.policies.series import BOUNDS_S, OTHER, OUTCOMES, SERIES_MAX, Series
from packhorse.core.settlement import (
    Counted,
    Settlement,
    SettlementKind,
    Verdict,
    counted_as,
    timed_out,
)
from packhorse.runtime.worker.attempt import Attempt
from packhorse.stores.requests import Totals

_APPLIED: Final = Verdict.APPLIED
_COMPLETED: Final = SettlementKind.COMPLETED
_SUCCESS: Final = Counted.SUCCESS
_BUCKETS: Final = len(BOUNDS_S) + 1
_FAILED: Final = frozenset({Counted.RETRIED, Counted.DEAD})
_PLACES: Final = MappingProxyType({each: OUTCOMES.index(each) for each in Counted})
EXIT_OK: Final = 0
#: Jobs were left running: their code would not stop, or their ends could not be stored.
EXIT_ABANDONED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What one worker has done since it started.

    `failed` counts attempts that failed or timed out, whether a retry follows or not; `processed`
    is `succeeded + failed`. Cancelled, snoozed, limited and released attempts are in neither.
    """

    worker: str  #: its id
    name: str
    succeeded: int
    failed: int
    timed_out: int  #: of the failed
    retried: int  #: of the failed: another attempt is scheduled
    dead: int  #: jobs given up
    expired: int  #: of the dead: their deadline passed before they could begin, or begin again
    snoozed: int
    limited: int  #: met a rate limit of another system
    cancelled: int
    released: int  #: given back after they had begun
    stale: int  #: ended after the job had been given away; changed nothing
    abandoned: int  #: handlers still running at the end, and ends that could not be stored
    execution_s: float  #: time spent in handlers
    uptime_s: float
    problem: str | None = None  #: why it left unasked

    @property
    def processed(self) -> int:
        """Attempts that succeeded or failed."""
        return self.succeeded + self.failed

    @property
    def exit_code(self) -> int:
        """What the process ends with."""
        return EXIT_ABANDONED if self.abandoned or self.problem else EXIT_OK


class WorkerCounters:
    """The running counts of a worker."""

    __slots__ = (
        *("cancelled", "dead", "execution_s", "expired", "failed", "limited", "released"),
        *("retried", "snoozed", "stale", "succeeded", "timed_out"),
    )

    def __init__(self) -> None:
        self.succeeded = self.failed = self.timed_out = self.retried = self.dead = 0
        self.snoozed = self.limited = self.cancelled = self.released = self.stale = 0
        self.expired = 0
        self.execution_s = 0.0

    def count(self, counted: Counted, *, timed_out: bool) -> None:
        """Count one attempt, by the word that `counted_as` found for it."""
        name = "succeeded" if counted is _SUCCESS else counted.value
        setattr(self, name, getattr(self, name) + 1)
        if counted in _FAILED:
            self.failed += 1
            self.timed_out += timed_out

    @property
    def totals(self) -> Totals:
        """The totals so far; callable from any thread."""
        return Totals(self.succeeded, self.failed, int(self.execution_s * SECOND_US))

    def count_dead(self, number: int) -> None:
        """Count jobs that died without an attempt of this worker."""
        self.dead += number

    def count_expired(self, number: int, *, dead: bool = True) -> None:
        """Count jobs that died since their deadline had passed; `dead`: as dead ones, too."""
        self.dead += number * dead
        self.expired += number

    @property
    def counts(self) -> dict[str, Any]:
        """The counts by their names, which are those of a report."""
        return {slot: getattr(self, slot) for slot in self.__slots__}


class _Tally:
    """The running totals of one task in one queue."""

    __slots__ = ("changed", "outcomes", "run", "run_s", "timeouts", "wait", "wait_s")

    def __init__(self) -> None:
        self.changed = True
        self.outcomes = [0] * len(OUTCOMES)
        self.timeouts = 0
        self.run, self.wait = [0] * _BUCKETS, [0] * _BUCKETS
        self.run_s = self.wait_s = 0.0


class Tallies:
    """All totals of a worker: written by its event loop's thread, read by its heartbeat's too."""

    def __init__(self, counters: WorkerCounters) -> None:
        self._counters = counters
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def count(
        self, attempt: Attempt, settlement: Settlement, verdict: Verdict, *, before: bool
    ) -> None:
        """Count an attempt that the store has answered, unless it was counted before."""
        counters, job = self._counters, attempt.job
        counted: Counted | None = None
        if verdict is _APPLIED and settlement.kind is _COMPLETED and not before:  # nearly all
            counted = _SUCCESS
            counters.succeeded += 1
        elif (found := counted_as(settlement, verdict, before=before)) is not None:
            counted = found
            counters.count(counted, timed_out=timed_out(settlement))
        if verdict is Verdict.EXPIRED and not before:
            # Also of a job that was given back unused, which is no attempt, and so has no death.
            counters.count_expired(1, dead=counted is not Counted.DEAD)
        if counted is None:
            return
        tally = self._tallies.get((job.queue, job.task)) or self._made(job.queue, job.task)
        tally.outcomes[_PLACES[counted]] += 1
        if attempt.begun:
            duration = attempt.duration
            counters.execution_s += duration
            tally.run[bisect_left(BOUNDS_S, duration)] += 1
            tally.run_s += duration
            if not job.attempts:  # later ones waited for their back-off, too
                ready_s = (job.ready_us - attempt.offset_us) / SECOND_US
                waited = max(0.0, attempt.started - ready_s)
                tally.wait[bisect_left(BOUNDS_S, waited)] += 1
                tally.wait_s += waited
        if counted in _FAILED:
            tally.timeouts += timed_out(settlement)
        tally.changed = True

    def count_lost(self, queue: str, task: str, counted: Counted) -> None:
        """Count an attempt of a worker that is gone, which this one has settled."""
        tally = self._tallies.get((queue, task)) or self._made(queue, task)
        tally.outcomes[_PLACES[counted]] += 1
        tally.changed = True

    @property
    def told(self) -> Totals:
        """The totals for the store, from any thread: alerts judge them, and not their notices."""
        all_, found = self._counters.totals, list(self._tallies.items())
        own = [tally.outcomes for (_, task), tally in found if task == DELIVER_TASK]
        succeeded = all_.succeeded - sum(each[_PLACES[_SUCCESS]] for each in own)
        failed = all_.failed - sum(each[_PLACES[counted]] for each in own for counted in _FAILED)
        return Totals(max(0, succeeded), max(0, failed), all_.execution_us)

    def totals(self) -> tuple[Series, ...]:
        """Return all totals; for the event loop's thread."""
        return tuple(_series(*key, tally) for key, tally in self._tallies.items())

    def changed(self) -> tuple[Series, ...]:
        """Return the totals that have changed since the last call."""
        found = []
        for (queue, task), tally in list(self._tallies.items()):
            if tally.changed:
                tally.changed = False  # before it is read: what comes meanwhile sets it again
                found.append(_series(queue, task, tally))
        return tuple(found)

    def not_sent(self, series: Iterable[Series]) -> None:
        """Mark these as changed again: they could not be sent."""
        for each in series:
            self._tallies[each.key].changed = True

    def _made(self, queue: str, task: str) -> _Tally:
        key = (queue, task) if len(self._tallies) < SERIES_MAX else (OTHER, OTHER)
        return self._tallies.setdefault(key, _Tally())


def _series(queue: str, task: str, tally: _Tally) -> Series:
    return Series(
        *(queue, task, tuple(tally.outcomes), tally.timeouts),
        *(tuple(tally.run), tally.run_s, tuple(tally.wait), tally.wait_s),
    )
