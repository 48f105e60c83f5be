# SPDX-License-Identifier: MIT
"""The store contract of the journal, which batches and workflows are built on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from packhorse.core.job import NewJob
from packhorse.core.policies.journal import Group, JournalLine, check_lines
from packhorse.core.policies.records import RecordChange
from packhorse.stores.plan import Plan
from packhorse.stores.records import Changed


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
