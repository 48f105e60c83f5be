# SPDX-License-Identifier: MIT
"""A state machine that changes records of a store and of the reference, and compares."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
)

from packhorse.core.clock import SECOND_US
from packhorse.core.job import UniqueRule
from packhorse.core.policies.records import Add, Carry, Put, Record, RecordChange, RecordId, Remove
from packhorse.errors import PackhorseError
from packhorse.stores.records import Changed
from packhorse.testing.conformance.harness import ReferenceHarness
from packhorse.testing.conformance.properties import try_machine
from packhorse.testing.conformance.samples import new_job
from packhorse.testing.conformance.trial import EVERYTHING, RunnerName, Trial, Trials
from packhorse.testing.virtual_clock import VirtualClock

_IDS: Final = (
    *(RecordId("a", "", "x"), RecordId("a", "", "y"), RecordId("a", "acme", "x")),
    RecordId("ab", "", ""),
)
_ids = st.sampled_from(_IDS)
_orders = st.sampled_from([None, -1, 0, 2**60])
_keeps_us = st.sampled_from([None, None, 1, SECOND_US])
#: The present version, none, an old one, or any.
_expected = st.sampled_from(["there", "there", "none", "old", "any"])


class TestRecordsMachine:
    """The store changes records as the reference does."""

    def test_the_store_agrees_with_the_reference(self, trials: Trials, runner: RunnerName) -> None:
        try_machine(RecordsMachine, trials, runner)


class RecordsMachine(RuleBasedStateMachine):
    """Each rule changes records, or lets time pass."""

    def __init__(self, trials: Trials, runner: RunnerName) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self._stack = ExitStack()
        self.subject = self._stack.enter_context(trials.fresh(runner, clock=self.clock))
        self.reference = Trial(ReferenceHarness(self.clock), self.clock, "run")
        self._stack.callback(self.reference.close)
        self.given: set[tuple[RecordId, int]] = set()  # versions that records have had
        self.jobs = 0

    def teardown(self) -> None:
        self._stack.close()

    @rule(
        named=st.lists(_ids, min_size=1, max_size=3),
        kind=st.sampled_from(["put", "put", "add", "remove", "carry"]),
        expected=_expected,
        order=_orders,
        keep_us=_keeps_us,
        with_jobs=st.booleans(),
    )
    def change(
        self, named: list[RecordId], kind: str, expected: str, *, with_jobs: bool, **asked: Any
    ) -> None:
        changes = [self._drawn(one, kind, expected, **asked) for one in named]
        jobs = [new_job(f"job-{self.jobs}", unique=UniqueRule("u"))] if with_jobs else []
        self.jobs += with_jobs
        answer = self._both(lambda trial: trial.store.records.change(changes, jobs=jobs))
        if isinstance(answer, Changed) and answer.applied and kind in {"put", "carry"}:
            new = set(zip(named, answer.versions, strict=True))
            assert not new & self.given
            self.given |= new

    def _drawn(
        self, named: RecordId, kind: str, expected: str, *, order: int | None, keep_us: int | None
    ) -> RecordChange:
        there = self.reference.run(self.reference.store.records.record(named))
        version = 0 if there is None else there.version
        wanted = {"there": version, "none": 0, "old": version - 1, "any": None}[expected]
        match kind:
            case "put":
                return Put(named, b"%d" % self.jobs, wanted, order, keep_us)
            case "add":
                return Add(named, {"n": 2**61, "m": -1}, writer=expected, number=self.jobs)
            case "remove":
                return Remove(named, wanted)
            case _:
                return Carry(Record(named, b"carried", self.clock.now_us() - 5, order))

    @rule(span_us=st.sampled_from([0, 1, SECOND_US]))
    def pass_time(self, span_us: int) -> None:
        self.clock.advance(span_us / SECOND_US)

    @rule(limit=st.sampled_from([1, EVERYTHING]))
    def prune(self, limit: int) -> None:
        self._both(lambda trial: trial.store.upkeep.prune(limit=limit))

    @invariant()
    def everything_to_be_seen_is_the_same(self) -> None:
        for by_order in (False, True):
            for kind in ("a", "ab") if by_order else ("a", "ab", None):
                self._both(
                    lambda trial, kind=kind, by_order=by_order: trial.store.records.records(
                        kind, by_order=by_order, limit=2
                    )
                )
        for named in _IDS:
            self._both(lambda trial, named=named: trial.store.records.record(named))
        self._both(lambda trial: trial.store.inspection.counts())

    def _both(self, build: Any) -> Any:
        """Do the same to both, and compare the answers."""
        answers = []
        for trial in (self.reference, self.subject):
            try:
                answers.append(trial.run(build(trial)))
            except PackhorseError as error:
                answers.append(type(error))
        assert answers[1] == answers[0]
        return answers[1]
