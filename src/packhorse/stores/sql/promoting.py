# SPDX-License-Identifier: MIT
"""Making due jobs ready."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from packhorse.stores.plan import Steps
from packhorse.stores.sql.dialect import Dialect, Promoted
from packhorse.stores.sql.lines import join_lines
from packhorse.stores.sql.ranking import Newcomer, ranks_of
from packhorse.stores.sql.steps import Rows

__all__ = ["PROMOTE_MAX", "promote_queue"]

#: Due jobs that become ready in one claim, per queue.
PROMOTE_MAX: Final = 1000


class _Due(NamedTuple):
    """A waiting job that is due, as `promote_due.sql` sees it."""

    seq: int
    priority: int
    tenant: str
    kept_rank: int | None
    kept_place: int | None
    suspect: bool
    lined: bool


def promote_queue(dialect: Dialect, queue: str, now_us: int, *, limit: int) -> Steps[int]:
    """Make due jobs ready, in (due, sequence) order; rescued ones keep their place."""
    asked = {"queue": queue, "now": now_us, "limit": limit}
    rows = yield Rows(dialect.sql("promote_due"), asked)
    due = [_Due(*row) for row in rows]
    # One kind after the other: where newcomers stand depends on who is ready before them.
    for kept, group in groupby(due, key=lambda one: one.kept_place is not None):
        if kept:
            standing = [_back(one) for one in group]
        else:
            standing = yield from _newcomers(dialect, queue, list(group), now_us)
        yield dialect.promote(standing, now_us)
    yield from join_lines(dialect, [one.seq for one in due if one.lined])
    return len(due)


def _back(one: _Due) -> Promoted:
    """Where it stood before."""
    return Promoted(one.seq, one.suspect, one.kept_rank or 0, one.kept_place or 0)


def _newcomers(
    dialect: Dialect, queue: str, due: Sequence[_Due], now_us: int
) -> Steps[list[Promoted]]:
    """Where jobs stand that take a new place."""
    places = yield from dialect.take_places(len(due))
    queues = yield from dialect.queue_rows([queue])
    newcomers = [Newcomer(queue, one.priority, one.tenant) for one in due]
    ranks: list[int] = yield from ranks_of(dialect, newcomers, queues, now_us)
    return [
        Promoted(one.seq, one.suspect, rank, place)
        for one, rank, place in zip(due, ranks, places, strict=True)
    ]
