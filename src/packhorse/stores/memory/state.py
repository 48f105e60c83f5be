# SPDX-License-Identifier: MIT
"""The state of the reference store: dicts, sorted indexes of them, and a plan's access to it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import count, islice, takewhile
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from packhorse.core.job import RETRY_WAITING, WAITING, JobStatus, Member, NewJob
from packhorse.core.policies.gates import Gate, concurrency_gate, holds_line
from packhorse.core.policies.journal import Group, JournalLine, member_of
from packhorse.core.policies.rate_limit import RateLog
from packhorse.core.policies.records import Record, RecordId, is_expired
from packhorse.core.policies.retention import Retention
from packhorse.core.policies.uniqueness import Identity, JobKey, keys_wanted
from packhorse.core.sizes import THE_STORE
from packhorse.stores.memory.rows import JobRow, WorkerRow
from packhorse.stores.plan import Named, Plan, Steps, Wake
from packhorse.stores.requests import QueueSettings, TaskSettings
from packhorse.stores.transfer import Copied

#: The sort key, tie breakers, and the id of the job.
Key = tuple[int, *tuple[int, ...], str]


class SortedKeys(list[Key]):
    """A sorted list of keys."""

    @property
    def ids(self) -> Iterator[str]:
        """The jobs, in order."""
        return (key[-1] for key in self)

    def add(self, key: Key) -> None:
        """Put in a key that is not there."""
        insort(self, key)

    def remove(self, key: Key) -> None:
        """Take out a key that is there."""
        del self[bisect_left(self, key)]

    def first(self) -> Key | None:
        """The lowest key, if there is one."""
        return self[0] if self else None

    def up_to(self, bound: int, *, limit: int) -> list[str]:
        """The ids of the first `limit` keys whose first part is not above `bound`."""
        below = takewhile(lambda key: key[0] <= bound, self)
        return [key[-1] for key in islice(below, max(0, limit))]


class Index(dict[tuple[str, ...], SortedKeys]):
    """Sorted keys by group; an empty group takes no room."""

    def group(self, *name: str) -> SortedKeys:
        """The keys of a group, to be read."""
        return self.get(name) or SortedKeys()

    def add(self, name: tuple[str, ...], key: Key) -> None:
        """Put a key into a group."""
        self.setdefault(name, SortedKeys()).add(key)

    def remove(self, name: tuple[str, ...], key: Key) -> None:
        """Take a key out of a group."""
        keys = self[name]
        keys.remove(key)
        if not keys:
            del self[name]


Entry = tuple[Index, tuple[str, ...], Key]


class MemoryState:
    """Jobs, workers, queues and limits. `jobs` stays in order of submission."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobRow] = {}
        self.workers: dict[str, WorkerRow] = {}
        self.declared: dict[str, QueueSettings] = {}
        self.overrides: dict[str, QueueSettings] = {}
        self.tasks: dict[str, TaskSettings] = {}
        self.copied: Copied | None = None
        self.records: dict[RecordId, Record] = {}
        self.highest_version = 0  # of removed records
        self.journal: dict[int, JournalLine] = {}  # in order of their ids
        self.next_line_id = count(1).__next__
        self.journaled = False  # a line was appended, and its listeners are not woken yet
        self.paused: set[str] = set()
        #: Queues that have had a job with a tenant: they deal passes from then on.
        self.tenanted: set[str] = set()
        self.closed: set[str] = set()
        self.counts: Counter[tuple[str, JobStatus]] = Counter()  # no zeros in it
        self.suspended: Counter[str] = Counter()  # jobs of each queue that wait in a step
        self.bytes: Counter[str] = Counter()  # payloads of each queue's unfinished jobs
        self.next_sequence = count(1).__next__
        self.next_place = count(1).__next__
        self.next_line_number = count(1).__next__
        self._begin_indexes()
        self._begin_limits()

    def _begin_indexes(self) -> None:
        # Ready jobs by (queue, task): normal ones, suspects that run alone, and parked ones whose
        # task no worker knows.
        self.ready = Index()
        self.suspects = Index()
        self.parked = Index()
        # Waiting jobs by due time: all by (queue,), retries and rescued ones by (queue, task).
        self.due = Index()
        self.retries = Index()
        # Held jobs by (worker,), and all under () by the end of their hold.
        self.held = Index()
        self.holds = Index()
        # Under (): waiting jobs by deadline, finished ones by the end of their lifetime.
        self.deadlines = Index()
        self.expiries = Index()
        # Jobs in line by (queue, tenant, ordering key), held ones by the name of their task's
        # concurrency gate, ready ones by (queue, priority) in the order of their passes.
        self.lines = Index()
        self.busy = Index()
        self.passes = Index()

    def _begin_limits(self) -> None:
        # Shut gates: until an instant, or (None) until they are opened.
        self.shut: dict[Gate, int | None] = {}
        self.grants: dict[Gate, RateLog] = {}
        # By (queue, priority): each tenant's last pass, and the highest of all.
        self.last_passes: dict[tuple[str, int], dict[str, int]] = {}
        self.highest_pass: Counter[tuple[str, int]] = Counter()
        # The last job that took each key, and the job stashed until that one ends.
        self.taken: dict[JobKey, str] = {}
        self.stashed: dict[Identity, NewJob] = {}

    @property
    def configured(self) -> set[str]:
        """The queues that were declared or configured."""
        return {*self.declared, *self.overrides}

    def settings(self, queue: str) -> QueueSettings:
        """Return the settings in effect: an operator's, the newest declared, or the defaults."""
        return self.overrides.get(queue) or self.declared.get(queue) or QueueSettings(queue)

    def retention(self, queue: str) -> Retention:
        """Return how long a queue keeps jobs that ended without an attempt of their own."""
        return self.settings(queue).retention or Retention()

    def depth(self, queue: str) -> int:
        """Return how many jobs wait in a queue, without those that wait in a step."""
        return sum(self.counts[queue, status] for status in WAITING) - self.suspended[queue]

    def held_bytes(self, queue: str) -> int:
        """Return the payload bytes of the unfinished jobs of a queue, or of the store."""
        return self.bytes.total() if queue == THE_STORE else self.bytes[queue]

    def insert(self, row: JobRow) -> None:
        """Keep a new job."""
        self.jobs[row.new.id] = row
        self._enter(row)

    def forget(self, row: JobRow) -> None:
        """Remove a job, with its history."""
        self._leave(row)
        del self.jobs[row.new.id]
        for key in keys_wanted(row.new):
            if self.taken.get(key) == row.new.id:
                del self.taken[key]

    @contextmanager
    def changing(self, row: JobRow, now_us: int) -> Iterator[None]:
        """Change a job only inside this: afterwards its indexes are updated."""
        was = row.status
        self._leave(row)
        row.updated_us = now_us
        try:
            yield
        finally:
            self._enter(row)
            member = member_of(row.new.options)
            if member is not None and was.is_final is not row.status.is_final:
                self.append_line(row, member, was)

    def append_line(self, row: JobRow, member: Member, was: JobStatus) -> None:
        """Append a journal line: a member has ended, or is unfinished again."""
        line_id, group = self.next_line_id(), Group.of(member.group)
        told = (row.new.id, member.node, row.status, was, *row.attached.counted)
        self.journal[line_id] = JournalLine(line_id, group, *told)
        self.journaled = True
        if was.is_final:
            row.attached = msgspec.structs.replace(row.attached, counted=(0, 0))

    def _enter(self, row: JobRow) -> None:
        self.counts[row.new.queue, row.status] += 1
        self.suspended[row.new.queue] += row.awaits_signal
        if not row.status.is_final:
            self.bytes[row.new.queue] += len(row.new.payload)
        for index, group, key in self._entries(row):
            index.add(group, key)

    def _leave(self, row: JobRow) -> None:
        counted = (row.new.queue, row.status)
        self.counts[counted] -= 1
        self.suspended[row.new.queue] -= row.awaits_signal
        if not row.status.is_final:
            self.bytes[row.new.queue] -= len(row.new.payload)
        if not self.counts[counted]:
            del self.counts[counted]
        for index, group, key in self._entries(row):
            index.remove(group, key)

    def _entries(self, row: JobRow) -> Iterator[Entry]:
        """Yield the index entries of a job."""
        job_id, sequence = row.new.id, row.sequence
        if row.status is JobStatus.PROCESSING:
            yield self.held, (row.worker or "",), (sequence, 0, job_id)
            yield self.holds, (), (row.hold_until_us, sequence, job_id)
            yield self.busy, concurrency_gate(row.new).name, (sequence, job_id)
        elif row.status is JobStatus.QUEUED:
            lane = self.lane_of(row)
            yield lane, row.line, (*row.rank, job_id)
            if lane is self.ready and not row.aged:
                share = (row.new.queue, str(row.new.priority))
                yield self.passes, share, (row.pass_number, row.place or 0, job_id)
        elif row.status in WAITING:
            yield self.due, (row.new.queue,), (row.due_us, sequence, job_id)
            if row.status in RETRY_WAITING or row.place is not None:
                yield self.retries, row.line, (row.due_us, sequence, job_id)
        elif row.expires_us is not None:
            yield self.expiries, (), (row.expires_us, sequence, job_id)
        if row.status in WAITING and row.deadline_us is not None:
            yield self.deadlines, (), (row.deadline_us, sequence, job_id)
        if row.new.ordering_key is not None and holds_line(row.status, dead_holds=row.holds_line):
            line = (row.new.queue, row.new.tenant, row.new.ordering_key)
            yield self.lines, line, (row.line_number, job_id)

    def lane_of(self, row: JobRow) -> Index:
        """Return the index of a queued job: ready, suspects or parked."""
        if row.parked_us is not None:
            return self.parked
        return self.suspects if row.suspect else self.ready


