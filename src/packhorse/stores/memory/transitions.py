# SPDX-License-Identifier: MIT
"""Move jobs from one status to another, as `lifecycle` decides: enter, wait, become ready, end."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec

from packhorse.core import lifecycle
from packhorse.core.job import (
    TERMINAL,
    AttemptRecord,
    Counters,
    DeadReason,
    JobStatus,
    NewJob,
    Priority,
)
from packhorse.core.lifecycle import Resolved
from packhorse.core.policies.fairness import aged_rank, claim_rank, next_pass, redealt, virtual_time
from packhorse.core.policies.gates import rate_gate
from packhorse.core.policies.journal import member_of
from packhorse.core.policies.retention import lifetimes
from packhorse.core.policies.uniqueness import (
    Identity,
    JobKey,
    at_least_us,
    holds_key,
    idempotency_identity,
    keys_wanted,
    record_until_us,
    result_until_us,
    unique_identity,
)
from packhorse.core.settlement import Settlement, SettlementKind, Verdict, signalled
from packhorse.stores.memory.rows import HISTORY_KEPT, JobRow
from packhorse.stores.memory.state import Access
from packhorse.stores.requests import QueueSettings


def due_us(new: NewJob, now_us: int) -> int:
    """When a job that is submitted now becomes due."""
    return now_us + new.delay_us if new.scheduled_us is None else new.scheduled_us


def enter(access: Access, new: NewJob, sequence: int, *, ready: bool = True) -> JobRow:
    """Store a new job at the end of its line; unless `ready`, it takes no place even if due."""
    now_us = access.now_us
    due = due_us(new, now_us)
    row = JobRow(
        new=new,
        sequence=sequence,
        created_us=now_us,
        updated_us=now_us,
        due_us=due,
        deadline_us=new.deadline_us,
        status=lifecycle.status_at_submit(due, now_us) if ready else JobStatus.PENDING,
        line_number=access.state.next_line_number(),
    )
    if new.tenant:
        begin_to_deal(access, new.queue)
    if row.status is JobStatus.QUEUED:
        take_place(access, row)
    access.state.insert(row)
    take_keys(access, new.id, keys_wanted(new))
    access.wake_queue(row)
    return row


def take_place(access: Access, row: JobRow) -> None:
    """Give a job the last place of its queue, or in a fair queue its tenant's next turn."""
    settings = access.state.settings(row.new.queue)
    priority, place = row.new.priority, access.state.next_place()
    row.place, row.ready_us = place, access.now_us
    row.pass_number = _next_pass(access, row, settings)
    if settings.ageing_us is None:
        row.rank = claim_rank(priority, place, pass_number=row.pass_number)
    else:
        row.rank = aged_rank(priority, place, ready_us=row.ready_us, ageing_us=settings.ageing_us)


def begin_to_deal(access: Access, queue: str) -> None:
    """Let a queue deal passes from its first job with a tenant on; ready jobs get passes now."""
    state, settings = access.state, access.state.settings(queue)
    if queue in state.tenanted:
        return
    state.tenanted.add(queue)
    if not settings.fair or settings.ageing_us is not None:
        return
    groups = (keys.ids for (name, _), keys in state.ready.items() if name == queue)
    ready = sorted(access.rows(list(chain(*groups))), key=lambda row: row.place or 0)
    for priority in Priority:
        rows = [row for row in ready if row.new.priority == priority]
        for index, row in enumerate(rows):
            with state.changing(row, row.updated_us):
                row.pass_number = redealt(index)
                row.rank = claim_rank(priority, row.place or 0, pass_number=row.pass_number)
        if rows:
            share = (queue, int(priority))
            state.last_passes[share] = {"": redealt(len(rows) - 1)}
            state.highest_pass[share] = redealt(len(rows) - 1)


def _next_pass(access: Access, row: JobRow, settings: QueueSettings) -> int:
    state, tenant = access.state, row.new.tenant
    if not settings.fair or settings.ageing_us is not None or row.new.queue not in state.tenanted:
        return 0
    share = (row.new.queue, row.new.priority)
    first = state.passes.group(row.new.queue, str(row.new.priority)).first()
    running = [
        other.pass_number
        for keys in state.held.values()
        for other in access.rows(list(keys.ids))
        if (other.new.queue, other.new.priority) == share
    ]
    now = virtual_time(
        None if first is None else first[0], state.highest_pass[share], max(running, default=None)
    )
    lasts = state.last_passes.setdefault(share, {})
    given = next_pass(now, lasts.get(tenant), settings.weights.get(tenant, 1.0))
    lasts[tenant] = given
    state.highest_pass[share] = max(given, state.highest_pass[share])
    return given


