# SPDX-License-Identifier: MIT
"""Carry jobs and settings from one store to another, and compare both afterwards."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from packhorse.cli.exits import NothingMatched
from packhorse.cli.output import did_you_mean
from packhorse.core.job import JobStatus
from packhorse.core.policies.journal import CARRIED_LINES_MAX, Group, JournalLine
from packhorse.core.policies.records import CHANGE_BYTES_MAX, Carry, Record
from packhorse.core.sizes import THE_STORE
from packhorse.errors import StoreError, StoreRefused
from packhorse.stores.protocol import Store
from packhorse.stores.requests import QueueState
from packhorse.stores.transfer import CarriedJob, CarryAnswer

#: Differing jobs that are named.
NAMED_MAX: Final = 20
#: Digests are added up below this, so that the order of jobs does not matter to the sum.
_DIGESTS: Final = 2**256

#: Records carried in one call.
_RECORDS: Final = 500
#: Pages read at most; a store with more repeats itself.
PAGES_MAX: Final = 10_000_000
_FINISHED: Final = (JobStatus.COMPLETED, JobStatus.CANCELLED)


class CopyTally(msgspec.Struct):
    """Outcomes of the jobs carried."""

    carried: int = 0
    known: int = 0
    finished: int = 0  #: completed or cancelled ones that were read, as their groups need them
    conflicts: list[str] = []  #: their ids


class Side(msgspec.Struct):
    """The number of carried jobs one store has, and the digest of all of them."""

    jobs: int = 0
    total: int = 0

    def add(self, jobs: Sequence[CarriedJob]) -> None:
        """Count one page."""
        self.jobs += len(jobs)
        self.total = (self.total + sum(map(_digest, jobs))) % _DIGESTS

    @property
    def digest(self) -> str:
        """The digest as text."""
        return f"{self.total:064x}"


class Comparison(msgspec.Struct):
    """Both stores after the copy."""

    source: Side
    target: Side
    differing: list[str] = []  #: ids that are missing or different, the first of them

    @property
    def equal(self) -> bool:
        """Whether every job arrived as it was."""
        return self.source == self.target


class Remaining(msgspec.Struct, frozen=True):
    """The number of jobs that are not carried."""

    finished: int = 0  #: completed or cancelled
    running: int = 0


class CopyPlan(msgspec.Struct, frozen=True):
    """The jobs to be carried."""

    found: Counter[str]  #: by status
    known: int = 0  #: of these, the jobs whose ids the target has already


def admit_all(store: Store) -> None:
    """Admit what users' transactions (`tx=`) have submitted: until then it is in no queue."""
    intake = store.intake
    for _ in range(PAGES_MAX):
        if intake is None or not store.run(intake.admit(wait=True)):
            return


