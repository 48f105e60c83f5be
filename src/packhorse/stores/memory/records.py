# SPDX-License-Identifier: MIT
"""Records of the reference store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from operator import itemgetter

import msgspec

from packhorse.core.job import NewJob
from packhorse.core.policies.journal import Group, JournalLine, member_of
from packhorse.core.policies.records import (
    Record,
    RecordChange,
    RecordId,
    check_changes,
    decide,
    is_expired,
)
from packhorse.stores.memory.state import Access, on_state, plan
from packhorse.stores.memory.submit import admit_each
from packhorse.stores.memory.transfer import reject
from packhorse.stores.plan import Plan
from packhorse.stores.records import Changed, Folded, PageBounds, RecordPage, RefusedJob, as_page


class MemoryRecords:
    """See `RecordStore`."""

    @on_state(writes=False)
    def record(self, access: Access, named: RecordId) -> Record | None:
        found = access.state.records.get(named)
        return None if found is None or is_expired(found, access.now_us) else found

    def records(
        self,
        kind: str | None,
        *,
        tenant: str | None = None,
        by_order: bool = False,
        after: str | None = None,
        limit: int,
    ) -> Plan[RecordPage]:
        bounds = PageBounds.of(kind, tenant, after, by_order=by_order)

        def work(access: Access) -> RecordPage:
            beyond = (bounds.order, bounds.after) if by_order else (0, bounds.after)
            found = (
                (_place(one, by_order=by_order), one)
                for one in access.state.records.values()
                if not is_expired(one, access.now_us) and not (by_order and one.order is None)
            )
            shown = (
                (place, one)
                for place, one in found
                if place > beyond and bounds.first < one.id.text < bounds.last
            )
            first = nsmallest(max(0, limit) + 1, shown, key=itemgetter(0))
            page = [one for _, one in first]
            return as_page(page, max(0, limit), access.now_us, by_order=by_order)

        return plan("records", work, writes=False)

    def change(
        self,
        changes: Sequence[RecordChange],
        *,
        jobs: Sequence[NewJob] = (),
        not_before: int | None = None,
    ) -> Plan[Changed]:
        check_changes(changes)
        return plan("change", partial(_change, tuple(changes), tuple(jobs), not_before, None))


class MemoryJournal:
    """See `JournalStore`."""

    @on_state(writes=False)
    def journal_groups(self, access: Access, *, limit: int) -> tuple[Group, ...]:
        groups = dict.fromkeys(line.group for line in access.state.journal.values())
        return tuple(islice(groups, max(0, limit)))

    @on_state(writes=False)
    def journal(self, access: Access, group: Group, *, limit: int) -> tuple[JournalLine, ...]:
        lines = (line for line in access.state.journal.values() if line.group == group)
        return tuple(islice(lines, max(0, limit)))

    def fold(
        self,
        group: Group,
        line_ids: Sequence[int],
        changes: Sequence[RecordChange] = (),
        *,
        jobs: Sequence[NewJob] = (),
        carried: Sequence[JournalLine] = (),
    ) -> Plan[Changed]:
        check_changes(changes)
        folded = Folded.of(group, line_ids, carried)
        return plan("fold", partial(_change, tuple(changes), tuple(jobs), None, folded))


def _place(record: Record, *, by_order: bool) -> tuple[int, str]:
    return (record.order or 0) if by_order else 0, record.id.text


def _change(
    changes: Sequence[RecordChange],
    jobs: Sequence[NewJob],
    not_before: int | None,
    folded: Folded | None,
    access: Access,
) -> Changed:
    state, now_us = access.state, access.now_us
    if state.copied is not None:
        raise state.copied.refusal()
    gone = () if folded is None else _gone(access, folded)
    if gone:
        return Changed(now_us, gone=gone)
    if not_before is not None and now_us < not_before:
        return Changed(now_us, early=True)
    decided = decide(changes, state.records, highest=state.highest_version, now_us=now_us)
    if decided.conflicts:
        return Changed(now_us, conflicts=decided.conflicts)
    answers = admit_each(access, jobs)
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, RefusedJob) and member_of(job.options) is not None:
            reject(access, job, answer)
    if folded is not None:
        _fold(access, folded)
    state.highest_version = decided.highest
    for named, record in decided.records.items():
        if record is None:
            state.records.pop(named, None)
        else:
            state.records[named] = record
        access.wake(f"record:{named.kind}")
    return Changed(now_us, versions=decided.versions(changes), jobs=answers)


def _gone(access: Access, folded: Folded) -> tuple[int, ...]:
    lines = access.state.journal
    return tuple(
        line_id
        for line_id in folded.line_ids
        if line_id not in lines or lines[line_id].group != folded.group
    )


def _fold(access: Access, folded: Folded) -> None:
    state = access.state
    for line_id in folded.line_ids:
        del state.journal[line_id]
    for line in folded.carried:
        line_id = state.next_line_id()
        state.journal[line_id] = msgspec.structs.replace(line, id=line_id, group=folded.group)
        state.journaled = True


def forget_records(access: Access, limit: int) -> None:
    """Remove records that have expired."""
    state = access.state
    gone = [one for one in state.records.values() if is_expired(one, access.now_us)]
    for record in sorted(gone, key=lambda one: (one.expires_us or 0, one.id))[:limit]:
        state.highest_version = max(state.highest_version, record.version)
        del state.records[record.id]
