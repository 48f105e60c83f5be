# SPDX-License-Identifier: MIT
"""`UpkeepStore.promote`, `expire` and `park`: changes of waiting jobs without a claim."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import DeadReason, JobStatus
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import EVERY_TASK, Parked, QueueSettings
from packhorse.testing.conformance.samples import ANNA, BEN, LEASE_US, QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import EVERYTHING, Trial

_HOUR_US = 3600 * SECOND_US


class TestPromoting:
    """Make due jobs of every queue queued, at most `limit` a queue."""

    def test_due_jobs_become_queued_and_are_counted(self, trial: Trial) -> None:
        trial.submit(new_job("a", delay_us=1), new_job("b", delay_us=2), new_job("c", queue="c"))
        trial.advance_us(1)

        assert _promote(trial) == 1
        assert trial.status("a") is JobStatus.QUEUED
        assert trial.status("b") is JobStatus.PENDING
        assert _promote(trial) == 0

    @pytest.mark.parametrize(
        "kind", [SettlementKind.FAILED, SettlementKind.TIMEOUT, SettlementKind.SNOOZED]
    )
    def test_a_job_that_waits_again_becomes_queued_when_due(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        job = trial.take()
        trial.end(job, kind)
        assert _promote(trial) == 0
        trial.advance_us(60 * SECOND_US)

        assert _promote(trial) == 1
        record = trial.record(job.id)
        assert (record.status, record.updated_us) == (JobStatus.QUEUED, trial.now_us())

    def test_queues_with_due_jobs_share_the_limit(self, trial: Trial) -> None:
        trial.submit(new_job("later", queue="later", delay_us=100))
        for queue in ("mail", "reports"):
            trial.submit(*(new_job(f"{queue}-{n}", queue=queue, delay_us=n) for n in (3, 1, 2)))
        trial.advance_us(3)

        assert _promote(trial, limit=1) == 2
        assert _promote(trial, limit=3) == 2

        assert trial.search(statuses=(JobStatus.PENDING,)) == ["reports-3", "mail-3", "later"]

    def test_places_are_taken_in_the_order_of_due_and_submission(self, trial: Trial) -> None:
        trial.submit(
            new_job("d", delay_us=2),
            new_job("b", delay_us=1),
            new_job("e", delay_us=2),
            new_job("c", delay_us=1),
        )
        trial.submit(new_job("a"))
        trial.advance_us(2)
        _promote(trial)
        trial.submit(new_job("f"))

        assert [job.id for job in trial.claim()] == ["a", "b", "c", "d", "e", "f"]

    def test_a_rescued_job_keeps_the_place_it_had(self, trial: Trial) -> None:
        trial.lose_in_reverse(new_job("first"), new_job("second"))

        assert _promote(trial) == 2
        assert [job.id for job in trial.claim(quarantine=True)] == ["first", "second"]

    def test_jobs_of_paused_queues_become_queued_too(self, trial: Trial) -> None:
        trial.submit(new_job("job", delay_us=1))
        trial.pause()
        trial.advance_us(1)

        assert _promote(trial) == 1
        assert trial.status("job") is JobStatus.QUEUED


class TestExpiring:
    """Give up waiting jobs whose deadline has passed, as dead `expired`."""

    @pytest.mark.req("S3-10")
    def test_every_waiting_job_past_its_deadline_is_given_up(self, trial: Trial) -> None:
        deadline_us = trial.now_us() + SECOND_US
        trial.submit(new_job("failed", deadline_us=deadline_us))
        trial.end(trial.claim_only(), SettlementKind.FAILED)
        trial.submit(
            new_job("queued", deadline_us=deadline_us),
            new_job("pending", deadline_us=deadline_us, delay_us=_HOUR_US),
            new_job("patient", deadline_us=deadline_us + 1),
            new_job("endless"),
        )
        trial.advance_us(SECOND_US)

        assert sorted(_expire(trial)) == ["failed", "pending", "queued"]

        assert sorted(trial.search(dead_reason="expired")) == ["failed", "pending", "queued"]
        record = trial.record("queued")
        assert (record.status, record.dead_reason) == (JobStatus.DEAD, DeadReason.EXPIRED)
        assert record.finished_us == record.updated_us == trial.now_us()

    def test_a_running_job_is_not_expired(self, trial: Trial) -> None:
        job = trial.take(new_job(deadline_us=trial.now_us() + SECOND_US))
        trial.advance_us(SECOND_US)

        assert _expire(trial) == ()
        assert trial.status(job.id) is JobStatus.PROCESSING

    def test_a_finished_job_is_not_expired(self, trial: Trial) -> None:
        job = trial.finish(new_job(deadline_us=trial.now_us() + SECOND_US))
        trial.advance_us(SECOND_US)

        assert _expire(trial) == ()
        assert trial.status(job.id) is JobStatus.COMPLETED

    def test_no_more_than_the_limit_is_given_up(self, trial: Trial) -> None:
        deadline_us = trial.now_us() + 1
        trial.submit(*(new_job(deadline_us=deadline_us) for _ in range(5)))
        trial.advance_us(1)

        assert [len(_expire(trial, limit=3)) for _ in range(3)] == [3, 2, 0]

    def test_an_expired_job_is_put_on_its_queues_shelf(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))
        trial.submit(new_job("job", queue="mail", deadline_us=trial.now_us()))

        assert _expire(trial) == ("job",)
        assert trial.record("job").dead_letter == "mail_dead"

    def test_an_expired_job_did_not_run_once_more(self, trial: Trial) -> None:
        trial.submit(new_job("job", deadline_us=trial.now_us()))
        _expire(trial)

        assert trial.record("job").counters.attempts == 0
        assert trial.history("job") == ()


class TestParking:
    """Park ready jobs that no live worker knows; give up those parked too long."""

    @pytest.mark.req("S1-29")
    def test_a_ready_job_no_live_worker_of_its_queue_knows_is_parked(self, trial: Trial) -> None:
        trial.submit(new_job("strange", task="resize"), new_job("known"))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        trial.renew("elsewhere", queues=("other",), tasks=("resize",))

        assert _park(trial) == ("resize",)

        assert trial.record("strange").parked_us == trial.now_us()
        assert trial.status("strange") is JobStatus.QUEUED
        assert trial.record("known").parked_us is None

    def test_each_task_is_named_once_and_only_when_newly_parked(self, trial: Trial) -> None:
        trial.submit(*(new_job(task=task) for task in ("resize", "crop", "resize")))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))

        assert sorted(_park(trial)) == ["crop", "resize"]
        assert _park(trial) == ()

    def test_nothing_is_parked_where_no_live_worker_serves_the_queue(self, trial: Trial) -> None:
        trial.submit(new_job("job", task="resize"))
        trial.renew(BEN, queues=("other",), tasks=(TASK,))
        trial.renew(ANNA, queues=(QUEUE,), tasks=(TASK,))
        trial.advance_us(LEASE_US)
        trial.renew(BEN, queues=("other",), tasks=(TASK,))

        assert _park(trial) == ()
        assert trial.record("job").parked_us is None

    def test_nothing_is_parked_where_a_live_worker_knows_every_task(self, trial: Trial) -> None:
        trial.submit(new_job("there", task="resize"))
        trial.submit(new_job("elsewhere", task="resize", queue="other"))
        trial.renew(ANNA, queues=(QUEUE,), tasks=(EVERY_TASK,))
        trial.renew(BEN, queues=(QUEUE, "other"), tasks=(TASK,))

        assert _park(trial) == ("resize",)

        assert trial.record("there").parked_us is None
        assert trial.record("elsewhere").parked_us is not None

    def test_a_job_not_yet_due_is_not_parked(self, trial: Trial) -> None:
        trial.submit(new_job("job", task="resize", delay_us=SECOND_US))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))

        assert _park(trial) == ()

    def test_a_parked_job_a_live_worker_now_knows_is_ready_in_its_old_place(
        self, trial: Trial
    ) -> None:
        trial.submit(new_job("old", task="resize"))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        _park(trial)
        trial.submit(new_job("new", task=TASK))
        trial.renew(ANNA, queues=(QUEUE,), tasks=(TASK, "resize"))

        assert _park(trial) == ()

        assert trial.record("old").parked_us is None
        claimed = trial.ask(ANNA, tasks=(TASK, "resize")).jobs
        assert [job.id for job in claimed] == ["old", "new"]

    def test_parked_jobs_are_ready_again_where_a_live_worker_knows_every_task(
        self, trial: Trial
    ) -> None:
        trial.submit(new_job("first", task="resize"), new_job("second", task="resize"))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        _park(trial)
        trial.advance_us(_HOUR_US)
        trial.renew(ANNA, queues=(QUEUE,), tasks=(EVERY_TASK,))

        _park(trial, limit=1)

        assert trial.record("first").parked_us is None
        second = trial.record("second")
        assert second.parked_us is not None, "its turn comes with the next look"
        assert second.status is JobStatus.QUEUED, "what a worker knows is not given up"

    def test_a_parked_suspect_is_ready_again_as_a_suspect(self, trial: Trial) -> None:
        trial.make_suspect(new_job("suspect"))
        trial.run(trial.store.upkeep.promote(limit=10))
        trial.renew(BEN, queues=(QUEUE,), tasks=("resize",))
        assert _park(trial) == (TASK,)
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        _park(trial)

        assert trial.claim() == ()
        assert trial.claim_only(quarantine=True).id == "suspect"

    def test_a_job_parked_too_long_becomes_dead(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))
        trial.submit(new_job("job", task="resize", queue="mail"))
        trial.renew(BEN, queues=("mail",), tasks=(TASK,))
        _park(trial)

        trial.advance_us(_HOUR_US - 1)
        trial.renew(BEN, queues=("mail",), tasks=(TASK,))
        _park(trial)
        assert trial.status("job") is JobStatus.QUEUED
        trial.advance_us(1)
        parked = trial.run(trial.store.upkeep.park(after_us=_HOUR_US, limit=EVERYTHING))

        assert parked == Parked(tasks=(), dead=("job",))
        record = trial.record("job")
        assert (record.status, record.dead_reason) == (JobStatus.DEAD, DeadReason.UNKNOWN_TASK)
        assert record.dead_letter == "mail_dead"
        assert record.finished_us == trial.now_us()

    def test_no_more_than_the_limit_is_parked(self, trial: Trial) -> None:
        trial.submit(*(new_job(str(n), task="resize") for n in range(3)))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))

        _park(trial, limit=2)

        parked = [name for name in "012" if trial.record(name).parked_us is not None]
        assert len(parked) == 2

    def test_jobs_parked_more_lately_do_not_keep_one_parked_too_long(self, trial: Trial) -> None:
        trial.submit(new_job("later", task="resize", delay_us=SECOND_US))
        trial.submit(new_job("older", task="resize"))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        _park(trial)
        trial.advance_us(SECOND_US)
        trial.run(trial.store.upkeep.promote(limit=EVERYTHING))
        _park(trial)
        assert trial.record("later").parked_us == trial.now_us()
        trial.advance_us(_HOUR_US - SECOND_US)
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))

        parked = trial.run(trial.store.upkeep.park(after_us=_HOUR_US, limit=1))

        assert parked == Parked(tasks=(), dead=("older",))

    @pytest.mark.parametrize("known", [False, True])
    def test_no_more_than_the_limit_is_given_up_or_ready_again(
        self, trial: Trial, *, known: bool
    ) -> None:
        trial.submit(*(new_job(str(n), task="resize") for n in range(3)))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        _park(trial)
        trial.advance_us(_HOUR_US)
        trial.renew(BEN, queues=(QUEUE,), tasks=("resize",) if known else (TASK,))

        _park(trial, limit=2)

        parked = [name for name in "012" if trial.record(name).parked_us is not None]
        assert len(parked) == 1
        assert len(trial.search(statuses=(JobStatus.DEAD,))) == (0 if known else 2)

    def test_a_parked_job_waits_and_counts_as_waiting(self, trial: Trial) -> None:
        trial.submit(new_job("job", task="resize"))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        _park(trial)

        assert trial.run(trial.store.queues.depth(QUEUE)) == 1

    def test_a_parked_job_past_its_deadline_expires(self, trial: Trial) -> None:
        trial.submit(new_job("job", task="resize", deadline_us=trial.now_us() + 1))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        _park(trial)
        trial.advance_us(1)

        assert _expire(trial) == ("job",)
        assert trial.record("job").dead_reason is DeadReason.EXPIRED


def _promote(trial: Trial, limit: int = EVERYTHING) -> int:
    return trial.run(trial.store.upkeep.promote(limit=limit))


def _expire(trial: Trial, limit: int = EVERYTHING) -> tuple[str, ...]:
    return trial.run(trial.store.upkeep.expire(limit=limit))


def _park(trial: Trial, limit: int = EVERYTHING) -> tuple[str, ...]:
    return trial.run(trial.store.upkeep.park(after_us=_HOUR_US, limit=limit)).tasks
