# SPDX-License-Identifier: MIT
"""What a job goes through besides being claimed: becoming ready, waiting, ending, being given back.

The rules are those of `lifecycle`; here they are only written down.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from packhorse import lifecycle
from packhorse.job import TERMINAL, AttemptRecord, DeadReason, JobStatus
from packhorse.lifecycle import Resolved
from packhorse.policies.gates import rate_gate
from packhorse.policies.retention import Retention, first_expiry_us
from packhorse.policies.uniqueness import at_least_us, record_until_us, result_until_us
from packhorse.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.memory.access import Access
from packhorse.stores.memory.entering import enter_stashed, take_place
from packhorse.stores.memory.rows import HISTORY_KEPT, JobRow

__all__ = ["apply", "finish_waiting", "forget", "promote", "release_held"]

#: Settlements that leave open whether the job takes its worker down.
_PROVE_NOTHING = frozenset({SettlementKind.RELEASED, SettlementKind.RESCUED})


def apply(access: Access, row: JobRow, settlement: Settlement) -> Verdict:
    """Write a settlement that has been found to count."""
    resolved = lifecycle.resolve(
        settlement,
        cancel_requested=row.cancel_requested,
        deadline_us=row.deadline_us,
        now_us=access.now_us,
    )
    with access.state.changing(row, access.now_us):
        _count(row, settlement)
        if settlement.ended:
            _remember_attempt(row, settlement, resolved, access.now_us)
        if settlement.kind is SettlementKind.RESCUED:
            row.suspect = row.suspect or settlement.suspect
        elif settlement.ended and settlement.kind not in _PROVE_NOTHING:
            row.suspect = False
        row.error = settlement.error or row.error
        if resolved.status in TERMINAL:
            _end_as_settled(access, row, settlement, resolved)
        else:
            _wait_again(access, row, settlement, resolved)
    _close_gate(access, row, settlement)
    _wake_held_back(access, row)
    return resolved.verdict


def promote(access: Access, queue: str, *, limit: int) -> int:
    """Make due jobs of a queue ready, in (due, sequence) order; says how many."""
    rows = access.rows(access.state.due.group(queue).up_to(access.now_us, limit=limit))
    for row in rows:
        with access.state.changing(row, access.now_us):
            row.status = JobStatus.QUEUED
            if row.place is None:
                take_place(access, row)
    return len(rows)


def finish_waiting(
    access: Access, row: JobRow, status: JobStatus, reason: DeadReason | None = None
) -> None:
    """End a job that nobody holds; it is kept as long as its queue says."""
    retention = access.state.settings(row.new.queue).retention or Retention()
    keep_us = retention.dead_us if status is JobStatus.DEAD else retention.finished_us
    with access.state.changing(row, access.now_us):
        _end(access, row, status, reason, keep_us)
    access.wake_room(row)
    if row.new.ordering_key is not None:
        access.wake_queue(row)


def forget(access: Access, row: JobRow) -> None:
    """Remove a finished job, with its history; a line it held goes on."""
    access.state.forget(row)
    if row.holds_line:
        access.wake_queue(row)


def release_held(access: Access, rows: Iterable[JobRow]) -> int:
    """Give back held jobs that nobody began; says how many.

    A cancel flag or a deadline that has passed ends them, as with any other release. It is not
    remembered as the owner's own settlement.
    """
    released = list(rows)
    for row in released:
        retention = access.state.settings(row.new.queue).retention or Retention()
        settlement = Settlement(
            job_id=row.new.id,
            fence=row.fence,
            kind=SettlementKind.RELEASED,
            status=JobStatus.QUEUED,
            keep_place=True,
            ended=False,
            releases=1,
            keep_us=retention.finished_us,
            dead_keep_us=retention.dead_us,
        )
        apply(access, row, settlement)
    return len(released)


def _close_gate(access: Access, row: JobRow, settlement: Settlement) -> None:
    """A limit that somebody else has was met: close the job's rate gate for a time."""
    if settlement.kind is not SettlementKind.LIMITED:
        return
    gate = rate_gate(row.new)
    until_us = access.now_us + settlement.limit_us
    access.state.shut[gate] = max(until_us, access.state.shut.get(gate) or 0)


