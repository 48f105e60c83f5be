# SPDX-License-Identifier: MIT
"""What a worker has done: counted as it goes, reported at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from packhorse.settlement import Settlement, SettlementKind, Verdict

__all__ = ["EXIT_ABANDONED", "EXIT_OK", "Tally", "WorkerReport"]

EXIT_OK: Final = 0
#: Jobs were left running: their code would not stop, or their ends could not be stored.
EXIT_ABANDONED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What one worker has done since it started.

    `failed` counts attempts that failed or timed out, whether a retry follows or not; `processed`
    is `succeeded + failed`. Cancelled, snoozed, limited and released attempts are in neither.
    """

    worker_id: str
    name: str
    succeeded: int
    failed: int
    timed_out: int  #: of the failed
    retried: int  #: of the failed: another attempt is scheduled
    dead: int  #: jobs given up
    snoozed: int
    limited: int  #: met a rate limit of somebody else
    cancelled: int
    released: int  #: given back after they had begun
    stale: int  #: ended after somebody else had been given the job; changed nothing
    abandoned: int  #: handlers still running at the end, and ends that could not be stored
    execution_s: float  #: time spent in handlers
    uptime_s: float
    problem: str | None = None  #: why it left, when nobody asked it to

    @property
    def processed(self) -> int:
        """Attempts that succeeded or failed."""
        return self.succeeded + self.failed

    @property
    def average_execution_ms(self) -> float | None:
        """How long an attempt took on average; None before there was one."""
        return self.execution_s * 1000 / self.processed if self.processed else None

    @property
    def exit_code(self) -> int:
        """What the process ends with."""
        return EXIT_ABANDONED if self.abandoned or self.problem else EXIT_OK


class Tally:
    """The running counts of a worker."""

    __slots__ = (
        *("cancelled", "dead", "execution_s", "failed", "limited", "released", "retried"),
        *("snoozed", "stale", "succeeded", "timed_out"),
    )

    def __init__(self) -> None:
        self.succeeded = self.failed = self.timed_out = self.retried = self.dead = 0
        self.snoozed = self.limited = self.cancelled = self.released = self.stale = 0
        self.execution_s = 0.0

    def count(self, settlement: Settlement, verdict: Verdict) -> None:
        """One settlement was answered."""
        kind = settlement.kind
        if verdict is Verdict.STALE:
            self.stale += 1
        elif verdict is Verdict.CANCELLED or kind is SettlementKind.CANCELLED:
            self.cancelled += 1
        elif kind is SettlementKind.COMPLETED:
            self.succeeded += 1
        elif kind is SettlementKind.SNOOZED:
            self.snoozed += 1
        elif kind is SettlementKind.LIMITED:
            self.limited += 1
        elif kind is SettlementKind.RELEASED:
            self.released += settlement.ended
        else:
            self._count_failure(settlement, verdict)

    def _count_failure(self, settlement: Settlement, verdict: Verdict) -> None:
        error = settlement.error
        dead = settlement.dead_reason is not None or verdict is Verdict.EXPIRED
        self.failed += 1
        self.timed_out += error is not None and error.type == "Timeout"
        self.dead += dead
        self.retried += not dead

    def report(
        self,
        *,
        worker_id: str,
        name: str,
        uptime_s: float,
        abandoned: int,
        problem: str | None,
    ) -> WorkerReport:
        """The counts as a value."""
        counts = {slot: getattr(self, slot) for slot in self.__slots__}
        return WorkerReport(
            worker_id=worker_id,
            name=name,
            uptime_s=uptime_s,
            abandoned=abandoned,
            problem=problem,
            **counts,
        )
