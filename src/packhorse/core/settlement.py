# SPDX-License-Identifier: MIT
"""What becomes of a job after an attempt: decided purely, written by a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Final, Protocol, assert_never

import msgspec

from packhorse.core.job import AttemptError, AttemptRecord, DeadReason, JobStatus
from packhorse.events import (
    JobCancelled,
    JobCompleted,
    JobDead,
    JobEnded,
    JobFailed,
    JobLimited,
    JobReleased,
    JobRetried,
    JobSnoozed,
    JobStale,
    JobTimedOut,
)

#: The error code of an attempt whose settlement the store can never hold.
_STORE_REFUSED: Final = "STORE_REFUSED"
#: Bounds of what is written then.
_WORD_LENGTH_MAX: Final = 100
_WHY_LENGTH_MAX: Final = 500


class SettlementKind(IntEnum):
    """How an attempt ended; stored beside the fence, so that a repeated write is recognised."""

    COMPLETED = 1
    FAILED = 2
    TIMEOUT = 3
    SNOOZED = 4
    CANCELLED = 5
    RELEASED = 6
    DEAD = 7
    RESCUED = 8
    LIMITED = 9


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The whole of what a store must write; it adds its clock and nothing else of its own.

    Four rules run inside the store, because only there are they atomic:
    it applies only while the job is processing with this `fence`; a cancel flag turns it into
    cancelled; a delay that ends after the job's deadline turns it into dead `expired`; one that
    waits for a signal which came meanwhile is queued at once.
    """

    job_id: str
    fence: int
    kind: SettlementKind
    status: JobStatus  #: what the job becomes
    delay_us: int = 0  #: for a job that waits; 0 is queued at once
    keep_place: bool = False  #: one that was given back or lost keeps its place in the line
    ended: bool = True  #: an execution ended: attempts + 1 and a line of history
    failures: int = 0  #: added to the counter of that name, like the next four
    crashes: int = 0
    lone_crashes: int = 0
    snoozes: int = 0
    releases: int = 0
    result: str | None = None  #: JSON text, of a completed job
    error: AttemptError | None = None
    dead_reason: DeadReason | None = None
    keep_us: int | None = None  #: lifetime of the record if it ends completed or cancelled
    result_keep_us: int | None = None  #: lifetime of its result
    dead_keep_us: int | None = None  #: lifetime of the record if it ends dead
    suspect: bool = False  #: of a rescue: it is to run alone from now on
    limit_us: int = 0  #: of a limited one: how long its task's rate gate is closed from now
    #: It waits for a signal, and has seen so many; None: it does not.
    waits: int | None = None
    #: Items that the job was about, and those of them that failed: told to its group if it ends.
    counted: tuple[int, int] | None = None


#: Ends after which the job is tried again, unless it is dead.
_TRIED_AGAIN: Final = frozenset(
    {SettlementKind.FAILED, SettlementKind.TIMEOUT, SettlementKind.RESCUED}
)


class Verdict(StrEnum):
    """A store's answer to one settlement."""

    APPLIED = "applied"  #: written, now or by the same settlement sent before
    CANCELLED = "cancelled"  #: written as cancelled: the flag wins over every outcome
    EXPIRED = "expired"  #: written as dead: the retry would have come after the deadline
    STALE = "stale"  #: nothing written: another worker has the job by now


class Counted(StrEnum):
    """As what an attempt counts, in every figure."""

    SUCCESS = "success"
    RETRIED = "retried"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"
    LIMITED = "limited"
    RELEASED = "released"
    STALE = "stale"


def counted_as(settlement: Settlement, verdict: Verdict, *, before: bool = False) -> Counted | None:
    """As what an attempt counts whose settlement the store has answered; None: not at all.

    An attempt that was counted `before` is not counted again, whatever its settlement says now; a
    job that was claimed ahead and given back unused is no attempt.
    """
    kind = settlement.kind
    if before:
        return None
    if verdict is Verdict.STALE:
        return Counted.STALE
    if verdict is Verdict.CANCELLED or kind is SettlementKind.CANCELLED:
        return Counted.CANCELLED
    match kind:
        case SettlementKind.COMPLETED:
            return Counted.SUCCESS
        case SettlementKind.SNOOZED:
            return Counted.SNOOZED
        case SettlementKind.LIMITED:
            return Counted.LIMITED
        case SettlementKind.RELEASED:
            return Counted.RELEASED if settlement.ended else None
        case (
            SettlementKind.FAILED
            | SettlementKind.TIMEOUT
            | SettlementKind.DEAD
            | SettlementKind.RESCUED
        ):
            dead = settlement.dead_reason is not None or verdict is Verdict.EXPIRED
            return Counted.DEAD if dead else Counted.RETRIED
    assert_never(kind)


class _Before(Protocol):
    """What was counted of a job before its attempt."""

    @property
    def failures(self) -> int: ...
    @property
    def lone_crashes(self) -> int: ...