def _wake_held_back(access: Access, row: JobRow) -> None:
    """Wake the workers whose jobs a job that ran until now may have held back."""
    new = row.new
    if new.ordering_key is not None or access.state.settings(new.queue).concurrency is not None:
        access.wake_queue(row)
    task = access.state.tasks.get(new.task)
    if task is not None and task.concurrency is not None:
        access.wake_task(new.task)


def _count(row: JobRow, settlement: Settlement) -> None:
    counters = row.counters
    row.counters = msgspec.structs.replace(
        counters,
        attempts=counters.attempts + settlement.ended,
        failures=counters.failures + settlement.failures,
        crashes=counters.crashes + settlement.crashes,
        lone_crashes=counters.lone_crashes + settlement.lone_crashes,
        snoozes=counters.snoozes + settlement.snoozes,
        releases=counters.releases + settlement.releases,
    )


def _remember_attempt(row: JobRow, settlement: Settlement, resolved: Resolved, now_us: int) -> None:
    status, will_retry = lifecycle.attempt_status(settlement, resolved)
    record = AttemptRecord(
        attempt=row.counters.attempts,
        status=status,
        started_us=row.started_us or 0,
        finished_us=now_us,
        worker=row.worker or "",
        will_retry=will_retry,
        error=settlement.error,
    )
    if len(row.first_attempts) < HISTORY_KEPT:
        row.first_attempts.append(record)
    else:
        row.last_attempts.append(record)


def _end_as_settled(
    access: Access, row: JobRow, settlement: Settlement, resolved: Resolved
) -> None:
    if resolved.status is JobStatus.COMPLETED:
        row.result = settlement.result
        row.error = None
        row.result_keep_us = settlement.result_keep_us
    dead = resolved.status is JobStatus.DEAD
    keep_us = settlement.dead_keep_us if dead else settlement.keep_us
    _end(access, row, resolved.status, resolved.dead_reason, keep_us)


def _end(
    access: Access, row: JobRow, status: JobStatus, reason: DeadReason | None, keep_us: int | None
) -> None:
    row.status = status
    row.finished_us = access.now_us
    row.parked_us = None
    if status is JobStatus.DEAD:
        settings = access.state.settings(row.new.queue)
        row.dead_reason = reason
        row.dead_letter = settings.dead_letter
        row.holds_line = settings.on_dead == "hold"
    row.keep_us = keep_us
    if status is JobStatus.COMPLETED:
        _keep_for_keys(row, access.now_us)
    result_keep_us = None if row.result is None else row.result_keep_us
    row.expires_us = first_expiry_us(access.now_us, row.keep_us, result_keep_us)
    if row.awaited:
        row.awaited = False
        access.wake(f"job:{row.new.id}")
    enter_stashed(access, row)


def _keep_for_keys(row: JobRow, now_us: int) -> None:
    """A completed job that still holds a key is kept as long as it does."""
    new, created_us = row.new, row.created_us
    record = record_until_us(new.unique, new.idempotency, created_us=created_us)
    result = result_until_us(new.idempotency, created_us=created_us)
    row.keep_us = at_least_us(row.keep_us, record, finished_us=now_us)
    row.result_keep_us = at_least_us(row.result_keep_us, result, finished_us=now_us)


def _wait_again(access: Access, row: JobRow, settlement: Settlement, resolved: Resolved) -> None:
    row.status = resolved.status
    row.due_us = resolved.due_us
    if not settlement.keep_place:
        row.place = None
    if row.status is JobStatus.QUEUED and row.place is None:
        take_place(access, row)
    access.wake_queue(row)
