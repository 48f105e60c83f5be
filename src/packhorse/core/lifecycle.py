# SPDX-License-Identifier: MIT
"""The state machine: every arrow of a job's life, decided from values alone.

    submit ─┬─ due later ─▶ pending ──due──┐
            └─ due now ────────────────────▼
                                        queued ──claim (fence+1)──▶ processing ──▶ completed
                                           ▲                          │ │ │ │
           failed / timeout (retry waits) ─┘◀── failed, budget left ──┘ │ │ └──▶ cancelled
           pending (snoozed) ◀────────────────── handler asked to wait ─┘ └────▶ dead (reason)
           pending (rescued) ◀── rescue (owner gone: crashes + 1); ready in its old place when due
           queued ◀── release, limited (cost nothing)

Nothing here reads a clock, rolls dice or does I/O. Stores that must run a rule themselves, to
have it atomic, are checked against these functions by the conformance suite.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, assert_never

import msgspec

from packhorse.core.job import TERMINAL, AttemptError, DeadReason, Job, JobStatus, RetryRule
from packhorse.core.outcome import (
    Cancelled,
    Crashed,
    Failed,
    GivenUp,
    Limited,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from packhorse.core.policies.retention import Retention
from packhorse.core.policies.retry import retry_delay_us, wants_retry
from packhorse.core.settlement import Settlement, SettlementKind, Verdict

#: Losses while running alone after which a job is given up.
MAX_CRASHES_DEFAULT: Final = 3
#: Losses after which a job runs alone: any job may be at fault for the first, and a machine that
#: goes away must not make all its jobs queue up one behind the other.
INNOCENT_LOSSES: Final = 1
#: The longest a rescued job waits before it runs again.
RESCUE_WAIT_US_MAX: Final = 600 * 1_000_000
#: How long past its timeout a claimed job may be held before others may take it.
HOLD_GRACE_US: Final = 30 * 1_000_000
#: The error code of an attempt that took longer than it may.
TASK_TIMEOUT: Final = "TASK_TIMEOUT"

# Looked up once per job: reading a member from its enum takes ten times as long.
_COMPLETED: Final = SettlementKind.COMPLETED
_STATUS_COMPLETED: Final = JobStatus.COMPLETED
_ATTEMPT_STATUS: Final[Mapping[SettlementKind, JobStatus]] = MappingProxyType(
    {
        SettlementKind.COMPLETED: JobStatus.COMPLETED,
        SettlementKind.FAILED: JobStatus.FAILED,
        SettlementKind.TIMEOUT: JobStatus.TIMEOUT,
        SettlementKind.SNOOZED: JobStatus.PENDING,
        SettlementKind.CANCELLED: JobStatus.CANCELLED,
        SettlementKind.RELEASED: JobStatus.QUEUED,
        SettlementKind.RESCUED: JobStatus.FAILED,
        SettlementKind.LIMITED: JobStatus.QUEUED,
    }
)


class JobRules(msgspec.Struct, frozen=True):
    """The rules that bind one job, put together from call, task, queue and defaults."""

    retry: RetryRule = RetryRule()
    max_snoozes: int | None = None
    retention: Retention = Retention()
    result_keep_us: int | None = None  #: the task's `result_ttl`; None follows `retention`
    max_crashes: int | None = None

    @property
    def crashes_allowed(self) -> int:
        """With so many crashes a job is dead."""
        return MAX_CRASHES_DEFAULT if self.max_crashes is None else self.max_crashes


def status_at_submit(due_us: int, now_us: int) -> JobStatus:
    """A job due later is pending; one due now is queued."""
    return JobStatus.PENDING if due_us > now_us else JobStatus.QUEUED


def next_fence(fence: int, *, clock_us: int | None = None) -> int:
    """The fence of the next claim: always higher, also on a store that may lose commits.

    Such a store passes its clock, so that a number once handed out and then forgotten is not
    handed out again.
    """
    return fence + 1 if clock_us is None else max(fence + 1, clock_us)


def hold_until_us(now_us: int, timeout_us: int, deadline_us: int | None = None) -> int:
    """Until when a claim may be held, however alive its owner is."""
    ends_us = now_us + timeout_us
    return (ends_us if deadline_us is None else min(ends_us, deadline_us)) + HOLD_GRACE_US


def settle(job: Job, outcome: Outcome, rules: JobRules, *, roll: float) -> Settlement:
    """Decide what becomes of `job` after one attempt."""
    if isinstance(outcome, Succeeded):  # nearly always, and a match takes longer
        return _ending(job, rules, _COMPLETED, _STATUS_COMPLETED, result=outcome.result)
    match outcome:
        case Failed():
            return _failed(job, outcome, rules, roll)
        case TimedOut():
            return _timed_out(job, outcome, rules, roll)
        case Snoozed():
            return _snoozed(job, rules, outcome)
        case Cancelled():
            return _ending(job, rules, SettlementKind.CANCELLED, JobStatus.CANCELLED)
        case Released(started):
            return _released(job, rules, started=started)
        case Limited(retry_after_us):
            return _limited(job, rules, retry_after_us)
        case Crashed(error):
            return _crashed(job, rules, error)
        case GivenUp(reason, error):
            return _dead(job, rules, reason, error)
        case _:
            assert_never(outcome)


def _ending(
    job: Job,
    rules: JobRules,
    kind: SettlementKind,
    status: JobStatus,
    *,
    result: str | None = None,
) -> Settlement:
    """A settlement with the lifetimes every kind carries, since a cancel flag may end any."""
    retention = rules.retention
    result_keep_us = rules.result_keep_us
    return Settlement(
        job_id=job.id,
        fence=job.fence,
        kind=kind,
        status=status,
        result=result,
        keep_us=retention.finished_us,
        result_keep_us=retention.results_us if result_keep_us is None else result_keep_us,
        dead_keep_us=retention.dead_us,
    )


def _failed(job: Job, outcome: Failed, rules: JobRules, roll: float) -> Settlement:
    rule, error = rules.retry, outcome.error
    if job.failures >= rule.max_retries or not (outcome.asked or wants_retry(rule, outcome.kinds)):
        return _dead(job, rules, DeadReason.POISON_MESSAGE, error, failures=1)
    delay_us = outcome.retry_delay_us
    if delay_us is None:
        delay_us = retry_delay_us(rule, job.failures + 1, roll=roll)
    settled = _ending(job, rules, SettlementKind.FAILED, JobStatus.FAILED)
    return msgspec.structs.replace(settled, failures=1, error=error, delay_us=delay_us)


def _timed_out(job: Job, outcome: TimedOut, rules: JobRules, roll: float) -> Settlement:
    rule, error = rules.retry, outcome.error
    if outcome.deadline:
        return _dead(job, rules, DeadReason.EXPIRED, error, failures=1)
    if job.failures >= rule.max_retries or not rule.retry_timeouts:
        return _dead(job, rules, DeadReason.POISON_MESSAGE, error, failures=1)
    settled = _ending(job, rules, SettlementKind.TIMEOUT, JobStatus.TIMEOUT)
    delay_us = retry_delay_us(rule, job.failures + 1, roll=roll)
    return msgspec.structs.replace(settled, failures=1, error=error, delay_us=delay_us)


def _snoozed(job: Job, rules: JobRules, outcome: Snoozed) -> Settlement:
    most = rules.max_snoozes
    if outcome.counts and most is not None and job.snoozes >= most:
        message = f"asked to wait more than max_snoozes = {most} times"
        error = AttemptError(type="Snooze", message=message, code="SNOOZED_OUT")
        return _dead(job, rules, DeadReason.SNOOZED_OUT, error)
    settled = _ending(job, rules, SettlementKind.SNOOZED, JobStatus.PENDING)
    why, begun = outcome.why(job.attempts), outcome.begun
    counts = {"snoozes": int(outcome.counts), "releases": int(not begun), "ended": begun}
    delay_us, waits = outcome.delay_us, outcome.waits
    return msgspec.structs.replace(settled, delay_us=delay_us, waits=waits, error=why, **counts)


def _released(job: Job, rules: JobRules, *, started: bool) -> Settlement:
    settled = _ending(job, rules, SettlementKind.RELEASED, JobStatus.QUEUED)
    settled = msgspec.structs.replace(settled, releases=1, ended=started, keep_place=True)
    if not started:
        return settled
    return _counted(job, rules, settled, "WORKER_STOPPED", "its worker stopped it")


def release_unbegun(job_id: str, fence: int, retention: Retention) -> Settlement:
    """Give back a job that was claimed but not started: it costs the job nothing."""
    return Settlement(
        job_id=job_id,
        fence=fence,
        kind=SettlementKind.RELEASED,
        status=JobStatus.QUEUED,
        keep_place=True,
        ended=False,
        releases=1,
        keep_us=retention.finished_us,
        dead_keep_us=retention.dead_us,
    )


def _limited(job: Job, rules: JobRules, retry_after_us: int) -> Settlement:
    """Given back after it began, like a release; its gate is closed, so that it is not next."""
    settled = _ending(job, rules, SettlementKind.LIMITED, JobStatus.QUEUED)
    settled = msgspec.structs.replace(settled, releases=1, keep_place=True, limit_us=retry_after_us)
    return _counted(job, rules, settled, "RATE_LIMITED", "it met a limit elsewhere")


def _counted(job: Job, rules: JobRules, settled: Settlement, code: str, what: str) -> Settlement:
    """A start that is given back. With `max_crashes=0` it counts as a failure, and may be the end.

    Without it, it costs nothing.
    """
    if rules.max_crashes != 0:
        return settled
    most = rules.retry.max_retries
    if job.failures < most:
        return msgspec.structs.replace(settled, failures=1)
    error = AttemptError(
        type="StartsUsedUp",
        message=f"{what}, and with max_crashes=0 and max_retries={most} it starts no more than "
        f"{most + 1} times",
        code=code,
        reason=code.lower(),
    )
    dead = _dead(job, rules, DeadReason.WORKER_CRASHED, error, failures=1)
    return msgspec.structs.replace(dead, releases=1)


def _crashed(job: Job, rules: JobRules, error: AttemptError) -> Settlement:
    """Treat the loss of a job's process like the rescue of a job that ran alone."""
    if job.lone_crashes + 1 >= rules.crashes_allowed:
        settled = _dead(job, rules, DeadReason.WORKER_CRASHED, error)
    else:
        settled = _ending(job, rules, SettlementKind.FAILED, JobStatus.FAILED)
        delay_us = _rescue_wait_us(job.crashes)
        settled = msgspec.structs.replace(settled, error=error, delay_us=delay_us, keep_place=True)
    return msgspec.structs.replace(settled, crashes=1, lone_crashes=1)


