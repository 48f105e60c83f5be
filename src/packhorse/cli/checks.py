# SPDX-License-Identifier: MIT
"""Common mistakes, found in a survey: pure, one function each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from packhorse.cli.render import age, counted
from packhorse.cli.survey import Survey
from packhorse.clock import SECOND_US, from_datetime
from packhorse.insights import QueueInfo, WorkerInfo
from packhorse.job import JobStatus

__all__ = ["Finding", "Level", "findings"]

#: Clocks may differ by this much, since asking takes time too.
_SKEW_US_MAX: Final = SECOND_US
#: 2024-01-01; a machine that thinks it is earlier has lost its clock.
_EARLIEST_US: Final = 1_704_067_200 * SECOND_US


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  #: works, and may not be what was wanted
    PROBLEM = "problem"  #: something does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check came to, and what to do about it."""

    check: str
    level: Level
    message: str


def findings(survey: Survey) -> list[Finding]:
    """What every check came to; one that found nothing says so."""
    found = []
    for name, check in _CHECKS:
        results = [Finding(name, level, message) for level, message in check(survey)]
        found += results or [Finding(name, Level.OK, "nothing to report")]
    return found


_Result = tuple[Level, str]


def _problem(message: str) -> _Result:
    return Level.PROBLEM, message


def _warning(message: str) -> _Result:
    return Level.WARNING, message


def _clock(survey: Survey) -> Iterator[_Result]:
    skew = age(abs(survey.skew_us) / SECOND_US)
    if abs(survey.skew_us) > _SKEW_US_MAX:
        where = "ahead of" if survey.skew_us > 0 else "behind"
        yield _warning(
            f"the store's clock is {skew} {where} this machine's; scheduled times and deadlines "
            "go by the store's: run a time service on both"
        )
    if survey.store_us < _EARLIEST_US:
        yield _problem("the store's clock is years behind; leases and delays go by it: set it")
    early = [
        worker.id
        for worker in survey.workers
        if from_datetime(worker.renewed_at) > survey.store_us + _SKEW_US_MAX
    ]
    if early:
        yield _problem(
            f"leases of {', '.join(early)} were renewed in the future, so the clock was set back; "
            "jobs of dead workers wait until it has caught up"
        )


def _durability(survey: Survey) -> Iterator[_Result]:
    synchronous = survey.facts.get("synchronous", "FULL")
    if synchronous == "OFF":
        yield _problem(
            "SQLite runs with synchronous=OFF; a power cut can destroy the file: take it out of "
            "the URL"
        )
    elif synchronous not in ("FULL", "EXTRA"):
        yield _warning(
            f"SQLite runs with synchronous={synchronous}; the last submits before a power cut may "
            "be lost: take it out of the URL, unless that is what you want"
        )
    if survey.facts.get("writable") == "no":
        yield _problem("this user may not write the store; nothing can be submitted or run")
    kept = survey.facts.get("survives a power cut", "")
    if survey.facts.get("store") == "postgresql" and kept.startswith("no"):
        yield (_problem if kept.startswith("no:") else _warning)(
            f"does PostgreSQL survive a power cut? {kept}"
        )
    if survey.facts.get("store") == "redis":
        yield from _redis(survey.facts)


def _redis(facts: Mapping[str, str]) -> Iterator[_Result]:
    if "MAY BE DROPPED" in facts.get("eviction", ""):
        yield _problem(
            "Redis may throw away jobs when its memory is full; set maxmemory-policy to noeviction"
        )
    kept = facts.get("survives a power cut", "every commit")
    if kept.startswith("nothing"):
        yield _warning(
            "Redis saves nothing; all jobs are lost when it stops: set appendonly to yes"
        )
    elif kept != "every commit":
        yield _warning(f"does Redis survive a power cut? {kept}: see appendonly and appendfsync")


def _queues(survey: Survey) -> Iterator[_Result]:
    served = {name for worker in _live(survey) for name in worker.queues}
    for queue in survey.queues:
        if queue.paused and queue.depth:
            yield _warning(
                f"queue {queue.name} is paused and holds {counted(queue.depth, 'job')}; go on with "
                f"'packhorse queues resume {queue.name}'"
            )
        elif queue.depth and queue.name not in served:
            yield _unserved(queue)
        if queue.closed:
            yield _warning(
                f"queue {queue.name} is closed and takes no new jobs; open it with "
                f"'packhorse queues open {queue.name}'"
            )


def _unserved(queue: QueueInfo) -> _Result:
    ready = queue.counts.get(JobStatus.QUEUED, 0)
    waited = "" if queue.oldest_ready_s is None else f", the oldest for {age(queue.oldest_ready_s)}"
    message = (
        f"queue {queue.name} holds {counted(queue.depth, 'job')}{waited}, and no live worker "
        f"serves it; start one: 'packhorse worker -q {queue.name}'"
    )
    return _problem(message) if ready else _warning(message)


def _tasks(survey: Survey) -> Iterator[_Result]:
    for task, number in sorted(survey.parked.items()):
        yield _problem(
            f"{counted(number, 'job')} of task {task} set aside, because no live worker knows it; "
            "deploy the code that has it, or give it as an alias of the task that replaced it"
        )
    live = _live(survey)
    if live and survey.tasks is not None:
        missing = sorted(set(survey.tasks).difference(*(worker.tasks for worker in live)))
        if missing:
            yield _warning(
                f"the app has tasks that no live worker knows: {', '.join(missing)}; restart the "
                "workers with the new code"
            )


def _dead_letters(survey: Survey) -> Iterator[_Result]:
    if survey.dead_recently:
        yield _warning(
            f"{counted(survey.dead_recently, 'job')} died in the last hour, {survey.dead} in all; "
            "see 'packhorse dead list'"
        )
    elif survey.dead:
        yield Level.OK, f"{counted(survey.dead, 'job')} dead, none in the last hour"


def _workers(survey: Survey) -> Iterator[_Result]:
    live = _live(survey)
    if survey.orphaned_workers:
        hold = "holds" if survey.orphaned_workers == 1 else "hold"
        gone = f"{counted(survey.orphaned_workers, 'worker')} went away and still {hold} jobs; "
        if live:
            yield _warning(f"{gone}the others take them over when the leases have run out")
        else:
            yield _problem(f"{gone}start a worker to take them over")
    versions = sorted({worker.version for worker in live} - {""})
    if len(versions) > 1:
        yield _warning(f"live workers are of several releases: {', '.join(versions)}")
    elif versions and survey.version not in versions:
        yield _warning(f"live workers are {versions[0]}, this command is {survey.version}")


def _live(survey: Survey) -> list[WorkerInfo]:
    return [worker for worker in survey.workers if worker.live]


_CHECKS: Final[tuple[tuple[str, Callable[[Survey], Iterator[_Result]]], ...]] = (
    ("clock", _clock),
    ("durability", _durability),
    ("queues", _queues),
    ("tasks", _tasks),
    ("dead letters", _dead_letters),
    ("workers", _workers),
)
