# SPDX-License-Identifier: MIT
"""The state machine with attached values, delivered signals, and jobs that wait for signals.

It compares with the reference as `machine.StoreMachine` does, and compares attachments too.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job
from packhorse.core.lifecycle import JobRules
from packhorse.core.lifecycle import settle as decide
from packhorse.core.outcome import Snoozed
from packhorse.core.policies.attachments import Attaching, Attachments
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.testing.conformance import drawn
from packhorse.testing.conformance.machine import StoreMachine, may_settle
from packhorse.testing.conformance.properties import try_machine
from packhorse.testing.conformance.trial import RunnerName, Trials

_names = st.sampled_from(["a", "b"])
_values = st.sampled_from([b"", b"\xff"])


class TestAttachmentsMachine:
    """The store attaches and delivers as the reference does."""

    def test_the_store_agrees_with_the_reference(self, trials: Trials, runner: RunnerName) -> None:
        try_machine(AttachmentsMachine, trials, runner)


class AttachmentsMachine(StoreMachine):
    """The rules of `StoreMachine`, and rules that attach and deliver."""

    @rule(
        claim=StoreMachine.claims,
        values=st.dictionaries(_names, _values, max_size=2),
        step=st.sampled_from([0, 0, 0, 1]),
        also=st.booleans(),
    )
    def attach(
        self, claim: tuple[str, Job], values: dict[str, bytes], step: int, *, also: bool
    ) -> None:
        job = claim[1]
        held = [other for _, other in self.held.values() if also and other.id != job.id]
        kept = [Attaching(job.id, job.fence + step, values)]
        kept += [Attaching(other.id, other.fence, values) for other in held]
        self.both(lambda store: store.attachments.attach(kept))

    @rule(
        job_id=StoreMachine.jobs,
        name=_names,
        value=_values,
        tenant=drawn.tenants,
        delivery=st.sampled_from([0, 0, 1, 2**63 - 1]),
    )
    def deliver(self, job_id: str, **said: Any) -> None:
        self.both(lambda store: store.attachments.deliver(job_id, **said))

    @may_settle
    @rule(pick=st.integers(0, 1000), seen=st.integers(0, 2), batch=st.booleans())
    def wait_for_a_signal(self, pick: int, seen: int, *, batch: bool) -> None:
        held = [job for _, job in self.held.values()]
        chosen = held if batch else [held[pick % len(held)]]
        snoozed = [decide(job, Snoozed(600 * SECOND_US), JobRules(), roll=0.5) for job in chosen]
        self._settle([msgspec.structs.replace(one, waits=seen) for one in snoozed])

    @invariant()
    def queues_are_as_deep(self) -> None:
        for queue in drawn.QUEUES:
            self.both(partial(_depth_of, queue))

    @invariant()
    def what_is_attached_is_the_same(self) -> None:
        if self.jobs_only:
            return
        for job_id in self.before.records:
            self.both(partial(_attached_to, job_id))


def _attached_to(job_id: str, store: Store) -> Plan[Attachments | None]:
    return store.attachments.attachments(job_id)


def _depth_of(queue: str, store: Store) -> Plan[int]:
    return store.queues.depth(queue)
