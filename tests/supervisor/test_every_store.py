# SPDX-License-Identifier: MIT
"""What a supervised worker promises, with real processes on every store."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

import pytest

from packhorse import JobStatus
from packhorse.core.clock import SECOND_US
from packhorse.core.config import WorkerOptions
from tests.supervisor.yard import IN_PROCESSES, JOBS, PATIENCE_S, Yard, until
from tests.support.twins import ordinarily_on

pytestmark = pytest.mark.parametrize("store", ordinarily_on("postgres"))

RUNNING: Final = 100
#: How soon a wish to cancel must be heard.
HEARD_S: Final = 1.0
#: Well below the lease of 30 s, which must not be waited for.
SOON_S: Final = 15.0


@pytest.fixture
def source() -> str:
    """The app with tasks that run in processes."""
    return JOBS + IN_PROCESSES


@pytest.mark.req("S1-52", "S4-9", "S4-11", "S4-12", "X-9")
def test_of_a_hundred_running_jobs_each_is_finished_or_given_back_once(yard: Yard) -> None:
    linger = yard.app.tasks["linger"]
    gates = [("go", "later")[number % 2] for number in range(RUNNING)]
    jobs = yard.app.enqueue_many([linger.call(gate) for gate in gates])
    old = yard.worker("-c", str(RUNNING), "--shutdown-timeout", "1s", "--log-level", "error")
    until("all to begin", lambda: len(list(yard.folder.glob("begun-*"))) == RUNNING)

    old.send_signal(signal.SIGTERM)
    yard.go()  # some finish in time
    assert old.wait(PATIENCE_S) == 0

    infos = [job.info() for job in jobs]
    assert {(info.status, info.attempts, info.releases) for info in infos} == {
        (JobStatus.COMPLETED, 1, 0),
        (JobStatus.QUEUED, 1, 1),
    }
    back = {job.id for job, info in zip(jobs, infos, strict=True) if info.releases}
    assert {job.id for job, gate in zip(jobs, gates, strict=True) if gate == "later"} <= back
    yard.go("later")
    new = yard.worker("--burst", "--log-level", "error")
    assert new.wait(PATIENCE_S) == 0
    for job in jobs:
        info = job.info()
        assert (info.status, info.attempts) == (JobStatus.COMPLETED, 1 + (job.id in back))
        assert (info.failures, info.crashes) == (0, 0)
    assert WorkerOptions(queues=("default",)).shutdown_timeout_us == 30 * SECOND_US


@pytest.mark.req("S1-45", "S4-30", "S3-9", "S3-17")
def test_a_wish_to_cancel_is_heard_within_a_second_wherever_the_handler_runs(yard: Yard) -> None:
    names = ("wait_awaiting", "wait_in_a_thread", "obey")
    jobs = {name: yard.app.tasks[name].enqueue() for name in names}
    parent = yard.worker("--process-slots", "1", "--log-level", "error")
    for job in jobs.values():
        yard.begun(job)

    for name, job in jobs.items():
        asked = time.time()
        assert job.cancel()
        until(f"{name} to notice", (yard.folder / f"noticed-{job.id}").exists)
        heard_s = (yard.folder / f"noticed-{job.id}").stat().st_mtime - asked

        assert heard_s <= HEARD_S, name
        assert yard.finished(job).status is JobStatus.CANCELLED
    assert yard.stop(parent) == 0


@pytest.mark.req("S3-26", "S4-26", "S2-3")
def test_a_dead_child_under_a_living_parent_strands_nothing_and_no_innocent_job_pays(
    yard: Yard,
) -> None:
    jobs = yard.app.tasks["linger"].enqueue_many([{}] * 3)  # one of them has no slot
    parent = yard.worker("-c", "2", "--log-level", "error")
    first = yard.begun(jobs[0])
    assert yard.begun(jobs[1]) == first

    os.kill(first, signal.SIGKILL)
    killed = time.monotonic()
    second = yard.begun(jobs[0], than=first)
    yard.go()

    results = [job.result(timeout=PATIENCE_S) for job in jobs]
    assert time.monotonic() - killed < SOON_S
    assert set(results) == {second}
    for job in jobs[:2]:
        counters = yard.record(job).counters
        assert (counters.crashes, counters.lone_crashes, counters.failures) == (1, 0, 0)
    assert (yard.record(jobs[2]).counters.crashes, jobs[2].info().attempts) == (0, 1)
    assert yard.stop(parent) == 0
