# SPDX-License-Identifier: MIT
"""What the reference says where a contract leaves room; other stores are compared with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import DeadReason, JobStatus, Progress
from packhorse.core.lifecycle import JobRules
from packhorse.core.policies.retention import DAY_US, Retention
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.stores.requests import ExpiredLease, Parked, ProgressNote, QueueSettings
from packhorse.testing.conformance.samples import ANNA, BEN, QUEUE, TASK, new_job, settlement_of
from packhorse.testing.conformance.trial import Trial
from tests.unit.memory_trial import memory_trial, state_of

MINUTE_US = 60 * SECOND_US


@pytest.fixture
def trial() -> Trial:
    return memory_trial()


# --------------------------------------------------------------------------------------- claims


def test_every_open_queue_is_promoted_also_when_the_first_fills_the_claim(trial: Trial) -> None:
    trial.submit(new_job("first", queue="a"), new_job("due", queue="b", delay_us=1))
    trial.advance_us(1)

    assert [job.id for job in trial.claim(queues=("a", "b"), limit=1)] == ["first"]
    assert trial.status("due") is JobStatus.QUEUED


def test_a_paused_queue_is_not_promoted_by_a_claim_and_tells_no_due_time(trial: Trial) -> None:
    trial.submit(new_job("due", delay_us=1))
    trial.pause()
    trial.advance_us(1)
    trial.renew()

    answer = trial.ask()

    assert answer.next_due_us is None
    assert trial.status("due") is JobStatus.PENDING
    assert trial.run(trial.store.upkeep.promote(limit=1)) == 1


def test_a_claim_without_a_live_lease_promotes_nothing(trial: Trial) -> None:
    trial.submit(new_job("due", delay_us=1))
    trial.advance_us(1)

    answer = trial.ask()

    assert (answer.lease_lost, answer.next_due_us, answer.suspects) == (True, None, False)
    assert trial.status("due") is JobStatus.PENDING


def test_due_jobs_beyond_the_thousand_are_told_as_due_already(trial: Trial) -> None:
    trial.submit(*(new_job(f"job-{n}", delay_us=1) for n in range(1_001)))
    trial.advance_us(1)
    trial.renew()

    assert trial.ask(limit=0).next_due_us == trial.now_us()
    assert trial.ask(limit=0).next_due_us is None


@pytest.mark.parametrize(
    ("asked", "told"),
    [({}, True), ({"tasks": ("resize",)}, False), ({"queues": ("other",)}, False)],
)
def test_a_suspect_is_told_of_only_to_those_who_could_run_it(
    trial: Trial, asked: dict[str, Any], *, told: bool
) -> None:
    trial.make_suspect(new_job("suspect"))
    trial.renew()

    assert trial.ask(**asked).suspects is told


def test_a_suspect_past_its_deadline_is_not_told_of(trial: Trial) -> None:
    trial.make_suspect(new_job("suspect", deadline_us=trial.now_us() + MINUTE_US))
    trial.renew()
    assert trial.ask().suspects

    trial.advance_us(MINUTE_US)
    trial.renew()
    assert not trial.ask().suspects


def test_a_queue_asked_for_twice_is_served_once(trial: Trial) -> None:
    trial.submit(new_job("job"))

    assert len(trial.claim(queues=(QUEUE, QUEUE), tasks=(TASK, TASK))) == 1


def test_the_time_of_becoming_ready_goes_with_the_place(trial: Trial) -> None:
    ready_us = trial.now_us()
    first = trial.take(new_job("job"))
    trial.advance_us(SECOND_US)
    trial.end(first, SettlementKind.RELEASED)
    assert trial.claim_only().ready_us == ready_us

    trial.let_lease_expire()
    trial.rescue(ANNA)
    trial.advance_us(MINUTE_US)
    suspect = trial.claim_only(quarantine=True)
    assert suspect.ready_us == ready_us

    trial.end(suspect, SettlementKind.FAILED)
    trial.advance_us(MINUTE_US)
    assert trial.claim_only().ready_us == trial.now_us()


# ---------------------------------------------------------------------------------- settlements


@pytest.mark.parametrize("kind", [SettlementKind.SNOOZED, SettlementKind.RELEASED])
def test_the_last_error_stays_until_the_job_completes(trial: Trial, kind: SettlementKind) -> None:
    trial.end(trial.take(new_job("job")), SettlementKind.FAILED)
    trial.advance_us(MINUTE_US)
    trial.end(trial.claim_only(), kind)
    assert trial.record("job").error is not None

    trial.advance_us(MINUTE_US)
    trial.end(trial.claim_only())
    assert trial.record("job").error is None


def test_a_job_that_expires_keeps_the_error_it_met_last(trial: Trial) -> None:
    trial.submit(new_job("job", deadline_us=trial.now_us() + MINUTE_US))
    trial.end(trial.claim_only(), SettlementKind.FAILED)
    trial.advance_us(MINUTE_US)
    trial.run(trial.store.upkeep.expire(limit=1))

    record = trial.record("job")
    assert record.dead_reason is DeadReason.EXPIRED
    assert record.error is not None


@pytest.mark.parametrize("verb", ["renew", "leave"])
def test_a_flagged_job_the_store_gives_back_is_cancelled(trial: Trial, verb: str) -> None:
    trial.take(new_job("job"))
    trial.run(trial.store.jobs.cancel("job"))

    if verb == "renew":
        assert trial.renew(held=()).released == 1
    else:
        assert trial.run(trial.store.leases.leave(ANNA)) == 1

    record = trial.record("job")
    assert record.status is JobStatus.CANCELLED
    assert (record.counters.attempts, record.counters.releases) == (0, 1)


@pytest.mark.parametrize("verb", ["renew", "leave"])
def test_a_job_the_store_gives_back_keeps_its_place(trial: Trial, verb: str) -> None:
    trial.take(new_job("job"))
    trial.submit(new_job("next"))
    if verb == "renew":
        trial.renew(held=())
    else:
        trial.run(trial.store.leases.leave(ANNA))

    assert [job.id for job in trial.claim()] == ["job", "next"]


def test_an_overdue_job_the_store_gives_back_is_expired(trial: Trial) -> None:
    trial.take(new_job("job", deadline_us=trial.now_us() + SECOND_US))
    trial.advance_us(SECOND_US)

    trial.renew(held=())

    assert trial.record("job").dead_reason is DeadReason.EXPIRED


def test_a_lost_job_stays_a_suspect_over_release_and_redrive_until_an_attempt_ends(
    trial: Trial,
) -> None:
    trial.make_suspect(new_job("job"))
    trial.end(trial.claim_only(quarantine=True), SettlementKind.RELEASED)
    trial.run(trial.store.jobs.cancel("job"))
    trial.run(trial.store.jobs.redrive(["job"]))
    assert trial.claim() == ()

    trial.end(trial.claim_only(quarantine=True), SettlementKind.FAILED)
    trial.advance_us(MINUTE_US)
    assert trial.claim_only().id == "job"


def test_the_worker_the_start_and_the_progress_stay_after_the_end_and_over_redrive(
    trial: Trial,
) -> None:
    started_us = trial.now_us()
    job = trial.take(new_job("job"), worker=BEN)
    note = ProgressNote(job.id, job.fence, Progress(done=1))
    trial.run(trial.store.jobs.note_progress([note]))
    trial.end(job)
    trial.run(trial.store.jobs.redrive(["job"]))

    record = trial.record("job")
    assert (record.worker, record.started_us) == (BEN, started_us)
    assert record.progress == Progress(done=1)


def test_a_waiting_job_that_is_redriven_gets_fresh_budgets_too(trial: Trial) -> None:
    deadline_us = trial.now_us() + MINUTE_US
    trial.submit(new_job("job", deadline_us=deadline_us))
    trial.end(trial.claim_only(), SettlementKind.FAILED)
    trial.advance_us(MINUTE_US)

    trial.run(trial.store.jobs.redrive(["job"]))

    record = trial.record("job")
    assert (record.counters.failures, record.error, record.deadline_us) == (0, None, None)


def test_a_second_wish_to_cancel_changes_nothing(trial: Trial) -> None:
    trial.take(new_job("job"))
    trial.run(trial.store.jobs.cancel("job"))
    before = trial.picture("job")
    trial.advance_us(1)

    trial.run(trial.store.jobs.cancel("job"))

    assert trial.picture("job") == before


def test_a_job_cancelled_while_it_waited_bears_no_flag(trial: Trial) -> None:
    trial.submit(new_job("job"))
    trial.run(trial.store.jobs.cancel("job"))

    assert not trial.record("job").cancel_requested


def test_the_due_time_of_a_finished_job_is_the_one_it_ran_for(trial: Trial) -> None:
    due_us = trial.now_us() + SECOND_US
    trial.submit(new_job("job", delay_us=SECOND_US))
    trial.advance_us(MINUTE_US)
    trial.end(trial.claim_only())

    assert trial.record("job").due_us == due_us


def test_a_snooze_of_no_time_takes_a_new_place_at_once(trial: Trial) -> None:
    job = trial.take(new_job("job"))
    trial.submit(new_job("next"))
    snoozed = settlement_of(SettlementKind.SNOOZED, job)

    trial.settle(msgspec.structs.replace(snoozed, delay_us=0))

    assert [one.id for one in trial.claim()] == ["next", "job"]


def test_a_repeated_settlement_that_was_cancelled_or_expired_is_answered_applied(
    trial: Trial,
) -> None:
    job = trial.take(new_job("job"))
    trial.run(trial.store.jobs.cancel("job"))

    assert trial.end(job) is Verdict.CANCELLED
    assert trial.end(job) is Verdict.APPLIED


def test_the_wish_of_an_owner_after_the_store_gave_its_job_back_is_stale(trial: Trial) -> None:
    job = trial.take(new_job("job"))
    trial.renew(held=())

    assert trial.end(job, SettlementKind.RELEASED) is Verdict.STALE
    unstarted = msgspec.structs.replace(settlement_of(SettlementKind.RELEASED, job), ended=False)
    assert trial.settle(unstarted) == (Verdict.STALE,)


# --------------------------------------------------------------------------------------- leases


def test_a_lease_the_store_does_not_know_expired_at_instant_zero(trial: Trial) -> None:
    trial.take(new_job("job"))
    state_of(trial).workers.clear()

    assert trial.run(trial.store.leases.expired()).leases == (ExpiredLease(ANNA, 0, 0),)
    assert trial.orphans(ANNA)["job"].lost_us == 0


def test_a_job_was_lost_when_the_first_of_lease_and_hold_ran_out(trial: Trial) -> None:
    trial.take(new_job("lease", timeout_us=MINUTE_US), worker=ANNA)
    lease_us = trial.now_us() + 30 * SECOND_US
    trial.take(new_job("hold", timeout_us=0), worker=BEN)
    hold_us = trial.now_us() + 30 * SECOND_US
    trial.advance_us(20 * SECOND_US)
    trial.renew(BEN)
    trial.advance_us(100 * SECOND_US)

    lost = trial.orphans(ANNA, BEN)

    assert {name: one.lost_us for name, one in lost.items()} == {
        "lease": lease_us,
        "hold": hold_us,
    }


def test_orphans_come_in_the_order_of_submission_and_each_once(trial: Trial) -> None:
    for name, timeout_us in (("b", 0), ("a", MINUTE_US), ("c", 0)):
        trial.take(new_job(name, timeout_us=timeout_us), worker=ANNA)
    trial.advance_us(40 * SECOND_US)

    assert list(trial.orphans(ANNA, ANNA)) == ["b", "a", "c"]
    assert [one.job_id for one in trial.run(trial.store.leases.orphans([ANNA], limit=2))] == [
        *("b", "a")
    ]


def test_a_worker_that_left_is_forgotten_and_begins_again(trial: Trial) -> None:
    trial.renew()
    trial.run(trial.store.leases.leave(ANNA))

    assert trial.run(trial.store.leases.workers()) == ()
    assert trial.renew().lapsed


# --------------------------------------------------------------------------------------- upkeep


def test_what_ends_without_a_settlement_is_kept_as_long_as_its_queue_says(trial: Trial) -> None:
    trial.declare(QueueSettings("mail", retention=Retention(finished_us=5, dead_us=7)))
    deadline_us = trial.now_us()
    trial.submit(
        new_job("cancelled", queue="mail"),
        new_job("expired", queue="mail", deadline_us=deadline_us),
        new_job("by default"),
    )
    for name in ("cancelled", "by default"):
        trial.run(trial.store.jobs.cancel(name))
    trial.run(trial.store.upkeep.expire(limit=9))

    gone = []
    for _ in range(7):
        trial.advance_us(1)
        gone.append(trial.run(trial.store.upkeep.prune(limit=9)))
    assert gone == [0, 0, 0, 0, 1, 0, 1]
    trial.advance_us(DAY_US)
    assert trial.run(trial.store.upkeep.prune(limit=9)) == 1


def test_pruning_takes_the_first_expired_first_a_result_or_a_whole_record(trial: Trial) -> None:
    for name, results_us, finished_us in (("a", 30, 40), ("b", 10, 99), ("c", 50, 20)):
        retention = Retention(finished_us=finished_us, results_us=results_us)
        job = trial.take(new_job(name))
        trial.settle(settlement_of(SettlementKind.COMPLETED, job, JobRules(retention=retention)))
    trial.advance_us(35)

    prune = trial.store.upkeep.prune(limit=1)
    assert trial.record("a").result_expired, "hidden before it is removed"
    seen = []
    while trial.run(prune):
        seen.append([trial.find(name) is not None for name in "abc"])

    assert seen == [[True, True, True], [True, True, False], [True, True, False]]
    assert trial.record("a").result_expired
    assert trial.record("b").result is None
    trial.advance_us(5)
    assert trial.run(prune) == 1
    assert trial.find("a") is None


def test_a_result_kept_for_ever_outlives_nothing_but_its_record(trial: Trial) -> None:
    job = trial.take(new_job("job"))
    retention = Retention(finished_us=None, results_us=5)
    trial.settle(settlement_of(SettlementKind.COMPLETED, job, JobRules(retention=retention)))
    updated_us = trial.now_us()
    trial.advance_us(5)

    assert trial.run(trial.store.upkeep.prune(limit=9)) == 1
    assert trial.run(trial.store.upkeep.prune(limit=9)) == 0
    record = trial.record("job")
    assert (record.result, record.result_expired, record.updated_us) == (None, True, updated_us)


def test_parking_gives_back_first_then_gives_up_then_sets_aside(trial: Trial) -> None:
    trial.declare(QueueSettings(QUEUE, dead_letter="shelf"))
    trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
    trial.submit(new_job("known soon", task="a"), new_job("never", task="b"))
    park = trial.store.upkeep.park(after_us=SECOND_US, limit=9)
    assert trial.run(park).tasks == ("a", "b")
    trial.submit(new_job("late", task="c"))
    trial.advance_us(SECOND_US)
    trial.renew(BEN, queues=(QUEUE,), tasks=("a",))

    assert trial.run(park) == Parked(tasks=("c",), dead=("never",))
    assert trial.record("known soon").parked_us is None
    never = trial.record("never")
    assert (never.dead_reason, never.dead_letter) == (DeadReason.UNKNOWN_TASK, "shelf")
    assert (never.parked_us, never.error) == (None, None)
    assert trial.record("late").parked_us == trial.now_us()


def test_a_job_that_is_known_again_is_never_given_up_for_want_of_a_turn(trial: Trial) -> None:
    trial.renew(BEN, queues=(QUEUE,), tasks=())
    trial.submit(new_job("a"), new_job("b"))
    trial.run(trial.store.upkeep.park(after_us=SECOND_US, limit=9))
    trial.advance_us(SECOND_US)
    trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))

    trial.run(trial.store.upkeep.park(after_us=SECOND_US, limit=1))

    assert trial.status("b") is JobStatus.QUEUED
    assert [job.id for job in trial.claim()] == ["a"]


def test_nothing_is_parked_where_no_live_worker_serves_the_queue(trial: Trial) -> None:
    trial.submit(new_job("job"))
    trial.renew(BEN, queues=("other",), tasks=())
    park = trial.store.upkeep.park(after_us=SECOND_US, limit=9)
    assert trial.run(park) == Parked()

    trial.renew(BEN, queues=(QUEUE,), tasks=())
    trial.let_lease_expire()
    assert trial.run(park) == Parked()
