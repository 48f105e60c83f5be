# SPDX-License-Identifier: MIT
"""The state machine once more, with everything that limits, shares, orders and deduplicates.

It goes beside the reference as `machine.StoreMachine` does, and asks more: why no job runs, and
whether the instants that a store tells waiting workers are never too late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, JobStatus
from packhorse.core.lifecycle import Limits
from packhorse.core.lifecycle import settle as decide
from packhorse.core.outcome import Outcome
from packhorse.core.policies.retention import DAY_US
from packhorse.core.sizes import THE_STORE
from packhorse.errors import PackhorseError
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import (
    Claimed,
    ClaimRequest,
    Outlook,
    QueueSettings,
    TaskSettings,
)
from packhorse.testing.conformance import drawn, drawn_limits
from packhorse.testing.conformance.drawn import QUEUES, TASKS, WORKERS
from packhorse.testing.conformance.machine import StoreMachine
from packhorse.testing.conformance.observation import (
    Observation,
    check_change,
    comparable,
    observe,
)
from packhorse.testing.conformance.properties import machine_settings
from packhorse.testing.conformance.samples import TIMEOUT_US
from packhorse.testing.conformance.trial import RunnerName, Trial, Trials

T = TypeVar("T")

_ROLL: Final = 0.5
#: So many jobs may wait before no more are submitted.
_WAITING_MAX: Final = 10
#: So many steps may go by without work.
_IDLE_MAX: Final = 3
#: A worker that waits does not lose its lease meanwhile.
_LONG_LEASE_US: Final = 2 * DAY_US

_may_submit = precondition(lambda self: self.waiting < _WAITING_MAX)
_may_work = precondition(lambda self: self.waiting > 0)
_may_settle = precondition(lambda self: self.held)
_may_idle = precondition(lambda self: self.idle < _IDLE_MAX)


class TestLimitsMachine:
    """Whatever is limited, shared, ordered or deduplicated, the store does as the reference."""

    def test_the_store_agrees_with_the_reference(self, trials: Trials, runner: RunnerName) -> None:
        class Machine(LimitsMachine):
            def __init__(self) -> None:
                super().__init__(trials, runner)

        run_state_machine_as_test(Machine, settings=machine_settings())


class LimitsMachine(StoreMachine):
    """The rules of `StoreMachine`, about limited queues and jobs with keys."""

    def both(self, build: Callable[[Store], Plan[T]]) -> T | None:
        """As there; instants that time opens something are judged by waiting for them."""
        expected, got = _attempt(self.reference, build), _attempt(self.subject, build)
        assert _timeless(comparable(got)) == _timeless(comparable(expected))
        return None if isinstance(got, _Refused) else got

    @invariant()
    def everything_to_be_seen_is_the_same(self) -> None:
        seen = _observe(self.subject, self.known(), jobs_only=self.jobs_only)
        expected = _observe(self.reference, jobs_only=self.jobs_only)
        assert seen.records == expected.records
        assert seen.histories == expected.histories
        for name, answer in seen.rest.items():
            assert answer == expected.rest[name], name
        check_change(self.before, seen, redriven=self.redriven, removing=self.removing)
        self._carry_on(seen)

    @initialize(
        target=StoreMachine.jobs, wishes=st.lists(drawn_limits.wishes, min_size=2, max_size=4)
    )
    def start(self, wishes: list[dict[str, Any]]) -> Any:
        for worker in WORKERS:
            self._renew(worker, QUEUES, TASKS)
        return self.submit(wishes)

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
        """The first may be of an id that is, or once was, there already."""
        now_us = self.clock.now_us()
        ids = [f"job-{self.submitted + number}" for number in range(len(wishes))]
        self.submitted += len(wishes)
        ids[0] = ids[0] if known is None else known
        new = [drawn.as_new_job(*pair, now_us) for pair in zip(ids, wishes, strict=True)]
        answers = self.stored(new, singly=singly and known is None)
        stored = [answer.job_id for answer in answers if not answer.deduplicated]
        return multiple(*(job_id for job_id in stored if job_id != known))

    @_may_work
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
        """Claim as many jobs as there are results, settle some, and hold on to the others."""
        self._renew(worker, *served)
        request = ClaimRequest(worker, *served, len(results), TIMEOUT_US, quarantine)
        jobs = self._claim(request).jobs
        pairs = list(zip(jobs, results, strict=False))
        self._settle([decide(*pair, Limits(), roll=_ROLL) for pair in pairs[:settled]])
        return multiple(*((worker, job) for job in jobs))

    @_may_settle
    @rule(
        first=st.integers(0, 1000),
        results=st.lists(drawn_limits.outcomes, min_size=1, max_size=3),
    )
    def settle(self, first: int, results: list[Outcome]) -> None:
        """Of different jobs as far as there are, else one job in several ways."""
        held = [job for _, job in self.held.values()]
        chosen = [held[(first + number) % len(held)] for number in range(len(results))]
        pairs = zip(chosen, results, strict=True)
        self._settle([decide(*pair, Limits(), roll=_ROLL) for pair in pairs])

    @_may_idle
    @rule(
        settings=st.lists(drawn_limits.queue_settings, max_size=2),
        queue=st.sampled_from([*QUEUES, THE_STORE]),
        overriding=st.booleans(),
    )
    def set_queues(self, settings: list[QueueSettings], queue: str, *, overriding: bool) -> None:
        """By declaration, or by an operator's hand; with nothing said that is taken back."""
        if not overriding:
            self.both(lambda store: store.queues.declare(settings))
            return
        chosen = next((each for each in settings if each.name == queue), None)
        self.both(lambda store: store.queues.override(queue, chosen))

    @_may_idle
    @rule(settings=st.lists(drawn_limits.task_settings, max_size=2))
    def set_tasks(self, settings: list[TaskSettings]) -> None:
        self.both(lambda store: store.queues.declare_tasks(settings))

    @_may_idle
    @rule(
        queue=st.sampled_from(QUEUES),
        part=drawn_limits.parts,
        paused=st.sampled_from([True, False, False]),
    )
    def pause(self, queue: str, part: dict[str, str], *, paused: bool) -> None:
        self.both(lambda store: store.queues.pause(queue, paused=paused, **part))

    @_may_idle
    @rule(queue=st.sampled_from(QUEUES), closed=st.sampled_from([True, False, False]))
    def close_queue(self, queue: str, *, closed: bool) -> None:
        self.both(lambda store: store.queues.close_queue(queue, closed=closed))

    @_may_idle
    @rule(span_us=drawn_limits.spans_us)
    def time_passes(self, span_us: int) -> None:
        self.clock.advance(span_us / SECOND_US)

    @_may_work
    @rule(worker=drawn.workers, served=drawn.served, limit=st.integers(1, 3))
    def wait_as_told(
        self, worker: str, served: tuple[tuple[str, ...], tuple[str, ...]], limit: int
    ) -> None:
        """Whoever was given nothing more misses nothing before the instant he was told."""
        request = ClaimRequest(worker, *served, limit, TIMEOUT_US)
        self._renew(worker, *served, lease_us=_LONG_LEASE_US)
        told = self._claim(request)
        while told.jobs:
            told = self._claim(request)
        outlook = self.both(lambda store: store.inspection.outlook(worker, *served))
        assert outlook is not None
        assert not outlook.ready or told.suspects
        ready = self._ready()
        self._pass_until((told.next_due_us or told.now_us + DAY_US) - 1)
        assert not self._claim(request).jobs, "a job could run before the worker was told to ask"
        self._pass_until(told.next_due_us or 0)
        for job in self._claim(request).jobs:
            if job.id in ready and not outlook.ready:
                free_us = outlook.limit_free_us
                assert free_us is not None
                assert free_us <= self.clock.now_us(), "a burst worker was told to wait too long"

    # --------------------------------------------------------------------------------- helpers

    def _claim(self, request: ClaimRequest) -> Claimed:
        answer = self.both(lambda store: store.jobs.claim(request))
        assert answer is not None
        for job in answer.jobs:
            self._hold(request.worker, job)
        return answer

    def _hold(self, worker: str, job: Job) -> None:
        self.held[job.id] = (worker, job)
        self.worked = True

    def _ready(self) -> set[str]:
        """Those that nothing but a gate may hold back."""
        return set(self.subject.search(statuses=(JobStatus.QUEUED,)))

    def _pass_until(self, instant_us: int) -> None:
        self.clock.advance(max(0, instant_us - self.clock.now_us()) / SECOND_US)


