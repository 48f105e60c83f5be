# SPDX-License-Identifier: MIT
"""What a worker counts by queue and task, without a process around it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from packhorse import RetryPolicy
from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus
from packhorse.core.policies.series import BOUNDS_S, OTHER, OUTCOMES, SERIES_MAX, Series
from packhorse.core.settlement import (
    Counted,
    Settlement,
    SettlementKind,
    Verdict,
    counted_as,
    end_events,
)
from packhorse.events import JobRetried
from packhorse.runtime.worker.tallies import Tallies, WorkerCounters
from packhorse.signals import Snooze
from tests.unit.consumer_support import Depot, HeldStore, fetched
from tests.worker.support import PATIENCE_S, Yard, heard, until


async def counted(yard: Yard) -> dict[str, Series]:
    """Run all jobs; what came of each task."""
    worker = yard.worker(burst=True)
    await asyncio.wait_for(worker.run(), PATIENCE_S)
    assert worker._runtime is not None
    return {each.task: each for each in worker._runtime.settler.tallies.totals()}


def ends(series: Series) -> dict[str, int]:
    return {name: count for name, count in zip(OUTCOMES, series.outcomes, strict=True) if count}


async def test_what_failed_was_processed_as_well() -> None:
    yard = Yard()

    async def add() -> None: ...

    async def fail() -> None:
        raise ValueError("always")

    yard.task(add)
    yard.task(fail, retry=RetryPolicy(max_retries=0))
    for name in ("add", "fail", "fail"):
        yard.submit(name)

    report = await asyncio.wait_for(yard.worker(burst=True).run(), PATIENCE_S)

    assert (report.succeeded, report.failed, report.processed) == (1, 2, 3)


async def test_each_attempt_is_counted_by_what_it_came_to() -> None:
    yard = Yard()
    snoozed: list[int] = []

    async def add() -> None: ...

    async def fail() -> None:
        raise ValueError("always")

    async def hang() -> None:
        await asyncio.Event().wait()

    async def rest() -> None:
        if not snoozed:
            snoozed.append(1)
            raise Snooze("1ms")

    yard.task(add)
    yard.task(fail, retry=RetryPolicy(max_retries=2, initial_delay="1ms", jitter=False))
    yard.task(hang, timeout="10ms", retry=RetryPolicy(max_retries=0))
    yard.task(rest)
    for name in ("add", "add", "fail", "hang", "rest"):
        yard.submit(name)

    found = await counted(yard)

    assert {name: ends(series) for name, series in found.items()} == {
        "add": {"success": 2},
        "fail": {"retried": 2, "dead": 1},
        "hang": {"dead": 1},
        "rest": {"snoozed": 1, "success": 1},
    }
    assert {name: series.timeouts for name, series in found.items() if series.timeouts} == {
        "hang": 1
    }
    assert all(len(each.run) == len(BOUNDS_S) + 1 for each in found.values())
    assert {name: sum(series.run) for name, series in found.items()} == {
        "add": 2,
        "fail": 3,
        "hang": 1,
        "rest": 2,
    }
    assert {name: sum(series.wait) for name, series in found.items()} == {
        "add": 2,
        "fail": 1,  # retries wait for their back-off, which is no wait for a worker
        "hang": 1,
        "rest": 1,
    }
    assert 0.01 <= found["hang"].run_s < PATIENCE_S
    assert 0 <= found["add"].wait_s < PATIENCE_S


def test_alerts_do_not_judge_the_attempts_of_their_own_notices() -> None:
    counters = WorkerCounters()
    tallies = Tallies(counters)
    counters.succeeded, counters.failed = 5, 7
    for queue in ("alerts", "default"):
        tallies._made(queue, "packhorse.deliver_alert").outcomes[:3] = [1, 2, 1]
    tallies._made("default", "send").outcomes[:3] = [3, 0, 1]

    assert (tallies.told.succeeded, tallies.told.failed) == (3, 1)


def test_tasks_beyond_the_bound_are_one() -> None:
    tallies = Tallies(WorkerCounters())

    for number in range(SERIES_MAX + 2):
        tallies._made("q", f"t{number}")

    keys = [each.key for each in tallies.totals()]
    assert keys[SERIES_MAX - 1] == ("q", f"t{SERIES_MAX - 1}")
    assert keys[SERIES_MAX:] == [(OTHER, OTHER)]


def test_what_was_told_is_told_again_only_if_it_changed_or_was_not_heard() -> None:
    tallies = Tallies(WorkerCounters())
    tallies._made("q", "t")

    [told] = tallies.changed()

    assert tallies.changed() == ()
    tallies.not_sent([told])
    assert tallies.changed() == (told,)


async def test_an_end_that_is_told_twice_is_counted_once() -> None:
    depot = Depot("memory://")
    depot.submit("job")

    async with depot.consumer() as consumer:
        job = await fetched(consumer)
        assert await consumer.mark_complete(job, latency_s=1.5)
        assert await consumer.mark_complete(job, latency_s=1.5)
        assert not await consumer.mark_failed(job, reason="changed_my_mind")
        runtime = consumer._runtime
    depot.close()

    assert runtime is not None
    [series] = runtime.settler.tallies.totals()
    assert ends(series) == {"success": 1}
    assert (sum(series.run), series.run_s) == (1, 1.5)
    assert {name: count for name, count in runtime.counters.counts.items() if count} == {
        "execution_s": 1.5,
        "succeeded": 1,
    }


async def test_an_end_whose_fetch_was_cancelled_with_its_answer_is_counted_once() -> None:
    depot = Depot("memory://")

    async with depot.consumer() as consumer:
        await consumer.fetch(timeout=0)  # starts its runtime
        runtime = consumer._runtime
        assert runtime is not None
        depot.submit("broken", payload=b'{"to":')
        fetch = asyncio.create_task(consumer.fetch(timeout=PATIENCE_S))

        def cancel(*_: object) -> None:
            fetch.cancel()

        runtime.settler.on_answered = cancel
        with pytest.raises(asyncio.CancelledError):
            await fetch
        runtime.settler.on_answered = None
    depot.close()

    [series] = runtime.settler.tallies.totals()
    assert ends(series) == {"dead": 1}
    assert (runtime.counters.dead, runtime.counters.stale) == (1, 0)


@pytest.mark.parametrize("fails", [True, False])
async def test_what_was_written_at_once_while_its_write_was_under_way_is_counted_once(
    *, fails: bool
) -> None:
    """As when a job has ended the event loop of its worker."""
    yard = Yard()

    async def add() -> None: ...

    yard.task(add)
    async with yard.running() as worker:
        await until(lambda: worker._runtime is not None)
        runtime = worker._runtime
        assert runtime is not None
        store = HeldStore(runtime, yard.store)
        yard.submit("add")
        await heard(store.reached)
        assert runtime.settler.write_now() == []
        store.fails = fails
        store.may_go.set()
        await until(lambda: store.answered)
        await until(lambda: not runtime.settler.backlog)

    [series] = runtime.settler.tallies.totals()
    assert ends(series) == {"success": 1}
    assert runtime.counters.succeeded == 1


def test_every_word_that_an_attempt_counts_as_has_its_place_in_a_series() -> None:
    assert tuple(Counted) == OUTCOMES


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("kind", SettlementKind)
def test_an_attempt_that_was_counted_counts_no_more(kind: SettlementKind, verdict: Verdict) -> None:
    settlement = Settlement("job", 1, kind, JobStatus.QUEUED)

    assert counted_as(settlement, verdict) is not None
    assert counted_as(settlement, verdict, before=True) is None


@pytest.mark.parametrize("counted", Counted)
def test_a_worker_counts_every_word_that_an_attempt_counts_as(counted: Counted) -> None:
    counters = WorkerCounters()

    counters.count(counted, timed_out=True)

    name = "succeeded" if counted is Counted.SUCCESS else str(counted)
    failed = {"failed": 1, "timed_out": 1} if counted in {Counted.RETRIED, Counted.DEAD} else {}
    assert {name: count for name, count in counters.counts.items() if count} == {name: 1} | failed


def test_unused_look_ahead_counts_as_nothing() -> None:
    unused = Settlement("job", 1, SettlementKind.RELEASED, JobStatus.QUEUED, ended=False)

    assert counted_as(unused, Verdict.APPLIED) is None


def test_a_first_attempt_has_waited_since_its_job_was_ready_by_the_stores_clock() -> None:
    tallies = Tallies(WorkerCounters())
    job = SimpleNamespace(queue="q", task="t", attempts=0, ready_us=105 * SECOND_US)
    attempt: Any = SimpleNamespace(
        job=job, begun=True, duration=1.0, offset_us=100 * SECOND_US, started=7.0
    )

    done = Settlement("one", 1, SettlementKind.COMPLETED, JobStatus.COMPLETED)

    tallies.count(attempt, done, Verdict.APPLIED, before=False)

    [totals] = tallies.totals()
    assert totals.wait_s == 2.0
    assert tallies.changed() == (totals,)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_retry_tells_of_all_crashes_of_a_job_that_ran_alone(lost: int) -> None:
    before = SimpleNamespace(failures=2, lone_crashes=1)
    failed = Settlement(
        *("one", 1, SettlementKind.FAILED, JobStatus.FAILED),
        ended=True,
        failures=1,
        crashes=lost,
        lone_crashes=lost,
        delay_us=1_500,
    )
    shared = {"job_id": "one", "worker": "w"}

    events = end_events(failed, Verdict.APPLIED, shared, before, max_retries=3, max_crashes=5)

    [event] = [event for event in events if isinstance(event, JobRetried)]
    assert (event.retry, event.max_retries, event.delay_ms) == (3, 3, 1.5)
    assert (event.lone_crashes, event.max_crashes) == ((2, 5) if lost else (0, 0))
