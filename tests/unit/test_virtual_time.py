# SPDX-License-Identifier: MIT
"""Under a clock that only tests move nothing waits for ever: bursts, results and room pass time."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest

from packhorse import (
    Context,
    Contract,
    JobStatus,
    Packhorse,
    QueueFull,
    ResultTimeout,
    RetryPolicy,
)
from packhorse.core.clock import new_id, to_datetime
from packhorse.core.job import JobOptions, NewJob
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.app_support import STORES, app_on

#: Of the hour, in seconds, what a test walks wait by wait at its end.
LAST_WAITS = 200
LONG = RetryPolicy(max_retries=2, initial_delay="1h", max_delay="2h")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Packhorse:
    return app_on(request.param, tmp_path, clock)


def test_a_burst_lets_the_time_until_a_retry_pass(app: Packhorse, clock: VirtualClock) -> None:
    times: list[float] = []

    @app.task(retry=LONG)
    def fail() -> None:
        times.append(clock.monotonic())
        raise ValueError("again")

    job = fail.enqueue()
    app.run(burst=True)

    assert job.info().attempts == 3
    assert all(later - earlier >= 1800 for earlier, later in itertools.pairwise(times))
    app.close()


def test_a_burst_lets_the_time_until_a_limit_opens_pass(
    app: Packhorse, clock: VirtualClock
) -> None:
    app.queue("slow", rate_limit=(1, "1h"))
    times: list[float] = []

    @app.task(queue="slow")
    def note() -> None:
        times.append(clock.monotonic())

    note.enqueue_many([{}, {}, {}])
    app.run(burst=True)

    assert [round(time / 3600) for time in times] == [0, 1, 2]
    app.close()


def test_a_burst_does_not_wait_for_what_is_scheduled(app: Packhorse, clock: VirtualClock) -> None:
    @app.task
    def later(ctx: Context) -> None: ...

    job = later.using(delay="1d").enqueue()
    app.run(burst=True)

    assert (job.status(), clock.monotonic()) == ("pending", 0)
    app.close()


def test_waiting_for_a_result_or_for_room_ends_by_its_timeout(app: Packhorse) -> None:
    app.queue("full", max_depth=1, on_full="wait", wait_timeout="200ms")

    @app.task(queue="full")
    def fill() -> None: ...

    job = fill.enqueue()

    with pytest.raises(ResultTimeout):
        job.result(timeout=0.2)
    with pytest.raises(QueueFull):
        fill.enqueue()
    app.close()


def test_a_clock_is_set_forwards_and_back(clock: VirtualClock) -> None:
    for year in (2035, 2020):
        moment = datetime(year, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
        clock.set(moment)
        assert to_datetime(clock.now_us()) == moment
    assert clock.monotonic() > 0


def test_a_job_of_a_version_that_no_worker_knows_is_dead_after_an_hour(
    app: Packhorse, clock: VirtualClock
) -> None:
    @app.task(contract=Contract(version="1"))
    def pay(euros: int) -> int:
        return euros

    new = NewJob(new_id(), "pay", b'{"cents": 5}', options=JobOptions(version="2"))
    app.store.run(app.store.jobs.submit([new]))
    job, began = app.job(new.id), clock.monotonic()

    waits: list[float] = []
    while job.status() is not JobStatus.DEAD:
        app.run(burst=True)
        waits.append((job.info().due_at - to_datetime(clock.now_us())).total_seconds())
        # The waits of 60 s are alike: most of the hour passes in one of them.
        passed = clock.monotonic() - began
        clock.advance(3600 - LAST_WAITS - passed if waits.count(60) == 1 else max(0.0, waits[-1]))

    info = job.info()
    assert (info.dead_reason, info.attempts, info.failures) == ("unknown_task", 1, 0)
    assert 3600 <= clock.monotonic() - began <= 3700
    assert waits[:4] == [1, 1, 2, 4]
    assert max(waits) == 60
    job.retry()  # starts the time again
    app.run(burst=True)
    assert job.status() is JobStatus.PENDING
    app.close()
