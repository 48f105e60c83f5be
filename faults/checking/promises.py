# SPDX-License-Identifier: MIT
"""The promises about every job: not lost, not twice, fenced, and no innocent job given up.

Each rule is a function that yields one sentence per violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from faults.checking.evidence import Evidence, Standing, Verdict, by_job
from packhorse.core.job import JobStatus

Rule = Callable[[Evidence], Iterator[str]]
_FINISHED: Final = (JobStatus.COMPLETED, JobStatus.DEAD, JobStatus.CANCELLED)


def judge(evidence: Evidence) -> Verdict:
    """Hold the evidence against every rule."""
    found = {name: list(rule(evidence)) for name, rule in RULES.items()}
    return Verdict(found, cases(evidence))


def cases(evidence: Evidence) -> dict[str, int]:
    """How many jobs, runs or answers each rule has to judge."""
    jobs, at_last = len(evidence.at_last), evidence.at_last.values()
    completed = sum(one.status is JobStatus.COMPLETED for one in at_last)
    again = sum(len(runs) > 1 for runs in by_job(evidence.runs).values())
    lost_innocent = [one for one in at_last if one.counters.crashes]
    return {
        "lost": len(evidence.submitted),
        "unexpected": jobs,
        "left behind": len(evidence.unsure & evidence.at_last.keys()),
        "never run": completed,
        "completed twice": len(evidence.accepted),
        "forgotten": len(evidence.accepted),
        "same fence": again,
        "fence fell": again,
        "stale accepted": evidence.stale,
        "innocent dead": sum(one.job_id not in evidence.guilty for one in lost_innocent),
        "guilty spared": len(evidence.guilty & evidence.submitted),
        "counters fell": len(evidence.between) + again,
        "miscounted": jobs,
        "cancel ignored": len(evidence.cancelled),
        "effect under a key twice": len(evidence.effects),
    }


def lost(evidence: Evidence) -> Iterator[str]:
    """Submitted, and not finished: not in the store, or left there."""
    for job_id in sorted(evidence.submitted):
        standing = evidence.at_last.get(job_id)
        if standing is None:
            yield f"{job_id} is not in the store"
        elif standing.status not in _FINISHED:
            yield f"{job_id} is still {standing.status}"


def unexpected(evidence: Evidence) -> Iterator[str]:
    """In the store, or run, and never submitted."""
    runs = (*evidence.runs, *evidence.late)
    known = evidence.at_last.keys() | {run.job_id for run in runs}
    wanted = evidence.submitted | evidence.unsure
    yield from (f"{job_id} was never submitted" for job_id in sorted(known - wanted))


def left_behind(evidence: Evidence) -> Iterator[str]:
    """Stored though its submit seemed to fail, and then not finished."""
    for job_id in sorted(evidence.unsure):
        standing = evidence.at_last.get(job_id)
        if standing is not None and standing.status not in _FINISHED:
            yield f"{job_id} is still {standing.status}"


def never_run(evidence: Evidence) -> Iterator[str]:
    """Completed without a run that came to its end."""
    runs = (*evidence.runs, *evidence.late)
    ended = {run.job_id for run in runs if run.ended_us is not None}
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
    """Two runs of one job under one fence: the store could not tell them apart."""
    for (job_id, fence), times in Counter((run.job_id, run.fence) for run in evidence.runs).items():
        if times > 1:
            yield f"{job_id} ran {times} times under fence {fence}"


def fence_fell(evidence: Evidence) -> Iterator[str]:
    """A later run with a lower fence, or a run with a fence the store never gave."""
    for job_id, runs in by_job(evidence.runs).items():
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
    for job_id, runs in by_job(evidence.runs).items():
        at_last = evidence.at_last.get(job_id)
        if at_last is not None and at_last.counters.attempts < len(runs):
            yield f"{job_id} ran {len(runs)} times, counted {at_last.counters.attempts}"


def miscounted(evidence: Evidence) -> Iterator[str]:
    """The store counts other jobs than it has: limits of depth go by that."""
    there = Counter(standing.status.value for standing in evidence.at_last.values())
    for status in sorted({*there, *evidence.counted}):
        counted = evidence.counted.get(status, 0)
        if counted != there[status]:
            yield f"{there[status]} are {status}, counted {counted}"


def cancel_ignored(evidence: Evidence) -> Iterator[str]:
    """A caller was told that it is or will be cancelled, and it ended otherwise."""
    for job_id in sorted(evidence.cancelled):
        standing = evidence.at_last.get(job_id)
        if standing is None or standing.status is not JobStatus.CANCELLED:
            yield f"{job_id} was to be cancelled, and is {standing and standing.status}"


def guilty_spared(evidence: Evidence) -> Iterator[str]:
    """Takes its process down each time, and is not dead."""
    for job_id in sorted(evidence.guilty & evidence.submitted):
        standing = evidence.at_last.get(job_id)
        if standing is not None and standing.status is not JobStatus.DEAD:
            yield f"{job_id} is {standing.status} after {standing.counters}"


def effect_twice(evidence: Evidence) -> Iterator[str]:
    """An effect under a key that was had twice."""
    for key, times in Counter(key for key, _ in evidence.effects).items():
        if times > 1:
            yield f"{key} had {times} effects"


def repeated_effects(effects: Mapping[str, int]) -> int:
    """How many effects without a key came on top of the first of their job; none is promised."""
    return sum(times - 1 for times in effects.values() if times > 1)


#: Every rule by the name it is reported under; each must find nothing.
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "lost": lost,
        "unexpected": unexpected,
        "left behind": left_behind,
        "never run": never_run,
        "completed twice": completed_twice,
        "forgotten": forgotten,
        "same fence": same_fence,
        "fence fell": fence_fell,
        "stale accepted": stale_accepted,
        "innocent dead": innocent_dead,
        "guilty spared": guilty_spared,
        "counters fell": counters_fell,
        "miscounted": miscounted,
        "cancel ignored": cancel_ignored,
        "effect under a key twice": effect_twice,
    }
)


def _numbers(standing: Standing) -> tuple[int, ...]:
    counters = standing.counters
    counted = (counters.attempts, counters.failures, counters.crashes, counters.lone_crashes)
    return (standing.fence, *counted, counters.snoozes, counters.releases)


def _fell(before: Standing, after: Standing) -> bool:
    return any(now < was for was, now in zip(_numbers(before), _numbers(after), strict=True))
