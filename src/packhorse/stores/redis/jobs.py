# SPDX-License-Identifier: MIT
"""Jobs on Redis: submit, claim, settle, and what people do to them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from packhorse.job import JobRecord, NewJob
from packhorse.lifecycle import CancelAnswer
from packhorse.settlement import Settlement, Verdict
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.claiming import claim_steps
from packhorse.stores.redis.rows import CODE, as_record
from packhorse.stores.redis.settling import settle_steps
from packhorse.stores.redis.short_way import ShortWay
from packhorse.stores.redis.statements import Script
from packhorse.stores.redis.submitting import submit_steps
from packhorse.stores.requests import (
    Claimed,
    ClaimRequest,
    JobFilter,
    ProgressNote,
    RedriveAnswer,
    Submitted,
)

__all__ = ["RedisJobs"]


class RedisJobs:
    """See `JobStore`."""

    def __init__(self, *, short_ways: bool = True) -> None:
        """Without `short_ways` every verb goes the long way, which must come to the same."""
        self._submitting = ShortWay(open_at_all=short_ways)
        self._claiming = ShortWay(open_at_all=short_ways)
        self._settling = ShortWay(open_at_all=short_ways)

    def submit(self, jobs: Sequence[NewJob]) -> Plan[tuple[Submitted, ...]]:
        return Plan("submit", partial(submit_steps, tuple(jobs), self._submitting))

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        return Plan("claim", partial(claim_steps, request, self._claiming))

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        return Plan("settle", partial(settle_steps, tuple(settlements), self._settling))

    def note_progress(self, notes: Sequence[ProgressNote]) -> Plan[tuple[Verdict, ...]]:
        return Plan("note_progress", partial(_note_progress, tuple(notes)))

    def cancel(self, job_id: str, *, tenant: str | None = None) -> Plan[CancelAnswer]:
        return Plan("cancel", partial(_cancel, job_id, tenant))

    def redrive(
        self, job_ids: Sequence[str], *, tenant: str | None = None
    ) -> Plan[tuple[RedriveAnswer, ...]]:
        return Plan("redrive", partial(_redrive, tuple(job_ids), tenant))

    def delete(self, chosen: JobFilter, *, limit: int) -> Plan[int]:
        return Plan("delete", partial(_delete, chosen, limit))

    def await_finish(self, job_id: str) -> Plan[JobRecord | None]:
        return Plan("await_finish", partial(_await_finish, job_id))


def _seen_by(tenant: str | None) -> tuple[int, str]:
    """Whether only a tenant's jobs are known to a caller, and whose."""
    return (0, "") if tenant is None else (1, tenant)


def _note_progress(notes: Sequence[ProgressNote]) -> Steps[tuple[Verdict, ...]]:
    args: list[str | bytes | int] = []
    for note in notes:
        args += (note.job_id, note.fence, msgspec.json.encode(note.progress))
    reply = yield Script("note_progress", args)
    return tuple(Verdict.APPLIED if current else Verdict.STALE for current in reply)


def _cancel(job_id: str, tenant: str | None) -> Steps[CancelAnswer]:
    reply = yield Script("cancel", [job_id, *_seen_by(tenant)])
    return CancelAnswer(reply.decode())


def _redrive(job_ids: Sequence[str], tenant: str | None) -> Steps[tuple[RedriveAnswer, ...]]:
    reply = yield Script("redrive", [*_seen_by(tenant), *job_ids])
    return tuple(RedriveAnswer(answer.decode()) for answer in reply)


def _delete(chosen: JobFilter, limit: int) -> Steps[int]:
    """Script by script: each looks at so many jobs only, and goes on where the last one ended."""
    wanted = {
        name: value
        for name, value in msgspec.structs.asdict(chosen).items()
        if value is not None and name != "statuses"
    }
    wanted["statuses"] = [CODE[status] for status in chosen.statuses]
    text = msgspec.json.encode(wanted)
    removed, after = 0, "0"
    while removed < limit:
        count, end = yield Script("delete", [limit - removed, after, text])
        removed += count
        if end == -1:
            break
        after = end.decode()
    return removed


def _await_finish(job_id: str) -> Steps[JobRecord | None]:
    reply = yield Script("await_finish", [job_id])
    return None if reply is None else as_record(job_id, reply[1], reply[0])
