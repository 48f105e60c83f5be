# SPDX-License-Identifier: MIT
"""`Wakeups`: waiting processes are woken at once, so that they need not poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, NewJob
from packhorse.core.settlement import SettlementKind
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Renewal
from packhorse.testing.conformance.samples import (
    ANNA,
    BEN,
    LEASE_US,
    QUEUE,
    TASK,
    new_job,
    settlement_of,
)
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.conformance.words import quiet

#: Far longer than any wake-up takes, so that only a missing one fails.
_PATIENCE_S: Final = 20.0
#: How long to wait when no wake-up is expected.
_SILENCE_S: Final = 0.15
#: The topic that stands for any.
_ANY: Final = "*"

Doing = Callable[[Store], Plan[Any]]

_where = pytest.mark.parametrize("where", ["here", "elsewhere"])


class TestWakeups:
    """Wake waiting processes when something changed."""

    @_where
    def test_a_submit_wakes_workers_of_the_queue(self, trial: Trial, where: str) -> None:
        self._wakes(trial, f"queue:{QUEUE}", _submitting(new_job()), where)

    def test_a_delayed_submit_wakes_workers_too(self, trial: Trial) -> None:
        self._wakes(trial, f"queue:{QUEUE}", _submitting(new_job(delay_us=60 * SECOND_US)))

    def test_every_queue_of_a_submit_is_woken(self, trial: Trial) -> None:
        self._wakes(trial, "queue:second", _submitting(new_job(), new_job(queue="second")))

    @_where
    def test_the_end_of_a_job_with_a_waiter_is_told(self, trial: Trial, where: str) -> None:
        job = trial.take()
        trial.run(trial.store.jobs.await_finish(job.id))

        self._wakes(trial, f"job:{job.id}", _settling(SettlementKind.COMPLETED, job), where)

    @pytest.mark.parametrize("kind", [SettlementKind.DEAD, SettlementKind.CANCELLED])
    def test_any_end_is_told(self, trial: Trial, kind: SettlementKind) -> None:
        job = trial.take()
        trial.run(trial.store.jobs.await_finish(job.id))

        self._wakes(trial, f"job:{job.id}", _settling(kind, job))

    def test_the_end_of_a_waiting_job_by_cancel_is_told(self, trial: Trial) -> None:
        trial.submit(new_job("job", delay_us=SECOND_US))
        trial.run(trial.store.jobs.await_finish("job"))

        self._wakes(trial, "job:job", lambda store: store.jobs.cancel("job"))

    def test_the_end_of_a_waiting_job_by_its_deadline_is_told(self, trial: Trial) -> None:
        trial.submit(new_job("job", deadline_us=trial.now_us()))
        trial.run(trial.store.jobs.await_finish("job"))

        self._wakes(trial, "job:job", lambda store: store.upkeep.expire(limit=10))

    def test_the_end_of_a_job_without_a_waiter_is_not_told(self, trial: Trial) -> None:
        job = trial.take()

        self._keeps_silent(trial, f"job:{job.id}", _settling(SettlementKind.COMPLETED, job))

    def test_a_job_that_has_not_finished_is_not_told(self, trial: Trial) -> None:
        job = trial.take()
        trial.run(trial.store.jobs.await_finish(job.id))

        self._keeps_silent(trial, f"job:{job.id}", _settling(SettlementKind.FAILED, job))

    def test_interest_lasts_over_retries_until_the_end(self, trial: Trial) -> None:
        job = trial.take()
        trial.run(trial.store.jobs.await_finish(job.id))
        trial.end(job, SettlementKind.FAILED)
        trial.advance_us(60 * SECOND_US)
        again = trial.claim_only()

        self._wakes(trial, f"job:{job.id}", _settling(SettlementKind.COMPLETED, again))

    @pytest.mark.parametrize(
        "kind",
        [
            SettlementKind.RELEASED,
            SettlementKind.FAILED,
            SettlementKind.TIMEOUT,
            SettlementKind.SNOOZED,
        ],
    )
    def test_a_job_that_becomes_ready_or_due_wakes_workers(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        self._wakes(trial, f"queue:{QUEUE}", _settling(kind, trial.take()))

    def test_a_rescue_wakes_workers(self, trial: Trial) -> None:
        job = trial.take()
        trial.let_lease_expire()

        self._wakes(trial, f"queue:{QUEUE}", _settling(SettlementKind.RESCUED, job))

    @_where
    def test_a_wish_to_cancel_wakes_the_worker(self, trial: Trial, where: str) -> None:
        job = trial.take(worker=BEN)

        self._wakes(trial, f"cancel:{BEN}", lambda store: store.jobs.cancel(job.id), where)

    def test_another_worker_is_not_woken_by_a_wish_to_cancel(self, trial: Trial) -> None:
        job = trial.take(worker=BEN)

        self._keeps_silent(trial, f"cancel:{ANNA}", lambda store: store.jobs.cancel(job.id))

    def test_resuming_wakes_workers(self, trial: Trial) -> None:
        trial.pause()

        self._wakes(trial, f"queue:{QUEUE}", lambda store: store.queues.pause(QUEUE, paused=False))

    def test_a_redrive_wakes_workers(self, trial: Trial) -> None:
        job = trial.finish(new_job(), SettlementKind.DEAD)

        self._wakes(trial, f"queue:{QUEUE}", lambda store: store.jobs.redrive([job.id]))

    def test_promoting_wakes_workers(self, trial: Trial) -> None:
        trial.submit(new_job(delay_us=1))
        trial.advance_us(1)

        self._wakes(trial, f"queue:{QUEUE}", lambda store: store.upkeep.promote(limit=10))

    def test_a_worker_that_leaves_its_jobs_wakes_others(self, trial: Trial) -> None:
        trial.take(worker=BEN)

        self._wakes(trial, f"queue:{QUEUE}", lambda store: store.leases.leave(BEN))

    def test_jobs_a_worker_turns_out_not_to_hold_wake_others(self, trial: Trial) -> None:
        trial.take(worker=BEN)
        renewal = Renewal(BEN, LEASE_US, held=())

        self._wakes(trial, f"queue:{QUEUE}", lambda store: store.leases.renew(renewal))

    def test_parked_jobs_that_are_ready_again_wake_workers(self, trial: Trial) -> None:
        trial.submit(new_job("job", task="resize"))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK,))
        trial.run(trial.store.upkeep.park(after_us=SECOND_US, limit=10))
        trial.renew(BEN, queues=(QUEUE,), tasks=(TASK, "resize"))

        self._wakes(
            trial,
            f"queue:{QUEUE}",
            lambda store: store.upkeep.park(after_us=SECOND_US, limit=10),
        )

    def test_another_queue_is_not_woken(self, trial: Trial) -> None:
        self._keeps_silent(trial, "queue:other", _submitting(new_job()))

    def test_what_is_told_before_the_wait_begins_is_heard(self, trial: Trial) -> None:
        async def scenario() -> None:
            listener = trial.store.wakeups.listen(frozenset({f"queue:{QUEUE}"}))
            await trial.arun(trial.store.jobs.submit((new_job(),), ids_are_new=True))
            assert await listener.wait(_PATIENCE_S)
            listener.close()

        trial.play(scenario())

    def test_several_topics_are_heard_by_one_listener(self, trial: Trial) -> None:
        job = trial.take()
        trial.run(trial.store.jobs.await_finish(job.id))
        topics = frozenset({f"queue:{QUEUE}", f"job:{job.id}"})

        async def scenario() -> None:
            listener = trial.store.wakeups.listen(topics)
            heard: frozenset[str] = frozenset()
            await trial.arun(_submitting(new_job())(trial.store))
            await trial.arun(_settling(SettlementKind.COMPLETED, job)(trial.store))
            async with asyncio.timeout(_PATIENCE_S):
                while not (heard >= topics or _ANY in heard):
                    heard |= await listener.wait(_PATIENCE_S)
            listener.close()
            assert heard <= topics | {_ANY}

        trial.play(scenario())

    def test_every_listener_of_a_topic_is_woken(self, trial: Trial) -> None:
        async def scenario() -> None:
            topics = frozenset({f"queue:{QUEUE}"})
            stores = (trial.store, trial.store, trial.elsewhere())
            listeners = [store.wakeups.listen(topics) for store in stores]
            await trial.arun(trial.store.jobs.submit((new_job(),), ids_are_new=True))
            heard = await asyncio.gather(*(each.wait(_PATIENCE_S) for each in listeners))
            for listener in listeners:
                listener.close()
            assert all(heard)

        trial.play(scenario())

    def test_a_wait_in_silence_ends_empty_after_its_time(self, trial: Trial) -> None:
        async def scenario() -> None:
            listener = trial.store.wakeups.listen(frozenset({f"queue:{QUEUE}"}))
            assert await listener.wait(_SILENCE_S) == frozenset()
            assert await listener.wait(0) == frozenset()
            listener.close()

        trial.play(scenario())

    def test_closing_ends_a_wait_under_way(self, trial: Trial) -> None:
        async def scenario() -> None:
            listener = trial.store.wakeups.listen(frozenset({f"queue:{QUEUE}"}))
            waiting = asyncio.create_task(listener.wait(None))
            await asyncio.sleep(0)
            listener.close()
            async with asyncio.timeout(_PATIENCE_S):
                await waiting

        trial.play(scenario())

    def test_a_closed_listener_can_be_closed_again(self, trial: Trial) -> None:
        async def scenario() -> None:
            listener = trial.store.wakeups.listen(frozenset({f"queue:{QUEUE}"}))
            listener.close()
            listener.close()

        trial.play(scenario())

    @staticmethod
    def _wakes(trial: Trial, topic: str, doing: Doing, where: str = "here") -> None:
        """Check that an action wakes a waiter for the topic."""
        heard = trial.play(_heard(trial, topic, doing, where, _PATIENCE_S))

        assert heard & {topic, _ANY}

    @staticmethod
    def _keeps_silent(trial: Trial, topic: str, doing: Doing) -> None:
        """Check that an action does not name the topic; a store may send `*` for any topic."""
        assert topic not in trial.play(_heard(trial, topic, doing, "here", _SILENCE_S))


async def _heard(
    trial: Trial, topic: str, doing: Doing, where: str, patience_s: float
) -> frozenset[str]:
    """Return the topics that wake a waiter, for something done here or in another process."""
    store = trial.store if where == "here" else trial.elsewhere()
    listener = trial.store.wakeups.listen(frozenset({topic}))
    if patience_s == _SILENCE_S:
        await quiet(listener)
    waiting = asyncio.create_task(listener.wait(patience_s))
    await asyncio.sleep(0)  # the wait has begun
    await trial.arun(doing(store), store)
    heard = await waiting
    listener.close()
    return heard


def _submitting(*jobs: NewJob) -> Doing:
    return lambda store: store.jobs.submit(jobs, ids_are_new=True)


def _settling(kind: SettlementKind, job: Job) -> Doing:
    return lambda store: store.jobs.settle([settlement_of(kind, job)])
