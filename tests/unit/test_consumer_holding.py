# SPDX-License-Identifier: MIT
"""What a consumer holds: leases, hold limits, lost jobs, trouble with the store, and its log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from packhorse import JobConflict, JobStatus, Packhorse, StoreUnavailable, UsageError
from packhorse.core.clock import SECOND_US
from packhorse.core.job import RateRule
from packhorse.core.lifecycle import rescue
from packhorse.core.policies.attachments import Attaching
from packhorse.events import JobRescued, LoopBlocked, StoreRecovered, StoreTrouble
from packhorse.runtime.consumer import Consumer
from packhorse.runtime.consumer.runtime import ConsumerRuntime
from packhorse.runtime.worker.attempt import Stage
from packhorse.stores.memory import MemoryStore
from packhorse.stores.requests import QueueSettings, Renewal, WorkerRecord
from tests.unit.consumer_support import EVERY_STORE, Depot, Flow, depot_on, fetched
from tests.worker.support import PATIENCE_S, block_until, until
from tests.worker.test_limits import blocking_after_claims, most_in_a_window
from tests.worker.test_store_trouble import Weather


@pytest.fixture(params=EVERY_STORE)
def depot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Depot]:
    yield from depot_on(request.param, tmp_path)


# ---------------------------------------------------------------------------------------- leases


@pytest.mark.req("S2-8")
async def test_a_blocked_event_loop_does_not_cost_what_is_held(
    depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.heartbeat._LOOK_S", 0.05)
    depot.submit("long")
    async with depot.consumer(lease=30) as consumer:
        job = await fetched(consumer)

        for _ in range(5):  # in all two leases
            depot.clock.ahead_s += 12
            began_us = depot.clock.now_us()
            block_until(lambda: _only_worker(depot).renewed_us >= began_us)  # noqa: B023 - called here

        worker = _only_worker(depot)
        assert worker.live
        assert worker.running == 1
        assert await consumer.mark_complete(job, result="done")


async def test_a_loop_that_is_blocked_for_long_is_told_with_what_is_held(
    depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.heartbeat._LOOK_S", 0.05)
    depot.submit("long")
    async with depot.consumer() as consumer:
        await fetched(consumer)
        before = len(depot.told(LoopBlocked))
        # Only now: on a busy machine the loop may be late before anything is held.
        monkeypatch.setattr("packhorse.runtime.worker.heartbeat._BLOCKED_S", 0.05)

        block_until(lambda: len(depot.told(LoopBlocked)) > before)

        told = depot.told(LoopBlocked)[before]

    assert told.tasks == ("send",)


@pytest.mark.req("S1-66")
async def test_no_more_is_fetched_in_a_window_than_its_limit_though_the_loop_was_blocked() -> None:
    blocked = [0.6]
    depot = Depot(MemoryStore(faults=blocking_after_claims(blocked)))
    limits = QueueSettings("mail", rate=RateRule(5, 200_000))
    depot.store.run(depot.store.queues.declare([limits]))
    depot.submit(*map(str, range(24)))
    started: list[float] = []

    async def fetch(consumer: Consumer) -> None:
        job = await fetched(consumer)
        started.append(time.monotonic())
        assert await consumer.mark_complete(job)

    async with depot.consumer() as one, depot.consumer() as other:
        await asyncio.gather(*(fetch(consumer) for consumer in 12 * (one, other)))

    assert not blocked
    assert most_in_a_window(started, 0.2) <= 5
    depot.close()


@pytest.mark.req("S3-26", "S3-27")
async def test_a_forgotten_fetch_strands_nothing(depot: Depot) -> None:
    depot.submit("forgotten", timeout_us=SECOND_US)
    async with depot.consumer(lease=0.3) as consumer:
        first = await fetched(consumer)

        depot.clock.ahead_s += 32  # its timeout, the 30 s every hold has, and a little more

        second = await fetched(consumer)
        assert second.id == "forgotten"
        assert second.fence > first.fence
        assert not await consumer.mark_complete(first, result="too late")
        assert await consumer.mark_complete("forgotten", result="in time")
    assert depot.record("forgotten").result == b'"in time"'


async def test_a_job_is_held_for_its_whole_limit_and_not_told_beyond_it(depot: Depot) -> None:
    depot.submit("forgotten", timeout_us=100 * SECOND_US)
    async with depot.consumer(lease=0.3) as consumer:
        await fetched(consumer)
        slots = consumer._runtime.slots if consumer._runtime else None
        assert slots is not None

        depot.clock.ahead_s += 129
        await until(lambda: _is_live(depot, consumer.id))
        assert len(slots.held_fences()) == 1
        assert depot.status("forgotten") is JobStatus.PROCESSING
        depot.clock.ahead_s += 2

        await until(lambda: not slots.held_fences())
        await until(lambda: depot.status("forgotten") is not JobStatus.PROCESSING)
        with pytest.raises(JobConflict, match="held beyond its limit"):
            await consumer.release("forgotten")


async def test_a_renewal_lets_go_of_what_was_held_for_its_whole_limit_alone(depot: Depot) -> None:
    depot.submit("short", timeout_us=SECOND_US)
    depot.submit("long", timeout_us=100 * SECOND_US)
    async with depot.consumer() as consumer:
        runtime = consumer._runtime
        for _ in range(2):
            await fetched(consumer)
        assert runtime is not None
        held = {each.job.id: each.expires - each.started for each in runtime.open()}
        assert held == pytest.approx({"short": 31.0, "long": 130.0}, abs=0.001)

        def let_go_after(seconds: float) -> set[str]:
            depot.clock.ahead_s += seconds
            runtime.on_renewed()
            return {each.job.id for each in runtime.open()}

        assert let_go_after(0.0) == {"short", "long"}
        assert let_go_after(32.0) == {"long"}
        assert let_go_after(100.0) == set()


@pytest.mark.req("S3-26", "S2-3")
async def test_jobs_of_a_worker_that_is_gone_are_fetched_by_another(depot: Depot) -> None:
    depot.submit("lost")
    lost = depot.claim_and_vanish()

    async with depot.consumer() as consumer:
        await until(lambda: depot.told(JobRescued))
        job = await fetched(consumer)

        assert (job.id, job.attempt) == ("lost", 2)
        assert job.fence > lost.fence


async def test_a_suspect_is_fetched_alone(depot: Depot) -> None:
    depot.submit("suspect")
    depot.claim_and_vanish()
    (orphan,) = depot.store.run(depot.store.leases.orphans(["vanished"], limit=1))
    lost_before = msgspec.structs.replace(rescue(orphan), suspect=True)
    depot.store.run(depot.store.jobs.settle([lost_before]))
    async with depot.consumer() as consumer:
        suspect = await fetched(consumer)
        assert suspect.id == "suspect"
        depot.submit("innocent")

        assert await consumer.fetch(timeout=0.05) is None, "it might take the innocent down"

        await consumer.mark_complete(suspect)
        assert (await fetched(consumer)).id == "innocent"


async def test_an_id_that_was_fetched_twice_is_refused_and_the_jobs_are_not(depot: Depot) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer:
        first = await fetched(consumer)
        lost = Renewal(worker=consumer.id, lease_us=30 * SECOND_US, held=())
        depot.store.run(depot.store.leases.renew(lost))  # the store takes it back, unknown to us
        second = await fetched(consumer)

        with pytest.raises(JobConflict, match=f"fences .*{second.fence}"):
            await consumer.mark_complete("job")

        assert not await consumer.mark_complete(first)
        assert await consumer.mark_complete("job", result="of the second")


def test_a_consumer_belongs_to_one_event_loop(depot: Depot) -> None:
    depot.submit("job")
    consumer = depot.app.consumer(queues=["mail"])

    with asyncio.Runner() as runner:
        job = runner.run(fetched(consumer))
        with pytest.raises(UsageError, match="event loop"):
            asyncio.run(consumer.mark_complete(job))
        runner.run(consumer.close())


# --------------------------------------------------------------------------------------- trouble


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.store_health._FIRST_S", 0.002)


@pytest.mark.req("S3-28")
@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("verb", ["claim", "settle", "renew"])
async def test_a_store_that_fails_for_a_while_costs_nothing_but_time(
    verb: str, moment: str
) -> None:
    weather = Weather(verb, moment=moment)
    depot = Depot(MemoryStore(faults=weather))
    ids = depot.submit(*(f"job-{number}" for number in range(10)))
    weather.left = 2
    async with depot.consumer() as consumer:
        for number in range(len(ids)):
            weather.left += number % 3
            job = await fetched(consumer)
            assert await consumer.mark_complete(job, result=job.id)

    records = [depot.record(job_id) for job_id in ids]
    assert {record.status for record in records} == {JobStatus.COMPLETED}
    assert {record.counters.attempts for record in records} == {1}
    assert len(depot.told(StoreTrouble)) == len(depot.told(StoreRecovered)) > 0


@pytest.mark.req("S3-28", "S3-2")
@pytest.mark.usefixtures("fast")
async def test_a_fetch_ends_in_time_while_the_store_is_gone() -> None:
    weather = Weather()
    depot = Depot(MemoryStore(faults=weather))
    depot.submit("there")
    async with depot.consumer() as consumer:
        weather.left = 10**9

        async with asyncio.timeout(PATIENCE_S):
            assert await consumer.fetch(timeout=0.01) is None

        weather.left = 0
        assert (await fetched(consumer)).id == "there"


@pytest.mark.parametrize("how", ["cancelled", "store_gone", "broken"])
async def test_a_fetch_that_fails_while_it_opens_its_job_gives_it_back(
    depot: Depot, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    reading = asyncio.Event()

    async def open_badly(*_: object) -> None:
        monkeypatch.undo()
        if how == "store_gone":
            raise StoreUnavailable("away")
        if how == "broken":
            raise ZeroDivisionError
        reading.set()
        await asyncio.Event().wait()

    depot.submit("job")
    async with depot.consumer() as consumer, asyncio.timeout(PATIENCE_S):
        kept = Attaching("job", (await fetched(consumer)).fence, {"step:a": b"1"})
        depot.store.run(depot.store.attachments.attach([kept]))
        await consumer.release("job")
        monkeypatch.setattr(ConsumerRuntime, "_may_begin", open_badly)
        fetching = asyncio.create_task(consumer.fetch(timeout=PATIENCE_S))
        if how == "cancelled":
            await reading.wait()
            fetching.cancel()
        await asyncio.wait({fetching})

        assert (await fetched(consumer)).id == "job"

    assert fetching.cancelled() is (how == "cancelled")
    if how == "store_gone":
        assert fetching.result() is None
    elif how == "broken":
        assert isinstance(fetching.exception(), ZeroDivisionError)


@pytest.mark.usefixtures("fast")
async def test_a_settlement_the_store_does_not_take_leaves_the_job_open() -> None:
    weather = Weather("settle")
    depot = Depot(MemoryStore(faults=weather))
    depot.submit("job")
    async with depot.consumer(lease=0.1) as consumer:
        job = await fetched(consumer)
        weather.left = 10**9

        with pytest.raises(StoreUnavailable):
            await consumer.mark_complete(job, result=1)

        weather.left = 0
        assert await consumer.mark_complete("job", result=2)
    assert depot.record("job").result == b"2"


@pytest.mark.usefixtures("fast")
async def test_a_settlement_is_offered_for_as_long_as_a_lease_lasts() -> None:
    weather = Weather("settle")
    depot = Depot(MemoryStore(faults=weather))
    depot.submit("job")

    async def offered_again() -> None:
        before = weather.calls["settle"]
        await until(lambda: weather.calls["settle"] >= before + 2 or telling.done())

    async with depot.consumer(lease=30.75) as consumer:
        job = await fetched(consumer)
        weather.left = 10**9
        telling = asyncio.create_task(consumer.mark_complete(job, result=1))
        await offered_again()
        depot.clock.ahead_s += 30.25
        await offered_again()
        assert not telling.done()

        depot.clock.ahead_s += 0.5

        with pytest.raises(StoreUnavailable):
            await telling
        weather.left = 0


# ------------------------------------------------------------------------------------------ logs


@pytest.mark.req("S3-32", "S3-40")
async def test_the_log_names_what_happened_with_ids_and_without_payloads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Packhorse(store=MemoryStore())
    app.queue("mail")
    app.task(name="send", queue="mail")(_send)
    caplog.set_level(logging.INFO, logger="packhorse")
    call = app.tasks["send"].call("hunter2").using(tenant="acme")
    handles = await app.aenqueue_many([call] * 3)

    async with app.consumer(["mail"]) as consumer:
        await consumer.mark_complete(await fetched(consumer), result="hunter2")
        await consumer.retry_job(await fetched(consumer), reason="exception:OSError")
        await consumer.mark_failed(await fetched(consumer), reason="bad_input")

    lines = [vars(record) for record in caplog.records if hasattr(record, "log_name")]
    assert [line["log_name"] for line in lines] == [
        *("job_fetched", "job_completed"),
        *("job_fetched", "job_failed", "job_retried"),
        *("job_fetched", "job_failed", "job_failed"),
    ]
    assert {line["job_id"] for line in lines} == {handle.id for handle in handles}
    assert {(line["tenant"], line["worker"]) for line in lines} == {("acme", consumer.id)}
    assert all(line["trace_id"] for line in lines)
    assert "hunter2" not in caplog.text


def _send(to: str) -> str:
    raise NotImplementedError


# ------------------------------------------------------------------------------- a whole runtime


@pytest.mark.req("S3-4", "S3-8", "S3-9")
async def test_a_bound_around_the_whole_flow_and_a_trace_per_attempt_never_block_a_retry(
    depot: Depot,
) -> None:
    flow = Flow(broken_first=True)  # its first trace dies, and is never freed
    depot.submit("job", timeout_us=SECOND_US // 20)

    async with depot.consumer() as consumer:
        for _ in range(2):
            job = await fetched(consumer)
            try:
                async with asyncio.timeout(job.timeout):  # handing it in may block as well
                    await flow.emit(job.payload, job.attempt_trace_id)
                    result = await flow.fetch(job.attempt_trace_id)
            except TimeoutError:
                await consumer.retry_job(job, delay_s=0, reason="job_timeout")
            else:
                await consumer.mark_complete(job, result=result)

    assert [line.status for line in depot.history("job")] == [
        JobStatus.TIMEOUT,
        JobStatus.COMPLETED,
    ]
    assert depot.record("job").result == b'{"to":"a"}'


@pytest.mark.req("S3-8")
async def test_a_flow_that_does_not_even_take_the_job_is_ended_by_the_same_bound(
    depot: Depot,
) -> None:
    flow = Flow(broken_first=True)
    depot.submit("job", timeout_us=SECOND_US // 20)
    async with depot.consumer() as consumer:
        job = await fetched(consumer)
        await flow.emit("of another", job.trace_id)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(job.timeout):
                await flow.emit(job.payload, job.trace_id)

        assert await consumer.retry_job(job)
    assert depot.status("job") is JobStatus.TIMEOUT


def _only_worker(depot: Depot) -> WorkerRecord:
    (worker,) = depot.store.run(depot.store.leases.workers())
    return worker


def _is_live(depot: Depot, worker: str) -> bool:
    workers = depot.store.run(depot.store.leases.workers())
    return any(each.worker == worker and each.live for each in workers)


@pytest.mark.parametrize("answered", [True, False])
def test_a_job_that_no_caller_receives_is_given_back_unless_its_end_is_being_written(
    *, answered: bool
) -> None:
    released: list[object] = []
    answer = SimpleNamespace(done=lambda: answered)
    settling = SimpleNamespace(counted=False, answer=answer, withdrawn=True)
    attempt: Any = SimpleNamespace(settling=settling, stage=Stage.RUNNING)
    runtime: Any = SimpleNamespace(_release=released.append)

    ConsumerRuntime._not_opened(runtime, attempt)

    assert released == ([attempt] if answered else [])
    assert settling.withdrawn is answered


def test_what_is_held_and_does_not_wait_for_a_fetch_is_running() -> None:
    sizes: list[int] = []
    slots = SimpleNamespace(held=["a", "b"], waiting=["b"], running=0, resize=sizes.append)
    fetch = SimpleNamespace(answer=SimpleNamespace(done=lambda: False))
    runtime: Any = SimpleNamespace(slots=slots, _waiting=[fetch, fetch])

    ConsumerRuntime._count(runtime)

    assert (slots.running, sizes) == (1, [3])
