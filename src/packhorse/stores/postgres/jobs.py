# SPDX-License-Identifier: MIT
"""Jobs on PostgreSQL: submit, claim, settle, and what people do to them by hand."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.job import JobRecord, JobStatus, NewJob
from packhorse.lifecycle import CancelAnswer, cancel
from packhorse.settlement import Settlement, Verdict
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.postgres.admission import submit_plan
from packhorse.stores.postgres.claiming import claim_plan
from packhorse.stores.postgres.filters import chosen_finished
from packhorse.stores.postgres.finishing import finish_waiting, lifetimes
from packhorse.stores.postgres.floors import Floors
from packhorse.stores.postgres.locking import ALL, Level, Memory
from packhorse.stores.postgres.queue_settings import retention_of
from packhorse.stores.postgres.redriving import redrive_steps
from packhorse.stores.postgres.removing import remove_steps
from packhorse.stores.postgres.rows import (
    CODE,
    RECORD_COLUMNS,
    STATUS,
    json_text,
    read_record,
    worded,
)
from packhorse.stores.postgres.settling import settle_plan
from packhorse.stores.postgres.statements import NOW, Change, Lock, Once, Rows, Send, sql
from packhorse.stores.requests import (
    Claimed,
    ClaimRequest,
    JobFilter,
    ProgressNote,
    RedriveAnswer,
    Submitted,
)

__all__ = ["PostgresJobs"]


class PostgresJobs:
    """See `JobStore`."""

    def __init__(self) -> None:
        self.floors = Floors()
        self._memory = Memory()

    def forget_floors(self) -> None:
        """Let the next claim look from the front of every queue."""
        self.floors.forget()

    def submit(self, jobs: Sequence[NewJob]) -> Plan[tuple[Submitted, ...]]:
        return submit_plan(jobs, self._memory)

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        return claim_plan(request, self.floors, self._memory)

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        return settle_plan(settlements, self.floors)

    def note_progress(self, notes: Sequence[ProgressNote]) -> Plan[tuple[Verdict, ...]]:
        return Plan("note_progress", lambda: _note_progress(notes))

    def cancel(self, job_id: str, *, tenant: str | None = None) -> Plan[CancelAnswer]:
        level = Level()
        return Plan("cancel", lambda: _cancel(job_id, tenant, level))

    def redrive(
        self, job_ids: Sequence[str], *, tenant: str | None = None
    ) -> Plan[tuple[RedriveAnswer, ...]]:
        return Plan("redrive", lambda: redrive_steps(job_ids, tenant))

    def delete(self, chosen: JobFilter, *, limit: int) -> Plan[int]:
        def steps() -> Steps[int]:
            yield Lock(ALL)
            rows = yield chosen_finished(chosen, limit)
            removed: int = yield from remove_steps([seq for (seq,) in rows])
            return removed

        return Plan("delete", steps)

    def await_finish(self, job_id: str) -> Plan[JobRecord | None]:
        def steps() -> Steps[JobRecord | None]:
            yield Once(sql("await_finish"), (job_id,))
            rows = yield Once(worded("job", columns=RECORD_COLUMNS), (job_id,))
            now_us = yield NOW
            return read_record(rows[0], now_us) if rows else None

        return Plan("await_finish", steps)


def _note_progress(notes: Sequence[ProgressNote]) -> Steps[tuple[Verdict, ...]]:
    now_us = yield NOW
    verdicts = []
    for note in notes:
        changed = yield Change(
            sql("progress"),
            {
                "id": note.job_id,
                "fence": note.fence,
                "progress": json_text(note.progress),
                "now": now_us,
            },
        )
        verdicts.append(Verdict.APPLIED if changed else Verdict.STALE)
    return tuple(verdicts)


def _cancel(job_id: str, tenant: str | None, level: Level) -> Steps[CancelAnswer]:
    yield from level.enter()
    rows = yield Rows(sql("cancel_row"), (job_id,))
    if not rows or tenant not in (None, rows[0][3]):
        return CancelAnswer.UNKNOWN
    seq, status, worker, _, settings, queue, stashed = rows[0]
    now_us: int = yield NOW
    answer = cancel(STATUS[status])
    if answer is CancelAnswer.CANCELLED:
        if stashed:
            level.go_alone()
        level.allow([queue])
        kept = lifetimes(now_us, retention_of(settings).finished_us)
        ending = {"seq": seq, "now": now_us, "status": CODE[JobStatus.CANCELLED], **kept}
        ended = {**ending, "lane": None, "dead_reason": None}
        yield from finish_waiting([ended], stashed=level.alone)
    elif answer is CancelAnswer.FLAGGED:
        yield Send(sql("cancel_running"), {"seq": seq, "now": now_us})
        yield Wake(f"cancel:{worker}")
    return answer
