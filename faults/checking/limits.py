# SPDX-License-Identifier: MIT
"""Did every limit hold? Judges what handlers and producers wrote down against the store's record.

Each rule is a function that yields one sentence per violation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from faults.checking.contest import (
    NEVER,
    Contest,
    Span,
    Use,
    at_once,
    begun_in_a_window,
    claimed_at_once,
    current,
    finished_us,
    granted_in_a_window,
    keyed_jobs,
    may_wait,
    stepped,
    stored,
    waits,
)
from faults.checking.evidence import Verdict
from packhorse.core.job import JobStatus

Rule = Callable[[Contest], Iterator[str]]


def judge(contest: Contest) -> Verdict:
    """Hold the contest against every rule."""
    found = {name: list(rule(contest)) for name, rule in RULES.items()}
    return Verdict(found, cases(contest))


def cases(contest: Contest) -> dict[str, int]:
    """How many limits that were used up, jobs or answers each rule has to judge."""
    known, limits = contest.asked, contest.limits
    limited = {
        "too many claimed": claimed_at_once(contest),
        "too many running": _running_at_once(contest),
        "too many granted": granted_in_a_window(contest),
        "too many begun": begun_in_a_window(contest),
    }

    def keyed(tasks: Container[str]) -> int:
        """Second submits of a key."""
        return sum(asked.deduplicated and asked.task in tasks for asked in known)

    return {
        **{name: sum(use.most >= use.limit for use in uses) for name, uses in limited.items()},
        "limit not waited for": len(contest.pushed_back),
        "out of order": sum(job.ordering_key is not None for job in contest.jobs),
        "too deep": sum(job.queue in limits.max_depth for job in contest.jobs),
        "refused with room": sum(not asked.job_id for asked in known),
        "not unique": keyed(limits.unique),
        "not throttled": keyed(limits.throttle_us),
        "not idempotent": keyed(limits.idempotent),
        "wrong holder": sum(asked.deduplicated for asked in known),
    }


def too_many_claimed(contest: Contest) -> Iterator[str]:
    """More attempts of a limit at once than it allows, by the store's own record."""
    yield from (use.complaint for use in claimed_at_once(contest) if use.over)


def too_many_running(contest: Contest) -> Iterator[str]:
    """More handlers of a limit running at once than it allows, while their fences were current."""
    yield from (use.complaint for use in _running_at_once(contest) if use.over)


def _running_at_once(contest: Contest) -> list[Use]:
    by_id = {job.job_id: job for job in contest.jobs}
    known = [run for run in contest.runs if run.job_id in by_id]
    running = [(by_id[run.job_id], current(run, by_id)) for run in known]
    held = [(job, interval) for job, interval in running if interval is not None]
    return at_once(contest.limits, held)


def too_many_granted(contest: Contest) -> Iterator[str]:
    """More weight granted in some window than a rate allows."""
    yield from (use.complaint for use in granted_in_a_window(contest) if use.over)


def too_many_begun(contest: Contest) -> Iterator[str]:
    """More weight begun by handlers in some window than a rate allows."""
    yield from (use.complaint for use in begun_in_a_window(contest) if use.over)


def not_waited(contest: Contest) -> Iterator[str]:
    """Started with a rate key that the limit of another system had just closed.

    The key is closed from the moment at which the store wrote down that the attempt met a limit.
    """
    keyed: dict[tuple[str, str | None], list[tuple[Span, str]]] = defaultdict(list)
    for job in contest.jobs:
        keyed[job.task, job.rate_key] += [(span, job.job_id) for span in job.spans]
    for job in contest.jobs:
        for closing in job.spans:
            met = (job.job_id, closing.attempt) in contest.pushed_back
            if closing.doubtful or not met:
                continue
            until_us = closing.ended_us + contest.limits.closed_us[job.task]
            if stepped(contest, closing.started_us, until_us):
                continue
            for span, other in keyed[job.task, job.rate_key]:
                if closing.ended_us < span.started_us < until_us and not span.doubtful:
                    yield (
                        f"{other} attempt {span.attempt} started at {span.started_us} (until "
                        f"{span.ended_us}, {span.worker}), {until_us - span.started_us} us before "
                        f"{job.rate_key} opened, closed by {job.job_id} attempt {closing.attempt} "
                        f"from {closing.started_us} to {closing.ended_us} ({closing.worker})"
                    )


def out_of_order(contest: Contest) -> Iterator[str]:
    """Begun before a job that was admitted earlier to its line had finished."""
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
        head[line] = max(head.get(line, (0, "")), (finished_us(job), job.job_id))


def too_deep(contest: Contest) -> Iterator[str]:
    """Admitted to a queue in which as many waited as may."""
    for queue, most in contest.limits.max_depth.items():
        admitted = [job for job in contest.jobs if job.queue == queue]
        for number, job in enumerate(admitted):
            others = sum(waits(other, job.created_us) for other in admitted[:number])
            if others >= most:
                yield f"{job.job_id} was admitted to {queue} as number {others + 1} of {most}"


def refused_with_room(contest: Contest) -> Iterator[str]:
    """Told that a queue is full which was not."""
    for asked in contest.asked:
        most = contest.limits.max_depth.get(asked.task)
        if asked.job_id or most is None:
            continue
        waiting = sum(may_wait(job, asked) for job in contest.jobs if job.queue == asked.task)
        if waiting + asked.count <= most:
            yield f"{asked.task} refused {asked.count} while at most {waiting} of {most} waited"


def not_unique(contest: Contest) -> Iterator[str]:
    """Two unfinished jobs of one unique key."""
    for (task, key), jobs in keyed_jobs(contest, contest.limits.unique).items():
        for before, after in pairwise(jobs):
            if after.created_us < finished_us(before):
                yield f"{task} {key}: {after.job_id} was admitted beside {before.job_id}"


def not_throttled(contest: Contest) -> Iterator[str]:
    """Two jobs of one key admitted in one window."""
    windows = contest.limits.throttle_us
    for (task, key), jobs in keyed_jobs(contest, windows).items():
        for before, after in pairwise(jobs):
            holds = before.status not in (JobStatus.CANCELLED, JobStatus.DEAD)
            holds &= not stepped(contest, before.created_us, after.created_us)
            if holds and after.created_us - before.created_us < windows[task]:
                yield f"{task} {key}: {after.job_id} was admitted too soon after {before.job_id}"


def not_idempotent(contest: Contest) -> Iterator[str]:
    """Two jobs of one idempotency key."""
    for (task, key), jobs in keyed_jobs(contest, contest.limits.idempotent).items():
        if len(jobs) > 1:
            yield f"{task} {key} is {len(jobs)} jobs"


def wrong_holder(contest: Contest) -> Iterator[str]:
    """Answered with a job that does not have the key, or was not there yet."""
    by_id = {job.job_id: job for job in contest.jobs}
    keys = {asked.job_id: (asked.task, asked.key) for asked in contest.asked if stored(asked)}
    for asked in contest.asked:
        if not asked.deduplicated:
            continue
        holder = by_id.get(asked.job_id)
        if keys.get(asked.job_id) != (asked.task, asked.key):
            yield f"{asked.task} {asked.key} was answered with {asked.job_id}"
        elif holder is None or (holder.created_us > asked.answered_us and not holder.doubtful):
            yield f"{asked.task} {asked.key} was answered with {asked.job_id} before it was there"


#: Every rule by the name it is reported under; each must find nothing.
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "too many claimed": too_many_claimed,
        "too many running": too_many_running,
        "too many granted": too_many_granted,
        "too many begun": too_many_begun,
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
