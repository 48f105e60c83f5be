# SPDX-License-Identifier: MIT
"""Jobs to and from another store."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import count, islice
from typing import Final

import msgspec

from packhorse.core.job import TERMINAL, AttemptError, AttemptRecord, JobStatus, NewJob
from packhorse.core.policies.fairness import Rank, claim_rank
from packhorse.core.policies.gates import holds_line
from packhorse.core.policies.journal import member_of
from packhorse.core.policies.uniqueness import keys_wanted, unique_identity
from packhorse.stores.memory.rows import HISTORY_KEPT, JobRow, as_record
from packhorse.stores.memory.state import Access, on_state, plan
from packhorse.stores.memory.transitions import holder_of, take_keys
from packhorse.stores.plan import Plan
from packhorse.stores.records import RefusedJob
from packhorse.stores.transfer import (
    CARRIED,
    CarriedJob,
    CarriedPage,
    CarryAnswer,
    Copied,
    Standing,
    as_carried,
    cursor_of,
    deals_passes,
    keys_of,
    rejected,
)


class MemoryTransfer:
    """See `TransferStore`."""

    def copied(self) -> Plan[Copied | None]:
        return plan("copied", lambda access: access.state.copied, writes=False)

    @on_state()
    def mark(self, access: Access, copied: Copied | None) -> None:
        access.state.copied = copied

    def carry_out(self, *, after: str | None, limit: int) -> Plan[CarriedPage]:
        beyond = cursor_of(after)
        return plan("carry_out", partial(_page, beyond=beyond, limit=limit), writes=False)

    @on_state(writes=False)
    def carried(self, access: Access, job_ids: Sequence[str]) -> tuple[CarriedJob, ...]:
        asked = frozenset(job_ids)
        rows = (row for row in access.state.jobs.values() if row.new.id in asked)
        return tuple(_shown(access, row) for row in rows if _is_carried(access, row))

    def carry_in(self, jobs: Sequence[CarriedJob]) -> Plan[tuple[CarryAnswer, ...]]:
        given = tuple(jobs)
        return plan("carry_in", lambda access: tuple(_take_over(access, job) for job in given))

    @on_state()
    def exchange(self, access: Access, job_id: str, texts: Mapping[str, str]) -> bool:
        row = access.state.jobs.get(job_id)
        if row is not None:
            with access.state.changing(row, row.updated_us):
                _exchange(row, tuple(texts.items()))
        return row is not None


# ---------------------------------------------------------------------------------------- reading


def _page(access: Access, beyond: int, limit: int) -> CarriedPage:
    beyond_it = (row for row in access.state.jobs.values() if row.sequence > beyond)
    meant = (row for row in beyond_it if _is_carried(access, row))
    rows = list(islice(meant, max(0, limit)))
    more = next(meant, None) is not None
    return CarriedPage(
        tuple(_shown(access, row) for row in rows),
        after=str(rows[-1].sequence) if more and rows else None,
    )


def _is_carried(access: Access, row: JobRow) -> bool:
    return row.status in CARRIED or (row.status in TERMINAL and access.group_of(row) is not None)


def _shown(access: Access, row: JobRow) -> CarriedJob:
    state, new = access.state, row.new
    unique = unique_identity(new)
    took = {kind: state.taken.get((kind, each)) == new.id for kind, each in keys_wanted(new)}
    in_line = new.ordering_key is not None and holds_line(row.status, dead_holds=row.holds_line)
    return as_carried(
        as_record(row, access.now_us),
        *(new.unique, new.idempotency),
        standing=_standing(row),
        line_number=row.line_number if in_line else None,
        took_unique=took.get("unique", False),
        took_idempotency=took.get("idempotency", False),
        suspect=row.suspect,
        expires_us=row.expires_us,
        history=(*row.first_attempts, *row.last_attempts),
        attached=msgspec.structs.replace(row.attached, waiting=row.awaits_signal),
        stashed=None if unique is None else state.stashed.get(unique),
    )


def _standing(row: JobRow) -> Standing | None:
    if row.place is None:
        return None
    aged = row.rank[0] if row.aged else None
    return Standing(row.place, row.ready_us, 0 if row.aged else row.pass_number, aged)


# ---------------------------------------------------------------------------------------- writing


def _take_over(access: Access, carried: CarriedJob) -> CarryAnswer:
    new, state = carried.job, access.state
    if new.id in state.jobs:
        return CarryAnswer.KNOWN
    keys = keys_of(carried)
    if any(holder_of(access, *key) for key in keys):
        return CarryAnswer.CONFLICT
    _pass_on_numbers(access, carried)
    row = _row(access, carried)
    state.insert(row)
    take_keys(access, new.id, keys)
    unique = unique_identity(new)
    if carried.took_unique and unique is not None and carried.stashed is not None:
        state.stashed[unique] = carried.stashed
    access.wake_queue(row)
    return CarryAnswer.CARRIED


def reject(access: Access, job: NewJob, refused: RefusedJob) -> None:
    """Store a refused member as a dead letter, and append its journal line."""
    member = member_of(job.options)
    settings = access.state.settings(job.queue)
    dead = rejected(job, refused.code, refused.reason, access.now_us, settings)
    answer = _take_over(access, dead)
    if member is not None and answer is CarryAnswer.CARRIED:
        access.state.append_line(access.state.jobs[job.id], member, JobStatus.PENDING)


#: Fields that a row has under the names they have in a carried job.
_ROW_FIELDS: Final = tuple(
    {one.name for one in fields(JobRow)}
    & {*CarriedJob.__struct_fields__} - {"line_number", "result"}
)


def _row(access: Access, carried: CarriedJob) -> JobRow:
    new, standing, dead = carried.job, carried.standing, carried.status is JobStatus.DEAD
    expires_us, line_number = carried.expires_us, carried.line_number
    return JobRow(
        new=new,
        sequence=access.state.next_sequence(),
        deadline_us=new.deadline_us,
        result=None if carried.result is None else carried.result.decode(),
        **{name: getattr(carried, name) for name in _ROW_FIELDS},
        place=None if standing is None else standing.place,
        ready_us=0 if standing is None else standing.ready_us,
        pass_number=0 if standing is None else standing.pass_number,
        rank=(0, 0, 0) if standing is None else _rank(new.priority, standing),
        line_number=access.state.next_line_number() if line_number is None else line_number,
        holds_line=dead and line_number is not None,
        keep_us=None if expires_us is None else expires_us - (carried.finished_us or 0),
        waits_with=carried.fence if carried.attached.waiting else None,
        first_attempts=list(carried.history[:HISTORY_KEPT]),
        last_attempts=deque(carried.history[HISTORY_KEPT:], maxlen=HISTORY_KEPT),
    )


def _exchange(row: JobRow, texts: Sequence[tuple[str, str]]) -> None:
    def other(value: bytes) -> bytes:
        for old, new in texts:
            value = value.replace(old.encode(), new.encode())
        return value

    def in_error(error: AttemptError | None) -> AttemptError | None:
        if error is None:
            return None
        message = other(error.message.encode()).decode()
        return msgspec.structs.replace(error, message=message)

    def in_lines(lines: Iterable[AttemptRecord]) -> list[AttemptRecord]:
        return [msgspec.structs.replace(line, error=in_error(line.error)) for line in lines]

    kept = row.attached
    row.new = msgspec.structs.replace(row.new, payload=other(row.new.payload))
    row.result = None if row.result is None else other(row.result.encode()).decode()
    row.error = in_error(row.error)
    row.first_attempts = in_lines(row.first_attempts)
    row.last_attempts = deque(in_lines(row.last_attempts), maxlen=HISTORY_KEPT)
    row.attached = msgspec.structs.replace(
        kept,
        values={name: other(value) for name, value in kept.values.items()},
        signals={name: tuple(map(other, came)) for name, came in kept.signals.items()},
    )


def _rank(priority: int, standing: Standing) -> Rank:
    if standing.aged is not None:
        return (standing.aged, 0, standing.place)
    return claim_rank(priority, standing.place, pass_number=standing.pass_number)


def _pass_on_numbers(access: Access, carried: CarriedJob) -> None:
    """Raise places, line numbers and passes above those of the carried job."""
    state, new, standing = access.state, carried.job, carried.standing
    if carried.line_number is not None:
        first = max(state.next_line_number(), carried.line_number + 1)
        state.next_line_number = count(first).__next__
    if standing is not None:
        state.next_place = count(max(state.next_place(), standing.place + 1)).__next__
    if deals_passes(carried):
        state.tenanted.add(new.queue)
    if standing is not None and standing.aged is None and deals_passes(carried):
        share = (new.queue, new.priority)
        lasts = state.last_passes.setdefault(share, {})
        lasts[new.tenant] = max(standing.pass_number, lasts.get(new.tenant, 0))
        state.highest_pass[share] = max(standing.pass_number, state.highest_pass[share])
