# SPDX-License-Identifier: MIT
"""The state machine with members of groups, whose journal lines are folded at times.

It compares with the reference as `machine.StoreMachine` does, and compares the journals too. Lines
of different jobs may come in any order, so they are compared per job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from packhorse.core.job import JobOptions, NewJob
from packhorse.core.policies.journal import Group, JournalLine, member_of
from packhorse.core.policies.records import Put, Remove
from packhorse.core.settlement import Settlement
from packhorse.stores.requests import Submitted
from packhorse.testing.conformance.machine import StoreMachine
from packhorse.testing.conformance.properties import try_machine
from packhorse.testing.conformance.trial import EVERYTHING, RunnerName, Trial, Trials

_GROUPS: Final = (Group("batch", "", "a", "1"), Group("batch", "acme", "a", "1"))
_groups = st.sampled_from(_GROUPS)


class TestJournalMachine:
    """The store writes the journal lines that the reference writes."""

    def test_the_store_agrees_with_the_reference(self, trials: Trials, runner: RunnerName) -> None:
        try_machine(JournalMachine, trials, runner)


class JournalMachine(StoreMachine):
    """The rules of `StoreMachine`; most jobs are members of groups."""

    def __init__(self, trials: Trials, runner: RunnerName) -> None:
        super().__init__(trials, runner)
        self.folded: Counter[str] = Counter()  # by job id: ends minus redrives
        self.removed: Counter[str] = Counter()  # the same, for removed jobs

    def stored(self, jobs: Sequence[NewJob], *, singly: bool) -> list[Submitted]:
        """Make two of three jobs members of groups."""
        return super().stored([_as_member(job) for job in jobs], singly=singly)

    def _settle(self, settlements: list[Settlement]) -> None:
        """Give some settlements counts of items."""
        counted = [None, (2, 1), (3, 0)]
        super()._settle(
            [
                msgspec.structs.replace(one, counted=counted[(one.fence + at) % 3])
                for at, one in enumerate(settlements)
            ]
        )

    @rule(group=_groups, there=st.booleans())
    def begin_or_end(self, group: Group, *, there: bool) -> None:
        """Add or remove the record of a group: its members are kept while it exists."""
        change = Put(group.record, b"{}") if there else Remove(group.record)
        self.both(lambda store: store.records.change([change]))

    @rule(group=_groups, most=st.integers(1, 3), gone=st.sampled_from([False, False, True]))
    def fold(self, group: Group, most: int, *, gone: bool) -> None:
        """Fold the oldest lines of a job, or try to, in each store by their own numbers."""
        lines = _lines(self.reference, group)
        job_id = lines[0].job_id if lines else ""
        for trial in (self.reference, self.subject):
            own = [line for line in _lines(trial, group) if line.job_id == job_id][:most]
            ids = [line.id for line in own] + [10**9] * gone
            answer = trial.run(trial.store.journal.fold(group, ids, [Put(group.record, b"1")]))
            assert answer.gone == ((10**9,) if gone else ())
            if trial is self.subject and not gone:
                self._fold_seen(own)

    def _fold_seen(self, lines: Sequence[JournalLine]) -> None:
        for line in lines:
            self.folded[line.job_id] += 1 if line.status.is_final else -1

    @invariant()
    def the_journals_tell_the_same(self) -> None:
        standing = Counter(self.folded)
        for group in _GROUPS:
            seen, expected = _lines(self.subject, group), _lines(self.reference, group)
            assert _by_job(seen) == _by_job(expected)
            for line in seen:
                standing[line.job_id] += 1 if line.status.is_final else -1
        named = [set(_named(trial)) for trial in (self.subject, self.reference)]
        assert named[0] == named[1]
        self._each_end_has_its_line(standing)

    def _each_end_has_its_line(self, standing: Counter[str]) -> None:
        """A job is final if it has one more line of an end than of a redrive."""
        records = self.before.records
        for job_id in standing.keys() - records.keys():
            self.removed[job_id] = standing[job_id]  # its id may be used again
        for job_id, record in records.items():
            if member_of(record.options) is not None:
                assert standing[job_id] - self.removed[job_id] == record.status.is_final


def _as_member(job: NewJob) -> NewJob:
    number = int(job.id.rpartition("-")[2]) % 3
    if number == len(_GROUPS):
        return job
    options = job.options or JobOptions()
    member = _GROUPS[number].member(job.id)
    return msgspec.structs.replace(job, options=msgspec.structs.replace(options, member=member))


def _lines(trial: Trial, group: Group) -> tuple[JournalLine, ...]:
    return trial.run(trial.store.journal.journal(group, limit=EVERYTHING))


def _named(trial: Trial) -> tuple[Group, ...]:
    return trial.run(trial.store.journal.journal_groups(limit=EVERYTHING))


def _by_job(lines: Sequence[JournalLine]) -> dict[str, list[Any]]:
    """Return the lines of each job, in order. A job that was shed may never have been ready."""
    found: dict[str, list[Any]] = {}
    for line in lines:
        told = (line.node, line.status, line.was.is_final, line.items, line.failed)
        found.setdefault(line.job_id, []).append(told)
    return found
