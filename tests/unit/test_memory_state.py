# SPDX-License-Identifier: MIT
"""Whatever happens to a memory store, its indexes say what its jobs say, and no job is lost."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from packhorse.core.clock import SECOND_US
from packhorse.core.job import TERMINAL, WAITING, Job, JobStatus
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.memory.rows import JobRow
from packhorse.stores.memory.state import Index, MemoryState
from packhorse.stores.requests import JobFilter, QueueSettings
from packhorse.testing.conformance.samples import OWNER_KINDS, new_job
from packhorse.testing.conformance.trial import EVERYTHING
from tests.unit.memory_trial import memory_trial, state_of

QUEUES = ("mail", "reports")
TASKS = ("send", "render")
WORKERS = ("anna", "ben")

queues = st.sampled_from(QUEUES)
tasks = st.sampled_from(TASKS)
workers = st.sampled_from(WORKERS)
few = st.integers(0, 3)
picks = st.integers(0, 10**6)


class MemoryLife(RuleBasedStateMachine):
    """Jobs come, run and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.trial = memory_trial()
        self.held: list[Job] = []  # as workers believe; some of it is stale
        self.submitted = 0
        self.removed = 0
        self.fences: dict[str, int] = {}

    @initialize()
    def begin(self) -> None:
        self.trial.declare(QueueSettings("mail", priority=1, dead_letter="mail_dead"))
        for worker in WORKERS:
            self.renew(worker, tasks=TASKS)

    # ------------------------------------------------------------------------- what happens

    @rule(queue=queues, task=tasks, delay=few, priority=few, deadline=st.none() | few)
    def submit(self, deadline: int | None, delay: int, **changes: Any) -> None:
        deadline_us = None if deadline is None else self.trial.now_us() + deadline * SECOND_US
        when = {"delay_us": delay * SECOND_US, "deadline_us": deadline_us}
        self.trial.submit(new_job(f"job-{self.submitted}", **when, **changes))
        self.submitted += 1

    @rule(worker=workers, known=st.sets(tasks), limit=few, quarantine=st.booleans())
    def claim(self, worker: str, known: set[str], limit: int, *, quarantine: bool) -> None:
        self.held += self.trial.ask(
            worker, queues=QUEUES, tasks=tuple(known), limit=limit, quarantine=quarantine
        ).jobs

    @rule(pick=picks, kind=st.sampled_from(OWNER_KINDS))
    def settle(self, pick: int, kind: SettlementKind) -> None:
        if not self.held:
            return
        job = self.held[pick % len(self.held)]
        before = self.trial.find(job.id)
        verdict = self.trial.end(job, kind)
        if before is None or before.status is not JobStatus.PROCESSING:
            assert verdict in (Verdict.STALE, Verdict.APPLIED)
            assert self.trial.find(job.id) == before

    @rule(worker=workers, tasks=st.sets(tasks), tell=st.booleans())
    def renew(self, worker: str, tasks: Any, *, tell: bool = False) -> None:
        held = tuple((job.id, job.fence) for job in self.held[::2]) if tell else None
        self.trial.renew(worker, queues=QUEUES, tasks=tuple(tasks), held=held)

    @rule(worker=workers)
    def leave(self, worker: str) -> None:
        self.trial.run(self.trial.store.leases.leave(worker))

    @rule()
    def rescue(self) -> None:
        self.trial.rescue(*WORKERS)

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        self.trial.run(self.trial.store.jobs.cancel(f"job-{pick % (self.submitted + 1)}"))

    @rule(pick=picks)
    def redrive(self, pick: int) -> None:
        self.trial.run(self.trial.store.jobs.redrive([f"job-{pick % (self.submitted + 1)}"]))

    @rule(queue=queues, paused=st.booleans())
    def pause(self, queue: str, *, paused: bool) -> None:
        self.trial.pause(queue, paused=paused)

    @rule(limit=few)
    def keep_up(self, limit: int) -> None:
        upkeep = self.trial.store.upkeep
        self.trial.run(upkeep.promote(limit=limit))
        self.trial.run(upkeep.expire(limit=limit))
        self.trial.run(upkeep.park(after_us=5 * SECOND_US, limit=limit))

    @rule(limit=few, prune=st.booleans())
    def remove(self, limit: int, *, prune: bool) -> None:
        store, before = self.trial.store, len(state_of(self.trial).jobs)
        if prune:
            count = self.trial.run(store.upkeep.prune(limit=limit))
        else:
            mail = JobFilter(queue="mail")
            count = self.trial.run(store.jobs.delete(mail, limit=limit)).removed
        gone = before - len(state_of(self.trial).jobs)
        assert gone <= count <= limit
        self.removed += gone

    @rule(seconds=st.sampled_from([0.5, 1, 3, 40, 86_400]))
    def wait(self, seconds: float) -> None:
        self.trial.clock.advance(seconds)

    # --------------------------------------------------------------------- what always holds

    @invariant()
    def no_job_is_lost(self) -> None:
        assert len(state_of(self.trial).jobs) == self.submitted - self.removed

    @invariant()
    def fences_only_rise(self) -> None:
        for job_id, row in state_of(self.trial).jobs.items():
            assert row.fence >= self.fences.get(job_id, 0)
            self.fences[job_id] = row.fence

    @invariant()
    def every_row_makes_sense(self) -> None:
        for row in state_of(self.trial).jobs.values():
            _check_row(row)

    @invariant()
    def places_are_taken_once(self) -> None:
        rows = state_of(self.trial).jobs.values()
        places = [row.place for row in rows if row.place is not None]
        assert len(places) == len(set(places))

    @invariant()
    def the_indexes_follow_from_the_jobs(self) -> None:
        state = state_of(self.trial)
        rebuilt = MemoryState()
        for row in state.jobs.values():
            rebuilt.insert(row)
        assert rebuilt.counts == state.counts
        for name, index in vars(state).items():
            if isinstance(index, Index):
                assert _plain(index) == _plain(vars(rebuilt)[name]), name

    @invariant()
    def looking_changes_nothing(self) -> None:
        before = msgspec.json.encode(self._all())
        self.trial.run(self.trial.store.inspection.outlook("anna", QUEUES, TASKS))
        self.trial.run(self.trial.store.inspection.counts())
        self.trial.run(self.trial.store.leases.orphans(WORKERS, limit=EVERYTHING))
        assert msgspec.json.encode(self._all()) == before

    def _all(self) -> Any:
        search = self.trial.store.inspection.search(JobFilter(), limit=EVERYTHING)
        return self.trial.run(search)


def _check_row(row: JobRow) -> None:
    finished = row.status in TERMINAL
    assert (row.finished_us is not None) == finished
    assert (row.dead_reason is not None) == (row.status is JobStatus.DEAD)
    assert row.dead_letter is None or row.status is JobStatus.DEAD
    assert row.result is None or row.status is JobStatus.COMPLETED
    assert row.parked_us is None or row.status is JobStatus.QUEUED
    assert not (row.cancel_requested and row.status in WAITING)
    if row.status in (JobStatus.QUEUED, JobStatus.PROCESSING):
        assert row.place is not None
    if row.status is JobStatus.PROCESSING:
        assert row.worker in WORKERS
    assert len(row.first_attempts) + len(row.last_attempts) == min(row.counters.attempts, 50)


def _plain(index: Index) -> dict[tuple[str, ...], list[Any]]:
    return {group: list(keys) for group, keys in index.items()}


MemoryLife.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, print_blob=True
)
TestMemoryLife = MemoryLife.TestCase
