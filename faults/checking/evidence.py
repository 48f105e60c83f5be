# SPDX-License-Identifier: MIT
"""What is known once everything is over, and what a checker says about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from faults.records import Line
from packhorse.core.job import Counters, JobStatus


class Run(msgspec.Struct, frozen=True):
    """One time a handler ran."""

    job_id: str
    attempt: int
    fence: int
    pid: int
    started_us: int
    ended_us: int | None = None  #: None: its process died first, or it was stopped


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
    runs: Sequence[Run]  #: those that began while their claim held
    accepted: Sequence[str]  #: ids, once for each completion a worker was told is written
    at_last: Mapping[str, Standing]  #: every job in the store, by id
    late: Sequence[Run] = ()  #: those that began later: a process may be stopped just before
    between: Sequence[Standing] = ()  #: what was seen in between, in order
    guilty: frozenset[str] = frozenset()  #: jobs that may be dead
    unsure: frozenset[str] = frozenset()  #: ids whose submit failed, and may have been stored
    cancelled: frozenset[str] = frozenset()  #: ids for which `cancel` answered True
    effects: Sequence[tuple[str, str]] = ()  #: (key, job id), once for each effect under a key
    stale: int = (
        0  #: how often a handler or a worker went on with a job that had been taken from it
    )
    counted: Mapping[str, int] = {}  #: how many jobs of each status the store says there are


class Verdict(msgspec.Struct, frozen=True):
    """What each rule found, and in how many cases it could have found something."""

    findings: Mapping[str, Sequence[str]]
    cases: Mapping[str, int]

    @property
    def clean(self) -> bool:
        return not any(self.findings.values())

    @property
    def unjudged(self) -> list[str]:
        """The rules that had nothing to judge: the run says nothing about them."""
        return [name for name, found in self.findings.items() if not found and not self.cases[name]]

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(found) for name, found in self.findings.items()}


def runs_of(lines: Iterable[Line]) -> list[Run]:
    """The `start` and `end` lines, paired."""
    ends = {_key(line): line.at_us for line in lines if line.event == "end"}
    return [
        Run(*(line.job_id, line.attempt, line.fence, line.pid, line.at_us), ends.get(_key(line)))
        for line in lines
        if line.event == "start"
    ]


def by_job(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each job in the order they began."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.started_us):
        found.setdefault(run.job_id, []).append(run)
    return found


def overlaps(runs: Iterable[Run], died_us: Mapping[int, int]) -> int:
    """How often a run began while another of its job went on; no queue can promise zero.

    A run whose process died ended then, at the latest.
    """
    count = 0
    for job_runs in by_job(runs).values():
        for number, after in enumerate(job_runs):
            ends = [_ended_us(before, died_us) for before in job_runs[:number]]
            count += any(after.started_us < ended_us for ended_us in ends)
    return count


def _ended_us(run: Run, died_us: Mapping[int, int]) -> int:
    return run.ended_us or died_us.get(run.pid, run.started_us)


def _key(line: Line) -> tuple[str, int, int]:
    return line.job_id, line.fence, line.pid
