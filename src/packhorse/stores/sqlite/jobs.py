# SPDX-License-Identifier: MIT
"""Jobs on SQLite: submit, claim, settle, and what people do to them by hand."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.job import JobRecord, JobStatus, NewJob
from packhorse.lifecycle import CancelAnswer, cancel
from packhorse.settlement import Settlement, Verdict
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.requests import (
    Claimed,
    ClaimRequest,
    JobFilter,
    ProgressNote,
    RedriveAnswer,
    Submitted,
)
from packhorse.stores.sqlite.admission import submit_steps
from packhorse.stores.sqlite.claiming import claim_plan
from packhorse.stores.sqlite.filters import chosen_finished
from packhorse.stores.sqlite.finishing import finish_waiting, lifetimes
from packhorse.stores.sqlite.plain import short_submit
from packhorse.stores.sqlite.redriving import redrive_steps
from packhorse.stores.sqlite.removing import remove_steps
from packhorse.stores.sqlite.rows import (
    CODE,
    RECORD_COLUMNS,
    STATUS,
    json_text,
    read_record,
    read_retention,
)
from packhorse.stores.sqlite.settling import settle_steps
from packhorse.stores.sqlite.statements import NOW, Change, Rows, sql

__all__ = ["SqliteJobs"]


class SqliteJobs:
    """See `JobStore`."""

    def submit(self, jobs: Sequence[NewJob]) -> Plan[tuple[Submitted, ...]]:
        return Plan("submit", lambda: submit_steps(jobs), short=short_submit(jobs))

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        return claim_plan(request)

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        return Plan("settle", lambda: settle_steps(settlements))

    def note_progress(self, notes: Sequence[ProgressNote]) -> Plan[tuple[Verdict, ...]]:
        return Plan("note_progress", lambda: _note_progress(notes))

    def cancel(self, job_id: str, *, tenant: str | None = None) -> Plan[CancelAnswer]:
        return Plan("cancel", lambda: _cancel(job_id, tenant))

    def redrive(
        self, job_ids: Sequence[str], *, tenant: str | None = None
    ) -> Plan[tuple[RedriveAnswer, ...]]:
        return Plan("redrive", lambda: redrive_steps(job_ids, tenant))

    def delete(self, chosen: JobFilter, *, limit: int) -> Plan[int]:
        def steps() -> Steps[int]:
            rows = yield chosen_finished(chosen, limit)
            removed: int = yield from remove_steps([seq for (seq,) in rows])
            return removed

        return Plan("delete", steps)

    def await_finish(self, job_id: str) -> Plan[JobRecord | None]:
        def steps() -> Steps[JobRecord | None]:
            now_us = yield NOW
            yield Change(sql("await_finish"), (job_id,))
            rows = yield Rows(sql("job").format(columns=RECORD_COLUMNS), (job_id,))
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


def _cancel(job_id: str, tenant: str | None) -> Steps[CancelAnswer]:
    now_us = yield NOW
    rows = yield Rows(sql("cancel_row"), (job_id,))
    if not rows or tenant not in (None, rows[0][3]):
        return CancelAnswer.UNKNOWN
    seq, status, worker, _, retention = rows[0]
    answer = cancel(STATUS[status])
    if answer is CancelAnswer.CANCELLED:
        kept = lifetimes(now_us, read_retention(retention).finished_us)
        ending = {"seq": seq, "now": now_us, "status": CODE[JobStatus.CANCELLED], **kept}
        yield from finish_waiting([{**ending, "lane": None, "dead_reason": None}])
    elif answer is CancelAnswer.FLAGGED:
        yield Change(sql("cancel_running"), {"seq": seq, "now": now_us})
        yield Wake(f"cancel:{worker}")
    return answer
