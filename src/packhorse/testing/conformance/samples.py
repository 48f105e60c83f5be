# SPDX-License-Identifier: MIT
"""Example jobs, outcomes and settlements, and their names."""

from __future__ import annotations

from typing import Any, Final, assert_never

import msgspec

from packhorse.core.clock import SECOND_US, new_id
from packhorse.core.job import AttemptError, DeadReason, Job, NewJob
from packhorse.core.lifecycle import JobRules, Orphan, rescue, settle
from packhorse.core.outcome import (
    Cancelled,
    Failed,
    GivenUp,
    Limited,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from packhorse.core.settlement import Settlement, SettlementKind

ANNA: Final = "anna"  #: a worker
BEN: Final = "ben"  #: another worker
QUEUE: Final = "default"
TASK: Final = "send_email"
LEASE_US: Final = 30 * SECOND_US
TIMEOUT_US: Final = 300 * SECOND_US  #: the workers' default

EXCEPTION: Final = AttemptError(
    type="ValueError", message="no such address", code="EXCEPTION", reason="exception:ValueError"
)
TIMEOUT: Final = AttemptError(
    type="Timeout", message="took too long", code="TASK_TIMEOUT", reason="job_timeout"
)

#: How an owner may settle; a rescue is never the owner's.
OWNER_KINDS: Final = tuple(kind for kind in SettlementKind if kind is not SettlementKind.RESCUED)


def new_job(job_id: str | None = None, **changes: Any) -> NewJob:
    """Return a plain job due now, with the given changes."""
    job = NewJob(id=new_id() if job_id is None else job_id, task=TASK, payload=b'{"to":"a"}')
    return msgspec.structs.replace(job, queue=changes.pop("queue", QUEUE), **changes)


def settlement_of(kind: SettlementKind, job: Job, limits: JobRules | None = None) -> Settlement:
    """Return what `lifecycle` decides for an attempt that ended like this."""
    if kind is SettlementKind.RESCUED:
        return rescue_of(job)
    return settle(job, outcome_of(kind), limits or JobRules(), roll=0.5)


def outcome_of(kind: SettlementKind) -> Outcome:
    """Return an outcome that is settled as `kind` while budgets last."""
    match kind:
        case SettlementKind.COMPLETED:
            return Succeeded('{"sent":true}')
        case SettlementKind.FAILED:
            return Failed(EXCEPTION, kinds=("builtins.ValueError", "builtins.Exception"))
        case SettlementKind.TIMEOUT:
            return TimedOut(TIMEOUT)
        case SettlementKind.SNOOZED:
            return Snoozed(5 * SECOND_US)
        case SettlementKind.CANCELLED:
            return Cancelled()
        case SettlementKind.RELEASED:
            return Released(started=True)
        case SettlementKind.DEAD:
            return GivenUp(DeadReason.REJECTED, EXCEPTION)
        case SettlementKind.LIMITED:
            return Limited(5 * SECOND_US)
        case SettlementKind.RESCUED:
            raise AssertionError("a rescue follows from an orphan, not from an outcome")
        case _:
            assert_never(kind)


def rescue_of(job: Job, worker: str = ANNA) -> Settlement:
    """Return what a rescuer decides that has just seen this job orphaned."""
    return rescue(
        Orphan(
            job_id=job.id,
            fence=job.fence,
            crashes=job.crashes,
            lone_crashes=job.lone_crashes,
            alone=False,
            worker=worker,
            lost_us=0,
            now_us=0,
        )
    )