P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Access:
    """The state, locked, at one instant."""

    def __init__(self, state: MemoryState, now_us: int) -> None:
        self.state = state
        self.now_us = now_us
        self.wakes: dict[str, None] = {}  # in order, each once

    def wake(self, topic: str) -> None:
        """Wake the listeners of `topic`, once the plan is done."""
        self.wakes[topic] = None

    def wake_queue(self, row: JobRow) -> None:
        """Wake the workers of a job's queue."""
        self.wake(f"queue:{row.new.queue}")

    def wake_task(self, task: str) -> None:
        """Wake the workers of every queue in which a job of this task is ready."""
        for queue, name in (*self.state.ready, *self.state.suspects):
            if name == task:
                self.wake(f"queue:{queue}")

    def wake_room(self, row: JobRow, *, waited: bool = True) -> None:
        """Wake submits that wait for room in a job's queue, if that has a limit.

        `waited`: the job waits no longer. Only one that has ended makes room in bytes.
        """
        settings = self.state.settings(row.new.queue)
        in_jobs = waited and settings.max_depth is not None
        if in_jobs or (row.status.is_final and settings.max_bytes is not None):
            self.wake(f"room:{row.new.queue}")

    def visible(self, job_id: str, tenant: str | None) -> JobRow | None:
        """The job, unless it is another tenant's; None sees all tenants."""
        row = self.state.jobs.get(job_id)
        return row if row is not None and tenant in (None, row.new.tenant) else None

    def group_of(self, row: JobRow) -> Record | None:
        """The record of the group of a member, while it is there."""
        member = member_of(row.new.options)
        found = self.state.records.get(RecordId.of(member.group)) if member else None
        return None if found is None or is_expired(found, self.now_us) else found

    def rows(self, job_ids: list[str]) -> list[JobRow]:
        """The jobs of these ids, which are there."""
        return [self.state.jobs[job_id] for job_id in job_ids]

    def lease_gone(self, worker: str | None) -> bool:
        """Whether a worker is unknown, or its lease has run out."""
        known = self.state.workers.get(worker or "")
        return known is None or not known.live(self.now_us)


def plan(
    verb: str,
    work: Callable[[Access], T],
    *,
    writes: bool = True,
    named: Named[T] | None = None,
) -> Plan[T]:
    """A verb whose whole work is one function of the locked state."""

    def steps() -> Steps[T]:
        access: Access = yield
        answer = work(access)
        if access.state.journaled:
            access.state.journaled = False
            access.wake("journal")
        for topic in access.wakes:
            yield Wake(topic)
        return answer

    return Plan(verb, steps, writes=writes, named=named)


def on_state(
    *, writes: bool = True
) -> Callable[[Callable[Concatenate[S, Access, P], T]], Callable[Concatenate[S, P], Plan[T]]]:
    """Make a verb of a method whose whole work is on the locked state: see `planned`."""

    def make(work: Callable[Concatenate[S, Access, P], T]) -> Callable[Concatenate[S, P], Plan[T]]:
        @wraps(work)
        def verb(store: S, /, *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
            return plan(
                work.__name__, lambda access: work(store, access, *args, **kwargs), writes=writes
            )

        return verb

    return make
