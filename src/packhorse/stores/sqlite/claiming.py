# SPDX-License-Identifier: MIT
"""Claim: look at the queues in their order, promote what is due, hand over a batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.job import Job
from packhorse.lifecycle import HOLD_GRACE_US
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.requests import EVERY_TASK, Claimed, ClaimRequest, QueueSettings
from packhorse.stores.sqlite.gating import Candidate, GateBook, open_book, reopen_due
from packhorse.stores.sqlite.lines import join_lines
from packhorse.stores.sqlite.ranking import Newcomer, ranks_of
from packhorse.stores.sqlite.rows import Lane, json_text
from packhorse.stores.sqlite.settings import QueueRow, queue_rows, queue_settings
from packhorse.stores.sqlite.statements import NOW, Change, ChangeMany, Rows, sql
from packhorse.stores.sqlite.submitting import take_places

__all__ = ["PROMOTE_MAX", "claim_plan", "promote_queue"]

#: Due jobs that become ready in one claim, per queue.
PROMOTE_MAX: Final = 1000
#: Pages of candidates that one claim asks the gates of, and how many more than it wants each has.
_ROUNDS_MAX: Final = 64
_PAGE_EXTRA: Final = 64
#: Before every rank and place.
_BEGINNING: Final = (-1, -1)
#: Suspects of a queue whose gates are asked, to say whether one could be run.
_SUSPECTS_MAX: Final = 1000

_jobs: Final = msgspec.json.Decoder(list[Job])


class _Surveyed(NamedTuple):
    """One queue, as `claim_survey.sql` sees it."""

    queue: str
    settings: str | None
    paused: int
    ready: int
    suspects: int
    next_due_us: int | None
    lease_expires_us: int | None
    limited: int
    reopens_us: int | None


def claim_plan(request: ClaimRequest) -> Plan[Claimed]:
    """See `JobStore.claim`. An empty store is left without taking the write lock."""
    return Plan("claim", lambda: _claim(request), look=lambda: _look(request))


def _look(request: ClaimRequest) -> Steps[Claimed | None]:
    now_us: int = yield NOW
    survey = yield from _survey(request)
    if _lapsed(survey, now_us):
        return Claimed((), now_us, lease_lost=True)
    if any(_has_work(one, request, now_us) for one in survey):
        return None
    answer: Claimed = yield from _answer([], survey, request, now_us, None)
    return answer


def _has_work(one: _Surveyed, request: ClaimRequest, now_us: int) -> bool:
    if one.paused:
        return False
    times = (one.next_due_us, one.reopens_us)
    due = any(time_us is not None and time_us <= now_us for time_us in times)
    return due or bool(one.suspects if request.quarantine else one.ready)


def _claim(request: ClaimRequest) -> Steps[Claimed]:
    now_us: int = yield NOW
    survey = yield from _survey(request)
    if _lapsed(survey, now_us):
        return Claimed((), now_us, lease_lost=True)
    survey = yield from _catch_up(request, survey, now_us)
    book: GateBook = yield from _book(request, survey, now_us)
    jobs: list[Job] = []
    for one in _unpaused(survey):
        room = request.limit - len(jobs)
        settings = queue_settings(one.queue, one.settings)
        if room > 0 and book.limits(settings):
            jobs += yield from _take_gated(request, settings, book, room)
        elif room > 0:
            jobs += yield from _take(request, one.queue, now_us, room)
    yield from book.keep()
    if request.quarantine:
        survey = yield from _survey(request)
    held_us = book.reopens_us if len(jobs) < request.limit else None
    yield from _wake_producers(jobs, survey)
    answer: Claimed = yield from _answer(jobs, survey, request, now_us, held_us)
    return answer


def _catch_up(
    request: ClaimRequest, survey: list[_Surveyed], now_us: int
) -> Steps[list[_Surveyed]]:
    """Do what time has made due: promote waiting jobs, let go those whose gate has opened."""
    due = [one for one in _unpaused(survey) if (one.next_due_us or now_us + 1) <= now_us]
    for one in due:
        yield from promote_queue(one.queue, now_us, limit=PROMOTE_MAX)
    reopens_us = survey[0].reopens_us
    reopened = reopens_us is not None and reopens_us <= now_us
    if reopened:
        yield from reopen_due(now_us)
    if due or reopened:
        survey = yield from _survey(request)
    return survey


def _book(request: ClaimRequest, survey: Sequence[_Surveyed], now_us: int) -> Steps[GateBook]:
    if not survey[0].limited:
        return GateBook(now_us, {}, {}, {}, None if request.quarantine else request.tasks)
    book: GateBook = yield from open_book(request.tasks, now_us, in_order=not request.quarantine)
    return book


def _take_gated(
    request: ClaimRequest, queue: QueueSettings, book: GateBook, limit: int
) -> Steps[list[Job]]:
    """As `_take`, asking every job's gates; who is refused is held back, outside quarantine."""
    jobs: list[Job] = []
    after = _BEGINNING
    for _ in range(_ROUNDS_MAX):
        picked, goes_on = yield from _pick(request, queue, book, limit - len(jobs), after)
        jobs += yield from _hand_over(request, picked)
        released = yield from book.replenish()
        if len(jobs) >= limit or not (goes_on or released):
            break
        after = _BEGINNING if released else goes_on or _BEGINNING
    return jobs


