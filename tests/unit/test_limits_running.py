# SPDX-License-Identifier: MIT
"""Limits, order and shares as an app declares them, with real workers, on each store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import Packhorse, RetryPolicy
from packhorse.core.clock import from_datetime
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.app_support import STORES, HandWorker, app_on

WINDOW_US = 320_000


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packhorse]:
    made = app_on(request.param, tmp_path)
    yield made
    made.close()


class Together:
    """A handler that says how many of it run at once."""

    def __init__(self, wanted: int) -> None:
        self.most = 0
        self._wanted = wanted
        self._running = 0

    async def __call__(self) -> None:
        self._running += 1
        self.most = max(self.most, self._running)
        for _ in range(20):
            if self._running >= self._wanted:
                break
            await asyncio.sleep(0.005)  # room for others to begin, if they may
        self._running -= 1


@pytest.mark.req("S1-21")
def test_a_configuration_lets_no_more_run_at_once_than_it_says(app: Packhorse) -> None:
    together = Together(wanted=3)

    async def handle(payload: object) -> None:
        await together()

    config = {
        "name": "w",
        "queues": ["mail"],
        "queueConfigs": [{"name": "mail", "concurrency": 2}],
        "handlers": {"handle": handle},
    }
    for number in range(6):
        task = {"id": f"t{number}", "type": "handle", "payload": None, "queue": "mail"}
        app.submit(task)

    report = app.run(config=config, burst=True)

    assert report.succeeded == 6
    assert together.most == 2


def test_a_tasks_concurrency_is_one_for_each_key(app: Packhorse) -> None:
    running: dict[str, int] = {"a": 0, "b": 0}
    most: dict[str, int] = {"a": 0, "b": 0}

    @app.task(concurrency=1, concurrency_key="who")
    async def work(who: str) -> None:
        running[who] += 1
        most[who] = max(most[who], running[who])
        await asyncio.sleep(0.005)
        running[who] -= 1

    work.enqueue_many([{"who": who} for who in "abab"])

    assert app.run(burst=True).succeeded == 4
    assert most == {"a": 1, "b": 1}


def starts_us(app: Packhorse, job_ids: list[str]) -> list[int]:
    started = [app.job(job_id).info().started_at for job_id in job_ids]
    return sorted(from_datetime(moment) for moment in started if moment is not None)


def most_in_any_window(starts: list[int], window_us: int) -> int:
    return max(sum(first <= other < first + window_us for other in starts) for first in starts)


@pytest.mark.req("S1-22", "X-12")
def test_a_configuration_lets_no_more_start_in_any_window_than_it_says(app: Packhorse) -> None:
    config = {
        "name": "w",
        "queues": ["mail"],
        "queueConfigs": [
            {
                "name": "mail",
                "concurrency": 50,
                "rateLimit": {"max": 3, "durationMs": WINDOW_US // 1000},
            }
        ],
        "handlers": {"handle": lambda payload: payload},
    }
    ids = [f"t{number}" for number in range(7)]
    for job_id in ids:
        app.submit({"id": job_id, "type": "handle", "payload": 1, "queue": "mail"})

    report = app.run(config=config, max_jobs=7)

    assert report.succeeded == 7
    # Fewer where this machine stood still: a job that could not start in time uses up its grant.
    assert 1 <= most_in_any_window(starts_us(app, ids), WINDOW_US) <= 3


@pytest.mark.req("S0-15", "S0-16", "X-12")
def test_a_tenant_at_its_rate_limit_waits_and_delays_no_other(app: Packhorse) -> None:
    # The quiet tenant has grants to spare: a job that this machine kept from starting in time has
    # used up one, and takes another.
    app.queue("default", tenant_rate_limit=(6, WINDOW_US / 1_000_000))

    @app.task
    async def work() -> None: ...

    busy = work.using(tenant="busy").enqueue_many([{}] * 8)
    quiet = work.using(tenant="quiet").enqueue_many([{}] * 2)

    assert app.run(max_jobs=10).succeeded == 10
    busy_starts = starts_us(app, [job.id for job in busy])
    assert most_in_any_window(busy_starts, WINDOW_US) <= 6
    assert max(starts_us(app, [job.id for job in quiet])) < busy_starts[6]
    assert busy[0].info().failures == 0


@pytest.mark.req("S0-24", "S2-24")
def test_retries_of_one_job_let_no_later_one_of_its_key_overtake_it(app: Packhorse) -> None:
    seen: list[tuple[str, int]] = []
    failed: set[int] = set()

    @app.task(retry=RetryPolicy(max_retries=2, initial_delay=0.02, jitter=False))
    async def work(user: str, number: int) -> None:
        seen.append((user, number))
        if user == "ada" and number == 0 and len(failed) < 2:
            failed.add(len(failed))
            raise ValueError("not yet")

    for number in range(3):
        for user in ("ada", "bob"):
            work.using(ordering_key=user).enqueue(user, number)

    assert app.run(burst=True).succeeded == 6
    assert [number for user, number in seen if user == "ada"] == [0, 0, 0, 1, 2]
    assert [number for user, number in seen if user == "bob"] == [0, 1, 2]
    # The other line was not held up by the retries.
    assert seen.index(("bob", 2)) < seen.index(("ada", 1))


@pytest.mark.parametrize("store", STORES)
def test_tenants_share_a_queue_however_many_jobs_one_of_them_has(
    store: str, tmp_path: Path
) -> None:
    app = app_on(store, tmp_path, VirtualClock())
    app.queue("default", weights={"heavy": 2})
    work = app.task(name="work")(lambda: None)
    work.using(tenant="many").enqueue_many([{}] * 200)
    work.using(tenant="heavy").enqueue_many([{}] * 20)
    work.using(tenant="few").enqueue_many([{}] * 10)

    given = [job.tenant for job in HandWorker(app.store, "work").take(40)]

    assert (given.count("many"), given.count("heavy"), given.count("few")) == (10, 20, 10)
    app.close()


@pytest.mark.req("S1-17", "S1-18", "S1-20", "S2-17")
@pytest.mark.parametrize("store", STORES)
def test_the_more_urgent_go_first_and_equals_in_order(store: str, tmp_path: Path) -> None:
    app = app_on(store, tmp_path, VirtualClock())
    work = app.task(name="work")(lambda name: None)
    submitted: list[tuple[Any, str]] = [
        *(("low", "a"), ("critical", "b"), ("normal", "c"), ("background", "d"), ("high", "e")),
        *(("low", "f"), ("critical", "g")),
    ]
    for priority, name in submitted:
        work.using(priority=priority, job_id=name).enqueue(name)

    given = [job.id for job in HandWorker(app.store, "work").take(10)]

    assert given == ["b", "g", "e", "c", "a", "f", "d"]
    app.close()


@pytest.mark.req("S1-19", "S1-20")
@pytest.mark.parametrize("store", STORES)
def test_a_queue_of_a_lower_number_is_served_first_whatever_its_jobs(
    store: str, tmp_path: Path
) -> None:
    app = app_on(store, tmp_path, VirtualClock())
    app.queue("later", priority=5)
    app.queue("first", priority=1)
    work = app.task(name="work")(lambda: None)
    work.using(queue="later", priority="critical", job_id="urgent").enqueue()
    work.using(queue="first", priority="background", job_id="idle").enqueue()

    worker = HandWorker(app.store, "work", queues=("later", "first"))

    assert [job.id for job in worker.take(2)] == ["idle", "urgent"]
    app.close()


@pytest.mark.req("S2-18")
@pytest.mark.parametrize("store", STORES)
def test_low_work_is_done_under_endless_high_load_where_jobs_age(
    store: str, tmp_path: Path
) -> None:
    clock = VirtualClock()
    app = app_on(store, tmp_path, clock)
    app.queue("default", ageing="10s")
    work = app.task(name="work")(lambda: None)
    low = work.using(priority="low").enqueue()
    work.using(priority="high").enqueue()
    worker = HandWorker(app.store, "work")

    waited = 0
    while worker.claim().id != low.id:
        work.using(priority="high").enqueue_many([{}] * 2)
        clock.advance(1)
        waited += 1
        assert waited < 100

    assert waited > 20  # it had to age two levels first
    app.close()


def test_a_window_that_holds_too_many_would_be_noticed() -> None:
    assert most_in_any_window([0, 5, 9, 20], 10) == 3
    assert most_in_any_window([0, 5, 10, 20], 10) == 2