def _rescue_wait_us(crashes: int) -> int:
    """The n-th time a job is lost it waits 2ⁿ seconds."""
    wait_us: int = 2 ** min(crashes + 1, 32) * 1_000_000
    return min(wait_us, RESCUE_WAIT_US_MAX)


def _dead(
    job: Job, rules: JobRules, reason: DeadReason, error: AttemptError, *, failures: int = 0
) -> Settlement:
    settled = _ending(job, rules, SettlementKind.DEAD, JobStatus.DEAD)
    return msgspec.structs.replace(settled, failures=failures, error=error, dead_reason=reason)


class Orphan(msgspec.Struct, frozen=True):
    """A processing job whose owner's lease is gone, or whose hold limit has passed."""

    job_id: str
    fence: int
    crashes: int
    lone_crashes: int
    alone: bool  #: it was the only thing its owner was running
    worker: str
    lost_us: int  #: when its owner's right to it ran out
    now_us: int  #: the store's clock at this look
    max_crashes: int | None = None
    retention: Retention = Retention()  #: of its queue


def rescue(orphan: Orphan) -> Settlement:
    """Give a lost job back, a little later each time, or give it up.

    Only losses while it ran alone count against `max_crashes`: a machine that goes away proves
    nothing against the jobs on it. Lost a second time, a job becomes a suspect and runs alone.
    With `max_crashes=0` every start counts.
    """
    lone = int(orphan.alone)
    limit = MAX_CRASHES_DEFAULT if orphan.max_crashes is None else orphan.max_crashes
    guilty = limit == 0 or (orphan.alone and orphan.lone_crashes + lone >= limit)
    wait_us = _rescue_wait_us(orphan.crashes)
    return Settlement(
        job_id=orphan.job_id,
        fence=orphan.fence,
        kind=SettlementKind.RESCUED,
        status=JobStatus.DEAD if guilty else JobStatus.PENDING,
        delay_us=0 if guilty else max(0, orphan.lost_us + wait_us - orphan.now_us),
        keep_place=True,
        crashes=1,
        lone_crashes=lone,
        suspect=orphan.alone or orphan.crashes >= INNOCENT_LOSSES,
        error=_worker_lost(orphan.worker),
        dead_reason=DeadReason.WORKER_CRASHED if guilty else None,
        keep_us=orphan.retention.finished_us,
        dead_keep_us=orphan.retention.dead_us,
    )


