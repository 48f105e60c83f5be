# SPDX-License-Identifier: MIT
"""Search jobs by a filter, newest first, reading a bounded number of jobs.

A filter that few jobs match would make the store read all of them. So a bounded search first finds
its window: the newest jobs that an index has (dead ones, those with a tag, unfinished ones while
they are few), or else the newest of all.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final, NamedTuple

from packhorse.core.job import UNFINISHED, JobStatus
from packhorse.stores.plan import Steps
from packhorse.stores.requests import JobFilter, Page
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.rows import CODE, RECORD_COLUMNS, Lane, read_record
from packhorse.stores.sql.statements import NOW, Rows, Together

#: The conditions of a `JobFilter` by field, which is also the name of the parameter.
CONDITIONS: Final = MappingProxyType(
    {
        "queue": "job.queue = :queue",
        "task": "job.task = :task",
        "tenant": "job.tenant = :tenant",
        "tag": "job.seq in (select seq from {tags} where tag = :tag)",
        "tagged": "exists (select 1 from {tags} where tag = :tagged and seq = job.seq)",
        "created_by": "{created_by job} = :created_by",
        "dead_reason": "job.dead_reason = :dead_reason",
        "dead_letter": "job.dead_letter = :dead_letter",
        "created_before_us": "job.created_us < {number :created_before_us}",
        "id_part": "{has_ends job.id :id_part}",
        "statuses": "job.status {in_numbers :statuses}",
        "ids": "job.id {in_texts :ids}",
        "seqs": "job.seq {in_numbers :seqs}",
        "floor": "job.seq >= :floor",
        "below": "job.seq < :below",
        "ceiling": "job.seq <= :ceiling",
        "after": "job.seq > :after",
    }
)
_FIELDS: Final = (
    *("queue", "task", "tenant", "tag", "created_by", "dead_reason", "dead_letter"),
    *("created_before_us", "id_part"),
)
#: Above every job number.
_ABOVE: Final = 2**63 - 1
#: Dead letters of each queue that are read at least.
_EACH_MIN: Final = 50
#: The lanes of unfinished jobs by status.
_LANES: Final = MappingProxyType(
    {
        JobStatus.PENDING: (Lane.WAITING,),
        JobStatus.FAILED: (Lane.WAITING,),
        JobStatus.TIMEOUT: (Lane.WAITING,),
        JobStatus.QUEUED: (Lane.READY, Lane.SUSPECT, Lane.PARKED, Lane.BLOCKED),
        JobStatus.PROCESSING: (Lane.HELD,),
    }
)


class _Order(NamedTuple):
    """The order in which jobs are read, in the words of statements."""

    beyond: str
    within: str
    order: str
    bound: str  #: the condition on the last job that is read


_NEWEST: Final = _Order("<", ">=", "desc", "floor")
_OLDEST: Final = _Order(">", "<=", "asc", "ceiling")


class _Window(NamedTuple):
    """The jobs that a search reads: a list of them, those from a number on, or all."""

    given: dict[str, Any]
    looked: int = 0
    end: int | None = None  #: the last of them, where there are more behind it


def search_steps(
    dialect: Dialect, chosen: JobFilter, *, limit: int, below: int | None, most: int | None
) -> Steps[Page]:
    """Return a page of jobs, newest first; see `InspectionStore.search`."""
    now_us = yield NOW
    window = _Window({})
    if most is not None and limit > 0 and chosen != JobFilter():
        beyond = _ABOVE if below is None else below
        window = yield from _window(dialect, chosen, _NEWEST, beyond, most, limit=limit)
    given = _given(dialect, chosen) | window.given
    if window.given and "tag" in given:  # more jobs may have the tag than are in the window
        given["tagged"] = given.pop("tag")
    if below is not None:
        given["below"] = below
    text = dialect.sql("search", columns=RECORD_COLUMNS, conditions=_conditions(given))
    rows = yield Rows(text, {**given, "limit": limit + 1})
    shown = rows[:limit]
    jobs = tuple(read_record(row, now_us, bodies=False) for row in shown)
    if len(rows) > limit:
        return Page(jobs, after=str(shown[-1][0]) if shown else None)
    if window.end is None:
        return Page(jobs)
    return Page(jobs, str(window.end), window.looked if len(jobs) < limit else None)


def _window(
    dialect: Dialect, chosen: JobFilter, order: _Order, beyond: int, most: int, *, limit: int
) -> Steps[_Window]:
    """Return the next jobs that may match: of those that an index has, or else of all."""
    statuses, asked = frozenset(chosen.statuses), {"beyond": beyond, "most": most}
    if chosen.dead_reason or chosen.dead_letter or statuses == {JobStatus.DEAD}:
        if chosen == JobFilter(queue=chosen.queue, statuses=chosen.statuses):  # all of them match
            most = min(most, limit + 1)
        return (yield from _dead(dialect, chosen.queue, order, beyond, most))
    if chosen.tag is not None:
        text = dialect.sql("search_tagged", **_words(order))
        rows = yield Rows(text, {"tag": chosen.tag, **asked})
        return _listed(dialect, [seq for (seq,) in rows], more=len(rows) == most)
    if statuses and statuses.issubset(UNFINISHED):
        found = yield from _standing(dialect, statuses, chosen.queue, most)
        if found is not None:
            return _listed(dialect, found, more=False)
    rows = yield Rows(dialect.sql("search_bound", **_words(order)), asked)
    return _Window({order.bound: rows[0][0]}, most, rows[0][0]) if rows else _Window({})


def _words(order: _Order) -> dict[str, str]:
    return {"beyond": order.beyond, "within": order.within, "order": order.order}


def _listed(dialect: Dialect, seqs: list[int], *, more: bool) -> _Window:
    return _Window({"seqs": dialect.many(seqs)}, len(seqs), seqs[-1] if more and seqs else None)


def _dead(
    dialect: Dialect, queue: str | None, order: _Order, beyond: int, most: int
) -> Steps[_Window]:
    """Return the next dead letters beyond a number.

    Dead letters have their number as rank, so the index has those of each queue in order. The
    window ends with the last one read of a queue that may have more.
    """
    queues = [(queue,)] if queue is not None else (yield Rows(dialect.sql("dead_queues")))
    if not queues:
        return _listed(dialect, [], more=False)
    each = max(-(-most // len(queues)), min(most, _EACH_MIN))
    text, asked = dialect.sql("search_dead", **_words(order)), {"beyond": beyond, "most": each}
    found = yield Together([Rows(text, {**asked, "queue": name}) for (name,) in queues])
    newest = order is _NEWEST
    ends = [rows[-1][0] for rows in found if len(rows) == each]
    seqs = sorted({seq for rows in found for (seq,) in rows}, reverse=newest)
    if ends:
        end = max(ends) if newest else min(ends)
        seqs = seqs[: seqs.index(end) + 1]
    return _listed(dialect, seqs, more=bool(ends))


def _standing(
    dialect: Dialect, statuses: frozenset[JobStatus], queue: str | None, most: int
) -> Steps[list[int] | None]:
    """Return all jobs in the lanes of these statuses; None: there are too many."""
    lanes = sorted({lane for status in statuses for lane in _LANES[status]})
    text = dialect.sql(
        "search_standing", conditions="true" if queue is None else CONDITIONS["queue"]
    )
    named = {} if queue is None else {"queue": queue}
    asked = [Rows(text, {**named, "lane": int(lane), "most": most + 1}) for lane in lanes]
    found = yield Together(asked)
    seqs = [seq for rows in found for (seq,) in rows]
    return seqs if len(seqs) <= most else None


def chosen_finished(
    dialect: Dialect, chosen: JobFilter, limit: int, behind: int, most: int
) -> Steps[tuple[list[int], int | None]]:
    """Return finished jobs that match after a number, oldest first, and where to go on."""
    window = yield from _window(dialect, chosen, _OLDEST, behind, most, limit=limit)
    given = _given(dialect, chosen) | window.given
    if "tag" in given:
        given["tagged"] = given.pop("tag")
    text = dialect.sql("chosen_finished", conditions=_conditions(given))
    rows = yield Rows(text, {**given, "after": behind, "limit": limit})
    seqs = [seq for (seq,) in rows]
    return seqs, (seqs[-1] if seqs else behind) if len(seqs) >= limit else window.end


def _given(dialect: Dialect, chosen: JobFilter) -> dict[str, Any]:
    fields = {name: getattr(chosen, name) for name in _FIELDS}
    given = {name: value for name, value in fields.items() if value is not None}
    if chosen.statuses:
        given["statuses"] = dialect.many([CODE[status] for status in chosen.statuses])
    return given


def _conditions(given: dict[str, Any]) -> str:
    return " and ".join([CONDITIONS[name] for name in given]) or "true"
