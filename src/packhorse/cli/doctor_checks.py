# SPDX-License-Identifier: MIT
"""The checks of `packhorse doctor`: pure functions of what was read from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from packhorse.cli.doctor_survey import OLDEST_MAX, Survey
from packhorse.cli.output import age
from packhorse.client.schedules import OVERDUE_S
from packhorse.core.clock import SECOND_US, from_datetime
from packhorse.core.job import JobStatus
from packhorse.core.sizes import fill_text
from packhorse.core.text import counted, nearest
from packhorse.insights import QueueInfo, WorkerInfo

#: Clocks may differ by this much: asking takes time too.
_SKEW_US_MAX: Final = SECOND_US
#: 2024-01-01; a machine that thinks it is earlier has lost its clock.
_EARLIEST_US: Final = 1_704_067_200 * SECOND_US
#: A drained outbox has nothing older than this.
_OUTBOX_S_MAX: Final = 60.0
#: From this part of its bytes on a queue or store is nearly full.
_FILLED: Final = 0.8


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"  #: works, and may not be what was wanted
    PROBLEM = "problem"  #: something does not work


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and what to do about it."""

    check: str
    level: Severity
    message: str


def findings(survey: Survey) -> list[Finding]:
    """Run every check; one that finds nothing says so."""
    found = []
    for name, check in _CHECKS if survey.copied is None else _COPIED_CHECKS:
        results = [Finding(name, level, message) for level, message in check(survey)]
        found += results or [Finding(name, Severity.OK, "nothing to report")]
    return found


_Result = tuple[Severity, str]


def _problem(message: str) -> _Result:
    return Severity.PROBLEM, message


def _warning(message: str) -> _Result:
    return Severity.WARNING, message


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
    served = {name for worker in _live(survey) if not worker.quiet for name in worker.queues}
    quiet = {name for worker in _live(survey) if worker.quiet for name in worker.queues}
    for queue in survey.queues:
        if queue.paused and queue.depth:
            yield _warning(
                f"queue {queue.name} is paused and holds {counted(queue.depth, 'job')}; go on with "
                f"'packhorse queues resume {queue.name}'"
            )
        elif queue.depth and queue.name not in served:
            named = [each.name for each in survey.queues if each.declared and not queue.declared]
            meant = None if queue.name in quiet else nearest(queue.name, (*served, *named))
            yield _unserved(queue, meant, quiet=queue.name in quiet)
        if queue.closed:
            yield _warning(
                f"queue {queue.name} is closed and takes no new jobs; open it with "
                f"'packhorse queues open {queue.name}'"
            )


def _bytes(survey: Survey) -> Iterator[_Result]:
    bounded = [
        (f"queue {queue.name}", queue.held_bytes, queue.settings.max_bytes)
        for queue in survey.queues
    ]
    if survey.store_bytes is not None:
        bounded.append(("the store", *survey.store_bytes))
    for what, held, limit in bounded:
        if held is None or limit is None:
            continue
        told = f"{what} holds {fill_text(held, limit)}"
        if held >= limit:
            yield _problem(f"{told} and takes no more jobs; add workers, or raise max_bytes")
        elif held >= limit * _FILLED:
            yield _warning(f"{told}; when it is full, submits are refused, wait or drop others")
        else:
            yield Severity.OK, told


def _unserved(queue: QueueInfo, meant: str | None, *, quiet: bool) -> _Result:
    ready = queue.counts.get(JobStatus.QUEUED, 0)
    waited = "" if queue.oldest_ready_s is None else f", the oldest for {age(queue.oldest_ready_s)}"
    hint = "" if meant is None else f" (did you mean {meant!r}?)"
    cure = f"no live worker claims from it; start one: 'packhorse worker -q {queue.name}'"
    if quiet:
        cure = "the workers that serve it are quiet; let them go on: 'packhorse workers resume'"
    message = f"queue {queue.name}{hint} holds {counted(queue.depth, 'job')}{waited}, and {cure}"
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


def _keys(survey: Survey) -> Iterator[_Result]:
    for key, number in sorted(survey.unreadable.items()):
        yield _problem(
            f"{counted(number, 'job')} of the oldest {OLDEST_MAX} that wait cannot be read: key "
            f"{key!r} is not here, or has other bytes; workers without it leave them waiting: add "
            "it to PACKHORSE_KEYS"
        )