def cancel_lost(
    job_id: str, fence: int, *, worker: str, alone: bool, keep_us: int | None
) -> Settlement:
    """Cancel a running job that its owner has lost: the rescue that was due, and the end."""
    return Settlement(
        job_id=job_id,
        fence=fence,
        kind=SettlementKind.RESCUED,
        status=JobStatus.CANCELLED,
        crashes=1,
        lone_crashes=int(alone),
        error=_worker_lost(worker),
        keep_us=keep_us,
    )


def _worker_lost(worker: str) -> AttemptError:
    return AttemptError(
        type="WorkerLost",
        message=f"worker {worker} went away while it held the job",
        code="WORKER_LOST",
        reason="worker_lost",
    )


class Resolved(msgspec.Struct, frozen=True):
    """What a store writes for a settlement that applies, once its own rules have spoken."""

    status: JobStatus
    verdict: Verdict
    due_us: int
    dead_reason: DeadReason | None


def resolve(
    settlement: Settlement, *, cancel_requested: bool, deadline_us: int | None, now_us: int
) -> Resolved:
    """The rules that run inside the store: a cancel flag wins, and a deadline bounds retries."""
    if cancel_requested and settlement.kind is not SettlementKind.CANCELLED:
        return Resolved(JobStatus.CANCELLED, Verdict.CANCELLED, now_us, None)
    status = settlement.status
    if status in TERMINAL:
        return Resolved(status, Verdict.APPLIED, now_us, settlement.dead_reason)
    due_us = now_us + settlement.delay_us
    if deadline_us is not None and due_us >= deadline_us:
        return Resolved(JobStatus.DEAD, Verdict.EXPIRED, now_us, DeadReason.EXPIRED)
    if status is JobStatus.PENDING and settlement.delay_us == 0:
        status = JobStatus.QUEUED
    return Resolved(status, Verdict.APPLIED, due_us, None)