def _pick(
    request: ClaimRequest,
    queue: QueueSettings,
    book: GateBook,
    wanted: int,
    after: tuple[int, int],
) -> Steps[tuple[list[int], tuple[int, int] | None]]:
    """Ask a page of candidates; who may go, and after whom there may be more."""
    now_us: int = yield NOW
    lane = Lane.SUSPECT if request.quarantine else Lane.READY
    page = wanted + _PAGE_EXTRA
    chosen = _chosen(request, queue.name, now_us, lane, page)
    rank, place = after
    rows = yield Rows(sql("claim_candidates"), {**chosen, "rank": rank, "after": place})
    picked: list[int] = []
    for row in rows:
        if len(picked) >= wanted:
            break
        job = Candidate.of(row)
        after = (job.rank, job.place)
        refused = yield from book.ask(job, queue)
        if refused is None:
            picked.append(job.seq)
        elif not request.quarantine:
            held = yield from book.hold_back(job, refused, queue, picked)
            if held != "job":
                return picked, _BEGINNING if held == "others" else None
    return picked, after if len(rows) == page else None


def _hand_over(request: ClaimRequest, seqs: Sequence[int]) -> Steps[list[Job]]:
    if not seqs:
        return []
    now_us: int = yield NOW
    chosen = json_text(list(seqs))
    [(jobs,)] = yield Rows(sql("claim_chosen"), {"seqs": chosen})
    yield Change(sql("claim"), _handed(request, chosen, now_us))
    return _jobs.decode(jobs)


def _wake_producers(jobs: Sequence[Job], survey: Sequence[_Surveyed]) -> Steps[None]:
    """Those who wait for room in a queue that has a depth to keep."""
    given = {job.queue for job in jobs}
    for one in survey:
        if one.queue in given and queue_settings(one.queue, one.settings).max_depth is not None:
            yield Wake(f"room:{one.queue}")


def _unpaused(survey: Sequence[_Surveyed]) -> list[_Surveyed]:
    return [one for one in survey if not one.paused]


def _survey(request: ClaimRequest) -> Steps[list[_Surveyed]]:
    queues = json_text(list(dict.fromkeys(request.queues)))
    now_us: int = yield NOW
    asked = {"queues": queues, "worker": request.worker, "now": now_us}
    rows = yield Rows(sql("claim_survey"), asked)
    return [_Surveyed(*row) for row in rows]


def _lapsed(survey: Sequence[_Surveyed], now_us: int) -> bool:
    expires_us = survey[0].lease_expires_us if survey else None
    return expires_us is None or expires_us <= now_us


def _take(request: ClaimRequest, queue: str, now_us: int, limit: int) -> Steps[list[Job]]:
    lane = Lane.SUSPECT if request.quarantine else Lane.READY
    chosen = _chosen(request, queue, now_us, lane, limit)
    [(jobs, seqs, count)] = yield Rows(sql("claim_batch"), chosen)
    if count == 0:
        return []
    yield Change(sql("claim"), _handed(request, seqs, now_us))
    return _jobs.decode(jobs)


