# SPDX-License-Identifier: MIT
"""Carry jobs to and from another store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from packhorse.core.job import JobStatus, NewJob
from packhorse.core.policies.gates import holds_line
from packhorse.errors import ConfigError
from packhorse.stores.plan import Plan, Steps, planned
from packhorse.stores.redis.attachments import attached_fields, read_attached
from packhorse.stores.redis.layout import (
    CODE,
    FIELDS,
    HISTORY_EACH_END,
    RECORD_FIELDS,
    STATUS,
    Definition,
    OwnState,
    SharedState,
)
from packhorse.stores.redis.rows import (
    as_attempt,
    as_record,
    attempt_line,
    definition_of,
    own_trace_id,
    read_definition,
    read_options,
    read_own,
    read_state,
    signature_of,
)
from packhorse.stores.redis.scripts import LOOKED_AT, Argument, Script
from packhorse.stores.redis.submit import SUBMITTED_MAX, arguments_of, is_member
from packhorse.stores.transfer import (
    CarriedJob,
    CarriedPage,
    CarryAnswer,
    Copied,
    Standing,
    as_carried,
    cursor_of,
    deals_passes,
    highest_number,
)

_pack: Final = msgspec.msgpack.Encoder().encode


class RedisTransfer:
    """See `TransferStore`."""

    @planned(writes=False)
    def copied(self) -> Steps[Copied | None]:
        text = yield Script("copied", ("get",))
        return None if text is None else msgspec.json.decode(text, type=Copied)

    @planned()
    def mark(self, copied: Copied | None) -> Steps[None]:
        asked = ("del",) if copied is None else ("set", msgspec.json.encode(copied))
        yield Script("copied", asked)

    def carry_out(self, *, after: str | None, limit: int) -> Plan[CarriedPage]:
        beyond, wanted = cursor_of(after), max(0, limit)

        def steps() -> Steps[CarriedPage]:
            asked = ("after", beyond, wanted, max(wanted, LOOKED_AT))
            now_us, reached, found = yield Script("carry_out", asked)
            jobs = tuple([_carried(one, now_us) for one in found])
            return CarriedPage(jobs, after=None if reached is None else reached.decode())

        return Plan("carry_out", steps, writes=False)

    @planned(writes=False)
    def carried(self, job_ids: Sequence[str]) -> Steps[tuple[CarriedJob, ...]]:
        asked = ("ids", *dict.fromkeys(job_ids))
        now_us, _, found = yield Script("carry_out", asked)
        found.sort(key=lambda one: int(one[1]))
        return tuple([_carried(one, now_us) for one in found])

    def carry_in(self, jobs: Sequence[CarriedJob]) -> Plan[tuple[CarryAnswer, ...]]:
        given = tuple(jobs)
        return Plan("carry_in", lambda: _carry_in(given))

    @planned()
    def exchange(self, job_id: str, texts: Mapping[str, str]) -> Steps[bool]:
        asked = (job_id, *(part for pair in texts.items() for part in pair))
        found = yield Script("exchange", asked)
        return bool(found)


def _carry_in(jobs: Sequence[CarriedJob]) -> Steps[tuple[CarryAnswer, ...]]:
    """All in one script; see `TransferStore.carry_in`."""
    if not jobs:
        return ()
    if len(jobs) > SUBMITTED_MAX:
        raise ConfigError(
            f"{len(jobs)} jobs were carried in one call, and Redis stores at most "
            f"{SUBMITTED_MAX} at once; nothing was stored: carry them in parts"
        )
    args: list[Argument] = [highest_number(jobs)]
    for carried in jobs:
        args += _arguments(carried)
    answers = yield Script("carry_in", args)
    return tuple([CarryAnswer(answer.decode()) for answer in answers])


def _arguments(carried: CarriedJob) -> list[Argument]:
    """The arguments of the script for one job."""
    job, fields = carried.job, _fields(carried)
    flags = (carried.took_unique, carried.took_idempotency, deals_passes(carried))
    stashed = () if carried.stashed is None else arguments_of(carried.stashed)
    state = {name: value for name, value in _state(carried).items() if value is not None}
    return [
        *(job.id, definition_of(job), job.payload, _pack(state)),
        "".join("1" if each else "0" for each in flags),
        *(len(fields), *fields),
        *(len(stashed), *stashed),
    ]


def _fields(carried: CarriedJob) -> list[Argument]:
    """The other fields of the job's hash, as name and value."""
    fields: list[Argument] = []
    for name, value in (("error", carried.error), ("progress", carried.progress)):
        if value is not None:
            fields += (FIELDS[name], msgspec.json.encode(value))
    if carried.result is not None:
        fields += (FIELDS["result"], carried.result)
    for line in carried.history:
        fields += (f"{FIELDS['attempt']}{line.attempt}", attempt_line(line))
    return fields + attached_fields(carried.attached, carried.fence)


