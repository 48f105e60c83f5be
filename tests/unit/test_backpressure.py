# SPDX-License-Identifier: MIT
"""Full queues: refusing, waiting for room, dropping the least, and telling producers in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from packhorse import (
    ConfigError,
    FunctionTask,
    JobStatus,
    Packhorse,
    QueueClosed,
    QueueFull,
    StoreUnavailable,
    UsageError,
)
from packhorse.client import backpressure
from packhorse.client.backpressure import SETTINGS_AGE_S_MAX, Patience, patience
from packhorse.core.outcome import Succeeded
from packhorse.core.sizes import size_in_bytes
from packhorse.events import QueueFilling
from packhorse.stores.memory import MemoryStore
from packhorse.stores.requests import QueueSettings, QueueState
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.app_support import STORES, HandWorker, app_on, memory_app
from tests.worker.support import until

Work = FunctionTask[..., None]


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packhorse]:
    made = app_on(request.param, tmp_path)
    yield made
    made.close()


def work_of(app: Packhorse, queue: str = "default") -> Work:
    @app.task(queue=queue)
    def work(number: int = 0) -> None: ...

    return work


# ---------------------------------------------------------------------------------- refusing


@pytest.mark.req("S2-15")
def test_a_full_queue_refuses_with_its_depth_and_limit_and_stores_nothing(app: Packhorse) -> None:
    app.queue("default", max_depth=2)
    work = work_of(app)
    work.enqueue()

    with pytest.raises(QueueFull) as raised:
        work.enqueue_many([{"number": 1}, {"number": 2}])

    assert (raised.value.queue, raised.value.depth, raised.value.limit) == ("default", 1, 2)
    assert app.depth("default") == 1
    work.enqueue()


@pytest.mark.req("S2-27")
def test_a_queue_or_a_store_full_of_bytes_refuses_and_says_so(
    app: Packhorse, tmp_path: Path
) -> None:
    app.queue("default", max_bytes="0.2kB")
    work = work_of(app)
    with pytest.raises(QueueFull, match="max_bytes is 200"):
        work.enqueue_many([{"number": number} for number in range(100)])
    work.enqueue()

    full = Packhorse(store=app.store, max_bytes="16 B")
    other = work_of(full, "other")
    with pytest.raises(QueueFull, match="the store is full") as raised:
        other.enqueue_many([{"number": 1}, {"number": 2}])

    assert (raised.value.queue, raised.value.reason) == ("other", "store_bytes")
    assert "" not in full.known_queues
    assert [queue.name for queue in full.insights.queues()] == ["default"]
    assert full.insights.store_bytes() == (raised.value.depth, 16)
    full.set_limits("", max_bytes=None)
    other.enqueue()


def test_a_submit_that_waits_for_bytes_goes_on_when_a_job_has_ended(app: Packhorse) -> None:
    app.queue("default", max_bytes=20, on_full="wait", wait_timeout="10s")
    work = work_of(app)
    work.enqueue(1)
    worker = HandWorker(app.store, "work")
    job = worker.claim()  # its bytes stay

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(work.enqueue, 2)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        worker.settle(job, Succeeded("null"))
        assert waiting.result(20).id != job.id


@pytest.mark.parametrize(
    ("given", "meant"),
    [(5, 5), ("5", 5), ("1kB", 1_000), ("1.5 MiB", 1_572_864), (" 2gb ", 2 * 10**9)],
)
def test_bytes_are_written_as_people_write_them(given: int | str, meant: int) -> None:
    assert size_in_bytes(given, "max_bytes") == meant


@pytest.mark.parametrize("given", ["9" * 400, "", "many", "-5", "5 XB", True, None, 1.5])
def test_bytes_that_cannot_be_read_are_refused_by_name(given: Any) -> None:
    with pytest.raises(ConfigError, match="max_bytes is "):
        size_in_bytes(given, "max_bytes")


@pytest.mark.req("S2-15")
@pytest.mark.parametrize("store", STORES)
def test_many_producers_at_once_never_fill_a_queue_above_its_limit(
    store: str, tmp_path: Path
) -> None:
    app = app_on(store, tmp_path)
    app.queue("default", max_depth=10)
    work, together = work_of(app), threading.Barrier(8)

    def submit(_: int) -> int:
        together.wait(20)
        stored = 0
        for _ in range(5):
            try:
                work.enqueue()
            except QueueFull:
                continue
            stored += 1
        return stored

    with ThreadPoolExecutor(8) as pool:
        stored = sum(pool.map(submit, range(8)))

    assert (stored, app.depth("default")) == (10, 10)
    app.close()


@pytest.mark.req("S2-17")
def test_a_queue_that_drops_gives_up_the_least_urgent_with_a_reason(app: Packhorse) -> None:
    app.queue("default", max_depth=2, on_full="drop")
    work = work_of(app)
    low, normal = work.using(priority="low").enqueue(), work.enqueue()

    high = work.using(priority="high").enqueue()
    late = work.using(priority="background").enqueue()

    assert [job.status() for job in (low, normal, high, late)] == [
        *(JobStatus.DEAD, JobStatus.QUEUED, JobStatus.QUEUED),
        JobStatus.DEAD,
    ]
    assert low.info().dead_reason == late.info().dead_reason == "shed"


# ------------------------------------------------------------------------------------ waiting


def waiting_app(app: Packhorse, **options: Any) -> Work:
    """A queue that is full with one job, and is waited for."""
    app.queue("default", max_depth=1, on_full="wait", **options)
    work = work_of(app)
    work.enqueue()
    return work


@pytest.mark.req("S2-15")
def test_a_producer_waits_until_room_is_made(app: Packhorse) -> None:
    work = waiting_app(app)
    worker = HandWorker(app.store, "work")

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(work.enqueue, 2)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        first = worker.claim()
        second = waiting.result(20)

    assert second.id != first.id
    assert app.depth("default") == 1


async def test_async_producers_wait_without_blocking_their_loop(
    app: Packhorse, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = await asyncio.to_thread(waiting_app, app)
    refused: list[QueueFull] = []
    refuse = backpressure._refuse_hopeless

    def note(full: QueueFull, *rest: Any) -> None:
        refused.append(full)
        refuse(full, *rest)

    monkeypatch.setattr(backpressure, "_refuse_hopeless", note)
    waits = [asyncio.create_task(work.aenqueue(number)) for number in (1, 2)]
    await until(lambda: len(refused) >= len(waits))
    assert not any(wait.done() for wait in waits)

    worker = HandWorker(app.store, "work")
    async with asyncio.timeout(20):
        for _ in range(2):
            await asyncio.to_thread(worker.complete)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            waits = [wait for wait in waits if not wait.done()]

    assert waits == []


@pytest.mark.parametrize("by_call", [True, False])
def test_a_wait_ends_with_queue_full_when_its_time_is_over(
    app: Packhorse, *, by_call: bool
) -> None:
    work = waiting_app(app, **({} if by_call else {"wait_timeout": "50ms"}))
    chosen = work.using(wait="50ms") if by_call else work

    with pytest.raises(QueueFull, match="1 job waits and max_depth is 1"):
        chosen.enqueue()
    with pytest.raises(QueueFull):
        asyncio.run(chosen.aenqueue())

    assert app.depth("default") == 1


def test_a_call_may_wait_where_the_queue_refuses_and_refuse_where_it_waits() -> None:
    app = memory_app()
    app.queue("refuses", max_depth=1)
    app.queue("waits", max_depth=1, on_full="wait")
    work = work_of(app)
    for queue in ("refuses", "waits"):
        work.using(queue=queue).enqueue()

    with pytest.raises(QueueFull):
        work.using(queue="waits", wait=0).enqueue()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(work.using(queue="refuses", wait="20s").enqueue)
        HandWorker(app.store, "work", queues=("refuses",)).claim()
        waiting.result(20)


def test_calls_submitted_together_wait_no_longer_than_any_of_them() -> None:
    app = memory_app()
    work = waiting_app(app)

    with pytest.raises(QueueFull):
        app.enqueue_many([work.call(1).using(wait="10h"), work.call(2).using(wait="10ms")])


def test_more_at_once_than_the_queue_ever_holds_is_not_waited_for() -> None:
    app = memory_app()
    app.queue("default", max_depth=1, on_full="wait", wait_timeout="10h")
    work = work_of(app)

    with pytest.raises(QueueFull):
        work.enqueue_many([{"number": 1}, {"number": 2}])


def test_a_full_queue_that_refuses_is_not_waited_for_beside_one_that_is() -> None:
    app = memory_app()
    app.queue("refuses", max_depth=1)
    app.queue("waits", max_depth=1, on_full="wait", wait_timeout="10h")
    work = work_of(app)
    for queue in ("refuses", "waits"):
        work.using(queue=queue).enqueue()
    both = [work.call().using(queue=queue) for queue in ("waits", "refuses")]

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(app.enqueue_many, both)
        HandWorker(app.store, "work", queues=("waits",)).claim()
        with pytest.raises(QueueFull, match="'refuses'"):
            waiting.result(20)


def test_an_operator_decides_whether_a_full_queue_is_waited_for() -> None:
    app = memory_app()
    work = waiting_app(app, wait_timeout="10h")

    app.set_limits("default", on_full="reject")

    with pytest.raises(QueueFull):
        work.enqueue()


async def test_plain_code_inside_a_loop_is_not_let_wait_there() -> None:
    app = memory_app()
    work = await asyncio.to_thread(waiting_app, app)

    with (
        pytest.warns(RuntimeWarning, match=r"enqueue\(\) blocks"),
        pytest.raises(UsageError, match=r"use 'await task\.aenqueue\(\)'"),
    ):
        work.enqueue()


def test_a_queue_that_is_drained_meanwhile_ends_the_wait() -> None:
    app = memory_app()
    work = waiting_app(app)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(work.enqueue)
        app.close_queue("default")
        with pytest.raises(QueueClosed):
            waiting.result(20)


# ------------------------------------------------------------------------------- telling in time


def heard_by(app: Packhorse) -> list[QueueFilling]:
    heard: list[QueueFilling] = []
    app.on("queue.filling")(heard.append)
    return heard


@pytest.mark.req("S2-14")
def test_depth_can_be_read_before_submitting(app: Packhorse) -> None:
    work = work_of(app)
    work.enqueue_many([{"number": 1}, {"number": 2}])
    work.using(delay="1h").enqueue()

    assert app.depth("default") == 3
    assert asyncio.run(app.adepth("default")) == 3
    assert app.depth("no_worker_knows") == 0


@pytest.mark.req("S2-14")
def test_producers_are_told_once_each_time_a_queue_crosses_its_soft_depth(app: Packhorse) -> None:
    app.queue("default", soft_depth=2, max_depth=5)
    work, heard = work_of(app), heard_by(app)
    worker = HandWorker(app.store, "work")

    work.enqueue()
    assert heard == []
    work.enqueue()
    asyncio.run(work.aenqueue())
    assert [(event.queue, event.depth, event.soft_depth, event.max_depth) for event in heard] == [
        ("default", 2, 2, 5)
    ]

    worker.take(3)
    work.enqueue()
    work.enqueue()

    assert [event.depth for event in heard] == [2, 2]


def test_a_submit_waits_for_room_for_just_as_long_as_it_may() -> None:
    clock = VirtualClock()
    app = memory_app(clock)
    app.queue("default", max_depth=1)
    work = work_of(app)
    work.enqueue()
    began = clock.monotonic()

    with pytest.raises(QueueFull):
        work.using(wait="2.5s").enqueue()

    assert clock.monotonic() - began == pytest.approx(2.5)


def test_a_queue_that_is_waited_for_and_says_no_more_is_for_half_a_minute() -> None:
    full = QueueFull("default", depth=1, limit=1)
    waited = QueueState(QueueSettings(name="default", on_full="wait"))

    assert patience(full, [waited], None, None) == Patience(30.0, frozenset({"default"}))
    assert patience(full, [waited], 2_000_000, None) == Patience(2.0, frozenset({"default"}))
    assert patience(full, [], None, 1) == Patience(0.000001, None)
    assert patience(full, [waited], None, 0) is None
    assert patience(full, [], None, None) is None


def test_a_soft_depth_that_an_operator_sets_is_heard_of_soon() -> None:
    clock = VirtualClock()
    app = memory_app(clock)
    work, heard = work_of(app), heard_by(app)
    work.enqueue()
    app.set_limits("default", soft_depth=1)

    work.enqueue()
    assert heard == []
    clock.advance(SETTINGS_AGE_S_MAX)
    work.enqueue()

    assert [event.depth for event in heard] == [3]


def test_looking_costs_nothing_without_listeners() -> None:
    verbs: list[str] = []
    app = Packhorse(store=MemoryStore(faults=lambda verb, when: verbs.append(verb)))
    app.queue("default", soft_depth=1)
    work = work_of(app)
    work.enqueue()
    verbs.clear()

    work.enqueue()

    assert verbs == ["submit", "submit"]


def test_a_submit_does_not_fail_because_the_look_failed() -> None:
    def faults(verb: str, when: str) -> None:
        if verb in ("queues", "depth"):
            raise StoreUnavailable("gone")

    app = Packhorse(store=MemoryStore(faults=faults))
    app.queue("default", soft_depth=1)
    work, heard = work_of(app), heard_by(app)

    work.enqueue()
    asyncio.run(work.aenqueue())

    assert heard == []