def take_keys(access: Access, job_id: str, keys: Iterable[JobKey]) -> None:
    """Make a job the holder of keys; a job stashed behind the last holder is outdated."""
    state = access.state
    for kind, identity in keys:
        state.taken[kind, identity] = job_id
        if kind == "unique":
            state.stashed.pop(identity, None)


def holder_of(access: Access, kind: str, identity: Identity | None) -> JobRow | None:
    """The job that holds a key by its own rule."""
    if identity is None:
        return None
    row = access.state.jobs.get(access.state.taken.get((kind, identity), ""))
    if row is None:
        return None
    held = holds_key(kind, row.new, row.status, created_us=row.created_us, now_us=access.now_us)
    return row if held else None


def enter_stashed(access: Access, ended: JobRow) -> None:
    """Submit the job that waited until the holder of its key ended.

    It was admitted when it came, so neither depth nor a closed queue refuses it now. A job that was
    stored in another way since, by its id or idempotency key, is skipped.
    """
    identity = unique_identity(ended.new)
    if identity is None or access.state.taken.get(("unique", identity)) != ended.new.id:
        return
    new = access.state.stashed.pop(identity, None)
    if new is None or new.id in access.state.jobs:
        return
    if holder_of(access, "idempotency", idempotency_identity(new)) is None:
        enter(access, new, access.state.next_sequence())


#: Settlements that do not show whether the job crashes its worker.
_PROVE_NOTHING = frozenset({SettlementKind.RELEASED, SettlementKind.RESCUED})


def apply(access: Access, row: JobRow, settlement: Settlement) -> Verdict:
    """Apply a settlement whose fence is current."""
    settlement = signalled(settlement, row.attached.delivered)
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
    access.wake_room(row, waited=False)
    _close_gate(access, row, settlement)
    _wake_held_back(access, row)
    return resolved.verdict


def promote(access: Access, queue: str, *, limit: int) -> int:
    """Make due jobs of a queue ready, in (due, sequence) order; return how many."""
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
    """End a job that no worker holds; it is kept as long as its queue says."""
    retention = access.state.retention(row.new.queue)
    keep_us = retention.dead_us if status is JobStatus.DEAD else retention.finished_us
    with access.state.changing(row, access.now_us):
        _end(access, row, status, reason, keep_us)
    access.wake_room(row)
    if row.new.ordering_key is not None:
        access.wake_queue(row)


def forget(access: Access, row: JobRow) -> None:
    """Remove a finished job with its history, and wake workers if it held a line."""
    access.state.forget(row)
    if row.holds_line:
        access.wake_queue(row)


def release_held(access: Access, rows: Iterable[JobRow]) -> int:
    """Give back held jobs that were not begun; return how many.

    A cancel flag or a deadline that has passed ends them, as with any other release. It is not
    remembered as the owner's own settlement.
    """
    released = list(rows)
    for row in released:
        retention = access.state.retention(row.new.queue)
        apply(access, row, lifecycle.release_unbegun(row.new.id, row.fence, retention))
    return len(released)


def _close_gate(access: Access, row: JobRow, settlement: Settlement) -> None:
    """Close the job's rate gate for a time after it met a limit of another system."""
    if settlement.kind is not SettlementKind.LIMITED:
        return
    gate = rate_gate(row.new)
    until_us = access.now_us + settlement.limit_us
    access.state.shut[gate] = max(until_us, access.state.shut.get(gate) or 0)


def _wake_held_back(access: Access, row: JobRow) -> None:
    """Wake the workers of jobs that this job may have blocked while it ran."""
    new = row.new
    if new.ordering_key is not None or access.state.settings(new.queue).concurrency is not None:
        access.wake_queue(row)
    task = access.state.tasks.get(new.task)
    if task is not None and task.concurrency is not None:
        access.wake_task(new.task)


def _count(row: JobRow, settlement: Settlement) -> None:
    before, names = row.counters, ("failures", "crashes", "lone_crashes", "snoozes", "releases")
    counted = {name: getattr(before, name) + getattr(settlement, name) for name in names}
    row.counters = Counters(attempts=before.attempts + settlement.ended, **counted)


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
    if settlement.counted is not None and member_of(row.new.options) is not None:
        row.attached = msgspec.structs.replace(row.attached, counted=settlement.counted)
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
    if member_of(row.new.options) is not None:
        row.result_keep_us = None  # as long as the record
    result_keep_us = None if row.result is None else row.result_keep_us
    row.expires_us = lifetimes(access.now_us, row.keep_us, result_keep_us)["expires_us"]
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
    row.waits_with = None if settlement.waits is None else row.fence
    if not settlement.keep_place:
        row.place = None
    if row.status is JobStatus.QUEUED and row.place is None:
        take_place(access, row)
    access.wake_queue(row)
