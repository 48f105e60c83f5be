# SPDX-License-Identifier: MIT
"""Counts attempts by queue, task and outcome, for the history and for scrapes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from packhorse.core.clock import SECOND_US
from packhorse.core.policies.series import BOUNDS_S, OTHER, OUTCOMES, SERIES_MAX, Series
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.runtime.worker.attempt import Attempt

_APPLIED: Final = Verdict.APPLIED
_COMPLETED: Final = SettlementKind.COMPLETED
_BUCKETS: Final = len(BOUNDS_S) + 1
_SUCCESS: Final = OUTCOMES.index("success")
_STALE: Final = OUTCOMES.index("stale")
_CANCELLED: Final = OUTCOMES.index("cancelled")
_RETRIED: Final = OUTCOMES.index("retried")
_DEAD: Final = OUTCOMES.index("dead")
_SNOOZED: Final = OUTCOMES.index("snoozed")
_LIMITED: Final = OUTCOMES.index("limited")
_RELEASED: Final = OUTCOMES.index("released")


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

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def count(
        self,
        settlements: Sequence[Settlement],
        attempts: Sequence[Attempt],
        verdicts: Sequence[Verdict],
    ) -> None:
        """Count a batch that the store has answered."""
        tallies = self._tallies
        for attempt, settlement, verdict in zip(attempts, settlements, verdicts, strict=True):
            job = attempt.job
            if verdict is _APPLIED and settlement.kind is _COMPLETED:  # nearly all of them
                outcome = _SUCCESS
            elif (found := _outcome(attempt, settlement, verdict)) is not None:
                outcome = found
            else:
                continue  # unused look-ahead
            tally = tallies.get((job.queue, job.task)) or self._made(job.queue, job.task)
            tally.outcomes[outcome] += 1
            if attempt.begun:
                duration = attempt.duration
                tally.run[bisect_left(BOUNDS_S, duration)] += 1
                tally.run_s += duration
                if not job.attempts:  # later ones waited for their back-off, too
                    ready_s = (job.ready_us - attempt.offset_us) / SECOND_US
                    waited = max(0.0, attempt.started - ready_s)
                    tally.wait[bisect_left(BOUNDS_S, waited)] += 1
                    tally.wait_s += waited
            if outcome and outcome in (_RETRIED, _DEAD):
                error = settlement.error
                tally.timeouts += error is not None and error.type == "Timeout"
            tally.changed = True

    def count_lost(self, queue: str, task: str, outcome: str) -> None:
        """Count an attempt of a worker that is gone, which this one has settled."""
        tally = self._tallies.get((queue, task)) or self._made(queue, task)
        tally.outcomes[OUTCOMES.index(outcome)] += 1
        tally.changed = True

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


def _outcome(attempt: Attempt, settlement: Settlement, verdict: Verdict) -> int | None:
    """Return the index of an attempt's outcome in `OUTCOMES`; None for unused look-ahead."""
    kind = settlement.kind
    if verdict is Verdict.STALE:
        # Its handler was abandoned, but had committed before that was written.
        return _STALE if attempt.settled is None else _SUCCESS
    if verdict is Verdict.CANCELLED or kind is SettlementKind.CANCELLED:
        return _CANCELLED
    match kind:
        case SettlementKind.COMPLETED:
            return _SUCCESS
        case SettlementKind.SNOOZED:
            return _SNOOZED
        case SettlementKind.LIMITED:
            return _LIMITED
        case SettlementKind.RELEASED:
            return _RELEASED if settlement.ended else None
    dead = settlement.dead_reason is not None or verdict is Verdict.EXPIRED
    return _DEAD if dead else _RETRIED


def _series(queue: str, task: str, tally: _Tally) -> Series:
    return Series(
        *(queue, task, tuple(tally.outcomes), tally.timeouts),
        *(tuple(tally.run), tally.run_s, tuple(tally.wait), tally.wait_s),
    )