def _intake(survey: Survey) -> Iterator[_Result]:
    waiting = survey.facts.get("intake", "empty")
    if waiting != "empty" and not _live(survey):
        yield _warning(
            f"jobs and cancels of transactions (tx=) are not admitted: {waiting}, and no worker is "
            "live to do it; start one"
        )


def _outboxes(survey: Survey) -> Iterator[_Result]:
    for one in survey.outboxes:
        waits = f"{counted(one.waiting, 'request')} of transactions (tx=)"
        oldest = "" if one.oldest_s is None else f", the oldest for {age(one.oldest_s)}"
        if one.trouble:
            yield _problem(f"the outbox ({one.label}) cannot be read: {one.trouble}")
        elif not one.exists:
            yield _problem(
                f"the outbox ({one.label}) has no table yet, so tx= is refused; make it with "
                "'packhorse migrate'"
            )
        elif not one.waiting:
            drained = "a" if one.is_drained else "no"
            yield Severity.OK, f"the outbox ({one.label}) is empty; {drained} worker drains it"
        elif one.is_drained and (one.oldest_s or 0) <= _OUTBOX_S_MAX:
            yield Severity.OK, f"{waits} in the outbox ({one.label}){oldest}; a worker drains it"
        elif one.is_drained:
            yield _problem(
                f"{waits} in the outbox ({one.label}){oldest}, though a worker is there to drain "
                "it; its log says what is in the way"
            )
        else:
            yield _problem(
                f"{waits} in the outbox ({one.label}){oldest}, and no worker of this app is live "
                "to drain it; start one"
            )


def _schedules(survey: Survey) -> Iterator[_Result]:
    active = [each for each in survey.schedules if each.state == "active"]
    overdue = [each for each in active if each.overdue_s >= OVERDUE_S]
    if active and not _live(survey):
        late = (
            f"; {overdue[0].name} has been due for {age(overdue[0].overdue_s)}" if overdue else ""
        )
        yield (_problem if overdue else _warning)(
            f"no worker looks: {counted(len(active), 'schedule')} to fire, and none is live{late}; "
            "start one without --burst"
        )
        return
    for each in overdue:
        yield _problem(
            f"schedule {each.name} has been due for {age(each.overdue_s)}, though workers are "
            "live; their logs say what is in the way"
        )


def _dead_letters(survey: Survey) -> Iterator[_Result]:
    if survey.dead_recently:
        yield _warning(
            f"{counted(survey.dead_recently, 'job')} died in the last hour, {survey.dead} in all; "
            "see 'packhorse dead list'"
        )
    elif survey.dead:
        yield Severity.OK, f"{counted(survey.dead, 'job')} dead, none in the last hour"


def _workers(survey: Survey) -> Iterator[_Result]:
    live = _live(survey)
    if survey.orphaned_workers:
        hold = "holds" if survey.orphaned_workers == 1 else "hold"
        gone = f"{counted(survey.orphaned_workers, 'worker')} went away and still {hold} jobs; "
        if live:
            yield _warning(f"{gone}the others take them over when the leases have run out")
        else:
            yield _problem(f"{gone}start a worker to take them over")
    quiet = [worker.id for worker in live if worker.quiet]
    if quiet:
        yield _warning(
            f"quiet, and claiming nothing: {', '.join(quiet)}; let them go on with "
            "'packhorse workers resume'"
        )
    versions = sorted({worker.version for worker in live} - {""})
    if len(versions) > 1:
        yield _warning(f"live workers are of several releases: {', '.join(versions)}")
    elif versions and survey.version not in versions:
        yield _warning(f"live workers are {versions[0]}, this command is {survey.version}")


def _copied(survey: Survey) -> Iterator[_Result]:
    if survey.copied is not None:
        yield _problem(
            f"its jobs {survey.copied.said}, so workers and submits refuse this store: "
            f"{survey.copied.way_back()}"
        )


def _live(survey: Survey) -> list[WorkerInfo]:
    return [worker for worker in survey.workers if worker.live]


_CHECKS: Final[tuple[tuple[str, Callable[[Survey], Iterator[_Result]]], ...]] = (
    ("clock", _clock),
    ("durability", _durability),
    ("queues", _queues),
    ("bytes", _bytes),
    ("tasks", _tasks),
    ("keys", _keys),
    ("transactions", _intake),
    ("outbox", _outboxes),
    ("schedules", _schedules),
    ("dead letters", _dead_letters),
    ("workers", _workers),
)
#: Those of a store whose jobs have been copied: others would have workers started on it.
_COPIED_CHECKS: Final = (("copied", _copied), ("clock", _clock), ("durability", _durability))
