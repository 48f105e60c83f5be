# SPDX-License-Identifier: MIT
"""What people do to jobs by hand, and what handlers say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packhorse.job import JobStatus
from packhorse.lifecycle import CancelAnswer, cancel
from packhorse.settlement import Verdict
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.requests import JobFilter, ProgressNote, RedriveAnswer
from packhorse.stores.sql.dialect import Dialect, Level
from packhorse.stores.sql.filters import chosen_finished
from packhorse.stores.sql.finishing import finish_waiting, lifetimes
from packhorse.stores.sql.queue_row import retention_of
from packhorse.stores.sql.redriving import redrive_steps
from packhorse.stores.sql.removing import remove_steps
from packhorse.stores.sql.rows import CODE, STATUS, json_text
from packhorse.stores.sql.steps import NOW, Change, Rows

__all__ = ["SqlJobs"]


class SqlJobs:
    """See `JobStore`; a store adds submit, claim and settle. `level`: what a plan begins with."""

    def __init__(self, dialect: Dialect, level: Callable[[], Level]) -> None:
        self._dialect = dialect
        self._level = level

    def note_progress(self, notes: Sequence[ProgressNote]) -> Plan[tuple[Verdict, ...]]:
        return Plan("note_progress", lambda: _note_progress(self._dialect, notes))

    def cancel(self, job_id: str, *, tenant: str | None = None) -> Plan[CancelAnswer]:
        level = self._level()
        return Plan("cancel", lambda: _cancel(self._dialect, job_id, tenant, level))

    def redrive(
        self, job_ids: Sequence[str], *, tenant: str | None = None
    ) -> Plan[tuple[RedriveAnswer, ...]]:
        return Plan("redrive", lambda: redrive_steps(self._dialect, job_ids, tenant))

    def delete(self, chosen: JobFilter, *, limit: int) -> Plan[int]:
        return Plan("delete", lambda: _delete(self._dialect, chosen, limit))


def _note_progress(dialect: Dialect, notes: Sequence[ProgressNote]) -> Steps[tuple[Verdict, ...]]:
    now_us = yield NOW
    verdicts = []
    for note in notes:
        changed = yield Change(
            dialect.sql("progress"),
            {
                "id": note.job_id,
                "fence": note.fence,
                "progress": json_text(note.progress),
                "now": now_us,
            },
        )
        verdicts.append(Verdict.APPLIED if changed else Verdict.STALE)
    return tuple(verdicts)


def _cancel(dialect: Dialect, job_id: str, tenant: str | None, level: Level) -> Steps[CancelAnswer]:
    yield from level.enter()
    rows = yield Rows(dialect.sql("cancel_row"), (job_id,))
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
        yield from finish_waiting(dialect, [ended], stashed=level.alone)
    elif answer is CancelAnswer.FLAGGED:
        yield dialect.write(dialect.sql("cancel_running"), {"seq": seq, "now": now_us})
        yield Wake(f"cancel:{worker}")
    return answer


def _delete(dialect: Dialect, chosen: JobFilter, limit: int) -> Steps[int]:
    yield from dialect.lock_all()
    rows = yield chosen_finished(dialect, chosen, limit)
    removed: int = yield from remove_steps(dialect, [seq for (seq,) in rows])
    return removed
