# SPDX-License-Identifier: MIT
"""A state machine that does the same to a store and to the reference, and compares them.

Both use one clock. After each step the answers, and then everything there is to see, must be the
same, and the invariants of every job must hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from packhorse.core.clock import SECOND_US
from packhorse.core.job import WAITING, Job, JobStatus, NewJob, Progress
from packhorse.core.lifecycle import CancelAnswer, JobRules, Orphan, rescue
from packhorse.core.lifecycle import settle as decide
from packhorse.core.outcome import Outcome
from packhorse.core.settlement import Settlement, Verdict
from packhorse.errors import PackhorseError
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import (
    Claimed,
    ClaimRequest,
    JobFilter,
    ProgressNote,
    QueueSettings,
    Renewal,
    Submitted,
)
from packhorse.testing.conformance import drawn
from packhorse.testing.conformance.drawn import QUEUES, TASKS, WORKERS
from packhorse.testing.conformance.harness import ReferenceHarness
from packhorse.testing.conformance.observation import Observation, check_change, comparable, observe
from packhorse.testing.conformance.properties import try_machine
from packhorse.testing.conformance.samples import LEASE_US, TIMEOUT_US
from packhorse.testing.conformance.trial import EVERYTHING, RunnerName, Trial, Trials
from packhorse.testing.virtual_clock import VirtualClock

T = TypeVar("T")

_ROLL: Final = 0.5
_UPKEEP: Final = ("promote", "expire", "park", "prune")
#: Steps without work in a row; with more, a run would mostly compare idle stores.
_IDLE_MAX: Final = 3
#: After this many steps, read everything again, also histories of unchanged jobs.
_READ_ALL_EVERY: Final = 5
#: After this many steps, read more than jobs: differences there do not go away by themselves.
_READ_MORE_EVERY: Final = 2
#: Submit no more jobs while this many wait.
_WAITING_MAX: Final = 8
_picks = st.integers(0, 1000)  #: which of several, by remainder

_may_submit = precondition(lambda self: self.waiting < _WAITING_MAX)
may_work = precondition(lambda self: self.waiting > 0)
may_settle = precondition(lambda self: self.held)
may_idle = precondition(lambda self: self.idle < _IDLE_MAX)


class TestMachine:
    """The store does what the reference does."""

    def test_the_store_agrees_with_the_reference(self, trials: Trials, runner: RunnerName) -> None:
        try_machine(StoreMachine, trials, runner)


class Refused(msgspec.Struct, frozen=True):
    """An error, and its details as far as they are compared."""

    error: type[PackhorseError]
    details: dict[str, Any] = {}


class StoreMachine(RuleBasedStateMachine):
    """Each rule is something that workers, producers, operators or time may do."""

    jobs: Bundle[str] = Bundle("jobs")
    claims: Bundle[tuple[str, Job]] = Bundle("claims")  #: (worker, job), of any age
    sightings: Bundle[Orphan] = Bundle("sightings")  #: orphans that a rescuer has seen once

    def __init__(self, trials: Trials, runner: RunnerName) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self._stack = ExitStack()
        self.subject = self._stack.enter_context(trials.fresh(runner, clock=self.clock))
        self.reference = Trial(ReferenceHarness(self.clock), self.clock, "run")
        self._stack.callback(self.reference.close)
        self.submitted = 0
        self.held: dict[str, tuple[str, Job]] = {}  # by job id: claims that are still valid
        self.settled: set[tuple[str, int]] = set()
        self.ended: Counter[str] = Counter()
        self.redriven: set[str] = set()
        self.removing = self.worked = self.jobs_only = False
        self.idle = self.waiting = self.steps = 0
        self.before = observe(self.subject)

    def teardown(self) -> None:
        self._stack.close()

    def both(self, build: Callable[[Store], Plan[T]]) -> T | None:
        """Do the same to both, compare the answers, and return one; None when both refused."""
        expected, got = self._answer(self.reference, build), self._answer(self.subject, build)
        assert self.comparable(got) == self.comparable(expected)
        return None if isinstance(got, Refused) else got

    def _answer(self, trial: Trial, build: Callable[[Store], Plan[T]]) -> T | Refused:
        try:
            return trial.run(build(trial.store))
        except PackhorseError as error:
            return self.refused(error)

    def refused(self, error: PackhorseError) -> Refused:
        """Return what both stores must agree on when they refuse."""
        return Refused(type(error))

    def comparable(self, answer: Any) -> Any:
        """Return an answer without what may differ between stores."""
        return comparable(answer)

    def observed(
        self, trial: Trial, known: Observation | None = None, *, jobs_only: bool = False
    ) -> Observation:
        """Read everything there is to see."""
        return observe(trial, known, jobs_only=jobs_only)

    def stored(self, jobs: Sequence[NewJob], *, singly: bool) -> list[Submitted]:
        """Submit jobs together, or each by itself, with `ids_are_new`."""
        answers = list[Submitted]()
        for given in [(job,) for job in jobs] if singly else [jobs]:
            answers += self._submit(given, ids_are_new=singly) or ()
        return answers

    def _submit(self, jobs: Sequence[NewJob], *, ids_are_new: bool) -> Iterable[Submitted] | None:
        return self.both(lambda store: store.jobs.submit(jobs, ids_are_new=ids_are_new))

    @invariant()
    def everything_to_be_seen_is_the_same(self) -> None:
        seen = self.observed(self.subject, self.known(), jobs_only=self.jobs_only)
        expected = self.observed(self.reference, jobs_only=self.jobs_only)
        assert seen.records == expected.records
        assert seen.histories == expected.histories
        for name, answer in seen.rest.items():
            assert answer == expected.rest[name], name
        check_change(self.before, seen, redriven=self.redriven, removing=self.removing)
        self._carry_on(seen)

    def known(self) -> Observation | None:
        """Return what was seen before this step; None at some steps, to read everything again."""
        self.steps += 1
        self.jobs_only = self.steps % _READ_MORE_EVERY != 0
        return None if self.steps % _READ_ALL_EVERY == 0 else self.before

    def _carry_on(self, seen: Observation) -> None:
        for job_id in self.before.records.keys() - seen.records.keys():
            del self.ended[job_id]
            self.settled = {mark for mark in self.settled if mark[0] != job_id}
        for job_id, record in seen.records.items():
            assert record.counters.attempts == self.ended[job_id]
        running = {
            (record.id, record.fence)
            for record in seen.records.values()
            if record.status is JobStatus.PROCESSING
        }
        self.held = {
            job_id: claim
            for job_id, claim in self.held.items()
            if (job_id, claim[1].fence) in running
        }
        self.waiting = sum(record.status in WAITING for record in seen.records.values())
        self.idle = 0 if self.worked else self.idle + 1
        self.before, self.redriven, self.removing, self.worked = seen, set(), False, False

    # There are few rules, and each does one of several things. A run draws only some of the rules,
    # so many rules that do one thing each would seldom occur together.

    # ------------------------------------------------------------------------------- producers

    @initialize(target=jobs, wishes=st.lists(drawn.plain_wishes, min_size=2, max_size=4))
    def start(self, wishes: list[dict[str, Any]]) -> Any:
        for worker in WORKERS:
            self._renew(worker, QUEUES, TASKS)
        return self.submit(wishes)

    @_may_submit
    @rule(
        target=jobs,
        wishes=st.lists(drawn.wishes, min_size=1, max_size=3),
        known=st.none() | jobs,
        singly=st.booleans(),
    )
    def submit(
        self, wishes: list[dict[str, Any]], known: str | None = None, *, singly: bool = True
    ) -> Any:
        """Submit jobs; the first may have an id that is, or was, known."""
        now_us = self.clock.now_us()
        ids = [f"job-{self.submitted + number}" for number in range(len(wishes))]
        self.submitted += len(wishes)
        ids[0] = ids[0] if known is None else known
        new = [drawn.as_new_job(*pair, now_us) for pair in zip(ids, wishes, strict=True)]
        answers = self.stored(new, singly=singly and known is None)
        stored = [answer.job_id for answer in answers if not answer.deduplicated]
        return multiple(*(job_id for job_id in stored if job_id != known))

    # --------------------------------------------------------------------------------- workers

    @may_work
    @rule(
        target=claims,
        worker=drawn.workers,
        served=drawn.served,
        quarantine=st.sampled_from([False, False, True]),
        live=st.sampled_from([True, True, True, False]),
        results=st.lists(drawn.outcomes, min_size=1, max_size=3),
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
        live: bool,
    ) -> Any:
        """Claim as many jobs as there are results, settle some, and hold on to the others."""
        if live:
            self._renew(worker, *served)
        request = ClaimRequest(worker, *served, len(results), TIMEOUT_US, quarantine)
        jobs = self.claim(request).jobs
        pairs = list(zip(jobs, results, strict=False))
        self._settle([decide(*pair, JobRules(), roll=_ROLL) for pair in pairs[:settled]])
        return multiple(*((worker, job) for job in jobs))

    @may_settle
    @rule(
        first=_picks, results=st.lists(drawn.outcomes, min_size=1, max_size=3), limits=drawn.limits
    )
    def settle(self, first: int, results: list[Outcome], limits: JobRules) -> None:
        """Settle different jobs if there are enough, else one job in several ways."""
        held = [job for _, job in self.held.values()]
        chosen = [held[(first + number) % len(held)] for number in range(len(results))]
        pairs = zip(chosen, results, strict=True)
        self._settle([decide(job, outcome, limits, roll=_ROLL) for job, outcome in pairs])

    @may_idle
    @rule(
        claim=claims,
        outcome=drawn.outcomes | drawn.notes,
        step=st.sampled_from([0, 0, -1, 1]),
    )
    def write_with_a_fence_of_any_age(
        self, claim: tuple[str, Job], outcome: Outcome | Progress, step: int
    ) -> None:
        job = msgspec.structs.replace(claim[1], fence=claim[1].fence + step)
        if isinstance(outcome, Progress):
            note = ProgressNote(job.id, job.fence, outcome)
            self.both(lambda store: store.jobs.note_progress([note]))
        else:
            self._settle([decide(job, outcome, JobRules(), roll=_ROLL)])

    @may_idle
    @rule(worker=drawn.workers, kept=st.integers(0, 7), step=st.sampled_from([0, 0, 0, 1]))
    def say_what_is_held(self, worker: str, kept: int, step: int) -> None:
        """Let a worker name some of what it holds, at times with a wrong fence, or leave."""
        if not kept:
            self.both(lambda store: store.leases.leave(worker))
            return
        mine = [job for owner, job in self.held.values() if owner == worker]
        named = [job for number, job in enumerate(mine) if kept >> number & 1]
        held = tuple((job.id, job.fence + step) for job in named)
        self._renew(worker, QUEUES, TASKS, held)

    @may_settle
    @rule(target=sightings, pick=_picks, late=st.sampled_from([False, False, True]))
    def crash(self, pick: int, *, late: bool) -> Any:
        """Let the lease of one worker expire and renew the others; rescue its jobs now or later."""
        holders = [owner for owner, _ in self.held.values()]
        worker = holders[pick % len(holders)]
        for other in WORKERS:
            if other != worker:
                self._renew(other, QUEUES, TASKS, lease_us=2 * LEASE_US)
        self.clock.advance(LEASE_US / SECOND_US)
        found = self.both(lambda store: store.leases.orphans([worker], limit=EVERYTHING)) or ()
        orphans = sorted(found, key=str)
        if not late:
            self._settle([rescue(orphan) for orphan in orphans])
        return multiple(*orphans)

    # ------------------------------------------------------------- rescuers, operators, upkeep

    @may_idle
    @rule(orphan=sightings)
    def rescue_what_was_seen(self, orphan: Orphan) -> None:
        self._settle([rescue(orphan)])

    @may_idle
    @rule(
        chosen=st.lists(jobs, min_size=1, max_size=3),
        wish=st.sampled_from(["cancel", "redrive", "await"]),
        tenant=drawn.tenants,
    )
    def operate(self, chosen: list[str], wish: str, tenant: str | None) -> None:
        if wish == "redrive":
            self.redriven.update(chosen)
            self.both(lambda store: store.jobs.redrive(chosen, tenant=tenant))
        elif wish == "cancel":
            answer = self.both(lambda store: store.jobs.cancel(chosen[0], tenant=tenant))
            if answer is CancelAnswer.CANCELLED and chosen[0] in self.held:
                self.ended[chosen[0]] += 1  # its worker was lost
        else:
            self.both(lambda store: store.jobs.await_finish(chosen[0]))

    @may_idle
    @rule(
        settings=st.lists(drawn.queue_settings, max_size=2),
        queue=st.sampled_from(QUEUES),
        paused=st.sampled_from([False, False, True]),
    )
    def set_queues(self, settings: list[QueueSettings], queue: str, *, paused: bool) -> None:
        self.both(lambda store: store.queues.declare(settings))
        self.both(lambda store: store.queues.pause(queue, paused=paused))

    @may_idle
    @rule(verb=st.sampled_from(_UPKEEP), after_us=drawn.spans_us, limit=st.integers(1, 3))
    def keep_up(self, verb: str, after_us: int, limit: int) -> None:
        """Limit only promotion: it is the only verb that promises an order."""
        self.removing = verb == "prune"
        arguments = {"limit": limit if verb == "promote" else EVERYTHING}
        if verb == "park":
            arguments["after_us"] = after_us
        self.both(lambda store: getattr(store.upkeep, verb)(**arguments))

    @may_idle
    @rule(chosen=drawn.filters, limit=st.integers(1, 3), removing=st.booleans())
    def search(self, chosen: JobFilter, limit: int, *, removing: bool) -> None:
        self.both(lambda store: store.inspection.search(chosen, limit=limit))
        if removing:
            self.removing = True
            self.both(lambda store: store.jobs.delete(chosen, limit=EVERYTHING))

    @may_idle
    @rule(span_us=drawn.spans_us)
    def time_passes(self, span_us: int) -> None:
        self.clock.advance(span_us / SECOND_US)

    # --------------------------------------------------------------------------------- helpers

    def claim(self, request: ClaimRequest) -> Claimed:
        """Claim jobs, whose fences must have risen, and hold them."""
        answer = self.both(lambda store: store.jobs.claim(request))
        assert answer is not None
        for job in answer.jobs:
            assert job.fence > self.before.records[job.id].fence
            self.held[job.id] = (request.worker, job)
            self.worked = True
        return answer

    def _renew(
        self,
        worker: str,
        queues: tuple[str, ...],
        tasks: tuple[str, ...],
        held: tuple[tuple[str, int], ...] | None = None,
        *,
        lease_us: int = LEASE_US,
    ) -> None:
        renewal = Renewal(worker, lease_us, queues, tasks, host="stable", held=held)
        self.both(lambda store: store.leases.renew(renewal))

    def _settle(self, settlements: list[Settlement]) -> None:
        verdicts = self.both(lambda store: store.jobs.settle(settlements))
        self._count(zip(settlements, verdicts or (), strict=True))

    def _count(self, settled: Iterable[tuple[Settlement, Verdict]]) -> None:
        """Of settlements with one fence, the first that was not stale ended the attempt."""
        for settlement, verdict in settled:
            mark = (settlement.job_id, settlement.fence)
            if verdict is not Verdict.STALE and mark not in self.settled:
                self.worked = True
                self.settled.add(mark)
                self.ended[settlement.job_id] += settlement.ended
