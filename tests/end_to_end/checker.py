# SPDX-License-Identifier: MIT
"""Was everything as promised? Judges what handlers wrote down against what the store says.

Pure: evidence in, verdict out. Each rule is a function that yields one sentence per violation, and
has planted violations of its own in `test_checker.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import msgspec

from packhorse.job import Counters, JobStatus
from tests.end_to_end.recording import Line


class Run(msgspec.Struct, frozen=True):
    """One time a handler ran."""

    job_id: str
    attempt: int
    fence: int
    pid: int
    started_us: int
    ended_us: int | None = None  #: None: its process died first


class Standing(msgspec.Struct, frozen=True):
    """Where a job stood when the store was looked at."""

    job_id: str
    status: JobStatus
    fence: int
    counters: Counters
    finished_us: int | None = None
    result_fence: int | None = None  #: the fence of the run whose result was kept


class Evidence(msgspec.Struct, frozen=True):
    """All that is known once everything is over."""

    submitted: frozenset[str]  #: ids for which `enqueue` returned
    runs: Sequence[Run]
    accepted: Sequence[str]  #: ids, once for each completion a worker was told is written
    at_last: Mapping[str, Standing]  #: every job in the store, by id
    between: Sequence[Standing] = ()  #: what was seen in between, in order
    guilty: frozenset[str] = frozenset()  #: jobs that may be dead


Rule = Callable[[Evidence], Iterator[str]]


class Verdict(msgspec.Struct, frozen=True):
    """What each rule found."""

    findings: Mapping[str, Sequence[str]]

    @property
    def clean(self) -> bool:
        return not any(self.findings.values())

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(found) for name, found in self.findings.items()}


def judge(evidence: Evidence) -> Verdict:
    """Hold the evidence against every rule."""
    return Verdict({name: list(rule(evidence)) for name, rule in RULES.items()})


def lost(evidence: Evidence) -> Iterator[str]:
    """Submitted, and not finished: not in the store, or left there."""
    for job_id in sorted(evidence.submitted):
        standing = evidence.at_last.get(job_id)
        if standing is None:
            yield f"{job_id} is not in the store"
        elif standing.status not in (JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED):
            yield f"{job_id} is still {standing.status}"


def unexpected(evidence: Evidence) -> Iterator[str]:
    """In the store, or run, and never submitted."""
    known = evidence.at_last.keys() | {run.job_id for run in evidence.runs}
    yield from (f"{job_id} was never submitted" for job_id in sorted(known - evidence.submitted))


def never_run(evidence: Evidence) -> Iterator[str]:
    """Completed without a run that came to its end."""
    ended = {run.job_id for run in evidence.runs if run.ended_us is not None}
    for standing in evidence.at_last.values():
        if standing.status is JobStatus.COMPLETED and standing.job_id not in ended:
            yield f"{standing.job_id} is completed and never ran to its end"


def completed_twice(evidence: Evidence) -> Iterator[str]:
    """Two completions accepted, or a run begun after the job had finished."""
    for job_id, times in Counter(evidence.accepted).items():
        if times > 1:
            yield f"{job_id} was accepted as completed {times} times"
    for run in evidence.runs:
        standing = evidence.at_last.get(run.job_id)
        finished_us = standing.finished_us if standing else None
        if finished_us is not None and run.started_us > finished_us:
            yield f"{run.job_id} was started again (fence {run.fence}) after it had finished"


def forgotten(evidence: Evidence) -> Iterator[str]:
    """A worker was told that the completion is written, and it is not there."""
    for job_id in dict.fromkeys(evidence.accepted):
        standing = evidence.at_last.get(job_id)
        if standing is None or standing.status is not JobStatus.COMPLETED:
            yield f"{job_id} was accepted as completed, and is {standing and standing.status}"


def same_fence(evidence: Evidence) -> Iterator[str]:
    """Two runs of one job under one fence: nobody could tell them apart."""
    for (job_id, fence), times in Counter((run.job_id, run.fence) for run in evidence.runs).items():
        if times > 1:
            yield f"{job_id} ran {times} times under fence {fence}"


def fence_fell(evidence: Evidence) -> Iterator[str]:
    """A later run with a lower fence, or a run with a fence the store never gave."""
    for job_id, runs in _by_job(evidence.runs).items():
        for before, after in pairwise(runs):
            if after.fence < before.fence:
                yield f"{job_id} ran under fence {after.fence} after {before.fence}"
        standing = evidence.at_last.get(job_id)
        if standing is not None and max(run.fence for run in runs) > standing.fence:
            yield f"{job_id} ran under a fence above the store's {standing.fence}"


def stale_accepted(evidence: Evidence) -> Iterator[str]:
    """The result kept is not that of the newest run."""
    for standing in evidence.at_last.values():
        kept = standing.result_fence
        if standing.status is JobStatus.COMPLETED and kept is not None and kept != standing.fence:
            yield (
                f"{standing.job_id} keeps the result of fence {kept}, "
                f"the newest claim has {standing.fence}"
            )


def innocent_dead(evidence: Evidence) -> Iterator[str]:
    """Given up, though it did nothing wrong."""
    for standing in evidence.at_last.values():
        if standing.status is JobStatus.DEAD and standing.job_id not in evidence.guilty:
            yield f"{standing.job_id} is dead after {standing.counters}"


def counters_fell(evidence: Evidence) -> Iterator[str]:
    """A fence or counter lower than it was seen before, or fewer attempts than runs."""
    last: dict[str, Standing] = {}
    for standing in (*evidence.between, *evidence.at_last.values()):
        before = last.get(standing.job_id)
        if before is not None and _fell(before, standing):
            yield f"{standing.job_id} went from {_numbers(before)} to {_numbers(standing)}"
        last[standing.job_id] = standing
    for job_id, runs in _by_job(evidence.runs).items():
        at_last = evidence.at_last.get(job_id)
        if at_last is not None and at_last.counters.attempts < len(runs):
            yield f"{job_id} ran {len(runs)} times, counted {at_last.counters.attempts}"


#: Every rule by the name it is reported under; each must find nothing.
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "lost": lost,
        "unexpected": unexpected,
        "never run": never_run,
        "completed twice": completed_twice,
        "forgotten": forgotten,
        "same fence": same_fence,
        "fence fell": fence_fell,
        "stale accepted": stale_accepted,
        "innocent dead": innocent_dead,
        "counters fell": counters_fell,
    }
)


def overlaps(runs: Iterable[Run], died_us: Mapping[int, int]) -> int:
    """How often a run began while another of its job went on; no queue can promise zero.

    A run whose process died ended then, at the latest.
    """
    count = 0
    for job_runs in _by_job(runs).values():
        for before, after in pairwise(job_runs):
            ended_us = before.ended_us or died_us.get(before.pid, before.started_us)
            count += after.started_us < ended_us
    return count


def runs_of(lines: Iterable[Line]) -> list[Run]:
    """The `start` and `end` lines, paired."""
    ends = {_key(line): line.at_us for line in lines if line.event == "end"}
    return [
        Run(*(line.job_id, line.attempt, line.fence, line.pid, line.at_us), ends.get(_key(line)))
        for line in lines
        if line.event == "start"
    ]


def _key(line: Line) -> tuple[str, int, int]:
    return line.job_id, line.fence, line.pid


def _by_job(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each job in the order they began."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.started_us):
        found.setdefault(run.job_id, []).append(run)
    return found


def _numbers(standing: Standing) -> tuple[int, ...]:
    counters = standing.counters
    counted = (counters.attempts, counters.failures, counters.crashes, counters.lone_crashes)
    return (standing.fence, *counted, counters.snoozes, counters.releases)


def _fell(before: Standing, after: Standing) -> bool:
    return any(now < was for was, now in zip(_numbers(before), _numbers(after), strict=True))
