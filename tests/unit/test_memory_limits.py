# SPDX-License-Identifier: MIT
"""Concurrency, rates, pauses and closings in the reference store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from packhorse.clock import SECOND_US
from packhorse.errors import ConfigError
from packhorse.job import JobStatus, RateRule
from packhorse.settlement import SettlementKind, Verdict
from packhorse.stores.requests import QueueSettings, TaskSettings
from packhorse.testing.conformance.samples import ANNA, BEN, QUEUE, TASK, new_job, settlement_of
from packhorse.testing.conformance.trial import Trial
from tests.unit.memory_trial import memory_trial, state_of, wakes_of

WINDOW_US = 64 * SECOND_US
ONE = RateRule(max=1, window_us=WINDOW_US)
TWO = RateRule(max=2, window_us=WINDOW_US)


def limited(**limits: Any) -> Trial:
    """A store whose default queue has these limits, and one worker."""
    trial = memory_trial()
    trial.declare(QueueSettings(QUEUE, **limits))
    trial.renew()
    return trial


def limit_task(trial: Trial, **limits: Any) -> None:
    trial.run(trial.store.queues.declare_tasks([TaskSettings(TASK, **limits)]))


def given(trial: Trial, **request: Any) -> list[str]:
    return [job.id for job in trial.claim(**request)]


def submit(trial: Trial, *names: str, **changes: Any) -> None:
    trial.submit(*(new_job(name, **changes) for name in names))


# ---------------------------------------------------------------------------------- concurrency


@pytest.mark.req("S1-21")
def test_no_more_of_a_queue_run_at_once_than_may_whoever_asks() -> None:
    trial = limited(concurrency=2)
    submit(trial, "a", "b", "c")

    assert given(trial, worker=ANNA, limit=1) == ["a"]
    assert given(trial, worker=BEN) == ["b"]
    assert given(trial, worker=BEN) == []


def test_a_key_that_is_busy_does_not_hold_up_others() -> None:
    trial = limited()
    limit_task(trial, concurrency=1)
    submit(trial, "k1", "k2", concurrency_key="k")
    submit(trial, "free", concurrency_key="other")
    submit(trial, "keyless", "keyless2")

    assert given(trial) == ["k1", "free", "keyless"]


def test_a_task_is_limited_over_all_queues() -> None:
    trial = limited()
    limit_task(trial, concurrency=1)
    submit(trial, "here")
    submit(trial, "there", queue="elsewhere")

    assert given(trial, queues=(QUEUE, "elsewhere")) == ["here"]


@pytest.mark.parametrize("kind", [SettlementKind.COMPLETED, SettlementKind.RELEASED])
def test_whatever_ends_an_attempt_frees_its_slot(kind: SettlementKind) -> None:
    trial = limited(concurrency=1)
    submit(trial, "a", "b")
    (a,) = trial.claim()

    trial.end(a, kind)

    assert len(trial.claim()) == 1


def test_a_crash_leaks_nothing() -> None:
    trial = limited(concurrency=1)
    submit(trial, "a", "b")
    trial.claim("lost")
    trial.let_lease_expire()
    assert given(trial) == []

    trial.rescue("lost")

    assert given(trial) == ["b"]


def test_a_limit_is_changed_at_run_time_and_wakes_workers() -> None:
    trial = limited(concurrency=1)
    submit(trial, "a", "b", "c")
    assert given(trial) == ["a"]

    override = trial.store.queues.override(QUEUE, QueueSettings(QUEUE, concurrency=2))
    assert wakes_of(trial, override) == {f"queue:{QUEUE}", f"room:{QUEUE}"}

    assert given(trial) == ["b"]


def test_a_freed_key_wakes_every_queue_with_a_job_of_the_task() -> None:
    trial = limited()
    limit_task(trial, concurrency=1)
    submit(trial, "a")
    (a,) = trial.claim()
    submit(trial, "b", queue="elsewhere")
    submit(trial, "c", queue="third", task="resize")

    settled = trial.store.jobs.settle([settlement_of(SettlementKind.COMPLETED, a)])

    assert wakes_of(trial, settled) == {"queue:elsewhere"}


# ----------------------------------------------------------------------------------------- rates


@pytest.mark.req("S1-22")
def test_a_rate_limited_job_stays_queued_and_burns_nothing() -> None:
    trial = limited(rate=ONE)
    submit(trial, "a", "b")
    before = trial.record("b")

    answer = trial.ask()

    assert [job.id for job in answer.jobs] == ["a"]
    assert trial.record("b") == before
    assert answer.next_due_us == answer.now_us + SECOND_US - 1 + WINDOW_US
    trial.clock.advance((answer.next_due_us - answer.now_us - 1) / SECOND_US)
    assert given(trial) == []
    trial.clock.advance(1 / SECOND_US)
    assert given(trial) == ["b"]


def test_a_grant_is_never_refunded() -> None:
    trial = limited(rate=ONE)
    submit(trial, "a")
    (a,) = trial.claim()

    trial.end(a, SettlementKind.RELEASED)

    assert given(trial) == []


@pytest.mark.req("S0-15", "S0-16")
def test_a_tenant_at_its_limit_does_not_delay_another() -> None:
    trial = limited(tenant_rate=ONE, rate=RateRule(3, WINDOW_US))
    submit(trial, "a1", tenant="a")
    submit(trial, "a2", tenant="a", weight=1)
    submit(trial, "b1", tenant="b")

    assert given(trial) == ["a1", "b1"]


def test_each_rate_key_has_a_limit_of_its_own() -> None:
    trial = limited()
    limit_task(trial, rate=ONE)
    submit(trial, "k1", "k2", rate_key="k")
    submit(trial, "l1", rate_key="l")
    submit(trial, "none1", "none2")

    assert given(trial) == ["k1", "l1", "none1"]


def test_a_heavy_job_is_not_overtaken_by_light_ones_of_its_gate() -> None:
    trial = limited(rate=TWO)
    submit(trial, "first")
    submit(trial, "heavy", weight=2)
    submit(trial, "light")

    assert given(trial) == ["first"]
    trial.advance_us(WINDOW_US + SECOND_US)
    assert given(trial) == ["heavy"]


def test_who_has_used_up_a_limit_of_his_own_does_not_close_the_whole_queue() -> None:
    trial = limited(rate=RateRule(3, WINDOW_US), tenant_rate=TWO)
    submit(trial, "a1", tenant="a")
    submit(trial, "a2", tenant="a", weight=2)
    submit(trial, "b1", tenant="b", weight=2)

    assert given(trial) == ["a1", "b1"]


def test_a_weight_above_the_limit_is_refused_and_nothing_is_stored() -> None:
    trial = limited(rate=TWO)

    with pytest.raises(ConfigError, match="weight is 3"):
        trial.submit(new_job("fine"), new_job("heavy", weight=3))

    assert trial.search() == []


def test_a_job_that_a_lowered_limit_can_never_let_in_blocks_nobody() -> None:
    trial = limited(rate=TWO)
    submit(trial, "heavy", weight=2)
    submit(trial, "light")
    trial.declare(QueueSettings(QUEUE, rate=ONE))

    assert given(trial) == ["light"]


def test_a_full_claim_says_nothing_of_limits_that_another_would_meet() -> None:
    trial = limited(rate=ONE)
    submit(trial, "a", "b")

    assert trial.ask(limit=1).next_due_us is None


def test_after_the_clock_was_set_back_a_limit_frees_within_a_window() -> None:
    trial = limited(rate=ONE)
    submit(trial, "a", "b")
    assert given(trial) == ["a"]

    trial.clock.step(-3600)
    assert given(trial) == []
    trial.advance_us(WINDOW_US + SECOND_US)

    assert given(trial) == ["b"]


def test_logs_and_closings_that_are_over_are_forgotten() -> None:
    trial = limited(rate=ONE)
    submit(trial, "a")
    (a,) = trial.claim()
    trial.end(a, SettlementKind.LIMITED)
    trial.run(trial.store.upkeep.prune(limit=10))
    assert state_of(trial).grants
    assert state_of(trial).shut

    trial.advance_us(WINDOW_US + SECOND_US)
    trial.run(trial.store.queues.pause(QUEUE, paused=True, key="k"))
    trial.run(trial.store.upkeep.prune(limit=10))

    assert not state_of(trial).grants
    assert list(state_of(trial).shut.values()) == [None]


# ------------------------------------------------------------------------- limits of other people


def test_a_limited_job_keeps_its_place_burns_nothing_and_closes_its_key() -> None:
    trial = limited()
    submit(trial, "k1", "k2", rate_key="k")
    submit(trial, "l1", rate_key="l")
    k1, *_ = trial.claim(limit=1)

    assert trial.end(k1, SettlementKind.LIMITED) is Verdict.APPLIED

    record = trial.record("k1")
    assert record.status is JobStatus.QUEUED
    assert (record.counters.releases, record.counters.failures) == (1, 0)
    assert [line.status for line in trial.history("k1")] == [JobStatus.QUEUED]
    answer = trial.ask()
    assert [job.id for job in answer.jobs] == ["l1"]
    assert answer.next_due_us == answer.now_us + 5 * SECOND_US
    trial.advance_us(5 * SECOND_US)
    assert given(trial) == ["k1", "k2"]


def test_a_later_word_never_makes_a_closing_shorter() -> None:
    trial = limited()
    submit(trial, "a", "b")
    long, short = (settlement_of(SettlementKind.LIMITED, job) for job in trial.claim())

    trial.settle(msgspec.structs.replace(long, limit_us=60 * SECOND_US))
    trial.settle(short)

    trial.advance_us(60 * SECOND_US - 1)
    assert given(trial) == []
    trial.advance_us(1)
    assert given(trial) == ["a", "b"]


def test_a_cancelled_job_still_closes_its_gate() -> None:
    trial = limited()
    submit(trial, "a", "b")
    a, *_ = trial.claim(limit=1)
    trial.run(trial.store.jobs.cancel("a"))

    assert trial.end(a, SettlementKind.LIMITED) is Verdict.CANCELLED

    assert given(trial) == []


# ------------------------------------------------------------------------------ pause and close


@pytest.mark.parametrize("field", ["ordering_key", "concurrency_key", "rate_key"])
def test_jobs_of_a_paused_key_are_not_given_out_until_it_is_resumed(field: str) -> None:
    trial = limited()
    submit(trial, "held", **{field: "k"})
    submit(trial, "free", **{field: "other"})
    pause = trial.store.queues.pause

    assert trial.run(pause(QUEUE, paused=True, key="k"))
    assert not trial.run(pause(QUEUE, paused=True, key="k"))
    assert given(trial) == ["free"]
    assert wakes_of(trial, pause(QUEUE, paused=False, key="k")) == {f"queue:{QUEUE}"}
    assert given(trial) == ["held"]


@pytest.mark.parametrize("tenant", ["", "acme"])
def test_jobs_of_a_paused_tenant_are_not_given_out(tenant: str) -> None:
    trial = limited()
    submit(trial, "held", tenant=tenant)
    submit(trial, "free", tenant="other")

    trial.run(trial.store.queues.pause(QUEUE, paused=True, tenant=tenant))

    assert given(trial) == ["free"]
    (state,) = trial.run(trial.store.queues.queues())
    assert (state.paused, state.paused_tenants, state.paused_keys) == (False, (tenant,), ())


def test_a_key_and_a_tenant_are_not_paused_together() -> None:
    with pytest.raises(ConfigError, match="call once for each"):
        limited().store.queues.pause(QUEUE, paused=True, key="k", tenant="t")


def test_queues_that_are_closed_set_or_partly_paused_are_known() -> None:
    trial = memory_trial()
    queues = trial.store.queues
    trial.run(queues.close_queue("closed", closed=True))
    trial.run(queues.override("set", QueueSettings("set", concurrency=3)))
    trial.run(queues.pause("partly", paused=True, key="k"))

    found = {state.settings.name: state for state in trial.run(queues.queues())}

    assert list(found) == ["closed", "partly", "set"]
    assert found["closed"].closed
    assert found["partly"].paused_keys == ("k",)
    assert (found["set"].overridden, found["set"].settings.concurrency) == (True, 3)
    assert not any(state.declared for state in found.values())


# ------------------------------------------------------------------------------- configuration


def test_an_operators_settings_hold_until_they_are_taken_back() -> None:
    trial = limited(concurrency=1)
    override = trial.store.queues.override
    settings = QueueSettings(QUEUE, concurrency=9)

    assert trial.run(override(QUEUE, settings))
    assert not trial.run(override(QUEUE, settings))
    trial.declare(QueueSettings(QUEUE, concurrency=2))
    assert state_of(trial).settings(QUEUE).concurrency == 9
    assert trial.run(override(QUEUE, None))
    assert not trial.run(override(QUEUE, None))

    assert state_of(trial).settings(QUEUE).concurrency == 2


def test_an_operators_shelf_may_not_be_a_queue() -> None:
    trial = limited()

    with pytest.raises(ConfigError, match="as a queue and as the dead-letter shelf"):
        trial.run(trial.store.queues.override("a", QueueSettings("a", dead_letter=QUEUE)))

    trial.run(trial.store.queues.override("a", QueueSettings("a", dead_letter="shelf")))
    with pytest.raises(ConfigError, match="dead-letter shelf of queue 'a'"):
        trial.submit(new_job(queue="shelf"))


def test_a_declaration_that_changes_nothing_wakes_nobody() -> None:
    trial = limited(concurrency=1)

    same = trial.store.queues.declare([QueueSettings(QUEUE, concurrency=1)])
    other = trial.store.queues.declare([QueueSettings(QUEUE, concurrency=2)])

    assert wakes_of(trial, same) == set()
    assert wakes_of(trial, other) == {f"queue:{QUEUE}", f"room:{QUEUE}"}


def test_tasks_are_declared_with_their_limits_and_without_them_again() -> None:
    trial = limited()
    submit(trial, "waiting")
    one, two, none = (TaskSettings(TASK, concurrency=n) for n in (1, 2, None))

    def declare(settings: Sequence[TaskSettings]) -> Any:
        return trial.store.queues.declare_tasks(settings)

    assert trial.run(declare([one])) == (None,)
    assert trial.run(declare([one, TaskSettings("a", rate=ONE)])) == (None, None)
    assert trial.run(declare([two])) == (one,)
    assert wakes_of(trial, declare([two])) == set()
    assert trial.run(trial.store.queues.tasks()) == (TaskSettings("a", rate=ONE), two)
    assert wakes_of(trial, declare([none])) == {f"queue:{QUEUE}"}
    assert trial.run(trial.store.queues.tasks()) == (TaskSettings("a", rate=ONE),)


# ------------------------------------------------------------------- suspects and burst workers


def test_a_suspect_that_a_limit_holds_back_is_not_offered_yet() -> None:
    trial = limited(rate=ONE)
    trial.make_suspect(new_job("suspect"))
    trial.renew()

    held_back = trial.ask()

    assert not held_back.suspects
    assert held_back.next_due_us is not None
    assert trial.claim(quarantine=True) == ()
    trial.clock.advance((held_back.next_due_us - held_back.now_us) / SECOND_US)
    trial.renew()
    assert trial.ask().suspects
    assert given(trial, quarantine=True) == ["suspect"]


def test_a_burst_worker_waits_for_a_limit_and_not_for_a_busy_key() -> None:
    trial = limited(rate=ONE)
    submit(trial, "a", "b")
    outlook = trial.store.inspection.outlook(ANNA, (QUEUE,), (TASK,))
    assert trial.run(outlook).ready
    assert trial.run(outlook).limit_free_us is None

    trial.claim()

    seen = trial.run(outlook)
    assert not seen.ready
    assert seen.limit_free_us == trial.now_us() + SECOND_US - 1 + WINDOW_US
    trial.declare(QueueSettings(QUEUE, concurrency=1))
    seen = trial.run(outlook)
    assert (seen.ready, seen.limit_free_us) == (False, None)