def _handed(request: ClaimRequest, seqs: str, now_us: int) -> dict[str, Any]:
    return {
        "seqs": seqs,
        "worker": request.worker,
        "alone": int(request.quarantine),
        "now": now_us,
        "default_timeout_us": request.default_timeout_us,
        "grace_us": HOLD_GRACE_US,
    }


def _chosen(
    request: ClaimRequest, queue: str, now_us: int, lane: Lane, limit: int
) -> dict[str, Any]:
    return {
        "lane": lane,
        "queue": queue,
        "tasks": json_text(request.tasks),
        "any_task": EVERY_TASK in request.tasks,
        "limit": limit,
        "now": now_us,
    }


def _answer(
    jobs: Sequence[Job],
    survey: Sequence[_Surveyed],
    request: ClaimRequest,
    now_us: int,
    held_us: int | None,
) -> Steps[Claimed]:
    """What was given, and what may be waited for; `held_us` is when a gate opens by time."""
    unpaused = _unpaused(survey)
    times = [one.next_due_us for one in unpaused]
    if len(jobs) < request.limit:
        times.append(held_us)
        if survey and survey[0].reopens_us is not None:
            chosen = _chosen(request, "", now_us, Lane.HELD_BACK, 0)
            chosen["queues"] = json_text([one.queue for one in unpaused])
            [(reopens_us,)] = yield Rows(sql("reopens_next"), chosen)
            times.append(reopens_us)
    suspects, suspect_us = yield from _suspects(unpaused, request, now_us)
    times.append(suspect_us)
    next_us = min((time_us for time_us in times if time_us is not None), default=None)
    return Claimed(jobs=tuple(jobs), now_us=now_us, next_due_us=next_us, suspects=suspects)


def _suspects(
    survey: Sequence[_Surveyed], request: ClaimRequest, now_us: int
) -> Steps[tuple[bool, int | None]]:
    """Whether some suspect could be run alone now; if not, when time opens the first gate."""
    with_some = [one for one in survey if one.suspects]
    if not with_some:
        return False, None
    book: GateBook = yield from open_book(request.tasks, now_us)
    for one in with_some:
        settings = queue_settings(one.queue, one.settings)
        chosen = _chosen(request, one.queue, now_us, Lane.SUSPECT, _SUSPECTS_MAX)
        rank, place = _BEGINNING
        rows = yield Rows(sql("claim_candidates"), {**chosen, "rank": rank, "after": place})
        for row in rows:
            refused = yield from book.ask(Candidate.of(row), settings)
            if refused is None:
                return True, None
    return False, book.reopens_us


def promote_queue(queue: str, now_us: int, *, limit: int) -> Steps[int]:
    """Make due jobs ready, in (due, sequence) order; rescued ones keep their place."""
    rows = yield Rows(sql("promote_due"), {"queue": queue, "now": now_us, "limit": limit})
    due = [_Due(*row) for row in rows]
    # One kind after the other: where newcomers stand depends on who is ready before them.
    for kept, group in groupby(due, key=lambda one: one.kept_place is not None):
        if kept:
            standing = [(one, one.kept_rank, one.kept_place) for one in group]
        else:
            standing = yield from _newcomers(queue, list(group), now_us)
        yield ChangeMany(
            sql("promote"),
            [
                {
                    "seq": one.seq,
                    "lane": Lane.SUSPECT if one.suspect else Lane.READY,
                    "rank": rank,
                    "place": place,
                    "now": now_us,
                }
                for one, rank, place in standing
            ],
        )
    yield from join_lines([one.seq for one in due if one.lined])
    return len(due)


def _newcomers(
    queue: str, due: Sequence[_Due], now_us: int
) -> Steps[list[tuple[_Due, int | None, int | None]]]:
    """Where jobs stand that take a new place."""
    last: int = yield from take_places(len(due))
    queues: dict[str, QueueRow] = yield from queue_rows([queue])
    standing = [Newcomer(queue, one.priority, one.tenant) for one in due]
    ranks: list[int] = yield from ranks_of(standing, queues, now_us)
    places = range(last - len(due) + 1, last + 1)
    return list(zip(due, ranks, places, strict=True))


class _Due(NamedTuple):
    """A waiting job that is due."""

    seq: int
    priority: int
    tenant: str
    kept_rank: int | None
    kept_place: int | None
    suspect: int
    lined: int
