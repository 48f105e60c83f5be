# SPDX-License-Identifier: MIT
"""The counts of a run, from nothing but its record; what the record looks like, `record` says."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import msgspec

_SECOND_NS = 1_000_000_000


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is published of one run; spans are seconds."""

    accepted: int  #: jobs whose submit returned
    refused: int  #: jobs whose submit raised
    completed: int  #: accepted jobs of which at least one attempt returned
    missing: int  #: accepted jobs of which none did
    held: int  #: jobs that the store says it would still run
    lost: int  #: as many of the missing as cannot be among the held
    started_again: int  #: jobs with two attempts or more
    completed_again: int  #: jobs of which two attempts or more returned
    overlapping: int  #: jobs of which an attempt began before another had ended
    killed_processes: int
    interrupted: (
        int  #: times a kill ended an attempt whose job no other worker held or had completed
    )
    resumed: int  #: how often the job of such an attempt began again
    resume_median: float | None  #: from the kill to that beginning
    resume_longest: float | None
    longest_wait: float | None  #: from a submit to the first beginning


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a job's handler."""

    number: int
    pid: int
    began: int
    ended: float  #: when it returned, was stopped or killed; infinite when the record does not say
    how: str  #: end, cut, killed or open


@dataclass(slots=True)
class Evidence:
    """The lines of a record, sorted by what they are about."""

    accepted: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    started: list[tuple[int, int, int]] = field(default_factory=list)
    finished: dict[tuple[int, int, int], tuple[str, int]] = field(default_factory=dict)
    killed: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def attempts(self) -> dict[int, list[Attempt]]:
        """Those of each job, in the order in which they began."""
        by_job: dict[int, list[Attempt]] = defaultdict(list)
        for key in sorted(self.started, key=lambda one: one[2]):
            how, ended = self.finished.get(key) or self._death(key)
            by_job[key[0]].append(Attempt(*key, ended=ended, how=how))
        return by_job

    def _death(self, key: tuple[int, int, int]) -> tuple[str, float]:
        """A process id may be used again: only the first death after the beginning counts."""
        _, pid, began = key
        later = [at for at in self.killed.get(pid, ()) if at >= began]
        return ("killed", min(later)) if later else ("open", math.inf)


def read(lines: Iterable[str]) -> Evidence:
    """Understand a record."""
    found = Evidence()
    for line in lines:
        match line.split():
            case ["accepted", number, at]:
                found.accepted[int(number)] = int(at)
            case ["refused", number, _]:
                found.refused.add(int(number))
            case ["start", number, pid, began]:
                found.started.append((int(number), int(pid), int(began)))
            case ["end" | "cut" as how, number, pid, began, at]:
                found.finished[int(number), int(pid), int(began)] = (how, int(at))
            case ["killed", pid, at]:
                found.killed[int(pid)].append(int(at))
            case ["paused" | "resumed", _, _]:
                pass  # for people who read the record
            case _:
                raise ValueError(f"no line of a record: {line!r}")
    return found


def judge(evidence: Evidence, held: int) -> Verdict:
    """Count."""
    attempts = evidence.attempts()
    completed = {number for number, tries in attempts.items() if _returned(tries)}
    missing = evidence.accepted.keys() - completed
    gaps = [gap for tries in attempts.values() for gap in _gaps(tries)]
    resumed = [gap for gap in gaps if gap is not None]
    return Verdict(
        accepted=len(evidence.accepted),
        refused=len(evidence.refused),
        completed=len(evidence.accepted.keys() & completed),
        missing=len(missing),
        held=held,
        lost=max(0, len(missing) - held),
        started_again=sum(len(tries) > 1 for tries in attempts.values()),
        completed_again=sum(_returned(tries) > 1 for tries in attempts.values()),
        overlapping=sum(_overlap(tries) for tries in attempts.values()),
        killed_processes=sum(map(len, evidence.killed.values())),
        interrupted=len(gaps),
        resumed=len(resumed),
        resume_median=round(statistics.median(resumed), 1) if resumed else None,
        resume_longest=round(max(resumed), 1) if resumed else None,
        longest_wait=_longest_wait(evidence.accepted, attempts),
    )


def _returned(tries: Sequence[Attempt]) -> int:
    return sum(one.how == "end" for one in tries)


def _overlap(tries: Sequence[Attempt]) -> bool:
    return any(later.began < earlier.ended for earlier, later in combinations(tries, 2))


def _gaps(tries: Sequence[Attempt]) -> list[float | None]:
    """How long after each kill the job began again; None: it did not."""
    return [
        _gap(one, tries)
        for one in tries
        if one.how == "killed" and not _in_other_hands(one.ended, one, tries)
    ]


def _in_other_hands(at: float, killed: Attempt, tries: Sequence[Attempt]) -> bool:
    """Whether the job was completed by then, or ran elsewhere: then nothing was interrupted."""
    others = [one for one in tries if one is not killed and one.began < at]
    return any((one.how == "end" and one.ended <= at) or one.ended > at for one in others)


def _gap(killed: Attempt, tries: Sequence[Attempt]) -> float | None:
    later = [one.began - killed.ended for one in tries if one.began >= killed.ended]
    return min(later) / _SECOND_NS if later else None


def _longest_wait(
    accepted: Mapping[int, int], attempts: Mapping[int, Sequence[Attempt]]
) -> float | None:
    waits = [
        attempts[number][0].began - at for number, at in accepted.items() if attempts.get(number)
    ]
    return round(max(0, *waits) / _SECOND_NS, 1) if waits else None
