# SPDX-License-Identifier: MIT
"""The state machine with limits, fair shares, ordering and deduplication.

It compares with the reference as `machine.StoreMachine` does, and more: why a job does not run, and
that the instants at which waiting workers are to ask again are never too late.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
)

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus
from packhorse.core.lifecycle import JobRules
from packhorse.core.outcome import Outcome
from packhorse.core.policies.retention import DAY_US
from packhorse.core.sizes import THE_STORE
from packhorse.errors import PackhorseError
from packhorse.stores.requests import (
    Claimed,
    ClaimRequest,
    Outlook,
    QueueSettings,
    TaskSettings,
)
from packhorse.testing.conformance import drawn, drawn_limits
from packhorse.testing.conformance.drawn import QUEUES
from packhorse.testing.conformance.machine import (
    Refused,
    StoreMachine,
    may_idle,
    may_settle,
    may_work,
)
from packhorse.testing.conformance.observation import (
    Observation,
)
from packhorse.testing.conformance.properties import try_machine
from packhorse.testing.conformance.samples import TIMEOUT_US
from packhorse.testing.conformance.trial import RunnerName, Trial, Trials

#: Submit no more jobs while this many wait.
_WAITING_MAX: Final = 10
#: A worker that waits does not lose its lease meanwhile.
_LONG_LEASE_US: Final = 2 * DAY_US

_may_submit = precondition(lambda self: self.waiting < _WAITING_MAX)


class TestLimitsMachine:
    """The store limits, shares, orders and deduplicates as the reference does."""

    def test_the_store_agrees_with_the_reference(self, trials: Trials, runner: RunnerName) -> None:
        try_machine(LimitsMachine, trials, runner)


class LimitsMachine(StoreMachine):
    """The rules of `StoreMachine`, about limited queues and jobs with keys."""

    def refused(self, error: PackhorseError) -> Refused:
        """Compare the details of errors too."""
        return Refused(type(error), vars(error))

    def comparable(self, answer: Any) -> Any:
        """Leave out the instants at which a limit frees: `wait_as_told` checks them."""
        return _timeless(super().comparable(answer))

    def observed(
        self, trial: Trial, known: Observation | None = None, *, jobs_only: bool = False
    ) -> Observation:
        """Read everything there is to see, and why each job does not run, unless it is as `known`.

        This is the slowest read. A store finds the reasons when it is asked, so a step that asks
        for all of them also checks the steps before it.
        """
        seen = super().observed(trial, known, jobs_only=jobs_only)
        run, store = trial.store.run, trial.store
        rest = {name: _timeless(answer) for name, answer in seen.rest.items()}
        rest["tasks"] = run(store.queues.tasks())
        for job_id, record in seen.records.items():
            if known is None or known.records.get(job_id) != record:
                rest[f"why {job_id}"] = run(store.inspection.explain(job_id))
        return msgspec.structs.replace(seen, rest=rest)

    @initialize(
        target=StoreMachine.jobs, wishes=st.lists(drawn_limits.wishes, min_size=2, max_size=4)
    )
    def start(self, wishes: list[dict[str, Any]]) -> Any:
        return super().start(wishes)

    @_may_submit
    @rule(
        target=StoreMachine.jobs,
        wishes=st.lists(drawn_limits.wishes, min_size=1, max_size=4),
        known=st.none() | StoreMachine.jobs,
        singly=st.booleans(),
    )
    def submit(
        self, wishes: list[dict[str, Any]], known: str | None = None, *, singly: bool = True
    ) -> Any:
        return super().submit(wishes, known, singly=singly)

    @may_work
    @rule(
        target=StoreMachine.claims,
        worker=drawn.workers,
        served=drawn.served,
        quarantine=st.sampled_from([False, False, False, True]),
        results=st.lists(drawn_limits.outcomes, min_size=1, max_size=4),
        settled=st.integers(0, 3),
    )
    def work(
        self,
        worker: str,
        served: tuple[tuple[str, ...], tuple[str, ...]],
        results: list[Outcome],
        settled: int,
        *,
        quarantine: bool,
    ) -> Any:
        return super().work(worker, served, results, settled, quarantine=quarantine, live=True)

    @may_settle
    @rule(
        first=st.integers(0, 1000),
        results=st.lists(drawn_limits.outcomes, min_size=1, max_size=3),
    )
    def settle(self, first: int, results: list[Outcome]) -> None:
        super().settle(first, results, JobRules())

    @may_idle
    @rule(
        settings=st.lists(drawn_limits.queue_settings, max_size=2),
        queue=st.sampled_from([*QUEUES, THE_STORE]),
        overriding=st.booleans(),
    )
    def set_queues(self, settings: list[QueueSettings], queue: str, *, overriding: bool) -> None:
        """Declare settings, or override them as an operator; no settings end the override."""
        if not overriding:
            self.both(lambda store: store.queues.declare(settings))
            return
        chosen = next((each for each in settings if each.name == queue), None)
        self.both(lambda store: store.queues.override(queue, chosen))

    @may_idle
    @rule(settings=st.lists(drawn_limits.task_settings, max_size=2))
    def set_tasks(self, settings: list[TaskSettings]) -> None:
        self.both(lambda store: store.queues.declare_tasks(settings))

    @may_idle
    @rule(
        queue=st.sampled_from(QUEUES),
        part=drawn_limits.parts,
        paused=st.sampled_from([True, False, False]),
    )
    def pause(self, queue: str, part: dict[str, str], *, paused: bool) -> None:
        self.both(lambda store: store.queues.pause(queue, paused=paused, **part))

    @may_idle
    @rule(queue=st.sampled_from(QUEUES), closed=st.sampled_from([True, False, False]))
    def close_queue(self, queue: str, *, closed: bool) -> None:
        self.both(lambda store: store.queues.close_queue(queue, closed=closed))

    @may_idle
    @rule(span_us=drawn_limits.spans_us)
    def time_passes(self, span_us: int) -> None:
        super().time_passes(span_us)

    @may_work
    @rule(worker=drawn.workers, served=drawn.served, limit=st.integers(1, 3))
    def wait_as_told(
        self, worker: str, served: tuple[tuple[str, ...], tuple[str, ...]], limit: int
    ) -> None:
        """Check that no job is ready for a worker before the instant that its claim returned."""
        request = ClaimRequest(worker, *served, limit, TIMEOUT_US)
        self._renew(worker, *served, lease_us=_LONG_LEASE_US)
        told = self.claim(request)
        while told.jobs:
            told = self.claim(request)
        outlook = self.both(lambda store: store.inspection.outlook(worker, *served))
        assert outlook is not None
        assert not outlook.ready or told.suspects
        ready = self._ready()
        self._pass_until((told.next_due_us or told.now_us + DAY_US) - 1)
        assert not self.claim(request).jobs, "a job could run before the worker was told to ask"
        self._pass_until(told.next_due_us or 0)
        for job in self.claim(request).jobs:
            if job.id in ready and not outlook.ready:
                free_us = outlook.limit_free_us
                assert free_us is not None
                assert free_us <= self.clock.now_us(), "a burst worker was told to wait too long"

    # --------------------------------------------------------------------------------- helpers

    def _ready(self) -> set[str]:
        """Return the jobs that only a limit may block."""
        return set(self.subject.search(statuses=(JobStatus.QUEUED,)))

    def _pass_until(self, instant_us: int) -> None:
        self.clock.advance(max(0, instant_us - self.clock.now_us()) / SECOND_US)


def _timeless(answer: Any) -> Any:
    """Remove the instants at which a limit frees: a store may be early there."""
    match answer:
        case Claimed():
            return msgspec.structs.replace(answer, next_due_us=None)
        case Outlook():
            return msgspec.structs.replace(answer, limit_free_us=None)
        case [Outlook(), *_]:
            return [_timeless(each) for each in answer]
        case _:
            return answer