def _state(carried: CarriedJob) -> dict[str, Any]:
    """The fields of `SharedState` and `OwnState` by name, some of them None."""
    job, standing, finished_us = carried.job, carried.standing, carried.finished_us
    expires_us, dead = carried.expires_us, carried.status is JobStatus.DEAD
    state: dict[str, Any] = {
        **msgspec.structs.asdict(carried.counters),
        "status": CODE[carried.status],
        "fence": carried.fence,
        "updated_us": carried.updated_us,
        "worker": carried.worker,
        "started_us": carried.started_us,
        "hold_until_us": 0,
        "timeout_us": job.timeout_us,
        "deadline_us": job.deadline_us,
        "cancel_requested": carried.cancel_requested or None,
        "suspect": carried.suspect or None,
        "finished_us": finished_us,
        "keep_us": None if expires_us is None else expires_us - (finished_us or 0),
        "expires_us": expires_us,
        "has_result": carried.result is not None or None,
        "queue": job.queue,
        "task": job.task,
        "signature": signature_of(job),
        "keyed": job.unique is not None or job.idempotency is not None or is_member(job) or None,
        "priority": int(job.priority),
        "created_us": carried.created_us,
        "due_us": carried.due_us,
        "line_number": carried.line_number,
        "dead_reason": carried.dead_reason,
        "dead_letter": carried.dead_letter,
        "holds_line": (dead and carried.line_number is not None) or None,
        "ready_us": 0,
        "rank": int(job.priority),
        "pass_number": 0,
    }
    if standing is not None:
        rank = int(job.priority) if standing.aged is None else standing.aged
        state |= {"place": standing.place, "ready_us": standing.ready_us, "rank": rank}
        state["pass_number"] = standing.pass_number
    return state


def _carried(row: Sequence[Any], now_us: int) -> CarriedJob:
    job_id, _, took_unique, took_idempotency, stashed, flat = row
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    shown = [fields.get(name.encode()) for name in RECORD_FIELDS]
    state, own = read_state(fields[b"s"]), read_own(fields[b"b"])
    definition = read_definition(fields[b"d"])
    return as_carried(
        as_record(job_id.decode(), shown, now_us),
        *(definition.unique, definition.idempotency),
        standing=_standing(state, own),
        line_number=_line_number(state, own, definition),
        took_unique=bool(took_unique),
        took_idempotency=bool(took_idempotency),
        suspect=bool(state.suspect),
        expires_us=state.expires_us,
        history=_history(fields),
        stashed=None if stashed is None else _stashed(stashed),
        attached=read_attached(flat),
    )


def _standing(state: SharedState, own: OwnState) -> Standing | None:
    if own.place is None:
        return None
    if own.rank != state.priority:
        return Standing(own.place, state.ready_us, aged=own.rank)
    return Standing(own.place, state.ready_us, own.pass_number)


def _line_number(state: SharedState, own: OwnState, definition: Definition) -> int | None:
    status: JobStatus = STATUS[state.status]
    in_line = holds_line(status, dead_holds=bool(own.holds_line))
    return own.line_number if in_line and definition.ordering_key is not None else None


def _history(fields: dict[bytes, bytes]) -> tuple[Any, ...]:
    numbers = sorted(int(name[1:]) for name in fields if name[:1] == b"a")
    lines = [as_attempt(fields[b"a%d" % number]) for number in numbers]
    return (*lines[:HISTORY_EACH_END], *lines[HISTORY_EACH_END:][-HISTORY_EACH_END:])


def _stashed(parts: Sequence[bytes]) -> NewJob:
    """A new job from its `NewJobParts`."""
    job_id, definition, payload, *_, due, deadline, timeout, _rules = parts
    name, defined, instant = job_id.decode(), read_definition(definition), int(due[1:])
    fields: dict[str, Any] = msgspec.structs.asdict(defined) | {
        "timeout_us": int(timeout) if timeout else None,
        "options": None if defined.options is None else read_options(defined.options),
        "trace_id": own_trace_id(name) if defined.trace_id is None else defined.trace_id,
    }
    return NewJob(
        id=name,
        payload=payload,
        delay_us=instant if due[:1] == b"+" else 0,
        scheduled_us=instant if due[:1] == b"=" else None,
        deadline_us=int(deadline) if deadline else None,
        **fields,
    )
