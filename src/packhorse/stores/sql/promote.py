# SPDX-License-Identifier: MIT
"""Promote: jobs whose time has come, retries and rescued jobs among them, become ready."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from packhorse.stores.plan import Steps
from packhorse.stores.sql.dialect import Dialect, read_queues
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
    lined: bool


def promote_queue(dialect: Dialect, queue: str, now_us: int, *, limit: int) -> Steps[int]:
    """Make due jobs ready, in (due, sequence) order; rescued ones keep their place."""
    asked = {"queue": queue, "now": now_us, "limit": limit}
    rows = yield Rows(dialect.sql("promote_due"), asked)
    due = [_Due(*row) for row in rows]
    # In order, since the rank of a newcomer depends on the jobs that are ready before it.
    for kept, group in groupby(due, key=lambda one: one.kept_place is not None):
        jobs = list(group)
        if kept:
            stands = [(one.kept_rank or 0, one.kept_place or 0) for one in jobs]
            yield from dialect.back_in_place()
        else:
            stands = yield from _new_places(dialect, queue, jobs, now_us)
        rows = [
            {"seq": one.seq, "rank": rank, "place": place, "now_us": now_us}
            for one, (rank, place) in zip(jobs, stands, strict=True)
        ]
        yield dialect.write_rows(dialect.sql("promote"), rows)
    yield from join_lines(dialect, [one.seq for one in due if one.lined])
    return len(due)


def _new_places(
    dialect: Dialect, queue: str, due: Sequence[_Due], now_us: int
) -> Steps[list[tuple[int, int]]]:
    """Return the ranks and places of jobs that take a new place."""
    places = yield from dialect.take_places(len(due))
    queues = yield from read_queues(dialect, [queue])
    newcomers = [Newcomer(queue, one.priority, one.tenant) for one in due]
    ranks: list[int] = yield from ranks_of(dialect, newcomers, queues, now_us)
    return list(zip(ranks, places, strict=True))
