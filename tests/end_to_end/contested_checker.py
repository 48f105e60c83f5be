# SPDX-License-Identifier: MIT
"""Did every limit hold? Judges what handlers and producers wrote down against the store's record.

Pure, as `checker` is, and with planted violations in `test_contested_checker.py`. An attempt counts
while its fence was current: from its claim until it was settled or rescued, by the store's clock.
What it did later is overlap. Where something is not known for certain, as when a claim was given
back unused and left no trace, the benefit of the doubt is the store's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import msgspec

from packhorse.job import JobStatus
from tests.end_to_end.checker import Run, Verdict

#: How many, and in how many microseconds.
Rate = tuple[int, int]
Interval = tuple[int, int]
NEVER: Final = 1 << 62


class Limits(msgspec.Struct, frozen=True):
    """What must hold."""

    queue_concurrency: Mapping[str, int] = {}
    task_concurrency: Mapping[str, int] = {}  #: for each key
    queue_rate: Mapping[str, Rate] = {}
    tenant_rate: Mapping[str, Rate] = {}  #: by queue, for each tenant
    task_rate: Mapping[str, Rate] = {}  #: for each key
    max_depth: Mapping[str, int] = {}
    unique: frozenset[str] = frozenset()  #: tasks of which one per key is unfinished
    throttle_us: Mapping[str, int] = {}  #: tasks of which one per key is admitted in so long
    idempotent: frozenset[str] = frozenset()  #: tasks of which one per key is ever admitted
    closed_us: Mapping[str, int] = {}  #: how long a rate key waits after `RateLimited`


class Span(msgspec.Struct, frozen=True):
    """One attempt as the store has it: from the claim until it was settled, or rescued."""

    attempt: int
    started_us: int
    ended_us: int
    given_back: bool = False  #: by its own worker, which is how one that met a limit ends
    worker: str = ""  #: who ran it


class Facts(msgspec.Struct, frozen=True):
    """One job as the store has it when all is over."""

    job_id: str
    task: str
    queue: str
    created_us: int
    spans: Sequence[Span] = ()
    finished_us: int | None = None
    status: JobStatus = JobStatus.COMPLETED
    tenant: str = ""
    ordering_key: str | None = None
    concurrency_key: str | None = None
    rate_key: str | None = None
    weight: int = 1
    hidden: int = 0  #: claims that were given back unused, and left no trace of when


class Asked(msgspec.Struct, frozen=True):
    """One submit, and what was answered; no `job_id`: the queue was full."""

    task: str
    asked_us: int
    answered_us: int
    job_id: str = ""
    key: str = ""
    deduplicated: bool = False
    count: int = 1  #: how many were refused together


class Contest(msgspec.Struct, frozen=True):
    """All that is known once everything is over."""

    limits: Limits
    jobs: Sequence[Facts]  #: in the order of admission
    runs: Sequence[Run] = ()
    asked: Sequence[Asked] = ()
    pushed_back: frozenset[tuple[str, int]] = frozenset()  #: (job, attempt) that met a limit


Rule = Callable[[Contest], Iterator[str]]


def judge(contest: Contest) -> Verdict:
    """Hold the contest against every rule."""
    return Verdict({name: list(rule(contest)) for name, rule in RULES.items()})


def too_many_claimed(contest: Contest) -> Iterator[str]:
    """More attempts of a limit at once than it allows, by the store's own record."""
    yield from (use.complaint for use in claimed_at_once(contest) if use.over)


def too_many_running(contest: Contest) -> Iterator[str]:
    """More handlers of a limit running at once than it allows, while their fences were current."""
    by_id = {job.job_id: job for job in contest.jobs}
    running = [(by_id[run.job_id], current(run, by_id)) for run in contest.runs]
    held = [(job, interval) for job, interval in running if interval is not None]
    yield from (use.complaint for use in _at_once(contest.limits, held) if use.over)


def too_many_started(contest: Contest) -> Iterator[str]:
    """More weight granted in some window than a rate allows."""
    yield from (use.complaint for use in granted_in_a_window(contest) if use.over)


def not_waited(contest: Contest) -> Iterator[str]:
    """Started with a rate key that somebody else's limit had just closed.

    The key is closed from the moment at which the store wrote down that the attempt met a limit.
    """
    keyed: dict[tuple[str, str | None], list[tuple[Span, str]]] = defaultdict(list)
    for job in contest.jobs:
        keyed[job.task, job.rate_key] += [(span, job.job_id) for span in job.spans]
    for job in contest.jobs:
        for closing in job.spans:
            met = (job.job_id, closing.attempt) in contest.pushed_back
            if not (met and closing.given_back):  # else it died before it could say so
                continue
            until_us = closing.ended_us + contest.limits.closed_us[job.task]
            for span, other in keyed[job.task, job.rate_key]:
                if closing.ended_us < span.started_us < until_us:
                    yield (
                        f"{other} attempt {span.attempt} started at {span.started_us} (until "
                        f"{span.ended_us}, {span.worker}), {until_us - span.started_us} us before "
                        f"{job.rate_key} opened, closed by {job.job_id} attempt {closing.attempt} "
                        f"from {closing.started_us} to {closing.ended_us} ({closing.worker})"
                    )


