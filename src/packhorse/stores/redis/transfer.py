# SPDX-License-Identifier: MIT
"""Jobs to and from another store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from packhorse.job import JobStatus, NewJob
from packhorse.policies.gates import holds_line
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.carrying import carry_in_steps
from packhorse.stores.redis.rows import (
    RECORD_FIELDS,
    STATUS,
    Definition,
    Own,
    State,
    as_attempt,
    as_record,
    own_trace_id,
    read_definition,
    read_options,
    read_own,
    read_state,
)
from packhorse.stores.redis.statements import Script
from packhorse.stores.transfer import (
    CarriedJob,
    CarriedPage,
    CarryAnswer,
    Kept,
    Standing,
    as_carried,
    cursor_of,
)

__all__ = ["RedisTransfer"]

#: Jobs that one script looks at, so that nobody waits for it long.
_LOOKED_AT: Final = 500
#: Lines of history kept at each end.
_HISTORY_EACH_END: Final = 25


class RedisTransfer:
    """See `TransferStore`."""

    def carry_out(self, *, after: str | None, limit: int) -> Plan[CarriedPage]:
        beyond, wanted = cursor_of(after), max(0, limit)

        def steps() -> Steps[CarriedPage]:
            asked = ("after", beyond, wanted, max(wanted, _LOOKED_AT))
            now_us, reached, found = yield Script("carry_out", asked)
            jobs = tuple([_carried(one, now_us) for one in found])
            return CarriedPage(jobs, after=None if reached is None else reached.decode())

        return Plan("carry_out", steps, writes=False)

    def carried(self, job_ids: Sequence[str]) -> Plan[tuple[CarriedJob, ...]]:
        asked = ("ids", *dict.fromkeys(job_ids))

        def steps() -> Steps[tuple[CarriedJob, ...]]:
            now_us, _, found = yield Script("carry_out", asked)
            found.sort(key=lambda one: int(one[1]))
            return tuple([_carried(one, now_us) for one in found])

        return Plan("carried", steps, writes=False)

    def carry_in(self, jobs: Sequence[CarriedJob]) -> Plan[tuple[CarryAnswer, ...]]:
        given = tuple(jobs)
        return Plan("carry_in", lambda: carry_in_steps(given))


def _carried(told: Sequence[Any], now_us: int) -> CarriedJob:
    job_id, _, took_unique, took_idempotency, stashed, flat = told
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    shown = [fields.get(name.encode()) for name in RECORD_FIELDS]
    state, own = read_state(fields[b"s"]), read_own(fields[b"b"])
    definition = read_definition(fields[b"d"])
    kept = Kept(
        unique=definition.unique,
        idempotency=definition.idempotency,
        standing=_standing(state, own),
        line_number=_line_number(state, own, definition),
        took_unique=bool(took_unique),
        took_idempotency=bool(took_idempotency),
        suspect=bool(state.suspect),
        expires_us=state.expires_us,
        history=_history(fields),
        stashed=None if stashed is None else _stashed(stashed),
    )
    return as_carried(as_record(job_id.decode(), shown, now_us), kept)


def _standing(state: State, own: Own) -> Standing | None:
    if own.place is None:
        return None
    if own.rank != state.priority:
        return Standing(own.place, state.ready_us, aged=own.rank)
    return Standing(own.place, state.ready_us, own.pass_number)


def _line_number(state: State, own: Own, definition: Definition) -> int | None:
    status: JobStatus = STATUS[state.status]
    in_line = holds_line(status, dead_holds=bool(own.holds_line))
    return own.line_number if in_line and definition.ordering_key is not None else None


def _history(fields: dict[bytes, bytes]) -> tuple[Any, ...]:
    numbers = sorted(int(name[1:]) for name in fields if name[:1] == b"a")
    lines = [as_attempt(fields[b"a%d" % number]) for number in numbers]
    return (*lines[:_HISTORY_EACH_END], *lines[_HISTORY_EACH_END:][-_HISTORY_EACH_END:])


def _stashed(parts: Sequence[bytes]) -> NewJob:
    """A job as `lua/lib/entering.lua` keeps it: its eleven parts."""
    job_id, definition, payload, *_, due, deadline, timeout, _rules = parts
    name, said, instant = job_id.decode(), read_definition(definition), int(due[1:])
    return NewJob(
        id=name,
        task=said.task,
        payload=payload,
        queue=said.queue,
        priority=said.priority,
        tenant=said.tenant,
        tags=said.tags,
        delay_us=instant if due[:1] == b"+" else 0,
        scheduled_us=instant if due[:1] == b"=" else None,
        deadline_us=int(deadline) if deadline else None,
        timeout_us=int(timeout) if timeout else None,
        options=None if said.options is None else read_options(said.options),
        trace_id=own_trace_id(name) if said.trace_id is None else said.trace_id,
        upstream_request_id=said.upstream_request_id,
        created_by=said.created_by,
        ordering_key=said.ordering_key,
        concurrency_key=said.concurrency_key,
        rate_key=said.rate_key,
        weight=said.weight,
        unique=said.unique,
        idempotency=said.idempotency,
    )
