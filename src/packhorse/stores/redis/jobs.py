# SPDX-License-Identifier: MIT
"""Jobs on Redis: submit, claim, settle, and changes of single jobs on request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from packhorse.core.job import LOOK_MAX, Job, JobRecord, NewJob
from packhorse.core.lifecycle import TASK_TIMEOUT, CancelAnswer
from packhorse.core.settlement import Settlement, Verdict
from packhorse.stores.plan import Named, Plan, Steps, planned
from packhorse.stores.redis.layout import CODE, VERDICTS, Definition, SharedState
from packhorse.stores.redis.rows import (
    as_claimed,
    as_record,
    filter_text,
    read_definition,
    read_state,
)
from packhorse.stores.redis.scripts import LARGE_BYTES, LOOKED_AT, Argument, Script
from packhorse.stores.redis.submit import submit_steps
from packhorse.stores.requests import (
    Claimed,
    ClaimRequest,
    Deleted,
    JobFilter,
    ProgressNote,
    RedriveAnswer,
    Submitted,
)
from packhorse.stores.transfer import cursor_of

#: Scripts that one claim runs: each looks at a bounded number of lines of which it takes nothing.
_LOOKS_MAX: Final = 100
#: Positions in the reply to a claim: whether there may be more, the jobs that a rate limit passed,
#: and the first job; and how many parts each job has.
_MORE, _RATED, _JOBS, _PARTS = 4, 5, 6, 4

_pack: Final = msgspec.msgpack.Encoder().encode


_UNKNOWN: Final[tuple[RedriveAnswer, ...]] = (RedriveAnswer.UNKNOWN,)


class RedisJobs:
    """See `JobStore`."""

    def __init__(self, *, fast: bool = True) -> None:
        """Without `fast` every verb takes its general route, which must write the same."""
        self._fast = fast

    def submit(
        self, jobs: Sequence[NewJob], *, ids_are_new: bool = False
    ) -> Plan[tuple[Submitted, ...]]:
        steps = partial(submit_steps, tuple(jobs), fast=self._fast)
        look = partial(steps, ids_are_new=True) if ids_are_new else None
        return Plan("submit", steps, look=look)

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        return Plan("claim", partial(_claim, request, fast=self._fast))

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        return Plan("settle", partial(_settle, tuple(settlements), fast=self._fast))

    @planned()
    def note_progress(self, notes: Sequence[ProgressNote]) -> Steps[tuple[Verdict, ...]]:
        args: list[Argument] = []
        for note in notes:
            args += (note.job_id, note.fence, msgspec.json.encode(note.progress))
        reply = yield Script("note_progress", args)
        return tuple(Verdict.APPLIED if current else Verdict.STALE for current in reply)

    def cancel(self, job_id: str, *, tenant: str | None = None) -> Plan[CancelAnswer]:
        again = partial(self.cancel, tenant=tenant)
        named = Named(job_id, CancelAnswer.UNKNOWN, again)
        return Plan("cancel", partial(_cancel, job_id, tenant), named=named)

    def redrive(
        self, job_ids: Sequence[str], *, tenant: str | None = None, forget: Sequence[str] = ()
    ) -> Plan[tuple[RedriveAnswer, ...]]:
        steps = partial(_redrive, tuple(job_ids), tenant, tuple(forget))
        if len(job_ids) != 1:
            return Plan("redrive", steps)
        named = Named(
            job_ids[0], _UNKNOWN, lambda other: self.redrive((other,), tenant=tenant, forget=forget)
        )
        return Plan("redrive", steps, named=named)

    def delete(
        self, chosen: JobFilter, *, limit: int, after: str | None = None, most: int = LOOK_MAX
    ) -> Plan[Deleted]:
        behind = str(cursor_of(after))
        return Plan("delete", partial(_delete, filter_text(chosen), limit, behind, most))

    @planned()
    def await_finish(self, job_id: str) -> Steps[JobRecord | None]:
        reply = yield Script("await_finish", [job_id])
        return None if reply is None else as_record(job_id, reply[1], reply[0])


def _claim(request: ClaimRequest, *, fast: bool) -> Steps[Claimed]:
    """Claim with one script, or a few when very many lines are blocked or of other tenants."""
    reply = yield Script("claim", _arguments(request, request.limit), fast)
    jobs, rated = _jobs_of(reply), list(reply[_RATED])
    for _ in range(_LOOKS_MAX):
        if not reply[_MORE]:
            break
        left = request.limit - len(jobs)
        passed = reply[_MORE] if isinstance(reply[_MORE], bytes) else b""
        reply = yield Script("claim", _arguments(request, left, passed), fast)
        jobs += _jobs_of(reply)
        rated += reply[_RATED]
    return _claimed(reply, jobs, rated)


def _jobs_of(reply: list[Any]) -> list[Job]:
    """Read the jobs of a reply; decode what several of them share once."""
    states: dict[bytes, SharedState] = {}
    definitions: dict[bytes, Definition] = {}
    jobs: list[Job] = []
    for at in range(_JOBS, len(reply), _PARTS):
        job_id, packed, defined, payload = reply[at : at + _PARTS]
        state, definition = states.get(packed), definitions.get(defined)
        if state is None:
            state = states[packed] = read_state(packed)
        if definition is None:
            definition = definitions[defined] = read_definition(defined)
        jobs.append(as_claimed(job_id.decode(), state, definition, payload.decode()))
    return jobs


def _claimed(reply: list[Any], jobs: list[Job], rated: Sequence[bytes] = ()) -> Claimed:
    now_us, next_due_us, suspects, lease_lost = reply[:_MORE]
    return Claimed(
        jobs=tuple(jobs),
        now_us=now_us,
        next_due_us=None if next_due_us == -1 else next_due_us,
        suspects=bool(suspects),
        lease_lost=bool(lease_lost),
        rated=frozenset(each.decode() for each in rated),
    )


def _arguments(request: ClaimRequest, limit: int, passed: bytes = b"") -> list[Argument]:
    return [
        request.worker,
        max(0, limit),
        request.default_timeout_us,
        int(request.quarantine),
        request.allowance_us,
        _pack((request.tenants, request.levels)) + passed if request.narrow else "",
        len(request.queues),
        *request.queues,
        *request.tasks,
    ]


def _settle(settlements: Sequence[Settlement], *, fast: bool) -> Steps[tuple[Verdict, ...]]:
    """Settle all in one script; see `JobStore.settle`."""
    if not settlements:
        return ()
    args: list[Argument] = []
    for each in settlements:
        args += (each.job_id, each.fence, each.result or "", _rest(each))
    large = sum([len(each.result or "") for each in settlements]) >= LARGE_BYTES
    reply = yield Script("settle", args, fast, large)
    return tuple(VERDICTS[verdict] for verdict in reply)


def _rest(settled: Settlement) -> bytes:
    """Pack `layout.SettlementParts`, which many settlements share."""
    error = settled.error
    return _pack(
        (
            settled.kind,
            CODE[settled.status],
            settled.delay_us,
            settled.keep_place,
            settled.ended,
            settled.failures,
            settled.crashes,
            settled.lone_crashes,
            settled.snoozes,
            settled.releases,
            settled.result is not None,
            None if error is None else msgspec.json.encode(error).decode(),
            settled.dead_reason,
            settled.keep_us,
            settled.result_keep_us,
            settled.dead_keep_us,
            settled.suspect,
            settled.limit_us,
            error is not None and error.code == TASK_TIMEOUT,
            settled.waits,
            *(settled.counted or ()),
        )
    )


def seen_by(tenant: str | None) -> tuple[int, str]:
    """The script arguments that limit a caller to the jobs of a tenant."""
    return (0, "") if tenant is None else (1, tenant)


def _cancel(job_id: str, tenant: str | None) -> Steps[CancelAnswer]:
    reply = yield Script("cancel", [job_id, *seen_by(tenant)])
    return CancelAnswer(reply.decode())


def _delete(text: bytes, limit: int, behind: str, most: int) -> Steps[Deleted]:
    """Delete in parts: each script looks at some jobs, from where the last one ended."""
    removed = 0
    for looked in range(0, most, LOOKED_AT):
        if removed >= limit:
            break
        at_once = min(LOOKED_AT, most - looked)
        count, end = yield Script("delete", [limit - removed, behind, text, at_once])
        removed += count
        if end is None:
            return Deleted(removed)
        behind = end.decode()
    return Deleted(removed, behind)


def _redrive(
    job_ids: Sequence[str], tenant: str | None, forget: Sequence[str]
) -> Steps[tuple[RedriveAnswer, ...]]:
    reply = yield Script("redrive", [*seen_by(tenant), len(forget), *forget, *job_ids])
    return tuple(RedriveAnswer(answer.decode()) for answer in reply)