@dataclass(frozen=True, slots=True)
class Copier:
    """Carries jobs from one store to another."""

    source: Store
    target: Store
    queues: Sequence[str]  #: only these; all if there are none
    batch: int  #: jobs in one transaction

    def refuse_unknown(self) -> None:
        """Refuse a mistyped queue: without jobs both stores would compare equal."""
        states = self.source.run(self.source.queues.queues())
        known = {one.settings.name for one in states} - {THE_STORE}
        for name in self.queues:
            if name not in known:
                hint = did_you_mean(name, known, f"it has: {', '.join(sorted(known))}")
                raise NothingMatched(f"{self.source.label} has no queue {name!r}; {hint}")

    def remaining(self, carried: int) -> Remaining:
        """Count the jobs that are not carried, as so many finished ones are."""
        counted: Counter[JobStatus] = Counter()
        for one in self.source.run(self.source.inspection.counts()):
            if self._is_meant(one.queue):
                counted.update(one.by_status)
        finished = sum(counted[status] for status in _FINISHED)
        return Remaining(max(0, finished - carried), counted[JobStatus.PROCESSING])

    def plan(self, *, target_exists: bool) -> CopyPlan:
        """Count what would be carried, and what of it is in the target already."""
        found: Counter[str] = Counter()
        known = 0
        for page in self._pages():
            found.update(str(one.status) for one in page)
            known += _known(self.target, [one.job.id for one in page]) if target_exists else 0
        return CopyPlan(found, known)

    def carry_jobs(self, tally: CopyTally, progress: Callable[[int], None]) -> None:
        """Carry every job, and count it. Known ones are skipped, so a second run goes on.

        `progress` is called with the number of jobs read so far.
        """
        seen = 0
        for page in self._pages():
            self._carry(page, tally)
            seen += len(page)
            progress(seen)

    def compare(self, left_out: Sequence[str]) -> Comparison:
        """Read both sides again; jobs `left_out` because of a key are not compared."""
        result, missing = Comparison(Side(), Side(), []), frozenset(left_out)
        for page in self._pages():
            sent = [one for one in page if one.job.id not in missing]
            arrived = self.target.run(self.target.transfer.carried([one.job.id for one in sent]))
            result.source.add(sent)
            result.target.add(arrived)
            there = {one.job.id: one for one in arrived}
            differing = [one.job.id for one in sent if there.get(one.job.id) != one]
            result.differing += differing[: NAMED_MAX - len(result.differing)]
        return result

    def carry_settings(self) -> list[str]:
        """Carry settings, pauses and limits unless the target has its own; name those carried."""
        target = self.target
        theirs = {one.settings.name: one for one in target.run(target.queues.queues())}
        states = self.source.run(self.source.queues.queues())
        chosen = [one for one in states if self._is_meant(one.settings.name)]
        declared = [
            one.settings
            for one in chosen
            if one.declared and not one.overridden and not _set(theirs.get(one.settings.name))
        ]
        target.run(target.queues.declare(declared))
        carried = [
            f"queue {one.name}" if one.name else "max_bytes of the store" for one in declared
        ]
        for one in chosen:
            carried += _carry_state(target, one, theirs.get(one.settings.name))
        return carried + _carry_tasks(self.source, target)

    def _carry(self, jobs: Sequence[CarriedJob], tally: CopyTally) -> None:
        """Carry some jobs in order, up to the first that the target refuses, which is named."""
        try:
            answers = self.target.run(self.target.transfer.carry_in(jobs))
        except StoreRefused as error:
            if len(jobs) == 1:
                raise self._refused(jobs[0], error) from error
            half = len(jobs) // 2
            self._carry(jobs[:half], tally)
            self._carry(jobs[half:], tally)
            return
        tally.carried += answers.count(CarryAnswer.CARRIED)
        tally.known += answers.count(CarryAnswer.KNOWN)
        pairs = zip(jobs, answers, strict=True)
        tally.conflicts += [one.job.id for one, each in pairs if each is CarryAnswer.CONFLICT]
        tally.finished += sum(one.status in _FINISHED for one in jobs)

    def _refused(self, carried: CarriedJob, error: StoreRefused) -> StoreRefused:
        job, source = carried.job, self.source.label
        way = f"packhorse jobs cancel {job.id} --url {source}"
        if carried.status.is_final:
            way = f"packhorse {'dead' if carried.status is JobStatus.DEAD else 'jobs'} purge"
        return StoreRefused(
            f"{self.target.label} refuses job {job.id} of task {job.task}, queue {job.queue!r}, "
            f"so the copy stopped there: {error}; take the job out of the source, as with '{way}', "
            "and run the copy again"
        )

    def _is_meant(self, queue: str) -> bool:
        return not self.queues or queue in self.queues

    def _pages(self) -> Iterator[list[CarriedJob]]:
        """Read the source's jobs page by page."""
        source, after = self.source, None
        for _ in range(PAGES_MAX):
            page = source.run(source.transfer.carry_out(after=after, limit=self.batch))
            meant = [one for one in page.jobs if self._is_meant(one.job.queue)]
            # Groups are carried with all queues only, and nothing else needs what has finished.
            yield [one for one in meant if not (self.queues and one.status in _FINISHED)]
            if page.after is None:
                return
            after = page.after
        raise StoreError(
            f"{source.label} has more than {PAGES_MAX} pages of jobs; use a larger --batch"
        )


def _known(target: Store, job_ids: Sequence[str]) -> int:
    """Count the jobs that exist in the target, in whatever status."""
    alike = {one.job.id for one in target.run(target.transfer.carried(job_ids))}
    others = (job_id for job_id in job_ids if job_id not in alike)
    return len(alike) + sum(target.run(target.inspection.job(one)) is not None for one in others)


def carry_records(source: Store, target: Store) -> int:
    """Carry every record that the target does not have, and with a group's record its journal.

    If the target has the record of a group, it also has the lines, or has folded them. Return how
    many were carried.
    """
    carried, after = 0, None
    for _ in range(PAGES_MAX):
        page = source.run(source.records.records(None, after=after, limit=_RECORDS))
        journals = {one.id: _journal_of(source, one) for one in page.records}
        for part in _parts([one for one in page.records if not journals[one.id]]):
            changes = [Carry(record) for record in part]
            known = target.run(target.records.change(changes)).conflicts
            if known:
                new = [one for at, one in enumerate(changes) if at not in known]
                target.run(target.records.change(new))
            carried += len(part) - len(known)
        for head in [one for one in page.records if journals[one.id]]:
            lines = journals[head.id]
            folding = target.journal.fold(lines[0].group, (), [Carry(head)], carried=lines)
            carried += target.run(folding).applied
        after = page.after
        if after is None:
            break
    return carried


def _journal_of(source: Store, record: Record) -> tuple[JournalLine, ...]:
    """Return the journal lines of a group, if this is the record of one."""
    group = Group.of(record.id.text)
    if group.record != record.id:
        return ()
    lines = source.run(source.journal.journal(group, limit=CARRIED_LINES_MAX + 1))
    if len(lines) > CARRIED_LINES_MAX:
        raise StoreError(
            f"{group.kind} {group.key!r}, run {group.run!r}, has more than {CARRIED_LINES_MAX} "
            f"lines in its journal: let workers of {source.label} go on with it first"
        )
    return lines


def _parts(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Split records into calls that are small enough."""
    part: list[Record] = []
    size = 0
    for record in records:
        size += len(record.document)
        if size > CHANGE_BYTES_MAX:
            yield part
            part, size = [], len(record.document)
        part.append(record)
    yield part


def _digest(job: CarriedJob) -> int:
    text = msgspec.json.encode(job, order="sorted")  # stores return values in any order
    return int.from_bytes(hashlib.sha256(text).digest(), "big")


def _set(state: QueueState | None) -> bool:
    return state is not None and (state.declared or state.overridden)


def _carry_state(target: Store, state: QueueState, theirs: QueueState | None) -> list[str]:
    """Carry what an operator set for a queue."""
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
