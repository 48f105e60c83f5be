# SPDX-License-Identifier: MIT
"""Whatever happens, limits, order, depth and keys hold in the reference store."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from packhorse.core.clock import SECOND_US
from packhorse.core.job import (
    TERMINAL,
    IdempotencyRule,
    Job,
    JobStatus,
    OnConflict,
    RateRule,
    UniqueRule,
    UniqueScope,
)
from packhorse.core.policies.fairness import STRIDE
from packhorse.core.policies.gates import holds_line
from packhorse.core.settlement import SettlementKind
from packhorse.errors import QueueClosed, QueueFull
from packhorse.stores.memory.rows import JobRow
from packhorse.stores.memory.state import Index, MemoryState
from packhorse.stores.requests import JobFilter, QueueSettings, TaskSettings
from packhorse.testing.conformance.samples import new_job
from tests.unit.memory_trial import memory_trial, state_of

RATE = RateRule(max=3, window_us=64 * SECOND_US)
TENANT_RATE = RateRule(max=2, window_us=32 * SECOND_US)
TASK_RATE = RateRule(max=2, window_us=16 * SECOND_US)
LIMITS = QueueSettings(
    "mail",
    concurrency=3,
    rate=RATE,
    tenant_rate=TENANT_RATE,
    max_depth=6,
    fair=True,
    weights={"b": 2},
    on_dead="hold",
)
DROPS = QueueSettings("reports", max_depth=4, on_full="drop", fair=True)
TASKS = ("send", "render")
QUEUES = ("mail", "reports")
WORKERS = ("anna", "ben")

keys = st.none() | st.sampled_from("kl")
uniques = st.none() | st.builds(
    lambda scope, mode: UniqueRule(
        "u", scope, mode, 20 * SECOND_US if scope is UniqueScope.WINDOW else None
    ),
    st.sampled_from(UniqueScope),
    st.sampled_from(OnConflict),
)
wishes = st.fixed_dictionaries(
    {"queue": st.sampled_from(QUEUES), "task": st.sampled_from(TASKS)},
    optional={
        "tenant": st.sampled_from("ab"),
        "priority": st.integers(0, 4),
        "delay_us": st.sampled_from([0, SECOND_US]),
        "ordering_key": keys,
        "concurrency_key": keys,
        "rate_key": keys,
        "weight": st.integers(1, 2),
        "unique": uniques,
        "idempotency": st.none() | st.just(IdempotencyRule("i", "d", 20 * SECOND_US)),
    },
)
picks = st.integers(0, 10**6)


class LimitedLife(RuleBasedStateMachine):
    """Jobs with every kind of key, in queues with every kind of limit."""

    def __init__(self) -> None:
        super().__init__()
        self.trial = memory_trial()
        self.held: list[Job] = []
        self.submitted = 0
        self.grants: list[tuple[int, JobRow]] = []

    @initialize()
    def begin(self) -> None:
        self.trial.declare(LIMITS, DROPS)
        tasks = [TaskSettings("send", concurrency=1, rate=TASK_RATE)]
        self.trial.run(self.trial.store.queues.declare_tasks(tasks))

    # ------------------------------------------------------------------------- what happens

    @rule(asked=st.lists(wishes, min_size=1, max_size=3))
    def submit(self, asked: list[dict[str, Any]]) -> None:
        jobs = []
        for wish in asked:
            self.submitted += 1
            jobs.append(new_job(f"job-{self.submitted}", **wish))
        state = state_of(self.trial)
        before = set(state.jobs)
        try:
            answers = self.trial.submit(*jobs)
        except (QueueFull, QueueClosed):
            assert set(state.jobs) == before
            return
        assert all(answer.job_id in state.jobs for answer in answers)
        for queue in {job.queue for job in jobs if job.id in state.jobs}:
            limit = state.settings(queue).max_depth or 0
            stashed = len(asked)  # each job dropped may let in one that waited outside
            assert state.depth(queue) <= limit + stashed * (queue == "reports")

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 4), alone=st.booleans())
    def claim(self, worker: str, limit: int, *, alone: bool) -> None:
        self.trial.renew(worker, queues=QUEUES, tasks=TASKS)
        state = state_of(self.trial)
        answer = self.trial.ask(worker, queues=QUEUES, tasks=TASKS, limit=limit, quarantine=alone)
        for job in answer.jobs:
            self.grants.append((answer.now_us, state.jobs[job.id]))
        self.held += answer.jobs
        if answer.next_due_us is not None and len(answer.jobs) < limit:
            assert answer.next_due_us > answer.now_us or answer.jobs

    @rule(pick=picks, kind=st.sampled_from([k for k in SettlementKind if k != 8]))
    def settle(self, pick: int, kind: SettlementKind) -> None:
        if self.held:
            self.trial.end(self.held[pick % len(self.held)], kind)

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker: str) -> None:
        self.trial.run(self.trial.store.leases.leave(worker))

    @rule()
    def crash(self) -> None:
        self.trial.let_lease_expire()
        self.trial.rescue(*WORKERS)

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        self.trial.run(self.trial.store.jobs.cancel(f"job-{pick % (self.submitted + 1)}"))

    @rule(pick=picks)
    def redrive(self, pick: int) -> None:
        self.trial.run(self.trial.store.jobs.redrive([f"job-{pick % (self.submitted + 1)}"]))

    @rule(paused=st.booleans(), key=keys)
    def pause(self, key: str | None, *, paused: bool) -> None:
        self.trial.run(self.trial.store.queues.pause("mail", paused=paused, key=key))

    @rule(closed=st.booleans())
    def close(self, *, closed: bool) -> None:
        self.trial.run(self.trial.store.queues.close_queue("reports", closed=closed))

    @rule(prune=st.booleans())
    def keep_up(self, *, prune: bool) -> None:
        store = self.trial.store
        if prune:
            self.trial.run(store.upkeep.prune(limit=5))
        else:
            self.trial.run(store.jobs.delete(JobFilter(), limit=1))

    @rule(seconds=st.sampled_from([0.25, 1, 5, 16, 64]))
    def wait(self, seconds: float) -> None:
        self.trial.clock.advance(seconds)

    # --------------------------------------------------------------------- what always holds

    @invariant()
    def no_concurrency_is_exceeded(self) -> None:
        running = [row for row in self._rows() if row.status is JobStatus.PROCESSING]
        assert Counter(row.new.queue for row in running)["mail"] <= 3
        sending = [row.new.concurrency_key for row in running if row.new.task == "send"]
        assert all(number <= 1 for number in Counter(sending).values())

    @invariant()
    def no_rate_is_exceeded_in_any_window(self) -> None:
        mail = [(at_us, row) for at_us, row in self.grants if row.new.queue == "mail"]
        _check_rate(mail, RATE)
        for tenant in ("", "a", "b"):
            _check_rate([grant for grant in mail if grant[1].new.tenant == tenant], TENANT_RATE)
        sent = [grant for grant in self.grants if grant[1].new.task == "send"]
        for key in (None, "k", "l"):
            _check_rate([grant for grant in sent if grant[1].new.rate_key == key], TASK_RATE)

    @invariant()
    def only_the_head_of_a_line_runs(self) -> None:
        heads: dict[Any, JobRow] = {}
        for row in sorted(self._rows(), key=lambda row: row.line_number):
            if row.new.ordering_key is None:
                continue
            if holds_line(row.status, dead_holds=row.holds_line):
                line = (row.new.queue, row.new.tenant, row.new.ordering_key)
                head = heads.setdefault(line, row)
                assert row is head or row.status is not JobStatus.PROCESSING

    @invariant()
    def of_an_unfinished_key_there_is_one_job(self) -> None:
        unfinished = [row.new for row in self._rows() if row.status not in TERMINAL]
        same = Counter((new.tenant, new.task) for new in unfinished if new.idempotency)
        assert all(number == 1 for number in same.values())

    @invariant()
    def stashed_jobs_stand_behind_an_unfinished_holder(self) -> None:
        state = state_of(self.trial)
        for identity, stashed in state.stashed.items():
            holder = state.jobs[state.taken["unique", identity]]
            assert holder.status not in TERMINAL
            assert stashed.id not in state.jobs

    @invariant()
    def passes_are_near_each_other(self) -> None:
        """No tenant gets further ahead than the jobs it has waiting."""
        for row in self._rows():
            if row.status is JobStatus.QUEUED:
                assert row.pass_number <= (self.submitted + len(self.grants)) * STRIDE

    @invariant()
    def the_indexes_follow_from_the_jobs(self) -> None:
        state, rebuilt = state_of(self.trial), MemoryState()
        for row in state.jobs.values():
            rebuilt.insert(row)
        assert rebuilt.counts == state.counts
        for name, index in vars(state).items():
            if isinstance(index, Index):
                found = {group: list(each) for group, each in index.items()}
                assert found == {g: list(each) for g, each in vars(rebuilt)[name].items()}, name

    def _rows(self) -> list[JobRow]:
        return list(state_of(self.trial).jobs.values())


def _check_rate(grants: list[tuple[int, JobRow]], rule: RateRule) -> None:
    for begin_us, _ in grants:
        inside = [row.new.weight for at, row in grants if 0 <= at - begin_us < rule.window_us]
        assert sum(inside) <= rule.max


LimitedLife.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
TestLimitedLife = LimitedLife.TestCase
