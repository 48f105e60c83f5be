# SPDX-License-Identifier: MIT
"""All the reference store knows: plain dicts, and indexes that follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from packhorse.job import RETRY_WAITING, WAITING, JobStatus, NewJob
from packhorse.policies.gates import Gate, concurrency_gate, holds_line
from packhorse.policies.rate_limit import RateLog
from packhorse.policies.uniqueness import Identity, idempotency_identity, unique_identity
from packhorse.stores.memory.rows import JobRow, WorkerRow
from packhorse.stores.memory.sorted_keys import Key, SortedKeys
from packhorse.stores.requests import QueueSettings, TaskSettings

__all__ = ["Index", "State"]


class Index(dict[tuple[str, ...], SortedKeys]):
    """Sorted keys by group; a group nobody is in takes no room."""

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


class State:
    """Jobs, workers, queues and limits. `jobs` stays in order of submission."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobRow] = {}
        self.workers: dict[str, WorkerRow] = {}
        self.declared: dict[str, QueueSettings] = {}
        self.overrides: dict[str, QueueSettings] = {}
        self.tasks: dict[str, TaskSettings] = {}
        self.paused: set[str] = set()
        #: Queues that a job with a tenant was submitted to: from then on they deal passes.
        self.tenanted: set[str] = set()
        self.closed: set[str] = set()
        self.counts: Counter[tuple[str, JobStatus]] = Counter()  # no zeros in it
        self.next_sequence = count(1).__next__
        self.next_place = count(1).__next__
        self.next_line_number = count(1).__next__
        self._begin_indexes()
        self._begin_limits()

    def _begin_indexes(self) -> None:
        # Ready jobs by (queue, task): those to be run among others, those to be run alone, and
        # those set aside because nobody knows their task.
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
        # Gates closed by somebody's wish: until an instant, or (None) until they are opened.
        self.shut: dict[Gate, int | None] = {}
        self.grants: dict[Gate, RateLog] = {}
        # By (queue, priority): each tenant's last pass, and the highest of all.
        self.last_passes: dict[tuple[str, int], dict[str, int]] = {}
        self.highest_pass: Counter[tuple[str, int]] = Counter()
        # Who took each key last, and the job that waits outside until that one ends.
        self.unique: dict[Identity, str] = {}
        self.idempotent: dict[Identity, str] = {}
        self.stashed: dict[Identity, NewJob] = {}

    @property
    def configured(self) -> set[str]:
        """The queues about which somebody said something."""
        return {*self.declared, *self.overrides}

    def settings(self, queue: str) -> QueueSettings:
        """What holds for a queue: an operator's word, the newest declaration, or the defaults."""
        return self.overrides.get(queue) or self.declared.get(queue) or QueueSettings(queue)

    def depth(self, queue: str) -> int:
        """How many jobs wait in a queue."""
        return sum(self.counts[queue, status] for status in WAITING)

    def insert(self, row: JobRow) -> None:
        """Keep a new job."""
        self.jobs[row.new.id] = row
        self._enter(row)

    def forget(self, row: JobRow) -> None:
        """Remove a job, with its history."""
        self._leave(row)
        del self.jobs[row.new.id]
        keys = (
            (self.unique, unique_identity(row.new)),
            (self.idempotent, idempotency_identity(row.new)),
        )
        for taken, identity in keys:
            if identity is not None and taken.get(identity) == row.new.id:
                del taken[identity]

    @contextmanager
    def changing(self, row: JobRow, now_us: int) -> Iterator[None]:
        """The one way to change a job: its indexes follow what is done inside."""
        self._leave(row)
        row.updated_us = now_us
        try:
            yield
        finally:
            self._enter(row)

    def _enter(self, row: JobRow) -> None:
        self.counts[row.new.queue, row.status] += 1
        for index, group, key in self._entries(row):
            index.add(group, key)

    def _leave(self, row: JobRow) -> None:
        counted = (row.new.queue, row.status)
        self.counts[counted] -= 1
        if not self.counts[counted]:
            del self.counts[counted]
        for index, group, key in self._entries(row):
            index.remove(group, key)

    def _entries(self, row: JobRow) -> Iterator[Entry]:
        """Where a job is to be found, as it stands."""
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
        """Where a queued job stands: ready, to be run alone, or set aside."""
        if row.parked_us is not None:
            return self.parked
        return self.suspects if row.suspect else self.ready
