# SPDX-License-Identifier: MIT
"""Carrying all that waits from one store to another, and comparing both afterwards."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from packhorse.cli.exits import NothingMatched
from packhorse.errors import StoreError
from packhorse.job import JobStatus
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueState
from packhorse.stores.transfer import CarriedJob, CarryAnswer

__all__ = [
    "Comparison",
    "Left",
    "Side",
    "Survey",
    "Tally",
    "carry_jobs",
    "carry_settings",
    "compare",
    "left_in",
    "refuse_unknown",
    "survey",
]

#: Ids of jobs that are named, of however many there are.
NAMED_MAX: Final = 20
#: Digests are added up below this, so that the order of jobs does not matter to the sum.
_DIGESTS: Final = 2**256

#: Pages read at most; a store that goes on for longer gives the same ones again.
PAGES_MAX: Final = 10_000_000
_FINISHED: Final = (JobStatus.COMPLETED, JobStatus.CANCELLED)

#: Told how many jobs have been looked at.
Progress = Callable[[int], None]


class Tally(msgspec.Struct):
    """What became of the jobs."""

    carried: int = 0
    known: int = 0
    conflicts: list[str] = []  #: their ids

    def add(self, jobs: Sequence[CarriedJob], answers: Sequence[CarryAnswer]) -> None:
        """Count one page."""
        counted = Counter(answers)
        self.carried += counted[CarryAnswer.CARRIED]
        self.known += counted[CarryAnswer.KNOWN]
        pairs = zip(jobs, answers, strict=True)
        self.conflicts += [one.job.id for one, answer in pairs if answer is CarryAnswer.CONFLICT]


class Side(msgspec.Struct):
    """How many jobs one store has of those carried, and the digest of all of them."""

    jobs: int = 0
    total: int = 0

    def add(self, jobs: Sequence[CarriedJob]) -> None:
        """Count one page."""
        self.jobs += len(jobs)
        self.total = (self.total + sum(map(_digest, jobs))) % _DIGESTS

    @property
    def digest(self) -> str:
        """As people compare it."""
        return f"{self.total:064x}"


class Comparison(msgspec.Struct):
    """Both stores after the journey."""

    source: Side
    target: Side
    differing: list[str] = []  #: ids that are missing or different, the first of them

    @property
    def equal(self) -> bool:
        """Whether every job arrived as it was."""
        return self.source == self.target


class Left(msgspec.Struct, frozen=True):
    """Jobs that stay where they are, by number."""

    finished: int = 0  #: completed or cancelled
    running: int = 0


class Survey(msgspec.Struct, frozen=True):
    """What would be carried."""

    found: Counter[str]  #: by status
    known: int = 0  #: of these, the jobs whose ids the target has already


def refuse_unknown(source: Store, queues: Sequence[str]) -> None:
    """A mistyped queue must not look like one that was carried: nothing is equal to nothing."""
    known = {one.settings.name for one in source.run(source.queues.queues())}
    for name in queues:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(sorted(known))}"
            raise NothingMatched(f"{source.label} has no queue {name!r}; {hint}")


def left_in(source: Store, queues: Sequence[str]) -> Left:
    """What is not carried of these queues, or of all."""
    counted: Counter[JobStatus] = Counter()
    for one in source.run(source.inspection.counts()):
        if not queues or one.queue in queues:
            counted.update(one.by_status)
    return Left(sum(counted[status] for status in _FINISHED), counted[JobStatus.PROCESSING])


def survey(source: Store, target: Store | None, queues: Sequence[str], batch: int) -> Survey:
    """Count what would be carried; no target is one that does not exist yet."""
    found: Counter[str] = Counter()
    known = 0
    for page in _pages(source, queues, batch):
        found.update(str(one.status) for one in page)
        known += 0 if target is None else _known(target, [one.job.id for one in page])
    return Survey(found, known)


def _known(target: Store, job_ids: Sequence[str]) -> int:
    """How many of these jobs are there, in whatever status."""
    alike = {one.job.id for one in target.run(target.transfer.carried(job_ids))}
    others = (job_id for job_id in job_ids if job_id not in alike)
    return len(alike) + sum(target.run(target.inspection.job(one)) is not None for one in others)


def carry_jobs(
    source: Store, target: Store, queues: Sequence[str], batch: int, progress: Progress
) -> Tally:
    """Carry every job; those that are known are passed over, so a second run goes on."""
    tally, seen = Tally(conflicts=[]), 0
    for page in _pages(source, queues, batch):
        answers = target.run(target.transfer.carry_in(page))
        tally.add(page, answers)
        seen += len(page)
        progress(seen)
    return tally


def compare(
    source: Store, target: Store, queues: Sequence[str], batch: int, left_out: Sequence[str]
) -> Comparison:
    """Read both sides again; jobs `left_out` because of a key are not compared."""
    result, missing = Comparison(Side(), Side(), []), frozenset(left_out)
    for page in _pages(source, queues, batch):
        sent = [one for one in page if one.job.id not in missing]
        arrived = target.run(target.transfer.carried([one.job.id for one in sent]))
        result.source.add(sent)
        result.target.add(arrived)
        there = {one.job.id: one for one in arrived}
        differing = [one.job.id for one in sent if there.get(one.job.id) != one]
        result.differing += differing[: NAMED_MAX - len(result.differing)]
    return result


def _pages(source: Store, queues: Sequence[str], batch: int) -> Iterator[list[CarriedJob]]:
    """The pages of a store, each shorter than the store is, until there are no more."""
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = source.run(source.transfer.carry_out(after=after, limit=batch))
        yield [one for one in page.jobs if not queues or one.job.queue in queues]
        if page.after is None:
            return
        after = page.after
    raise StoreError(
        f"{source.label} has more than {PAGES_MAX} pages of jobs; use a larger --batch"
    )


def _digest(job: CarriedJob) -> int:
    return int.from_bytes(hashlib.sha256(msgspec.json.encode(job)).digest(), "big")


# --------------------------------------------------------------------------------------- settings


def carry_settings(source: Store, target: Store, queues: Sequence[str]) -> list[str]:
    """Settings, pauses and limits, save where the target has its own; names what was carried."""
    theirs = {one.settings.name: one for one in target.run(target.queues.queues())}
    chosen = [
        one
        for one in source.run(source.queues.queues())
        if not queues or one.settings.name in queues
    ]
    declared = [
        one.settings
        for one in chosen
        if one.declared and not one.overridden and not _set(theirs.get(one.settings.name))
    ]
    target.run(target.queues.declare(declared))
    carried = [f"queue {one.name}" for one in declared]
    for one in chosen:
        carried += _carry_state(target, one, theirs.get(one.settings.name))
    return carried + _carry_tasks(source, target)


def _set(state: QueueState | None) -> bool:
    return state is not None and (state.declared or state.overridden)


def _carry_state(target: Store, state: QueueState, theirs: QueueState | None) -> list[str]:
    """What an operator said about a queue."""
    name, carried = state.settings.name, []
    if state.overridden and not _set(theirs):
        target.run(target.queues.override(name, state.settings))
        carried.append(f"queue {name}, overridden")
    pauses: list[dict[str, str]] = [{}] if state.paused else []
    pauses += [{"key": key} for key in state.paused_keys]
    pauses += [{"tenant": tenant} for tenant in state.paused_tenants]
    carried += [
        " ".join(["pause of queue", name, *pause.values()])
        for pause in pauses
        if target.run(target.queues.pause(name, paused=True, **pause))
    ]
    if state.closed and target.run(target.queues.close_queue(name, closed=True)):
        carried.append(f"closing of queue {name}")
    return carried


def _carry_tasks(source: Store, target: Store) -> list[str]:
    known = {task.name for task in target.run(target.queues.tasks())}
    tasks = [task for task in source.run(source.queues.tasks()) if task.name not in known]
    target.run(target.queues.declare_tasks(tasks))
    return [f"limits of task {task.name}" for task in tasks]