def attempt_status(settlement: Settlement, resolved: Resolved) -> tuple[JobStatus, bool]:
    """How one attempt is shown in the history, and whether the job will run again after it.

    The status is the attempt's own outcome, not the job's: the attempt that used up the retries
    of a now dead job `failed`, or took too long. Only a cancel flag changes it, since that turns
    the whole settlement into a cancelled one.
    """
    will_retry = resolved.status not in TERMINAL
    if resolved.status is JobStatus.CANCELLED:
        return JobStatus.CANCELLED, will_retry
    if settlement.kind is SettlementKind.DEAD:
        error = settlement.error
        timed_out = error is not None and error.code == TASK_TIMEOUT
        return JobStatus.TIMEOUT if timed_out else JobStatus.FAILED, will_retry
    return _ATTEMPT_STATUS[settlement.kind], will_retry


class CancelAnswer(StrEnum):
    """The answer to a request to cancel."""

    CANCELLED = "cancelled"  #: it was waiting, or its worker is gone: it has ended
    FLAGGED = "flagged"  #: it is running; its worker is told, and any later outcome is discarded
    FINISHED = "finished"  #: it had already finished; nothing was changed
    UNKNOWN = "unknown"  #: there is no such job here


def cancel(status: JobStatus, *, lost: bool = False) -> CancelAnswer:
    """What a wish to cancel means for a job in `status`; `lost` as `policies.lease.is_lost` says.

    One expired look is enough here, though a rescue needs two: the job is wanted by no one, and
    should its owner live after all, every settlement of it would have become cancelled anyway.
    """
    if status in TERMINAL:
        return CancelAnswer.FINISHED
    running = status is JobStatus.PROCESSING and not lost
    return CancelAnswer.FLAGGED if running else CancelAnswer.CANCELLED


def redrive_allowed(status: JobStatus) -> bool:
    """Finished jobs may be run again and waiting ones hurried; not ready or running ones."""
    return status not in (JobStatus.PROCESSING, JobStatus.QUEUED)
