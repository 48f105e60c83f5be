# SPDX-License-Identifier: MIT
"""Who is woken by what, in which event loop, and when a wait ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.settlement import SettlementKind
from packhorse.stores.memory import MemoryStore
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.samples import ANNA, BEN, TASK, new_job
from packhorse.testing.conformance.trial import Trial
from tests.unit.memory_trial import memory_trial

QUEUE = "queue:default"
EVERYTHING = frozenset(
    {QUEUE, "queue:other", "job:job", "job:other", f"cancel:{ANNA}", f"cancel:{BEN}"}
)


@pytest.fixture
def trial() -> Trial:
    return memory_trial()


async def heard(trial: Trial, act: Callable[[], object]) -> frozenset[str]:
    """Which topics are heard while something is done."""
    listener = trial.store.wakeups.listen(EVERYTHING)
    act()
    topics = await listener.wait(0)
    listener.close()
    return topics


async def test_a_submit_wakes_its_queue_also_when_it_is_due_later(trial: Trial) -> None:
    later = new_job("later", queue="other", delay_us=1)

    assert await heard(trial, lambda: trial.submit(new_job("job"))) == {QUEUE}
    assert await heard(trial, lambda: trial.submit(later)) == {"queue:other"}


async def test_a_submit_of_a_known_job_wakes_no_listener(trial: Trial) -> None:
    trial.submit(new_job("job"))

    assert await heard(trial, lambda: trial.submit(new_job("job"))) == frozenset()


@pytest.mark.parametrize(
    "kind",
    [
        *(SettlementKind.FAILED, SettlementKind.TIMEOUT),
        *(SettlementKind.SNOOZED, SettlementKind.RELEASED),
    ],
)
async def test_a_job_that_waits_again_wakes_its_queue(trial: Trial, kind: SettlementKind) -> None:
    job = trial.take()

    assert await heard(trial, lambda: trial.end(job, kind)) == {QUEUE}


@pytest.mark.parametrize(
    "kind", [SettlementKind.COMPLETED, SettlementKind.CANCELLED, SettlementKind.DEAD]
)
async def test_a_job_that_finished_wakes_those_who_wait_for_it_once(
    trial: Trial, kind: SettlementKind
) -> None:
    job = trial.take(new_job("job"))
    trial.run(trial.store.jobs.await_finish("job"))

    assert await heard(trial, lambda: trial.end(job, kind)) == {"job:job"}
    trial.run(trial.store.jobs.redrive(["job"]))
    again = trial.claim_only()
    assert await heard(trial, lambda: trial.end(again, kind)) == frozenset()


async def test_a_job_without_waiters_wakes_no_listener_when_it_finishes(trial: Trial) -> None:
    job = trial.take(new_job("job"))

    assert await heard(trial, lambda: trial.end(job)) == frozenset()


async def test_interest_in_a_finished_or_unknown_job_is_not_kept(trial: Trial) -> None:
    trial.finish(new_job("job"))
    record = trial.run(trial.store.jobs.await_finish("job"))
    assert record is not None
    assert record.result is not None
    assert trial.run(trial.store.jobs.await_finish("other")) is None
    trial.run(trial.store.jobs.redrive(["job"]))
    job = trial.claim_only()

    assert await heard(trial, lambda: trial.end(job)) == frozenset()


async def test_a_cancel_wakes_the_worker_that_holds_the_job(trial: Trial) -> None:
    trial.take(new_job("job"), worker=BEN)
    cancel = trial.store.jobs.cancel("job")

    assert await heard(trial, lambda: trial.run(cancel)) == {f"cancel:{BEN}"}


async def test_a_cancel_of_a_waiting_job_wakes_those_who_wait_for_its_end(trial: Trial) -> None:
    trial.submit(new_job("job"))
    trial.run(trial.store.jobs.await_finish("job"))
    cancel = trial.store.jobs.cancel("job")

    assert await heard(trial, lambda: trial.run(cancel)) == {"job:job"}


async def test_an_expired_job_wakes_those_who_wait_for_its_end(trial: Trial) -> None:
    trial.submit(new_job("job", deadline_us=trial.now_us()))
    trial.run(trial.store.jobs.await_finish("job"))
    expire = trial.store.upkeep.expire(limit=1)

    assert await heard(trial, lambda: trial.run(expire)) == {"job:job"}


async def test_a_redrive_a_resume_and_a_promotion_wake_the_queue(trial: Trial) -> None:
    trial.submit(new_job("job", delay_us=SECOND_US), new_job("other", delay_us=SECOND_US))
    redrive, promote = trial.store.jobs.redrive(["job"]), trial.store.upkeep.promote(limit=9)

    assert await heard(trial, lambda: trial.run(promote)) == frozenset()
    assert await heard(trial, lambda: trial.run(redrive)) == {QUEUE}
    assert await heard(trial, lambda: trial.pause(paused=True)) == frozenset()
    assert await heard(trial, lambda: trial.pause(paused=False)) == {QUEUE}
    assert await heard(trial, lambda: trial.pause(paused=False)) == frozenset()
    trial.advance_us(SECOND_US)
    assert await heard(trial, lambda: trial.run(promote)) == {QUEUE}


async def test_jobs_given_back_or_known_again_wake_their_queue(trial: Trial) -> None:
    trial.take(new_job("job"))
    assert await heard(trial, lambda: trial.renew(held=())) == {QUEUE}

    trial.claim()
    leave = trial.store.leases.leave(ANNA)
    assert await heard(trial, lambda: trial.run(leave)) == {QUEUE}

    park = trial.store.upkeep.park(after_us=SECOND_US, limit=9)
    trial.renew(BEN, queues=("default",), tasks=("resize",))
    assert await heard(trial, lambda: trial.run(park)) == frozenset()
    trial.renew(BEN, queues=("default",), tasks=(TASK,))
    assert await heard(trial, lambda: trial.run(park)) == {QUEUE}


async def test_a_refused_plan_wakes_no_listener(trial: Trial) -> None:
    trial.declare(QueueSettings("mail", dead_letter="shelf"))

    def refused() -> None:
        with pytest.raises(Exception, match="shelf"):
            trial.submit(new_job("job"), new_job("other", queue="shelf"))

    assert await heard(trial, refused) == frozenset()


# ------------------------------------------------------------------------------------ listening


async def test_a_wait_returns_all_that_was_heard_since_the_last_one(trial: Trial) -> None:
    listener = trial.store.wakeups.listen(EVERYTHING)
    trial.submit(new_job("a"))
    trial.submit(new_job("b", queue="other"), new_job("c"))

    assert await listener.wait(None) == {QUEUE, "queue:other"}
    assert await listener.wait(0) == frozenset()


async def test_what_was_said_before_listening_or_to_others_is_not_heard(trial: Trial) -> None:
    trial.submit(new_job("before"))
    listener = trial.store.wakeups.listen(frozenset({"queue:other"}))
    trial.submit(new_job("elsewhere"))

    assert await listener.wait(0) == frozenset()


async def test_an_answered_wait_does_not_cut_the_next_one_short(trial: Trial) -> None:
    listener = trial.store.wakeups.listen(EVERYTHING)
    trial.submit(new_job("a"))
    assert await listener.wait(0) == {QUEUE}

    waiting = asyncio.create_task(listener.wait(60))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    trial.submit(new_job("b"))
    assert await waiting == {QUEUE}


async def test_a_wait_under_way_ends_when_the_listener_is_closed(trial: Trial) -> None:
    listener = trial.store.wakeups.listen(EVERYTHING)
    waiting = asyncio.create_task(listener.wait(None))
    await asyncio.sleep(0)

    listener.close()
    listener.close()

    assert await waiting == frozenset()
    assert await listener.wait(None) == frozenset()


async def test_closing_the_store_ends_every_wait(trial: Trial) -> None:
    listeners = [trial.store.wakeups.listen(frozenset({topic})) for topic in ("a", "b")]
    waits = [asyncio.create_task(listener.wait(None)) for listener in listeners]
    await asyncio.sleep(0)

    trial.store.close()

    assert await asyncio.gather(*waits) == [frozenset(), frozenset()]
    trial.store.close()


async def test_a_closed_listener_is_forgotten_and_others_still_hear() -> None:
    store = MemoryStore()
    closed, other = (store.wakeups.listen(frozenset({QUEUE})) for _ in range(2))
    closed.close()
    store.run(store.jobs.submit([new_job()]))

    assert await other.wait(None) == {QUEUE}
    other.close()
    assert not store.wakeups._listeners


def test_a_listener_is_woken_from_other_threads_and_other_loops(trial: Trial) -> None:
    listening, woken = threading.Barrier(4), []

    async def listen() -> None:
        listener = trial.store.wakeups.listen(frozenset({QUEUE}))
        listening.wait()
        woken.append(await listener.wait(None))
        listener.close()

    threads = [threading.Thread(target=lambda: asyncio.run(listen())) for _ in range(3)]
    for thread in threads:
        thread.start()
    listening.wait()
    trial.submit(new_job())
    for thread in threads:
        thread.join()

    assert woken == [{QUEUE}] * 3


def test_a_listener_whose_loop_is_closed_is_forgotten() -> None:
    store = MemoryStore()

    async def listen_and_go() -> None:
        store.wakeups.listen(frozenset({QUEUE}))

    asyncio.run(listen_and_go())
    store.run(store.jobs.submit([new_job()]))

    assert not store.wakeups._listeners
