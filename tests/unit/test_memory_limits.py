# SPDX-License-Identifier: MIT
"""What the reference store keeps of limits and keys is forgotten when it is over."""

from __future__ import annotations

from packhorse.core.clock import SECOND_US
from packhorse.core.job import IdempotencyRule, Priority, RateRule, UniqueRule
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import JobFilter, QueueSettings
from packhorse.testing.conformance.samples import QUEUE, new_job
from tests.unit.memory_trial import memory_trial, state_of

WINDOW_US = 64 * SECOND_US


def test_logs_and_closings_that_are_over_are_forgotten() -> None:
    trial = memory_trial()
    trial.declare(QueueSettings(QUEUE, rate=RateRule(max=1, window_us=WINDOW_US)))
    trial.end(trial.take(new_job("a")), SettlementKind.LIMITED)
    trial.run(trial.store.upkeep.prune(limit=10))
    assert state_of(trial).grants
    assert state_of(trial).shut

    trial.advance_us(WINDOW_US + SECOND_US)
    trial.run(trial.store.queues.pause(QUEUE, paused=True, key="k"))
    trial.run(trial.store.upkeep.prune(limit=10))

    assert not state_of(trial).grants
    assert list(state_of(trial).shut.values()) == [None]


def test_a_removed_job_leaves_no_key_behind() -> None:
    trial = memory_trial()
    same = IdempotencyRule("k", "d", WINDOW_US)
    trial.finish(new_job("a", idempotency=same, unique=UniqueRule("u")))
    trial.run(trial.store.jobs.delete(JobFilter(), limit=1))

    assert state_of(trial).taken == {}


def test_a_job_that_is_shed_at_once_takes_no_place_and_no_pass() -> None:
    trial = memory_trial()
    trial.declare(QueueSettings(QUEUE, max_depth=1, on_full="drop", fair=True))
    trial.submit(new_job("a", tenant="t"))

    trial.submit(new_job("shed", tenant="t"))

    assert state_of(trial).jobs["shed"].place is None
    assert state_of(trial).last_passes[QUEUE, Priority.NORMAL] == {"t": 0}
