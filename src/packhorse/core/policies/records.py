# SPDX-License-Identifier: MIT
"""Records: documents with versions and counters, and what a change makes of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from packhorse.errors import ConfigError, PayloadError

DOCUMENT_BYTES_MAX: Final = 64 * 1024
CHANGES_MAX: Final = 1_000  #: in one call
CHANGE_BYTES_MAX: Final = 1024 * 1024  #: of all documents of one call
NAME_BYTES_MAX: Final = 512  #: of a tenant, of a key
COUNTERS_MAX: Final = 100  #: of one record
#: Writers whose last number is known; one that was silent longer than all others is forgotten.
WRITERS_MAX: Final = 100

_KIND: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
#: Between the parts of an id: it sorts before every other character that they may have.
_BETWEEN: Final = "\x01"
_INT64: Final = range(-(2**63), 2**63)


class RecordId(NamedTuple):
    """Which record is meant."""

    kind: str
    tenant: str
    key: str

    @property
    def text(self) -> str:
        """The id as one text; texts sort as ids do."""
        return _BETWEEN.join(self)

    @classmethod
    def of(cls, text: str) -> RecordId:
        """The id from its text."""
        return cls(*text.split(_BETWEEN))


class Record(msgspec.Struct, frozen=True):
    """A document, and what is known of it."""

    id: RecordId
    document: bytes  #: opaque to the store
    version: int  #: another one after every put; no id ever has one twice
    order: int | None = None  #: a number to sort by
    expires_us: int | None = None  #: from then on it is not there
    counters: dict[str, int] = {}
    writers: dict[str, int] = {}  #: the number of each writer's last `Add`


class Put(msgspec.Struct, frozen=True):
    """Write a document; the counters of one that is there stay."""

    id: RecordId
    document: bytes
    expected: int | None = None  #: the version that must be there, 0: none; None: whatever is
    order: int | None = None
    keep_us: int | None = None  #: from now; None: until it is removed


class Remove(msgspec.Struct, frozen=True):
    """Take a record away, if there is one."""

    id: RecordId
    expected: int | None = None  #: as in `Put`


class Add(msgspec.Struct, frozen=True):
    """Add to the counters of a record that must be there; its version stays."""

    id: RecordId
    counters: dict[str, int]
    #: Who adds, with a number that rises: one that was counted before is not counted again.
    writer: str | None = None
    number: int = 0


class Carry(msgspec.Struct, frozen=True):
    """Take over a record of another store as it was; none may be there."""

    record: Record

    @property
    def id(self) -> RecordId:
        """Of that record."""
        return self.record.id


RecordChange = Put | Remove | Add | Carry


class Decided(NamedTuple):
    """What changes come to."""

    records: dict[RecordId, Record | None]  #: as they are afterwards; None: gone
    highest: int  #: the highest version of a record that is gone
    conflicts: tuple[int, ...]  #: which changes do not apply; if there is one, none does

    def versions(self, changes: Sequence[RecordChange]) -> tuple[int, ...]:
        """The version of each change's record afterwards; 0: there is none."""
        after = [self.records.get(change.id) for change in changes]
        return tuple([0 if record is None else record.version for record in after])


def is_expired(record: Record, now_us: int) -> bool:
    """Whether a record is not there any more."""
    return record.expires_us is not None and record.expires_us <= now_us


def decide(
    changes: Sequence[RecordChange],
    records: Mapping[RecordId, Record],
    *,
    highest: int,
    now_us: int,
) -> Decided:
    """What changes make of `records`, one after the other.

    Versions follow the clock, so that none is given again by a store that lost commits.
    """
    after: dict[RecordId, Record | None] = {}
    conflicts = []
    for at, change in enumerate(changes):
        stored = after[change.id] if change.id in after else records.get(change.id)
        found = None if stored is None or is_expired(stored, now_us) else stored
        if not _applies(change, found):
            conflicts.append(at)
        elif isinstance(change, Put | Carry):
            last = highest if stored is None else stored.version
            after[change.id] = _written(change, found, last, now_us)
        elif isinstance(change, Add) and found is not None:
            after[change.id] = _add(change, found)
        elif stored is not None:
            highest = max(highest, stored.version)
            after[change.id] = None
    return Decided(after, highest, tuple(conflicts))


def _applies(change: RecordChange, found: Record | None) -> bool:
    if isinstance(change, Add):
        return found is not None
    if isinstance(change, Carry):
        return found is None
    version = 0 if found is None else found.version
    return change.expected is None or change.expected == version


def _written(change: Put | Carry, found: Record | None, last: int, now_us: int) -> Record:
    if isinstance(change, Carry):
        return msgspec.structs.replace(change.record, version=max(last + 1, change.record.version))
    version = max(last + 1, now_us)
    expires_us = None if change.keep_us is None else now_us + change.keep_us
    counters = {} if found is None else found.counters
    writers = {} if found is None else found.writers
    return Record(change.id, change.document, version, change.order, expires_us, counters, writers)


def _add(change: Add, found: Record) -> Record:
    writers = dict(found.writers)
    if change.writer is not None:
        if change.number <= writers.pop(change.writer, change.number - 1):
            return found
        writers[change.writer] = change.number
        if len(writers) > WRITERS_MAX:
            del writers[next(iter(writers))]
    counters = dict(found.counters)
    for name, by in change.counters.items():
        counters[name] = counters.get(name, 0) + by
        if counters[name] not in _INT64:
            raise ConfigError(
                f"counter {name!r} of record {change.id} would leave 64 bits; nothing was changed"
            )
    if len(counters) > COUNTERS_MAX:
        raise ConfigError(
            f"record {change.id} would have more than {COUNTERS_MAX} counters; nothing was changed"
        )
    return msgspec.structs.replace(found, counters=counters, writers=writers)


def check_changes(changes: Sequence[RecordChange]) -> None:
    """Refuse what no store keeps, before anything is asked of one."""
    if len(changes) > CHANGES_MAX:
        raise ConfigError(
            f"{len(changes)} changes of records in one call; at most {CHANGES_MAX} are taken: "
            "change them in parts"
        )
    for change in changes:
        check_id(change.id)
        if isinstance(change, Put):
            _check_put(change)
    if sum(map(_bytes, changes)) > CHANGE_BYTES_MAX:
        raise PayloadError(
            f"the documents of one call have more than {CHANGE_BYTES_MAX} bytes: change the "
            "records in parts"
        )


def _bytes(change: RecordChange) -> int:
    match change:
        case Put(document=document) | Carry(record=Record(document=document)):
            return len(document)
        case _:
            return 0


def _check_put(change: Put) -> None:
    if len(change.document) > DOCUMENT_BYTES_MAX:
        raise PayloadError(
            f"the document of record {change.id} has {len(change.document)} bytes; at most "
            f"{DOCUMENT_BYTES_MAX} are kept"
        )
    if change.order is not None and change.order not in _INT64:
        raise ConfigError(f"the order of record {change.id} does not fit into 64 bits")


def check_id(named: RecordId) -> None:
    """Refuse all but a plain name as kind, and texts as others that stores can keep and sort."""
    if not _KIND.fullmatch(named.kind):
        raise ConfigError(f"{named.kind!r} is no kind of record: use a-z, 0-9 and _")
    for part in named[1:]:
        try:
            fits = len(part.encode()) <= NAME_BYTES_MAX
        except UnicodeEncodeError:
            fits = False
        if not fits or "\0" in part or _BETWEEN in part:
            raise ConfigError(
                f"{part[:80]!r} cannot name a record: a tenant or key has at most "
                f"{NAME_BYTES_MAX} bytes, and neither U+0000 nor U+0001"
            )
