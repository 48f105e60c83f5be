# SPDX-License-Identifier: MIT
"""Submitting, settling, cancelling, redriving and removing jobs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from packhorse.core import lifecycle
from packhorse.core.job import LOOK_MAX, TERMINAL, JobRecord, JobStatus, NewJob
from packhorse.core.lifecycle import CancelAnswer, redrive_allowed
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.journal import is_spared, member_of, ran_once
from packhorse.core.policies.uniqueness import keys_wanted
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.memory.claims import claim
from packhorse.stores.memory.rows import JobRow, as_record, chosen_by
from packhorse.stores.memory.state import Access, on_state, plan
from packhorse.stores.memory.submit import submit
from packhorse.stores.memory.transitions import (
    apply,
    finish_waiting,
    forget,
    holder_of,
    take_keys,
    take_place,
)
from packhorse.stores.plan import Named, Plan, about_job
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

_UNKNOWN: Final[tuple[RedriveAnswer, ...]] = (RedriveAnswer.UNKNOWN,)


class MemoryJobs:
    """Jobs and their fenced claims, in memory."""

    def submit(
        self, jobs: Sequence[NewJob], *, ids_are_new: bool = False
    ) -> Plan[tuple[Submitted, ...]]:
        del ids_are_new  # looking costs nothing here
        return plan("submit", partial(submit, jobs=tuple(jobs)))

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        return plan("claim", partial(claim, request=request))

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        asked = tuple(settlements)
        return plan("settle", lambda access: tuple(_settle(access, each) for each in asked))

    def note_progress(self, notes: Sequence[ProgressNote]) -> Plan[tuple[Verdict, ...]]:
        asked = tuple(notes)
        return plan("note_progress", lambda access: tuple(_note(access, each) for each in asked))

    @about_job(CancelAnswer.UNKNOWN)
    @on_state()
    def cancel(self, access: Access, job_id: str, *, tenant: str | None = None) -> CancelAnswer:
        return _cancel(access, access.visible(job_id, tenant))

    def redrive(
        self, job_ids: Sequence[str], *, tenant: str | None = None, forget: Sequence[str] = ()
    ) -> Plan[tuple[RedriveAnswer, ...]]:
        asked, gone = tuple(job_ids), frozenset(forget)

        def work(access: Access) -> tuple[RedriveAnswer, ...]:
            rows = (access.visible(job_id, tenant) for job_id in asked)
            return tuple(_redrive(access, row, gone) for row in rows)

        if len(asked) != 1:
            return plan("redrive", work)
        named = Named(
            asked[0], _UNKNOWN, lambda other: self.redrive((other,), tenant=tenant, forget=forget)
        )
        return plan("redrive", work, named=named)

    def delete(
        self, chosen: JobFilter, *, limit: int, after: str | None = None, most: int = LOOK_MAX
    ) -> Plan[Deleted]:
        behind = cursor_of(after)
        return plan(
            "delete", partial(_delete, chosen=chosen, limit=limit, behind=behind, most=most)
        )

    @on_state()
    def await_finish(self, access: Access, job_id: str) -> JobRecord | None:
        row = access.state.jobs.get(job_id)
        if row is None:
            return None
        # Interest in a job that has finished would never be answered, and never be forgotten.
        row.awaited = row.status not in TERMINAL
        return as_record(row, access.now_us)


def _delete(access: Access, chosen: JobFilter, limit: int, behind: int, most: int) -> Deleted:
    rows = (row for row in access.state.jobs.values() if row.sequence > behind)
    looked = list(islice(rows, most + 1))
    meant = (row for row in looked[:most] if row.status in TERMINAL and chosen_by(chosen, row))
    ended = (row for row in meant if not is_spared(access.group_of(row)))
    doomed = list(islice(ended, max(0, limit)))
    for row in doomed:
        forget(access, row)
    if len(doomed) >= limit:
        return Deleted(len(doomed), str(doomed[-1].sequence if doomed else behind))
    return Deleted(len(doomed), str(looked[most - 1].sequence) if len(looked) > most else None)


def _settle(access: Access, settlement: Settlement) -> Verdict:
    row = access.state.jobs.get(settlement.job_id)
    if row is None:
        return Verdict.STALE
    if row.settled == (settlement.fence, settlement.kind):
        return Verdict.APPLIED
    if not _current(row, settlement.fence):
        return Verdict.STALE
    if settlement.kind is not SettlementKind.RESCUED:
        row.settled = (settlement.fence, settlement.kind)
    elif not _orphaned(access, row):
        return Verdict.STALE
    return apply(access, row, settlement)


def _current(row: JobRow, fence: int) -> bool:
    return row.status is JobStatus.PROCESSING and row.fence == fence


def _orphaned(access: Access, row: JobRow) -> bool:
    return access.lease_gone(row.worker) or row.hold_until_us <= access.now_us


def _note(access: Access, note: ProgressNote) -> Verdict:
    row = access.state.jobs.get(note.job_id)
    if row is None or not _current(row, note.fence):
        return Verdict.STALE
    with access.state.changing(row, access.now_us):
        row.progress = note.progress
    return Verdict.APPLIED


def _cancel(access: Access, row: JobRow | None) -> CancelAnswer:
    if row is None:
        return CancelAnswer.UNKNOWN
    answer = lifecycle.cancel(row.status, lost=_orphaned(access, row))
    if answer is CancelAnswer.CANCELLED and row.status is JobStatus.PROCESSING:
        _cancel_lost(access, row)
    elif answer is CancelAnswer.CANCELLED:
        finish_waiting(access, row, JobStatus.CANCELLED)
    elif answer is CancelAnswer.FLAGGED:
        if not row.cancel_requested:
            with access.state.changing(row, access.now_us):
                row.cancel_requested = True
        access.wake(f"cancel:{row.worker}")
    return answer


def _cancel_lost(access: Access, row: JobRow) -> None:
    worker, keep_us = row.worker or "", access.state.retention(row.new.queue).finished_us
    settlement = lifecycle.cancel_lost(
        row.new.id, row.fence, worker=worker, alone=row.alone, keep_us=keep_us
    )
    apply(access, row, settlement)


def _redrive(access: Access, row: JobRow | None, gone: frozenset[str]) -> RedriveAnswer:
    if row is None:
        return RedriveAnswer.UNKNOWN
    member = member_of(row.new.options)
    group = None if member is None else member.group
    if not redrive_allowed(row.status) or ran_once(row.status, group):
        return RedriveAnswer.REFUSED
    finished = row.status in TERMINAL
    if finished and _superseded(access, row):
        return RedriveAnswer.CONFLICT
    if row.status is JobStatus.COMPLETED:
        row.attached = Attachments(counted=row.attached.counted)
    elif finished:
        row.attached = row.attached.without(gone)
    with access.state.changing(row, access.now_us):
        row.status = JobStatus.QUEUED
        row.due_us = access.now_us
        take_place(access, row)
        if row.overdue(access.now_us):
            row.deadline_us = None
        row.counters = msgspec.structs.replace(row.counters, failures=0, snoozes=0, lone_crashes=0)
        _clear_ending(row)
        if finished:
            row.line_number = access.state.next_line_number()
    if finished:
        take_keys(access, row.new.id, keys_wanted(row.new))
    access.wake_queue(row)
    return RedriveAnswer.REDRIVEN


def _superseded(access: Access, row: JobRow) -> bool:
    """Whether another job holds one of this one's keys by now."""
    return any(holder_of(access, *key) not in (None, row) for key in keys_wanted(row.new))


def _clear_ending(row: JobRow) -> None:
    row.result, row.result_dropped, row.error = None, False, None
    row.dead_reason, row.dead_letter = None, None
    row.holds_line = False
    row.cancel_requested = False
    row.finished_us, row.expires_us = None, None
    row.keep_us, row.result_keep_us = None, None
