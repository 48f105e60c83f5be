# SPDX-License-Identifier: MIT
"""The journal, on which batches and workflows stand: what a store promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from packhorse.core.job import NewJob
from packhorse.core.policies.journal import Group, JournalLine, check_lines
from packhorse.core.policies.records import RecordChange
from packhorse.stores.plan import Plan
from packhorse.stores.records import Changed


class JournalStore(Protocol):
    """Lines that tell when jobs of groups end.

    A job whose options name a group (`JobOptions.member`) is a member of it. Whenever a member
    becomes final, by whatever path, or is final no more, the store appends one line in the same
    transaction; other jobs append nothing. The line has the items and failed of the settlement
    that ended the job (`Settlement.counted`), and none if nothing else did; of a job that is final
    no more, those of the end that is taken back. Lines of one job are in order; of different jobs
    they need not be. No id of a line is given twice. Those who listen to `journal` are woken.

    A member keeps its result as long as its record, and its record while the record of its group
    (`Group.record`) is there: at most for `MEMBER_LIFE_US_MAX` after its end.
    """

    def journal_groups(self, *, limit: int) -> Plan[tuple[Group, ...]]:
        """The groups that have lines, at most `limit`, that of the oldest line first. Reads only.

        A store may look for them among the oldest lines only: 100 for each group that is asked
        for, and 10,000 at least.
        """
        ...

    def journal(self, group: Group, *, limit: int) -> Plan[tuple[JournalLine, ...]]:
        """The oldest lines of a group, at most `limit`; all that are there can be seen.

        Reads only.
        """
        ...

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

        All is done, or nothing. Where a line is gone, or is another group's, nothing is, and the
        answer says which (`Changed.gone`). Lines `carried` from another store are appended, with
        new ids. More than `LINES_MAX` lines, or `CARRIED_LINES_MAX` carried, are a `ConfigError`.
        """
        ...


class Folded(NamedTuple):
    """What a fold does to the journal."""

    group: Group
    line_ids: tuple[int, ...] = ()  #: removed
    carried: tuple[JournalLine, ...] = ()  #: appended

    @classmethod
    def of(cls, group: Group, line_ids: Sequence[int], carried: Sequence[JournalLine]) -> Folded:
        """Refuse what no store folds in one call."""
        check_lines(line_ids, carried)
        return cls(group, tuple(dict.fromkeys(line_ids)), tuple(carried))
