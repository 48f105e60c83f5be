# SPDX-License-Identifier: MIT
"""The store contracts of records and of the journal.

Schedules, batches, workflows and breakers are built on records, groups of jobs on the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from packhorse.core.job import NewJob
from packhorse.core.policies.journal import Group, JournalLine, check_lines
from packhorse.core.policies.records import Record, RecordChange, RecordId
from packhorse.errors import ConfigError
from packhorse.stores.plan import Asking, Plan
from packhorse.stores.requests import Submitted

#: Records in a page, when all of a kind are read.
_PAGE: Final = 500
#: A kind that no record has.
_NO_KIND: Final = "clock"
#: Digits of the order of a record.
_DIGITS_MAX: Final = 19


class RefusedJob(msgspec.Struct, frozen=True):
    """A job of a change that was not stored, and why."""

    job_id: str
    code: str  #: of the error that a submit would have raised
    reason: str


class Changed(msgspec.Struct, frozen=True):
    """The result of changes."""

    now_us: int  #: the store's clock
    conflicts: tuple[int, ...] = ()  #: indexes of changes that conflict; then nothing was done
    early: bool = False  #: `not_before` has not come; then nothing was done
    gone: tuple[int, ...] = ()  #: of a fold: lines that do not exist; then nothing was done
    versions: tuple[int, ...] = ()  #: of the record of each change afterwards; 0: it does not exist
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


class PageBounds(NamedTuple):
    """The bounds of a page of records, by the texts of their ids."""

    first: str  #: ids are above this text
    last: str  #: ids are below this text
    order: int  #: records are above this order and the id `after`
    after: str

    @classmethod
    def of(
        cls, kind: str | None, tenant: str | None, after: str | None, *, by_order: bool
    ) -> PageBounds:
        """Return the bounds of a page; the separator sorts before all characters of ids."""
        if kind is None:
            first, last = "", "\x7f"
        else:
            first = kind if tenant is None else f"{kind}\x01{tenant}"
            last = f"{first}\x02"
        if after is None:
            return cls(first, last, -(2**63), first)
        # By id, one bound covers both: SQLite would seek to the first one it is given.
        order, _, text = after.partition(":") if by_order else ("0", "", max(first, after))
        digits = order.removeprefix("-")
        place = int(order) if digits.isdecimal() and len(digits) <= _DIGITS_MAX else None
        if place is None or not -(2**63) <= place < 2**63:
            raise ConfigError(
                f"{after!r} is no place in a list of records; pass `after` of the page before"
            )
        return cls(first, last, place, text)


def as_page(records: Sequence[Record], limit: int, now_us: int, *, by_order: bool) -> RecordPage:
    """Return a page of `limit` records; one record more means that others follow."""
    shown = tuple(records[:limit])
    if len(records) <= limit or not shown:
        return RecordPage(shown, now_us)
    last = shown[-1]
    text = last.id.text
    return RecordPage(shown, now_us, f"{last.order}:{text}" if by_order else text)


def all_records(
    records: RecordStore, kind: str, *, tenant: str | None = None, after: str | None = None
) -> Asking[RecordPage]:
    """Return every record of a kind as one page, with the clock of the last one read."""
    found: list[Record] = []
    while True:
        page: RecordPage = yield records.records(kind, tenant=tenant, after=after, limit=_PAGE)
        found += page.records
        after = page.after
        if after is None:
            return RecordPage(tuple(found), page.now_us)


def store_clock(records: RecordStore) -> Asking[int]:
    """Return the store's clock, which comes with every page, even an empty one."""
    page: RecordPage = yield records.records(_NO_KIND, limit=1)
    return page.now_us


class JournalStore(Protocol):
    """Lines that record when jobs of groups end.

    A job whose options name a group (`JobOptions.member`) is a member of it. Whenever a member
    becomes final, in whatever way, or stops being final, the store appends one line in the same
    transaction; other jobs append nothing. The line has the counts of the settlement that ended the
    job (`Settlement.counted`), and zeros if it was ended otherwise; for a job that stops being
    final, the counts of the end that is taken back. Lines of one job are in order; those of
    different jobs need not be. No line id is used twice. Listeners of `journal` are woken.

    A member keeps its result as long as its record, and its record while the record of its group
    (`Group.record`) is there: at most for `MEMBER_LIFE_US_MAX` after its end.
    """

    def journal_groups(self, *, limit: int) -> Plan[tuple[Group, ...]]:
        """Return at most `limit` groups that have lines, that of the oldest line first. Reads only.

        A store may search the oldest lines only: 100 for each group of the limit, and 10,000 at
        least.
        """

    def journal(self, group: Group, *, limit: int) -> Plan[tuple[JournalLine, ...]]:
        """Return the oldest lines of a group, at most `limit`; none is hidden. Reads only."""

    def fold(
        self,
        group: Group,
        line_ids: Sequence[int],
        changes: Sequence[RecordChange] = (),
        *,
        jobs: Sequence[NewJob] = (),
        carried: Sequence[JournalLine] = (),
    ) -> Plan[Changed]:
        """Remove exactly these lines of a group, and change records as `RecordStore.change` does.

        All is done, or nothing. If a line does not exist, or is another group's, nothing is done,
        and the answer has its id (`Changed.gone`). Lines `carried` from another store are appended,
        with new ids. More than `LINES_MAX` lines, or `CARRIED_LINES_MAX` carried, are refused with
        a `ConfigError`.
        """


class Folded(NamedTuple):
    """The changes of the journal by a fold."""

    group: Group
    line_ids: tuple[int, ...] = ()  #: removed
    carried: tuple[JournalLine, ...] = ()  #: appended

    @classmethod
    def of(cls, group: Group, line_ids: Sequence[int], carried: Sequence[JournalLine]) -> Folded:
        """Refuse more lines than a store folds in one call."""
        check_lines(line_ids, carried)
        return cls(group, tuple(dict.fromkeys(line_ids)), tuple(carried))