def end_events(
    settlement: Settlement,
    verdict: Verdict,
    end: dict[str, Any],
    before: _Before,
    *,
    max_retries: int,
    max_crashes: int,
) -> Iterator[JobEnded]:
    """Yield the events of a settlement that the store has answered: the attempt's end comes first.

    `end` has the fields that they share. Look-ahead that was given back unused has no event.
    """
    error = settlement.error
    if error is not None:
        end = {
            **end,
            "error_code": error.code,
            "error_type": error.type,
            "error_message": error.message,
        }
    if verdict is Verdict.STALE:
        yield JobStale(status="stale", **end)
        return
    if verdict is Verdict.CANCELLED or settlement.kind is SettlementKind.CANCELLED:
        yield JobCancelled(status=JobStatus.CANCELLED.value, **end)
        return
    if (ended := _attempt_ended(settlement, end)) is not None:
        yield ended
    if error is not None:
        end["error_stack"] = error.stack or ""
    reason = DeadReason.EXPIRED if verdict is Verdict.EXPIRED else settlement.dead_reason
    if reason is not None:
        yield JobDead(status=JobStatus.DEAD.value, reason=reason.value, **end)
    elif settlement.kind in _TRIED_AGAIN:
        lost = settlement.crashes
        yield JobRetried(
            status=settlement.status.value,
            retry=before.failures + settlement.failures,
            max_retries=max_retries,
            lone_crashes=before.lone_crashes + settlement.lone_crashes if lost else 0,
            max_crashes=max_crashes if lost else 0,
            delay_ms=settlement.delay_us / 1000,
            reason="" if error is None else error.reason,
            **end,
        )


def _attempt_ended(settlement: Settlement, end: dict[str, Any]) -> JobEnded | None:
    """Return the event of how the attempt ended, whatever follows for the job."""
    status = settlement.status.value
    match settlement.kind:
        case SettlementKind.COMPLETED:
            return JobCompleted(status=status, **end)
        case SettlementKind.RELEASED:
            return JobReleased(status=status, **end) if settlement.ended else None
        case SettlementKind.SNOOZED:
            return JobSnoozed(status=status, delay_ms=settlement.delay_us / 1000, **end)
        case SettlementKind.LIMITED:
            return JobLimited(status=status, retry_after_ms=settlement.limit_us / 1000, **end)
        case _:
            return (JobTimedOut if timed_out(settlement) else JobFailed)(status=status, **end)


def rescued_before(
    settlement: Settlement, worker: str, history: Sequence[AttemptRecord]
) -> Verdict:
    """Answer a rescue that is sent again, and called stale, since stores do not remember rescues.

    That it was written shows in the history, in its own words; others were faster if not.
    """
    written = [each for each in history if (each.worker, each.error) == (worker, settlement.error)]
    if settlement.kind is not SettlementKind.RESCUED or not written:
        return Verdict.STALE
    if written[-1].status is JobStatus.CANCELLED:
        return Verdict.CANCELLED
    as_decided = written[-1].will_retry or settlement.dead_reason is not None
    return Verdict.APPLIED if as_decided else Verdict.EXPIRED


def timed_out(settlement: Settlement) -> bool:
    """Whether the attempt ended because its time was over."""
    return settlement.error is not None and settlement.error.type == "Timeout"


def signalled(settlement: Settlement, signals: int) -> Settlement:
    """As it is written when so many signals came: one that has seen fewer waits no more."""
    if settlement.waits is None or signals <= settlement.waits:
        return settlement
    return msgspec.structs.replace(settlement, delay_us=0)


def refused(settlement: Settlement, why: str) -> Settlement | None:
    """What is written instead of a settlement that its store can never hold; None: nothing else.

    First its error in plain words, since that the attempt failed is what matters; then, and for a
    result, that the job is dead, in words that every store holds.
    """
    error = settlement.error
    if error is not None and error.code == _STORE_REFUSED:
        return None
    if error is not None and error != (plain := _plain_error(error)):
        return msgspec.structs.replace(settlement, error=plain)
    return Settlement(
        job_id=settlement.job_id,
        fence=settlement.fence,
        kind=SettlementKind.DEAD,
        status=JobStatus.DEAD,
        error=AttemptError(
            type="StoreRefused",
            message="the attempt ended, and the store can never hold what it came to: change what "
            f"the handler returns, then redrive the job ({plain_text(why, _WHY_LENGTH_MAX)})",
            code=_STORE_REFUSED,
            reason="store_refused",
        ),
        dead_reason=DeadReason.REJECTED,
        keep_us=settlement.keep_us,
        dead_keep_us=settlement.dead_keep_us,
    )


def plain_text(text: str, longest: int) -> str:
    """The text in ASCII, which every store holds, cut to its bound."""
    return text.encode("ascii", "backslashreplace").decode("ascii")[:longest]


def _plain_error(error: AttemptError) -> AttemptError:
    return AttemptError(
        type=plain_text(error.type, _WORD_LENGTH_MAX),
        message=plain_text(error.message, _WHY_LENGTH_MAX),
        code=plain_text(error.code, _WORD_LENGTH_MAX),
        reason=plain_text(error.reason, _WORD_LENGTH_MAX),
    )
