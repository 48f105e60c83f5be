# SPDX-License-Identifier: MIT
"""Records on Redis: read, decided about by `policies.records`, and written if nothing came between.

The journal too, since a fold is a change; `lua/journal.lua` writes its lines.
A record is one packed value, so that a digest of it tells whether it is as it was read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from packhorse.core.job import NewJob
from packhorse.core.policies.journal import Group, JournalLine
from packhorse.core.policies.records import (
    Decided,
    Record,
    RecordChange,
    RecordId,
    check_changes,
    decide,
    is_expired,
)
from packhorse.errors import StoreUnavailable
from packhorse.stores.plan import Plan, Steps, planned
from packhorse.stores.records import Changed, Folded, PageBounds, RecordPage, as_page
from packhorse.stores.redis.layout import CODE, STATUS
from packhorse.stores.redis.scripts import Argument, Script
from packhorse.stores.redis.submit import AdmittedJobs, deal
from packhorse.stores.transfer import Copied

#: Times that others may come between; each time one of them has got on.
_TRIES_MAX: Final = 1_000
#: Entries that one script reads more than are wanted, since some may have expired.
_READ_MORE: Final = 50
_READS_MAX: Final = 100_000
#: Orders are written without a sign, so that their texts sort as they do.
_ORDER_BASE: Final = 2**63
_ORDER_DIGITS: Final = 20


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    """A record as it is kept; the scripts read what comes first."""

    version: int
    order: str  #: its entry in the order of its kind, "": it has none
    kind: str
    expires_us: int | None
    counters: dict[str, int]
    writers: dict[str, int]
    document: bytes


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(_Packed).decode
_unpack_line: Final = msgspec.msgpack.Decoder(tuple[int, str, str, int, int, int, int]).decode


class RedisRecords:
    """See `RecordStore`."""

    @planned(writes=False)
    def record(self, named: RecordId) -> Steps[Record | None]:
        now_us, _, value = yield Script("records_read", [named.text])
        record = None if value is None else _read(named, value)
        return None if record is None or is_expired(record, int(now_us)) else record

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
        ordered = kind if by_order and kind is not None else ""
        return Plan("records", partial(_page, bounds, ordered, max(0, limit)), writes=False)

    def change(
        self,
        changes: Sequence[RecordChange],
        *,
        jobs: Sequence[NewJob] = (),
        not_before: int | None = None,
    ) -> Plan[Changed]:
        check_changes(changes)
        return Plan("change", partial(_change, tuple(changes), tuple(jobs), not_before, None))


class RedisJournal:
    """See `JournalStore`."""

    @planned(writes=False)
    def journal_groups(self, *, limit: int) -> Steps[tuple[Group, ...]]:
        names = yield Script("journal_groups", [limit])
        return tuple([Group.of(name.decode()) for name in names])

    @planned(writes=False)
    def journal(self, group: Group, *, limit: int) -> Steps[tuple[JournalLine, ...]]:
        lines = yield Script("journal", [group.text, limit])
        return tuple([_line(group, line) for line in lines])

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
        return Plan("fold", partial(_change, tuple(changes), tuple(jobs), None, folded))


def _page(bounds: PageBounds, kind: str, limit: int) -> Steps[RecordPage]:
    """Read in parts, until there are enough records that have not expired."""
    low, high = max(bounds.first, bounds.after), bounds.last
    if kind:
        low, high = _entry(bounds.order, bounds.after), "\x7f"
    found: list[Record] = []
    now_us, wanted = 0, limit + 1
    for _ in range(_READS_MAX):
        asked = wanted - len(found) + _READ_MORE
        instant, *rows = yield Script("records_page", [kind, low, high, asked])
        now_us = int(instant)
        for entry, value in zip(rows[::2], rows[1::2], strict=True):
            low = entry.decode()
            text = low[_ORDER_DIGITS + 1 :] if kind else low
            record = _read(RecordId.of(text), value)
            if bounds.first < text < bounds.last and not is_expired(record, now_us):
                found.append(record)
        if len(found) >= wanted or len(rows) < 2 * asked:
            break
    return as_page(found, limit, now_us, by_order=bool(kind))


def _line(group: Group, line: bytes) -> JournalLine:
    number, job_id, node, status, was, *counted = _unpack_line(line)
    return JournalLine(number, group, job_id, node, STATUS[status], STATUS[was], *counted)


def _folded(folded: Folded | None) -> bytes:
    """The argument of the script for a fold."""
    if folded is None:
        return b""
    lines = [
        (one.job_id, one.node, CODE[one.status], CODE[one.was], one.items, one.failed)
        for one in folded.carried
    ]
    return _pack((folded.group.text, folded.line_ids, lines))


def _change(
    changes: Sequence[RecordChange],
    jobs: Sequence[NewJob],
    not_before: int | None,
    folded: Folded | None,
) -> Steps[Changed]:
    named = list(dict.fromkeys(change.id for change in changes))
    admitted = AdmittedJobs(jobs)
    for _ in range(_TRIES_MAX):
        instant, before, *values = yield Script("records_read", [one.text for one in named])
        now_us, highest = int(instant), int(before)
        if not_before is not None and now_us < not_before:
            return Changed(now_us, early=True)
        stored = dict(zip(named, values, strict=True))
        known = {one: _read(one, value) for one, value in stored.items() if value is not None}
        decided = decide(changes, known, highest=highest, now_us=now_us)
        if decided.conflicts:
            return (yield from _refused(decided, folded, now_us))
        args: list[Argument] = [highest, decided.highest, len(decided.records), _folded(folded)]
        for one, record in decided.records.items():
            args += _arguments(one, stored[one], known.get(one), record)
        reply = yield Script("change_records", [*args, *admitted.arguments])
        if reply[0] == b"ok":
            answers = admitted.answers(reply[2:])
            return Changed(now_us, versions=decided.versions(changes), jobs=answers)
        if reply[0] == b"copied":
            raise msgspec.json.decode(reply[1], type=Copied).refusal()
        if reply[0] == b"gone":
            return Changed(now_us, gone=tuple(map(int, reply[1:])))
        if reply[0] == b"refused":
            admitted.refuse(reply[1:])
        if reply[0] == b"deal":
            yield from deal(reply[1])
    raise StoreUnavailable(
        f"records were changed by others {_TRIES_MAX} times while a change of them was decided; "
        "nothing was changed: try again"
    )


def _refused(decided: Decided, folded: Folded | None, now_us: int) -> Steps[Changed]:
    """The answer to changes that conflict, or to a fold whose lines are gone."""
    if folded is not None and folded.line_ids:
        gone = yield Script("journal_gone", [folded.group.text, *folded.line_ids])
        if gone:
            return Changed(now_us, gone=tuple(map(int, gone)))
    return Changed(now_us, conflicts=decided.conflicts)


def _arguments(
    named: RecordId, value: bytes | None, before: Record | None, after: Record | None
) -> tuple[Argument, ...]:
    """The arguments of the script for one record."""
    expires_us = None if after is None else after.expires_us
    return (
        named.text,
        "" if value is None else hashlib.sha1(value, usedforsecurity=False).hexdigest(),
        "" if after is None else _written(after),
        "" if expires_us is None else expires_us,
        named.kind,
        _order_of(before),
        _order_of(after),
    )


def _written(record: Record) -> bytes:
    order, kind = _order_of(record), record.id.kind
    counted = (record.counters, record.writers)
    return _pack(_Packed(record.version, order, kind, record.expires_us, *counted, record.document))


def _read(named: RecordId, value: Any) -> Record:
    packed = _unpack(value)
    order = int(packed.order[:_ORDER_DIGITS]) - _ORDER_BASE if packed.order else None
    return Record(
        *(named, packed.document, packed.version, order, packed.expires_us),
        *(packed.counters, packed.writers),
    )


def _order_of(record: Record | None) -> str:
    if record is None or record.order is None:
        return ""
    return _entry(record.order, record.id.text)


def _entry(order: int, text: str) -> str:
    return f"{order + _ORDER_BASE:0{_ORDER_DIGITS}d}:{text}"
