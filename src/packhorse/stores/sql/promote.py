# SPDX-License-Identifier: MIT
"""Promote: jobs whose time has come, retries and rescued jobs among them, become ready."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from packhorse.stores.plan import Steps
from packhorse.stores.sql.dialect import Dialect, Promoted, read_queues
from packhorse.stores.sql.lines import join_lines
from packhorse.stores.sql.ranks import Newcomer, ranks_of
from packhorse.stores.sql.statements import Rows


class _Due(NamedTuple):
    """A due job: a row of `promote_due`."""

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
    # In order, since the rank of a newcomer depends on the jobs that are ready before it.
    for kept, group in groupby(due, key=lambda one: one.kept_place is not None):
        if kept:
            standing = [_back(one) for one in group]
            yield from dialect.back_in_place()
        else:
            standing = yield from _newcomers(dialect, queue, list(group), now_us)
        yield dialect.promote(standing, now_us)
    yield from join_lines(dialect, [one.seq for one in due if one.lined])
    return len(due)


def _back(one: _Due) -> Promoted:
    """Return the place that the job had before."""
    return Promoted(one.seq, one.suspect, one.kept_rank or 0, one.kept_place or 0)


def _newcomers(
    dialect: Dialect, queue: str, due: Sequence[_Due], now_us: int
) -> Steps[list[Promoted]]:
    """Return the ranks and places of jobs that take a new place."""
    places = yield from dialect.take_places(len(due))
    queues = yield from read_queues(dialect, [queue])
    newcomers = [Newcomer(queue, one.priority, one.tenant) for one in due]
    ranks: list[int] = yield from ranks_of(dialect, newcomers, queues, now_us)
    return [
        Promoted(one.seq, one.suspect, rank, place)
        for one, rank, place in zip(due, ranks, places, strict=True)
    ]
