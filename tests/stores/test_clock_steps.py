# SPDX-License-Identifier: MIT
"""A store's clock is set while worker processes run jobs: nothing is rescued, nothing runs twice.

Real servers and real processes. What every plan is given for a clock can be set by the test, since
a server's own cannot without setting the machine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.core.job import JobStatus
from packhorse.core.policies.lease import LEASE_US_DEFAULT
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from tests.end_to_end.support import World, until
from tests.servers.urls import store_url_of
from tests.stores.stepped_app import CLOCK_VARIABLE, SetClock, create_app

APP = "tests.stores.stepped_app:create_app"
WORKERS, SLOTS = 2, 5
STEP_S = 10 * LEASE_US_DEFAULT / 1_000_000


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with store_url_of(request.param, tmp_path) as url:
        made = World(tmp_path, None if request.param == "sqlite" else url)
        yield made
        made.end()


def settled_down(store: Store, clock: SetClock) -> bool:
    """Every worker has renewed since, and what it holds may be held on."""
    workers, now_us = store.run(store.leases.workers()), clock.now_us()
    return (
        len(workers) == WORKERS
        and all(record.live and record.renewed_us <= now_us for record in workers)
        and not store.run(store.leases.orphans((), limit=100))
    )


@pytest.mark.timeout(120)
def test_a_clock_that_is_set_makes_no_worker_lose_a_job(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_file = tmp_path / "clock"
    clock = SetClock(clock_file)
    monkeypatch.setenv(CLOCK_VARIABLE, str(clock_file))
    monkeypatch.setenv("PACKHORSE_URL", world.url)
    app = create_app()
    store = open_store(world.url, clock=clock)
    for _ in range(WORKERS):
        world.worker("--concurrency", str(SLOTS), app=APP)
    jobs: list[str] = []
    for step_s in (STEP_S, -STEP_S, STEP_S):
        gate = tmp_path / f"gate-{len(jobs)}"
        running = [
            app.tasks["wait_for_file"].enqueue(path=str(gate)) for _ in range(WORKERS * SLOTS)
        ]
        jobs += [job.id for job in running]
        world.heard("start", times=len(jobs))

        clock.step(step_s)

        until("the workers to have noticed", lambda: settled_down(store, clock), within_s=9)
        gate.touch()
        for job in running:
            job.result(timeout=30)

    found = {job_id: store.run(store.inspection.job(job_id)) for job_id in jobs}
    for record in found.values():
        assert record is not None
        assert record.status is JobStatus.COMPLETED
        assert (record.counters.attempts, record.counters.crashes) == (1, 0)
    starts = [line.job_id for line in world.lines("start")]
    assert sorted(starts) == sorted(jobs)
    store.close()
    app.close()
