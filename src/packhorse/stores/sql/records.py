# SPDX-License-Identifier: MIT
"""Records of the SQL stores: read and lock rows, let `policies.records` decide, write rows.

The journal is here too, since a fold is a change. A trigger on the jobs table writes its lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from packhorse.core.job import JobStatus, NewJob
from packhorse.core.policies.journal import Group, JournalLine, member_of
from packhorse.core.policies.records import (
    Decided,
    Record,
    RecordChange,
    RecordId,
    Remove,
    check_changes,
    decide,
    is_expired,
)
from packhorse.errors import StoreCopied
from packhorse.stores.plan import Plan, Steps, Wake, planned
from packhorse.stores.records import Changed, Folded, PageBounds, RecordPage, RefusedJob, as_page
from packhorse.stores.sql.dialect import Dialect, PlanLocks
from packhorse.stores.sql.rows import CODE, STATUS, json_text
from packhorse.stores.sql.statements import NOW, Rows, Send, SendMany
from packhorse.stores.sql.submit import admit_each
from packhorse.stores.sql.transfer import carry_in_steps
from packhorse.stores.transfer import CarryAnswer, rejected

#: Oldest lines that are searched for groups, at least.
_LOOKED_AT: Final = 10_000
_LINES_OF_EACH: Final = 100  #: searched for each group of the limit


class SqlRecords:
    """See `RecordStore`. `locks_for` returns the locks of a plan that submits these jobs."""

    def __init__(
        self, dialect: Dialect, locks_for: Callable[[Sequence[NewJob]], PlanLocks]
    ) -> None:
        self._dialect = dialect
        self._locks_for = locks_for

    @planned(writes=False)
    def record(self, named: RecordId) -> Steps[Record | None]:
        asked = {"name": named.text, "now": (yield NOW)}
        rows = yield Rows(self._dialect.sql("record"), asked)
        return _read(rows[0]) if rows else None

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
        wanted = max(0, limit)

        def steps() -> Steps[RecordPage]:
            now_us: int = yield NOW
            asked = {**bounds._asdict(), "kind": kind, "now": now_us, "limit": wanted + 1}
            sql = self._dialect.sql
            text = sql("records_by_order") if by_order else sql("records_by_id")
            rows = yield Rows(text, asked)
            return as_page([_read(row) for row in rows], wanted, now_us, by_order=by_order)

        return Plan("records", steps, writes=False)

    def change(
        self,
        changes: Sequence[RecordChange],
        *,
        jobs: Sequence[NewJob] = (),
        not_before: int | None = None,
    ) -> Plan[Changed]:
        check_changes(changes)
        asked, new = tuple(changes), tuple(jobs)
        locks = self._locks_for(new)
        return Plan(
            "change", lambda: _change(self._dialect, asked, new, locks, not_before=not_before)
        )


class SqlJournal:
    """See `JournalStore`; `locks_for` as in `SqlRecords`."""

    def __init__(
        self, dialect: Dialect, locks_for: Callable[[Sequence[NewJob]], PlanLocks]
    ) -> None:
        self._dialect = dialect
        self._locks_for = locks_for

    @planned(writes=False)
    def journal_groups(self, *, limit: int) -> Steps[tuple[Group, ...]]:
        asked = {"looked_at": max(_LOOKED_AT, _LINES_OF_EACH * limit), "limit": max(0, limit)}
        rows = yield Rows(self._dialect.sql("journal_groups"), asked)
        return tuple([Group.of(name) for (name,) in rows])

    @planned(writes=False)
    def journal(self, group: Group, *, limit: int) -> Steps[tuple[JournalLine, ...]]:
        asked = {"group": group.text, "limit": max(0, limit)}
        rows = yield Rows(self._dialect.sql("journal_lines"), asked)
        return tuple(
            [
                JournalLine(number, group, job, node, STATUS[status], STATUS[was], *counted)
                for number, job, node, status, was, *counted in rows
            ]
        )

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
        asked, new = tuple(changes), tuple(jobs)
        locks = self._locks_for(new)
        return Plan("fold", lambda: _change(self._dialect, asked, new, locks, folded=folded))


def _change(
    dialect: Dialect,
    changes: Sequence[RecordChange],
    jobs: Sequence[NewJob],
    locks: PlanLocks,
    *,
    not_before: int | None = None,
    folded: Folded | None = None,
) -> Steps[Changed]:
    yield from dialect.lock_records([change.id.text for change in changes])
    if jobs:
        yield from locks.enter()
        locks.allow([job.queue for job in jobs])
    now_us: int = yield NOW
    if not_before is not None and now_us < not_before:
        return Changed(now_us, early=True)
    gone = () if folded is None else (yield from _lines_gone(dialect, folded))
    if gone:
        return Changed(now_us, gone=gone)
    highest, decided, copied_to = yield from _decided(dialect, changes, now_us)
    if copied_to is not None:
        raise StoreCopied(to=copied_to)
    if decided.conflicts:
        return Changed(now_us, conflicts=decided.conflicts)
    answers = (yield from admit_each(dialect, jobs, locks)) if jobs else ()
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, RefusedJob) and member_of(job.options) is not None:
            yield from reject(dialect, job, answer, locks)
    if folded is not None:
        yield from _fold_lines(dialect, folded)
    yield from _write(dialect, decided, highest)
    for kind in dict.fromkeys(change.id.kind for change in changes):
        yield Wake(f"record:{kind}")
    return Changed(now_us, versions=decided.versions(changes), jobs=answers)


def write_changes(dialect: Dialect, changes: Sequence[RecordChange], now_us: int) -> Steps[None]:
    """Apply changes that cannot conflict to records that are locked."""
    highest, decided, _ = yield from _decided(dialect, changes, now_us)
    yield from _write(dialect, decided, highest)


def _decided(
    dialect: Dialect, changes: Sequence[RecordChange], now_us: int
) -> Steps[tuple[int, Decided, str | None]]:
    """Return the highest version of removed records, the decision, and where jobs were copied."""
    records = yield from _stored(dialect, [change.id.text for change in changes])
    [(highest, copied_to)] = yield Rows(dialect.sql("records_highest"))
    return highest, decide(changes, records, highest=highest, now_us=now_us), copied_to


def _lines_gone(dialect: Dialect, folded: Folded) -> Steps[tuple[int, ...]]:
    """Return the lines to be folded that do not exist."""
    if not folded.line_ids:
        return ()
    asked = {"group": folded.group.text, "ids": dialect.many(folded.line_ids)}
    rows = yield Rows(dialect.sql("journal_there"), asked)
    there = {number for (number,) in rows}
    return tuple([number for number in folded.line_ids if number not in there])


def _fold_lines(dialect: Dialect, folded: Folded) -> Steps[None]:
    """Remove the folded lines, and append the carried ones."""
    if folded.line_ids:
        gone = (dialect.many(folded.line_ids),)
        yield Send(dialect.sql("journal_remove"), gone)
    if folded.carried:
        lines = [msgspec.structs.replace(one, group=folded.group) for one in folded.carried]
        yield SendMany(dialect.sql("journal_add"), [_line(one) for one in lines])
        yield Wake("journal")


def reject(dialect: Dialect, job: NewJob, refused: RefusedJob, locks: PlanLocks) -> Steps[None]:
    """Store a refused job as a dead letter, without its keys and lines.

    A job that has its id already stays as it is.
    """
    locks.go_alone()
    now_us: int = yield NOW
    dead = rejected(job, refused.code, refused.reason, now_us)
    [answer] = yield from carry_in_steps(dialect, (dead,))
    member = member_of(job.options)
    if member is None or answer is not CarryAnswer.CARRIED:
        return
    # The trigger writes lines for updates only, and this job was inserted as dead.
    told = (job.id, member.node, JobStatus.DEAD, JobStatus.PENDING)
    line = JournalLine(0, Group.of(member.group), *told)
    yield Send(dialect.sql("journal_add"), _line(line))
    yield Wake("journal")


def _line(line: JournalLine) -> dict[str, Any]:
    return {
        "group": line.group.text,
        "job": line.job_id,
        "node": line.node,
        "status": CODE[line.status],
        "was": CODE[line.was],
        "items": line.items,
        "failed": line.failed,
    }


def _stored(dialect: Dialect, names: Sequence[str]) -> Steps[dict[RecordId, Record]]:
    rows = yield Rows(dialect.sql("record_rows"), (dialect.many(list(dict.fromkeys(names))),))
    return {record.id: record for record in map(_read, rows)}


def _read(row: Sequence[Any]) -> Record:
    name, document, version, order, expires_us, counters, writers = row
    return Record(
        RecordId.of(name),
        bytes(document),
        version,
        order,
        expires_us,
        {} if counters is None else msgspec.json.decode(counters),
        {} if writers is None else msgspec.json.decode(writers),
    )


def _write(dialect: Dialect, decided: Decided, highest: int) -> Steps[None]:
    records = [record for record in decided.records.values() if record is not None]
    gone = [named.text for named, record in decided.records.items() if record is None]
    if records:
        yield SendMany(dialect.sql("record_put"), [_columns(record) for record in records])
    if gone:
        yield Send(dialect.sql("records_remove"), (dialect.many(gone),))
    if decided.highest > highest:
        yield Send(dialect.sql("records_highest_keep"), (decided.highest,))


def _columns(record: Record) -> dict[str, Any]:
    return {
        "name": record.id.text,
        "kind": record.id.kind,
        "document": record.document,
        "version": record.version,
        "order_no": record.order,
        "expires_us": record.expires_us,
        "counters": json_text(record.counters) if record.counters else None,
        "writers": json_text(record.writers) if record.writers else None,
    }


def expired_records(dialect: Dialect, limit: int) -> Steps[list[str]]:
    """Return the names of at most `limit` expired records."""
    asked = {"now": (yield NOW), "limit": limit}
    rows = yield Rows(dialect.sql("records_expired"), asked)
    return [name for (name,) in rows]


def forget_records(dialect: Dialect, limit: int) -> Steps[None]:
    """Remove expired records; first in its plan, to keep the order of locks."""
    names = yield from expired_records(dialect, limit)
    if not names:
        return
    yield from dialect.lock_records(names)
    now_us: int = yield NOW
    records = yield from _stored(dialect, names)
    [(highest, _)] = yield Rows(dialect.sql("records_highest"))
    gone = [Remove(named) for named, one in records.items() if is_expired(one, now_us)]
    decided = decide(gone, records, highest=highest, now_us=now_us)
    yield from _write(dialect, decided, highest)
