# SPDX-License-Identifier: MIT
"""How a job comes in: its place and its pass, its number in line, and the keys it takes."""

from __future__ import annotations

from itertools import chain

from packhorse import lifecycle
from packhorse.job import JobStatus, NewJob, Priority
from packhorse.policies.fairness import next_pass, redealt, virtual_time
from packhorse.policies.priority import aged_rank, claim_rank
from packhorse.policies.uniqueness import (
    Identity,
    holds_idempotency_key,
    holds_unique_key,
    idempotency_identity,
    unique_identity,
)
from packhorse.stores.memory.access import Access
from packhorse.stores.memory.rows import JobRow
from packhorse.stores.requests import QueueSettings

__all__ = [
    "begin_to_deal",
    "due_us",
    "enter",
    "enter_stashed",
    "idempotency_holder",
    "take_keys",
    "take_place",
    "unique_holder",
]


def due_us(new: NewJob, now_us: int) -> int:
    """When a job that is submitted now becomes due."""
    return now_us + new.delay_us if new.scheduled_us is None else new.scheduled_us


def enter(access: Access, new: NewJob, sequence: int, *, ready: bool = True) -> JobRow:
    """Keep a new job, at the end of its line; unless `ready`, it takes no place even if due."""
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
    take_keys(access, row)
    access.wake_queue(row)
    return row


def take_place(access: Access, row: JobRow) -> None:
    """Stand behind all that are ready already, or, in a fair queue, where one's tenant may."""
    settings = access.state.settings(row.new.queue)
    priority, place = row.new.priority, access.state.next_place()
    row.place, row.ready_us = place, access.now_us
    row.pass_number = _next_pass(access, row, settings)
    if settings.ageing_us is None:
        row.rank = claim_rank(priority, place, pass_number=row.pass_number)
    else:
        row.rank = aged_rank(priority, place, ready_us=row.ready_us, ageing_us=settings.ageing_us)


def begin_to_deal(access: Access, queue: str) -> None:
    """From the first job with a tenant on, a queue deals passes; what is ready gets them now."""
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


def take_keys(access: Access, row: JobRow) -> None:
    """Become the holder of one's keys; whoever waited behind the last holder is outdated."""
    state, new = access.state, row.new
    unique, idempotency = unique_identity(new), idempotency_identity(new)
    if unique is not None:
        state.unique[unique] = new.id
        state.stashed.pop(unique, None)
    if idempotency is not None:
        state.idempotent[idempotency] = new.id


def unique_holder(access: Access, identity: Identity | None) -> JobRow | None:
    """The job that holds a unique key by its own rule."""
    row = access.state.jobs.get(access.state.unique.get(identity, "")) if identity else None
    if row is None or row.new.unique is None:
        return None
    held = holds_unique_key(
        row.new.unique, row.status, created_us=row.created_us, now_us=access.now_us
    )
    return row if held else None


def idempotency_holder(access: Access, identity: Identity | None) -> JobRow | None:
    """The job that holds an idempotency key by its own rule."""
    row = access.state.jobs.get(access.state.idempotent.get(identity, "")) if identity else None
    if row is None or row.new.idempotency is None:
        return None
    held = holds_idempotency_key(
        row.new.idempotency, row.status, created_us=row.created_us, now_us=access.now_us
    )
    return row if held else None


def enter_stashed(access: Access, ended: JobRow) -> None:
    """Submit the job that waited until the holder of its key ended.

    It was let in when it came, so neither depth nor a closed queue keeps it out now. One that
    came in some other way meanwhile, by its id or its idempotency key, is there already.
    """
    identity = unique_identity(ended.new)
    if identity is None or access.state.unique.get(identity) != ended.new.id:
        return
    new = access.state.stashed.pop(identity, None)
    if new is None or new.id in access.state.jobs:
        return
    if idempotency_holder(access, idempotency_identity(new)) is None:
        enter(access, new, access.state.next_sequence())