class _Refused(msgspec.Struct, frozen=True):
    """An error, with all that a program may ask of it."""

    error: type[PackhorseError]
    details: dict[str, Any]


def _attempt(trial: Trial, build: Callable[[Store], Plan[T]]) -> T | _Refused:
    try:
        return trial.run(build(trial.store))
    except PackhorseError as error:
        return _Refused(type(error), vars(error))


def _timeless(answer: Any) -> Any:
    """Without the instants at which time opens something: a store may be early there."""
    match answer:
        case Claimed():
            return msgspec.structs.replace(answer, next_due_us=None)
        case Outlook():
            return msgspec.structs.replace(answer, limit_free_us=None)
        case [Outlook(), *_]:
            return [_timeless(each) for each in answer]
        case _:
            return answer


def _observe(
    trial: Trial, known: Observation | None = None, *, jobs_only: bool = False
) -> Observation:
    """All there is to see, and why each job does not run, unless the job is as in `known`.

    Nothing takes as long, and why a job does not run is found out when it is asked, so that a step
    at which all is asked finds out about the steps before it too.
    """
    seen, run, store = observe(trial, known, jobs_only=jobs_only), trial.store.run, trial.store
    rest = {name: _timeless(answer) for name, answer in seen.rest.items()}
    rest["tasks"] = run(store.queues.tasks())
    for job_id, record in seen.records.items():
        if known is None or known.records.get(job_id) != record:
            rest[f"why {job_id}"] = run(store.inspection.explain(job_id))
    return msgspec.structs.replace(seen, rest=rest)
