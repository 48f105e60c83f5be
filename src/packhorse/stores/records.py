# SPDX-License-Identifier: MIT
"""Records, on which schedules, batches, workflows and breakers stand: what a store promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from packhorse.core.job import NewJob
from packhorse.core.policies.records import Record, RecordChange, RecordId
from packhorse.errors import ConfigError
from packhorse.stores.plan import Asking, Plan
from packhorse.stores.requests import Submitted

#: Records that are read at once where all of a kind are wanted.
_PAGE: Final = 500
#: No record is of this kind.
_NO_KIND: Final = "clock"
#: Of the number that records of a page are sorted by.
_DIGITS_MAX: Final = 19


class RefusedJob(msgspec.Struct, frozen=True):
    """A job of a change that was not stored, and why."""

    job_id: str
    code: str  #: of the error that a submit would have raised
    reason: str


class Changed(msgspec.Struct, frozen=True):
    """What became of changes."""

    now_us: int  #: the store's clock
    conflicts: tuple[int, ...] = ()  #: which changes did not apply; then nothing was done
    early: bool = False  #: it is not `not_before` yet; then nothing was done
    gone: tuple[int, ...] = ()  #: of a fold: lines that are not there; then nothing was done
    versions: tuple[int, ...] = ()  #: of each change's record afterwards; 0: there is none
    jobs: tuple[Submitted | RefusedJob, ...] = ()

    @property
    def applied(self) -> bool:
        """Whether everything was done."""
        return not (self.conflicts or self.early or self.gone)


class RecordPage(msgspec.Struct, frozen=True):
    """Some records, and where to go on."""

    records: tuple[Record, ...]
    now_us: int  #: the store's clock
    after: str | None = None  #: pass it to get the next page; None: there is no more


class RecordStore(Protocol):
    """Documents by kind, tenant and key, each with a version and counters."""

    def record(self, named: RecordId) -> Plan[Record | None]:
        """The record, or None; one that has expired is None. Reads only."""
        ...

    def records(
        self,
        kind: str | None,
        *,
        tenant: str | None = None,
        by_order: bool = False,
        after: str | None = None,
        limit: int,
    ) -> Plan[RecordPage]:
        """The records of a kind, or of all, a page at a time, by kind, tenant and key. Reads only.

        Those that have expired are left out. With `tenant`, only that tenant's. With `by_order`,
        only those of the kind that have an order, by that number first. The page carries the
        store's clock.
        """
        ...

    def change(
        self,
        changes: Sequence[RecordChange],
        *,
        jobs: Sequence[NewJob] = (),
        not_before: int | None = None,
    ) -> Plan[Changed]:
        """Apply all changes and submit all jobs, or do nothing.

        As `policies.records.decide` says, and `check_changes`. Where changes conflict, the answer
        says which; before `not_before`, by the store's clock, it says that it is early. A version
        is never given twice for one id. Jobs are answered as by `submit`, each by itself, but
        neither depth nor a closed queue refuses one; what else would is told per job, and the
        others are stored. A member of a group that is refused is kept all the same, as a dead
        letter `rejected` without its keys, and has its line in the journal; unless its id
        belongs to another job. Those who listen to `record:<kind>` are woken. A store that was
        copied to another one changes nothing: `StoreCopied`.
        """
        ...


class PageBounds(NamedTuple):
    """Which records a page may show, by the texts of their ids."""

    first: str  #: behind this one
    last: str  #: before this one
    order: int  #: behind this order and the record `after`
    after: str

    @classmethod
    def of(
        cls, kind: str | None, tenant: str | None, after: str | None, *, by_order: bool
    ) -> PageBounds:
        """The bounds of a page; a separator sorts before all that ids may have."""
        if kind is None:
            first, last = "", "\x7f"
        else:
            first = kind if tenant is None else f"{kind}\x01{tenant}"
            last = f"{first}\x02"
        if after is None:
            return cls(first, last, -(2**63), first)
        # By id one bound holds both: SQLite begins at the first it is given, and reads from there.
        order, _, text = after.partition(":") if by_order else ("0", "", max(first, after))
        digits = order.removeprefix("-")
        place = int(order) if digits.isdecimal() and len(digits) <= _DIGITS_MAX else None
        if place is None or not -(2**63) <= place < 2**63:
            raise ConfigError(
                f"{after!r} is no place in a list of records; pass `after` of the page before"
            )
        return cls(first, last, place, text)


def as_page(records: Sequence[Record], limit: int, now_us: int, *, by_order: bool) -> RecordPage:
    """The first `limit` of the records found, one more of which says that others follow."""
    shown = tuple(records[:limit])
    if len(records) <= limit or not shown:
        return RecordPage(shown, now_us)
    last = shown[-1]
    text = last.id.text
    return RecordPage(shown, now_us, f"{last.order}:{text}" if by_order else text)


def all_records(
    records: RecordStore, kind: str, *, tenant: str | None = None, after: str | None = None
) -> Asking[RecordPage]:
    """Every record of a kind, read in pages and answered as one, with the clock of the last."""
    found: list[Record] = []
    while True:
        page: RecordPage = yield records.records(kind, tenant=tenant, after=after, limit=_PAGE)
        found += page.records
        after = page.after
        if after is None:
            return RecordPage(tuple(found), page.now_us)


def store_clock(records: RecordStore) -> Asking[int]:
    """The store's clock, which judges; it comes with every page, also with an empty one."""
    page: RecordPage = yield records.records(_NO_KIND, limit=1)
    return page.now_us
