# SPDX-License-Identifier: MIT
"""Submitting twice: idempotency keys and unique jobs, as a producer sees them, on each store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from packhorse import (
    FunctionTask,
    IdempotencyMismatch,
    JobConflict,
    JobStatus,
    Packhorse,
    Unique,
)
from packhorse.core.job import IdempotencyRule
from packhorse.core.outcome import Succeeded
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.app_support import NO_RETRY, STORES, HandWorker, app_on

Send = FunctionTask[..., str]
HOUR_US = 3_600_000_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Packhorse]:
    made = app_on(request.param, tmp_path, clock)
    yield made
    made.close()


@pytest.fixture
def send(app: Packhorse) -> Send:
    @app.task
    def send(to: str, times: int = 1) -> str:
        return to * times

    return send


@pytest.fixture
def worker(app: Packhorse) -> HandWorker:
    return HandWorker(app.store, "send")


# ------------------------------------------------------------------------------- idempotency


@pytest.mark.req("S0-18")
def test_a_second_submit_of_a_key_is_the_job_that_waits_or_runs(
    send: Send, worker: HandWorker
) -> None:
    order = send.using(idempotency_key="order-17")
    first = order.enqueue("ada")

    while_it_waits = order.enqueue("ada")
    worker.claim()
    while_it_runs = order.enqueue(to="ada")

    assert not first.deduplicated
    for again in (while_it_waits, while_it_runs):
        assert (again.id, again.deduplicated) == (first.id, True)
    assert worker.take(5) == ()


@pytest.mark.req("S0-17")
def test_a_second_submit_of_a_completed_key_returns_the_stored_result(
    send: Send, worker: HandWorker, clock: VirtualClock
) -> None:
    order = send.using(idempotency_key="order-17")
    first = order.enqueue("ada")
    worker.complete('"stored"')
    clock.advance(3600)

    again = order.enqueue("ada")

    assert (again.id, again.deduplicated) == (first.id, True)
    assert again.result(timeout=0) == "stored"
    assert worker.take(5) == ()


@pytest.mark.req("S0-20")
def test_a_key_whose_job_died_or_was_cancelled_is_free_again(
    send: Send, worker: HandWorker
) -> None:
    order = send.using(idempotency_key="order-17")
    dead = order.enqueue("ada")
    worker.fail(NO_RETRY)
    cancelled = order.enqueue("ada")
    cancelled.cancel()

    last = order.enqueue("ada")

    assert len({dead.id, cancelled.id, last.id}) == 3
    assert not last.deduplicated


@pytest.mark.req("S0-20")
def test_a_retry_of_the_job_itself_is_not_stopped_by_its_key(
    send: Send, worker: HandWorker, clock: VirtualClock
) -> None:
    order = send.using(idempotency_key="order-17")
    job = order.enqueue("ada")
    worker.fail()
    assert order.enqueue("ada").id == job.id
    clock.advance(60)

    again = worker.complete('"second time"')

    assert (again.id, again.attempt) == (job.id, 2)
    assert job.result(timeout=0) == "second time"


def test_the_same_key_with_another_payload_is_a_mismatch_and_stores_nothing(
    app: Packhorse, send: Send
) -> None:
    order = send.using(idempotency_key="order-17")
    first = order.enqueue("ada")

    with pytest.raises(IdempotencyMismatch, match="order-17") as raised:
        app.enqueue_many([send.call("bob"), order.call("eve")])

    assert raised.value.job_id == first.id
    assert app.depth("default") == 1


def test_keys_belong_to_a_tenant_and_a_task(app: Packhorse, send: Send) -> None:
    app.task(name="other")(lambda to: None)
    key: dict[str, Any] = {"idempotency_key": "order-17"}

    jobs = [
        send.using(**key).enqueue("ada"),
        send.using(**key, tenant="acme").enqueue("ada"),
        app.tasks["other"].using(**key).enqueue("ada"),
    ]

    assert len({job.id for job in jobs}) == 3
    assert jobs[1].info().idempotency_key == "order-17"


def test_a_key_holds_for_a_day_or_as_long_as_the_result_is_kept(
    app: Packhorse, send: Send, worker: HandWorker, clock: VirtualClock
) -> None:
    app.queue("brief", retention={"results": "1h"})
    rules: list[IdempotencyRule] = []
    for using in ({}, {"queue": "brief"}, {"idempotency_window": "10m"}):
        call = send.using(idempotency_key="k", **using).call("ada")  # type: ignore[arg-type]
        [[job], *_] = send.submission.prepared([call])
        assert job.idempotency is not None
        rules.append(job.idempotency)

    assert [rule.window_us for rule in rules] == [24 * HOUR_US, HOUR_US, HOUR_US // 6]

    first = send.using(idempotency_key="k", idempotency_window="10m").enqueue("ada")
    worker.complete()
    clock.advance(601)
    assert send.using(idempotency_key="k").enqueue("ada").id != first.id


@pytest.mark.parametrize("store", STORES)
def test_many_threads_with_one_key_get_one_job(store: str, tmp_path: Path) -> None:
    app = app_on(store, tmp_path)
    app.task(name="send")(lambda to: to)
    together = threading.Barrier(8)

    def submit(_: int) -> tuple[str, bool]:
        together.wait(20)
        job = app.tasks["send"].using(idempotency_key="k").enqueue("ada")
        return job.id, bool(job.deduplicated)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(8)))

    assert len({job_id for job_id, _ in answers}) == 1
    assert sorted(deduplicated for _, deduplicated in answers) == [False, *[True] * 7]
    app.close()


# --------------------------------------------------------------------------------- uniqueness


def test_a_unique_task_is_there_once_until_it_is_finished(
    app: Packhorse, worker: HandWorker
) -> None:
    @app.task(unique=Unique("to"))
    def send(to: str, times: int = 1) -> str:
        return to

    first = send.enqueue("ada")
    job = worker.claim()
    again = send.enqueue("ada", 2)
    other = send.enqueue("bob")

    assert (again.id, again.deduplicated) == (first.id, True)
    assert not other.deduplicated
    assert job.id == first.id


def test_a_bulk_answers_each_item_and_meets_its_own_duplicates(send: Send) -> None:
    unique = send.using(unique=Unique("to"))

    jobs = unique.enqueue_many([{"to": "a"}, {"to": "b"}, {"to": "a"}])
    more = asyncio.run(unique.aenqueue_many([{"to": "b"}, {"to": "c"}]))

    assert [job.deduplicated for job in jobs] == [False, False, True]
    assert jobs[2].id == jobs[0].id
    assert [job.deduplicated for job in more] == [True, False]
    assert more[0].id == jobs[1].id


def test_until_started_lets_the_next_one_in_while_one_runs(send: Send, worker: HandWorker) -> None:
    unique = send.using(unique=Unique("to", scope="until_started"))
    unique.enqueue("ada")
    assert unique.enqueue("ada").deduplicated

    worker.claim()

    assert not unique.enqueue("ada").deduplicated


def test_a_throttled_task_comes_back_when_its_window_is_over(
    send: Send, worker: HandWorker, clock: VirtualClock
) -> None:
    rule = Unique("to", scope="window", on_conflict="throttle", window="10m")
    unique = send.using(unique=rule)
    unique.enqueue("ada")
    worker.complete()
    assert unique.enqueue("ada").deduplicated

    clock.advance(600)

    assert not unique.enqueue("ada").deduplicated


def test_a_debounced_job_runs_once_with_the_last_arguments_when_it_is_quiet(
    send: Send, worker: HandWorker, clock: VirtualClock
) -> None:
    settled = send.using(unique=Unique("to", on_conflict="debounce"), delay="5s")
    first = settled.enqueue("ada", 1)
    clock.advance(4)
    again = settled.enqueue("ada", 2)
    clock.advance(4)
    assert worker.take(1) == ()

    clock.advance(1)

    assert again.id == first.id
    assert worker.claim().payload == '{"to":"ada","times":2}'


def test_keep_latest_runs_the_newest_once_the_running_one_is_over(
    send: Send, worker: HandWorker
) -> None:
    latest = send.using(unique=Unique("to", on_conflict="keep_latest"))
    latest.enqueue("ada", 1)
    running = worker.claim()
    for times in (2, 3):
        latest.enqueue("ada", times)
    assert worker.take(5) == ()

    worker.settle(running, Succeeded("null"))

    assert [job.payload for job in worker.take(5)] == ['{"to":"ada","times":3}']


def test_redriving_a_job_whose_key_is_taken_is_a_conflict_that_changes_nothing(
    send: Send, worker: HandWorker
) -> None:
    unique = send.using(unique=Unique("to"))
    dead = unique.enqueue("ada")
    worker.fail(NO_RETRY)
    unique.enqueue("ada")

    with pytest.raises(JobConflict, match="another job has taken its unique or idempotency key"):
        dead.retry()

    assert dead.status() is JobStatus.DEAD
