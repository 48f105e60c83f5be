# SPDX-License-Identifier: MIT
"""Claim: survey the queues in order, promote due jobs, hand a batch to the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.core.job import Job
from packhorse.core.lifecycle import HOLD_GRACE_US
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import EVERY_TASK, Claimed, ClaimRequest, QueueSettings
from packhorse.stores.sql.dialect import CANDIDATE_COLUMNS, Dialect, PlanLocks, scope
from packhorse.stores.sql.limit_state import task_settings
from packhorse.stores.sql.limits import LimitBook, ReadyJob
from packhorse.stores.sql.lines import read_gate, unblock
from packhorse.stores.sql.promote import promote_queue
from packhorse.stores.sql.rows import RANK_PER_PRIORITY, Lane, is_limited, queue_settings
from packhorse.stores.sql.statements import NOW, Queries, Rows, Send

#: Pages of candidates that one claim checks, and how many more than wanted a page has where some
#: may be blocked.
_ROUNDS_MAX: Final = 64
_PAGE_EXTRA: Final = 64
#: Above every rank.
_RANK_MAX: Final = 2**63 - 1
#: Below every rank and place; `BEGINNING` has it as parameters.
_FIRST: Final = (-1, -1)
BEGINNING: Final = MappingProxyType(dict(zip(("rank", "after"), _FIRST, strict=True)))
#: Most tasks whose ready jobs are merged; claims for more tasks scan past other jobs.
_MERGED_MAX: Final = 32
#: Suspects of a queue that are checked to find one that its gates let run.
_SUSPECTS_MAX: Final = 1000


class _Surveyed(NamedTuple):
    """One queue: a row of `claim_survey`; a gate opens at once if the clock was set back."""

    queue: str
    settings: str | None
    paused: bool
    ready: bool
    suspects: bool
    next_due_us: int | None
    lease_expires_us: int | None
    limited: bool
    reopens_us: int | None


def look_steps(dialect: Dialect, request: ClaimRequest) -> Steps[Claimed | None]:
    """Return the answer if there is nothing to claim or promote; None if there is."""
    now_us: int = yield NOW
    survey = yield from _survey(dialect, request)
    if not survey or (survey[0].lease_expires_us or 0) <= now_us:
        return Claimed((), now_us, lease_lost=True)
    if any(_has_work(one, request, now_us) for one in survey):
        return None
    answer: Claimed = yield from _answer(dialect, [], survey, request, None)
    return answer


def _has_work(one: _Surveyed, request: ClaimRequest, now_us: int) -> bool:
    if one.paused:
        return False
    times = (one.next_due_us, one.reopens_us)
    due = any(time_us is not None and time_us <= now_us for time_us in times)
    return due or bool(one.suspects if request.quarantine else one.ready)


def claim_steps(dialect: Dialect, request: ClaimRequest, locks: PlanLocks) -> Steps[Claimed]:
    """Claim queue by queue, checking gates where there are any; see `JobStore.claim`."""
    survey = yield from _survey(dialect, request, locks)
    now_us: int = yield NOW
    if not survey or (survey[0].lease_expires_us or 0) <= now_us:
        return Claimed((), now_us, lease_lost=True)
    survey = yield from _catch_up(dialect, request, survey, locks)
    unpaused = [one for one in survey if not one.paused]
    book: LimitBook | None = None
    if survey[0].limited or any(is_limited(one.settings) for one in unpaused):
        book = yield from _book(dialect, request, now_us, limited=survey[0].limited)
    jobs: list[Job] = []
    for one in unpaused:
        room = request.limit - len(jobs)
        if room <= 0:
            break
        ready = one.suspects if request.quarantine else one.ready
        if not (ready or (book is not None and book.released)):
            continue
        queue = queue_settings(one.queue, one.settings)
        lane = Lane.SUSPECT if request.quarantine else Lane.READY
        chosen = _chosen(dialect, request, queue.name, now_us, lane)
        if book is not None and book.limits(queue) and locks.asks_gates(queue.name):
            taken = yield from _take_gated(request, queue, book, room, chosen)
        else:
            taken = yield from dialect.take(request, {**chosen, "limit": room})
        if taken and queue.max_depth is not None:
            yield Wake(f"room:{queue.name}")  # for producers
        jobs += taken
    if request.quarantine:
        survey = yield from _survey(dialect, request)
    if book is None:
        answer: Claimed = yield from _answer(dialect, jobs, survey, request, None)
        return answer
    yield from book.keep()
    held_us = book.reopens_us if len(jobs) < request.limit else None
    answer = yield from _answer(dialect, jobs, survey, request, held_us)
    return msgspec.structs.replace(answer, rated=frozenset(book.rated))


def _catch_up(
    dialect: Dialect, request: ClaimRequest, survey: list[_Surveyed], locks: PlanLocks
) -> Steps[list[_Surveyed]]:
    """Promote due jobs, unblock those whose gate has opened by now, and then survey again."""
    now_us: int = yield NOW
    unpaused, reopens_us = [one for one in survey if not one.paused], survey[0].reopens_us
    reopened = reopens_us is not None and reopens_us <= now_us
    due = [one.queue for one in unpaused if (one.next_due_us or now_us + 1) <= now_us]
    if not (due or reopened):
        return survey
    locks.allow([one.queue for one in unpaused] if reopened else due)
    for queue in due:
        yield from promote_queue(dialect, queue, now_us, limit=PROMOTE_MAX)
    if reopened:
        yield from reopen_due(dialect, now_us, locks)
    return (yield from _survey(dialect, request))


def _book(
    dialect: Dialect, request: ClaimRequest, now_us: int, *, limited: bool
) -> Steps[LimitBook]:
    """Open the limit book; `limited`: tasks have limits, or gates are shut."""
    in_order = not request.quarantine
    if limited:
        book = yield from open_limits(dialect, request.tasks, now_us, in_order=in_order)
    else:
        book = LimitBook(dialect, now_us, {}, {}, {}, known=request.tasks if in_order else None)
    book.allowance_us = request.allowance_us
    return book


def _take_gated(
    request: ClaimRequest,
    queue: QueueSettings,
    book: LimitBook,
    limit: int,
    chosen: Mapping[str, Any],
) -> Steps[list[Job]]:
    """Claim jobs whose gates are open; block the others, unless this is a quarantine claim."""
    jobs: list[Job] = []
    after = _FIRST
    for _ in range(_ROUNDS_MAX):
        wanted, (rank, place) = limit - len(jobs), after
        page = {**chosen, "rank": rank, "after": place}
        picked, goes_on = yield from _pick(request, queue, book, wanted, page)
        if picked:
            jobs += yield from book.dialect.hand_over(picked, chosen)
        released = yield from book.replenish()
        if len(jobs) >= limit or not (goes_on or released):
            break
        after = _FIRST if released else goes_on or _FIRST
    return jobs


def _pick(
    request: ClaimRequest,
    queue: QueueSettings,
    book: LimitBook,
    wanted: int,
    chosen: Mapping[str, Any],
) -> Steps[tuple[list[int], tuple[int, int] | None]]:
    """Check a page of candidates; return the claimable ones, and where the next page begins."""
    page = wanted + _PAGE_EXTRA if book.lets_pass(queue) else wanted
    asked = candidates(book.dialect.queries, request, {**chosen, "limit": page})
    rows = yield from book.turn_page(asked, queue)
    picked: list[int] = []
    after = (chosen["rank"], chosen["after"])
    for row in rows:
        if len(picked) >= wanted:
            break
        job = ReadyJob(*row)
        after = (job.rank, job.place)
        blocked = None if book.admits(job, queue) else (yield from book.ask(job, queue))
        if blocked is None:
            picked.append(job.seq)
        elif not request.quarantine:
            held = yield from book.block(job, blocked, queue, picked)
            if held != "job":
                return picked, _FIRST if held == "others" else None
    return picked, after if len(rows) == page else None


def _survey(
    dialect: Dialect, request: ClaimRequest, locks: PlanLocks | None = None
) -> Steps[list[_Surveyed]]:
    """Look at the queues, and enter the plan with that if its `locks` are given."""
    queues = dialect.many(list(dict.fromkeys(request.queues)))
    asked = Rows(dialect.sql("claim_survey"), {"queues": queues, "worker": request.worker})
    if locks is None:
        rows = yield asked
    else:
        [rows] = yield from locks.enter(asked, claims=request.queues)
    now_us: int = yield NOW
    return [
        _Surveyed._make([*row, 0 if (computed_us or 0) > now_us else reopens_us])
        for *row, reopens_us, computed_us in rows
    ]


def _chosen(
    dialect: Dialect, request: ClaimRequest, queue: str, now_us: int, lane: Lane
) -> dict[str, Any]:
    """Return the parameters of statements that find jobs of a queue, and hand them over."""
    level = request.levels.get(queue) if lane == Lane.READY else None
    return {
        "lane": int(lane),
        "queue": queue,
        "tasks": dialect.many(request.tasks),
        "any_task": EVERY_TASK in request.tasks,
        "tenants": dialect.many(request.tenants),
        # The first rank that is not wanted; ranks by age come behind those by priority.
        "beyond": _RANK_MAX if level is None else (level + 1) * RANK_PER_PRIORITY,
        "now": now_us,
        # Of those that are handed over.
        "worker": request.worker,
        "alone": request.quarantine,
        "default_timeout_us": request.default_timeout_us,
        "grace_us": HOLD_GRACE_US,
    }


def _answer(
    dialect: Dialect,
    jobs: Sequence[Job],
    survey: Sequence[_Surveyed],
    request: ClaimRequest,
    held_us: int | None,
) -> Steps[Claimed]:
    """Build the answer; `held_us` is when the first gate that blocked a job opens by time."""
    now_us: int = yield NOW
    unpaused = [one for one in survey if not one.paused]
    times = [one.next_due_us for one in unpaused]
    if len(jobs) < request.limit:
        times.append(held_us)
        if survey and survey[0].reopens_us is not None:
            chosen = _chosen(dialect, request, "", now_us, Lane.BLOCKED)
            chosen["queues"] = dialect.many([one.queue for one in unpaused])
            [(reopens_us,)] = yield Rows(dialect.sql("reopens_next"), chosen)
            times.append(reopens_us)
    suspects, with_some = False, [one for one in unpaused if one.suspects]
    if with_some:
        suspects, suspect_us = yield from _suspects(dialect, with_some, request, now_us)
        times.append(suspect_us)
    next_us = min((time_us for time_us in times if time_us is not None), default=None)
    return Claimed(jobs=tuple(jobs), now_us=now_us, next_due_us=next_us, suspects=suspects)


def _suspects(
    dialect: Dialect, survey: Sequence[_Surveyed], request: ClaimRequest, now_us: int
) -> Steps[tuple[bool, int | None]]:
    """Return whether a suspect could run alone now; if not, when the first gate opens."""
    book: LimitBook = yield from open_limits(dialect, request.tasks, now_us)
    rank, place = _FIRST
    for one in survey:
        settings = queue_settings(one.queue, one.settings)
        chosen = _chosen(dialect, request, one.queue, now_us, Lane.SUSPECT)
        asked = {**chosen, "limit": _SUSPECTS_MAX, "rank": rank, "after": place}
        rows = yield candidates(dialect.queries, request, asked)
        for row in rows:
            blocked = yield from book.ask(ReadyJob(*row), settings)
            if blocked is None:
                return True, None
    return False, book.reopens_us


#: Jobs unblocked when a gate opens by time; claims block again those it has no room for.
_LET_GO_MAX: Final = 100


def open_limits(
    dialect: Dialect, tasks: Sequence[str], now_us: int, *, in_order: bool = False
) -> Steps[LimitBook]:
    """Read the limits of tasks and the shut gates, which hold for all queues.

    With `in_order`, blocked heavy jobs are checked before the lighter ones behind them.
    """
    limited = yield from task_settings(dialect, tasks)
    shut_rows = yield Rows(dialect.sql("shut_gates"), (now_us,))
    shut = {read_gate(gate): until_us for gate, until_us in shut_rows}
    running: dict[tuple[str, str | None], int] = {}
    if limited:
        rows = yield Rows(dialect.sql("running_of_tasks"), (dialect.many(list(limited)),))
        running = {(task, key): count for task, key, count in rows}
    return LimitBook(dialect, now_us, limited, shut, running, known=tasks if in_order else None)


def reopen_due(dialect: Dialect, now_us: int, locks: PlanLocks) -> Steps[None]:
    """Unblock the jobs of gates that time has opened; a claim that finds one closed blocks them.

    Gates that the plan does not cover are left to claims from their queues.
    """
    rows = yield Rows(dialect.sql("reopens_due"), {"now": now_us})
    gates = [gate for (gate,) in rows if locks.covers(read_gate(gate))]
    if gates:
        yield from unblock(dialect, dict.fromkeys(gates, _LET_GO_MAX))
    for gate in gates:
        yield Send(dialect.sql("reopen_forget"), (gate,))


#: Due jobs that become ready in one claim, per queue.
PROMOTE_MAX: Final = 1000


def merged_tasks(request: ClaimRequest, lane: int = Lane.READY) -> dict[str, str]:
    """Return parameters for a query per task, whose results are merged in the order of claiming.

    An index has the ready jobs of each queue and task in that order, so that no query scans past
    jobs of other tasks. Empty for too many tasks, for all tasks, for other lanes, and for claims
    narrowed by tenant or priority.
    """
    named = dict.fromkeys(request.tasks)
    all_or_many = EVERY_TASK in named or len(named) > _MERGED_MAX
    if lane != Lane.READY or request.tenants or request.levels or all_or_many:
        return {}
    return {f"task_{number}": task for number, task in enumerate(named)}


@cache
def merged(queries: Queries, name: str, count: int, columns: str = "") -> str:
    """Return a query of one task's jobs, repeated for `count` tasks, as a part of another."""
    each = [f":task_{number}" for number in range(count)]
    return "\nunion all\n".join([queries.filled(name, task=task, columns=columns) for task in each])


def candidates(
    queries: Queries,
    request: ClaimRequest,
    chosen: Mapping[str, Any],
    columns: str = CANDIDATE_COLUMNS,
) -> Rows:
    """Return the step that reads the next jobs of a queue; by default, to check their gates."""
    sql, tasks = queries.text, merged_tasks(request, chosen["lane"])
    if not tasks:
        following = queries.filled("claim_next", columns=columns, scope=scope(request))
        return Rows(sql("claim_candidates", next=following), chosen)
    following = merged(queries, "claim_ready_of_task", len(tasks), columns)
    return Rows(
        sql("claim_candidates_of_tasks", next=following),
        {**chosen, "window": chosen["limit"], **tasks},
    )
