# SPDX-License-Identifier: MIT
"""A worker that is killed loses nothing, and what it held runs again soon."""

from __future__ import annotations

import signal
from typing import Final

import pytest

from packhorse import JobStatus
from packhorse.core.clock import SECOND_US
from tests.end_to_end.lines import line_to
from tests.end_to_end.support import World, ended, until
from tests.support.twins import STORES, ordinarily_on

LEASE_S: Final = 2
#: How soon after its worker's death a job must run again.
SOON_S: Final = LEASE_S + 5


@pytest.mark.req("S2-3", "S2-4", "S3-26", "S1-42")
@pytest.mark.parametrize("store", ordinarily_on("sqlite", "redis"))
def test_the_jobs_of_a_killed_worker_run_again_within_lease_plus_five_seconds(
    world: World,
) -> None:
    gate = world.folder / "gate"
    with world.app() as app:
        jobs = [app.tasks["wait_for_file"].enqueue(str(gate)) for _ in range(3)]
        victim = world.worker("--lease", f"{LEASE_S}s")
        first = world.heard("start", times=3)
        heir = world.worker("--lease", f"{LEASE_S}s")
        until("the second worker", lambda: len(app.insights.workers()) == 2)

        victim.kill()
        killed_us = app.store.run(app.store.inspection.outlook("", (), ())).now_us
        gate.touch()
        results = [job.result(timeout=60) for job in jobs]

        second = world.lines("start")[3:]
        assert {line.pid for line in first} == {victim.pid}
        assert {line.pid for line in second} == {heir.pid}
        assert [result["pid"] for result in results] == [heir.pid] * 3
        # Hidden from others while the lease ran, and back soon after.
        assert min(line.at_us for line in second) >= killed_us + SECOND_US * LEASE_S / 2
        assert max(line.at_us for line in second) <= killed_us + SECOND_US * SOON_S
        for job in jobs:
            info = job.info()
            assert (info.status, info.attempts, info.crashes) == (JobStatus.COMPLETED, 2, 1)
            assert info.failures == 0
        heir.send_signal(signal.SIGTERM)
        ended(heir)  # it has written what it did: three rescues, and three jobs
        points = app.insights.history("1h").points
        assert [sum(point.succeeded for point in points), sum(p.retried for p in points)] == [3, 3]


@pytest.mark.req("S2-5", "S2-6", "S0-19")
@pytest.mark.parametrize("store", STORES)
def test_a_worker_killed_after_the_work_and_before_its_word_has_one_effect_and_one_end(
    world: World,
) -> None:
    # The handler has ended, its settlement has not been written: nothing arrives meanwhile.
    with world.app() as app, line_to(world) as line:
        book = app.tasks["book"].using(idempotency_key="order")
        job = book.enqueue(str(world.folder / "ledger.db"), 0.5)
        victim = world.worker("--lease", f"{LEASE_S}s", environment={"PACKHORSE_URL": line.url})
        world.heard("start", job.id)
        with line.interrupted():
            world.heard("end", job.id)
            victim.kill()
            ended(victim)
        unsettled = job.status()
        assert book.enqueue(str(world.folder / "ledger.db"), 0.5).id == job.id
        world.worker("--lease", f"{LEASE_S}s")

        result = job.result(timeout=60)

        starts = world.lines("start", job.id)
        assert unsettled is JobStatus.PROCESSING
        assert [line.fence for line in starts] == sorted({line.fence for line in starts})
        assert [line.note for line in world.lines("end", job.id)] == ["booked", "known"]
        assert len(starts) == 2
        assert result["fence"] == starts[-1].fence
        completed = [line for line in job.history() if line.status == "completed"]
        assert len(completed) == 1


@pytest.mark.req("S2-3")
@pytest.mark.parametrize("store", ordinarily_on("sqlite"))
def test_jobs_that_had_not_begun_are_untouched_by_a_kill(world: World) -> None:
    with world.app() as app:
        gate = world.folder / "gate"
        blocker = app.tasks["wait_for_file"].enqueue(str(gate))
        waiting = [app.tasks["quick"].enqueue(number) for number in range(20)]
        victim = world.worker("--lease", f"{LEASE_S}s", "--concurrency", "1")
        world.heard("start", blocker.id)

        victim.send_signal(signal.SIGKILL)
        ended(victim)
        gate.touch()
        world.worker("--lease", f"{LEASE_S}s")

        assert [job.result(timeout=60) for job in waiting] == list(range(20))
        assert blocker.result(timeout=60)["pid"] != victim.pid
        assert {job.info().crashes for job in waiting} == {0}
        assert len(world.lines("start")) == 22


@pytest.mark.req("S2-3", "S3-26")
@pytest.mark.parametrize("store", ordinarily_on("sqlite"))
def test_many_long_jobs_of_a_killed_worker_run_again_as_soon(world: World) -> None:
    # Nothing is wrong with any of them, and the heir has a free slot for each.
    with world.app() as app:
        victim = world.worker("--lease", f"{LEASE_S}s")
        until("the first worker", lambda: len(app.insights.workers()) == 1)
        gate = world.folder / "gate"  # opened at the end: the heir may take its time to start
        jobs = [app.tasks["wait_for_file"].enqueue(str(gate)) for _ in range(10)]
        world.heard("start", times=len(jobs))
        world.worker("--lease", f"{LEASE_S}s")
        until("the second worker", lambda: len(app.insights.workers()) == 2)

        victim.kill()

        world.heard("start", times=2 * len(jobs), within_s=SOON_S)
        gate.touch()