def out_of_order(contest: Contest) -> Iterator[str]:
    """Begun before somebody admitted earlier to its line had finished."""
    begun: dict[str, int] = {}
    for run in contest.runs:
        begun[run.job_id] = min(run.started_us, begun.get(run.job_id, NEVER))
    head: dict[tuple[str, str, str], tuple[int, str]] = {}
    for job in contest.jobs:
        if job.ordering_key is None:
            continue
        line = (job.queue, job.tenant, job.ordering_key)
        free_us, before = head.get(line, (0, ""))
        starts = [span.started_us for span in job.spans]
        first_us = min([*starts, begun.get(job.job_id, NEVER)])
        if first_us < free_us:
            yield f"{job.job_id} began before {before} of {job.ordering_key} had finished"
        finished_us = NEVER if job.finished_us is None else job.finished_us
        head[line] = max(head.get(line, (0, "")), (finished_us, job.job_id))


def too_deep(contest: Contest) -> Iterator[str]:
    """Admitted to a queue in which as many waited as may."""
    for queue, most in contest.limits.max_depth.items():
        admitted = [job for job in contest.jobs if job.queue == queue]
        for number, job in enumerate(admitted):
            others = sum(_waits(other, job.created_us) for other in admitted[:number])
            if others >= most:
                yield f"{job.job_id} was admitted to {queue} as number {others + 1} of {most}"


def refused_with_room(contest: Contest) -> Iterator[str]:
    """Told that a queue is full which was not."""
    for asked in contest.asked:
        most = contest.limits.max_depth.get(asked.task)
        if asked.job_id or most is None:
            continue
        waiting = sum(_may_wait(job, asked) for job in contest.jobs if job.queue == asked.task)
        if waiting + asked.count <= most:
            yield f"{asked.task} refused {asked.count} while at most {waiting} of {most} waited"


def not_unique(contest: Contest) -> Iterator[str]:
    """Two unfinished jobs of one unique key."""
    for (task, key), jobs in _by_key(contest, contest.limits.unique).items():
        for before, after in pairwise(jobs):
            if after.created_us < _finished_us(before):
                yield f"{task} {key}: {after.job_id} was admitted beside {before.job_id}"


def not_throttled(contest: Contest) -> Iterator[str]:
    """Two jobs of one key admitted in one window."""
    windows = contest.limits.throttle_us
    for (task, key), jobs in _by_key(contest, windows).items():
        for before, after in pairwise(jobs):
            holds = before.status not in (JobStatus.CANCELLED, JobStatus.DEAD)
            if holds and after.created_us - before.created_us < windows[task]:
                yield f"{task} {key}: {after.job_id} was admitted too soon after {before.job_id}"


def not_idempotent(contest: Contest) -> Iterator[str]:
    """Two jobs of one idempotency key."""
    for (task, key), jobs in _by_key(contest, contest.limits.idempotent).items():
        if len(jobs) > 1:
            yield f"{task} {key} is {len(jobs)} jobs"


def wrong_holder(contest: Contest) -> Iterator[str]:
    """Answered with a job that does not have the key, or was not there yet."""
    by_id = {job.job_id: job for job in contest.jobs}
    keys = {asked.job_id: (asked.task, asked.key) for asked in contest.asked if _stored(asked)}
    for asked in contest.asked:
        if not asked.deduplicated:
            continue
        holder = by_id.get(asked.job_id)
        if keys.get(asked.job_id) != (asked.task, asked.key):
            yield f"{asked.task} {asked.key} was answered with {asked.job_id}"
        elif holder is None or holder.created_us > asked.answered_us:
            yield f"{asked.task} {asked.key} was answered with {asked.job_id} before it was there"


#: Every rule by the name it is reported under; each must find nothing.
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "too many claimed": too_many_claimed,
        "too many running": too_many_running,
        "too many started": too_many_started,
        "limit not waited for": not_waited,
        "out of order": out_of_order,
        "too deep": too_deep,
        "refused with room": refused_with_room,
        "not unique": not_unique,
        "not throttled": not_throttled,
        "not idempotent": not_idempotent,
        "wrong holder": wrong_holder,
    }
)


class Use(msgspec.Struct, frozen=True):
    """How much of a limit was used at most, and when."""

    gate: str
    most: int
    at_us: int
    limit: int

    @property
    def over(self) -> bool:
        return self.most > self.limit

    @property
    def complaint(self) -> str:
        return f"{self.gate}: {self.most} at {self.at_us}, {self.limit} are allowed"


def claimed_at_once(contest: Contest) -> list[Use]:
    """How many attempts of each limit of concurrency the store had given out at once."""
    held = [(job, (span.started_us, span.ended_us)) for job in contest.jobs for span in job.spans]
    return _at_once(contest.limits, held)


