# SPDX-License-Identifier: MIT
"""Limits, what happened under them, and how much of each was used: for the rules in `limits`.

An attempt counts while its fence was current: from its claim until it was settled or rescued, by
the store's clock. What it did later is overlap. Where something is not known for certain, as when a
claim was given back unused and left no trace, the benefit of the doubt is the store's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from faults.checking.evidence import Run
from packhorse.core.job import JobStatus
from packhorse.core.policies.rate_limit import ALLOWANCE_US_MAX

#: How many, and in how many microseconds.
Rate = tuple[int, int]
Interval = tuple[int, int]
NEVER: Final = 1 << 62
#: How far the moments of a job may be off about which the store's clock was set.
_DOUBT_US: Final = 2_000_000
#: A run that began so long after its claim was stopped between the worker's last look and its own
#: first line: no worker starts a job with a rate limit that late.
_STOPPED_US: Final = ALLOWANCE_US_MAX
#: On a busy machine the first line of a handler comes late after the worker's last look: windows of
#: what was begun are judged shorter by this part.
_LATE_LINES: Final = 4


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
    worker: str = ""  #: who ran it
    doubtful: bool = False  #: the store's clock was set back about then


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
    doubtful: bool = False  #: the store's clock was set back about one of its instants
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
    pushed_back: frozenset[tuple[str, int]] = (
        frozenset()
    )  #: (job, attempt) that met a limit, as the store knows
    steps_us: Sequence[int] = ()  #: when the store's clock was stepped; no window spans that


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
    return at_once(contest.limits, held)


def granted_in_a_window(contest: Contest) -> list[Use]:
    """How much weight each rate let start within one window."""
    return _in_a_window(
        contest,
        (
            (job, [span.started_us for span in job.spans if not span.doubtful])
            for job in contest.jobs
        ),
    )


def begun_in_a_window(contest: Contest) -> list[Use]:
    """How much weight of each rate has handlers that began within one window."""
    begun: dict[tuple[str, int], list[int]] = defaultdict(list)
    for run in contest.runs:
        begun[_attempt(run)].append(run.started_us)
    prompt = (
        (job, [at_us for at_us in begun[job.job_id, span.attempt] if _prompt(contest, at_us, span)])
        for job in contest.jobs
        for span in job.spans
        if not span.doubtful
    )
    return _in_a_window(contest, prompt, part=_LATE_LINES)


def _prompt(contest: Contest, begun_us: int, span: Span) -> bool:
    """Whether a run began as soon as it must, by the clock that its claim was granted by."""
    in_time = begun_us - span.started_us <= _STOPPED_US
    return in_time and not stepped(contest, span.started_us, begun_us)


def _in_a_window(
    contest: Contest, starts: Iterable[tuple[Facts, Iterable[int]]], *, part: int | None = None
) -> list[Use]:
    """How much weight of each rate started within one window, shorter by a part of it."""
    weights: dict[str, list[tuple[int, int]]] = defaultdict(list)
    rules: dict[str, Rate] = {}
    for job, instants_us in starts:
        instants = [(at_us, job.weight) for at_us in instants_us]
        for gate, rule in _rate_gates(job, contest.limits):
            rules[gate] = rule
            weights[gate] += instants
    found: list[Use] = []
    for gate, started in weights.items():
        most, window_us = rules[gate]
        window_us -= 0 if part is None else window_us // part
        found.append(Use(gate, *_heaviest(sorted(started), window_us, contest.steps_us), most))
    return found


def stepped(contest: Contest, from_us: int, until_us: int) -> bool:
    """Whether the store's clock was stepped in that time, so that its length means nothing."""
    return any(from_us <= step_us <= until_us for step_us in contest.steps_us)


def current(run: Run, jobs: Mapping[str, Facts]) -> Interval | None:
    """When a handler ran under a fence that was current; None if it never was."""
    spans = [span.ended_us for span in jobs[run.job_id].spans if span.attempt == run.attempt]
    ends = [*spans, *([] if run.ended_us is None else [run.ended_us])]
    ended_us = min(ends, default=run.started_us)
    return (run.started_us, ended_us) if ended_us > run.started_us else None


def begun_in_time(contest: Contest) -> list[Run]:
    """The runs that certainly began while their claim held; one may be stopped just before."""
    ends = _ends(contest)
    return [run for run in contest.runs if run.started_us < ends.get(_attempt(run), NEVER)]


def stale(contest: Contest) -> int:
    """How many handlers certainly went on after their job had been taken from them."""
    ends = _ends(contest, certain=True)
    return sum(
        run.ended_us is not None and run.ended_us > ends.get(_attempt(run), NEVER)
        for run in contest.runs
    )


def begun_too_late(contest: Contest) -> int:
    """How many runs certainly began when their claim was over."""
    ends = _ends(contest, certain=True)
    return sum(run.started_us >= ends.get(_attempt(run), NEVER) for run in contest.runs)


def _ends(contest: Contest, *, certain: bool = False) -> dict[tuple[str, int], int]:
    return {
        (job.job_id, span.attempt): span.ended_us
        for job in contest.jobs
        for span in job.spans
        if not (certain and span.doubtful)
    }


def _attempt(run: Run) -> tuple[str, int]:
    return run.job_id, run.attempt


def at_once(limits: Limits, held: Iterable[tuple[Facts, Interval]]) -> list[Use]:
    """How many of each limit of concurrency were held at once."""
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


def _heaviest(
    granted: Sequence[tuple[int, int]], window_us: int, steps_us: Sequence[int]
) -> tuple[int, int]:
    """The most that was granted within a window in which no fault stepped the clock."""
    edges = [0, *sorted(steps_us), NEVER]
    parts = [
        [grant for grant in granted if start <= grant[0] < end] for start, end in pairwise(edges)
    ]
    return max(_heaviest_window(part, window_us) for part in parts)


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


def waits(job: Facts, at_us: int) -> bool:
    """Whether a job certainly waited then."""
    if job.hidden:
        return False
    return any(start <= at_us < end for start, end in _waiting(job))


def may_wait(job: Facts, asked: Asked) -> bool:
    """Whether a job may have waited at some moment of a submit."""
    spells = [(job.created_us, finished_us(job))] if job.hidden else _waiting(job)
    if job.doubtful:
        spells = [(start - _DOUBT_US, end + _DOUBT_US) for start, end in spells]
    return any(start <= asked.answered_us and end >= asked.asked_us for start, end in spells)


def _waiting(job: Facts) -> list[Interval]:
    starts = [job.created_us, *(span.ended_us for span in job.spans)]
    ends = [*(span.started_us for span in job.spans), finished_us(job)]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def finished_us(job: Facts) -> int:
    """When a job finished; never, if it has not."""
    return NEVER if job.finished_us is None else job.finished_us


def stored(asked: Asked) -> bool:
    """Whether a submit came to a job of its own."""
    return bool(asked.job_id) and not asked.deduplicated


def keyed_jobs(contest: Contest, tasks: Iterable[str]) -> dict[tuple[str, str], list[Facts]]:
    """The jobs of these tasks by the key they were submitted with, in order of admission."""
    keys = {asked.job_id: asked.key for asked in contest.asked if stored(asked)}
    wanted = frozenset(tasks)
    found: dict[tuple[str, str], list[Facts]] = defaultdict(list)
    for job in contest.jobs:
        if job.task in wanted and job.job_id in keys:
            found[job.task, keys[job.job_id]].append(job)
    return found