def granted_in_a_window(contest: Contest) -> list[Use]:
    """How much weight each rate let start within one window."""
    grants: dict[str, list[tuple[int, int]]] = defaultdict(list)
    rules: dict[str, Rate] = {}
    for job in contest.jobs:
        for gate, rule in _rate_gates(job, contest.limits):
            rules[gate] = rule
            grants[gate] += [(span.started_us, job.weight) for span in job.spans]
    return [
        Use(gate, *_heaviest_window(sorted(granted), rules[gate][1]), rules[gate][0])
        for gate, granted in grants.items()
    ]


def current(run: Run, jobs: Mapping[str, Facts]) -> Interval | None:
    """When a handler ran under a fence that was current; None if it never was."""
    spans = [span.ended_us for span in jobs[run.job_id].spans if span.attempt == run.attempt]
    ends = [*spans, *([] if run.ended_us is None else [run.ended_us])]
    ended_us = min(ends, default=run.started_us)
    return (run.started_us, ended_us) if ended_us > run.started_us else None


def begun_in_time(contest: Contest) -> list[Run]:
    """The runs that began while their claim held; a process may be stopped just before."""
    ends = _ends(contest)
    return [run for run in contest.runs if run.started_us < ends.get(_attempt(run), NEVER)]


def stale(contest: Contest) -> int:
    """How many handlers went on after their job had been taken from them."""
    ends = _ends(contest)
    return sum(
        run.ended_us is not None and run.ended_us > ends.get(_attempt(run), NEVER)
        for run in contest.runs
    )


def _ends(contest: Contest) -> dict[tuple[str, int], int]:
    return {(job.job_id, span.attempt): span.ended_us for job in contest.jobs for span in job.spans}


def _attempt(run: Run) -> tuple[str, int]:
    return run.job_id, run.attempt


def _at_once(limits: Limits, held: Iterable[tuple[Facts, Interval]]) -> list[Use]:
    gates: dict[str, list[Interval]] = defaultdict(list)
    most: dict[str, int] = {}
    for job, interval in held:
        for gate, limit in _concurrency_gates(job, limits):
            gates[gate].append(interval)
            most[gate] = limit
    return [Use(gate, *_peak(intervals), most[gate]) for gate, intervals in gates.items()]


def _concurrency_gates(job: Facts, limits: Limits) -> Iterator[tuple[str, int]]:
    if job.queue in limits.queue_concurrency:
        yield f"queue {job.queue}", limits.queue_concurrency[job.queue]
    if job.task in limits.task_concurrency:
        yield f"task {job.task} {job.concurrency_key}", limits.task_concurrency[job.task]


def _rate_gates(job: Facts, limits: Limits) -> Iterator[tuple[str, Rate]]:
    if job.queue in limits.queue_rate:
        yield f"rate of queue {job.queue}", limits.queue_rate[job.queue]
    if job.queue in limits.tenant_rate:
        yield f"rate of {job.tenant} in queue {job.queue}", limits.tenant_rate[job.queue]
    if job.task in limits.task_rate:
        yield f"rate of task {job.task} {job.rate_key}", limits.task_rate[job.task]


def _peak(intervals: Iterable[Interval]) -> tuple[int, int]:
    """The most that overlap, and when; one that ends as another begins does not."""
    edges = sorted(edge for start, end in intervals for edge in ((start, 1), (end, -1)))
    now = most = at_us = 0
    for instant_us, step in edges:
        now += step
        if now > most:
            most, at_us = now, instant_us
    return most, at_us


def _heaviest_window(granted: Sequence[tuple[int, int]], window_us: int) -> tuple[int, int]:
    """The most weight that was granted within a window, and when the last of it was."""
    first = weight = most = at_us = 0
    for started_us, each in granted:
        weight += each
        while granted[first][0] <= started_us - window_us:
            weight -= granted[first][1]
            first += 1
        if weight > most:
            most, at_us = weight, started_us
    return most, at_us


def _waits(job: Facts, at_us: int) -> bool:
    """Whether a job certainly waited then."""
    if job.hidden:
        return False
    return any(start <= at_us < end for start, end in _waiting(job))


def _may_wait(job: Facts, asked: Asked) -> bool:
    """Whether a job may have waited at some moment of a submit."""
    spells = [(job.created_us, _finished_us(job))] if job.hidden else _waiting(job)
    return any(start <= asked.answered_us and end >= asked.asked_us for start, end in spells)


def _waiting(job: Facts) -> list[Interval]:
    starts = [job.created_us, *(span.ended_us for span in job.spans)]
    ends = [*(span.started_us for span in job.spans), _finished_us(job)]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def _finished_us(job: Facts) -> int:
    return NEVER if job.finished_us is None else job.finished_us


def _stored(asked: Asked) -> bool:
    return bool(asked.job_id) and not asked.deduplicated


def _by_key(contest: Contest, tasks: Iterable[str]) -> dict[tuple[str, str], list[Facts]]:
    """The jobs of these tasks by the key they were submitted with, in order of admission."""
    keys = {asked.job_id: asked.key for asked in contest.asked if _stored(asked)}
    wanted = frozenset(tasks)
    found: dict[tuple[str, str], list[Facts]] = defaultdict(list)
    for job in contest.jobs:
        if job.task in wanted and job.job_id in keys:
            found[job.task, keys[job.job_id]].append(job)
    return found
