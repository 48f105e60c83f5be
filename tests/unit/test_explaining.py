# SPDX-License-Identifier: MIT
"""Why is it not running: each answer, as a handle, an app and a tenant give it, on each store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from packhorse import Explanation, FunctionTask, JobHandle, JobNotFound, Packhorse
from packhorse.core.clock import to_datetime
from packhorse.core.job_info import Reason
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.app_support import NO_RETRY, STORES, HandWorker, app_on

Work = FunctionTask[..., None]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Packhorse]:
    made = app_on(request.param, tmp_path, clock)
    yield made
    made.close()


@pytest.fixture
def work(app: Packhorse) -> Work:
    @app.task(concurrency=1, concurrency_key="who")
    def work(who: str | None = None) -> None: ...

    return work


@pytest.fixture
def worker(app: Packhorse) -> HandWorker:
    hired = HandWorker(app.store, "work")
    hired.take(0)  # it lives, and serves the queue
    return hired


def reason(job: JobHandle[None]) -> Reason:
    (only,) = job.explain().reasons
    return only


@pytest.mark.usefixtures("worker")
def test_a_job_that_is_next_says_so(work: Work) -> None:
    assert work.enqueue().explain().codes == ("ready",)


def test_a_running_job_says_where_and_since_when(work: Work, worker: HandWorker) -> None:
    job = work.enqueue()
    worker.claim()

    found = reason(job)

    assert found.code == "running"
    assert "attempt 1 at worker by-hand" in found.text
    assert found.at == job.info().started_at


def test_a_finished_job_says_how_it_ended(work: Work, worker: HandWorker) -> None:
    job = work.enqueue()
    worker.fail(NO_RETRY)

    found = reason(job)

    assert (found.code, found.at) == ("finished", job.info().finished_at)
    assert "dead (poison_message)" in found.text


@pytest.mark.usefixtures("worker")
def test_a_job_that_is_not_due_says_when_it_is(work: Work, clock: VirtualClock) -> None:
    found = reason(work.using(delay="1h").enqueue())

    assert found.code == "not_due"
    assert found.at == to_datetime(clock.now_us()) + timedelta(hours=1)


def test_a_job_that_waits_for_its_retry_says_when_it_comes(work: Work, worker: HandWorker) -> None:
    job = work.enqueue()
    worker.fail()

    found = reason(job)

    assert (found.code, found.at) == ("retry_waits", job.info().due_at)


@pytest.mark.usefixtures("worker")
def test_everything_that_is_paused_is_told(app: Packhorse, work: Work) -> None:
    job = work.using(tenant="acme").enqueue("ada")
    app.pause("default")
    app.pause("default", key="ada")
    app.pause("default", tenant="acme")

    codes = app.explain(job.id).codes

    assert codes == ("queue_paused", "tenant_paused", "key_paused")


def test_a_job_behind_another_of_its_line_names_it(work: Work, worker: HandWorker) -> None:
    line = work.using(ordering_key="user-1")
    head, behind = line.enqueue(), line.enqueue()
    worker.claim()

    found = behind.explain().reasons[0]

    assert (found.code, found.jobs) == ("behind_head", (head.id,))


def test_a_busy_key_names_who_keeps_it_busy(work: Work, worker: HandWorker) -> None:
    running, waiting = work.enqueue("ada"), work.enqueue("ada")
    worker.claim()

    found = reason(waiting)

    assert (found.code, found.jobs, found.count) == ("concurrency", (running.id,), 1)
    assert "key 'ada' of task 'work' is busy: 1 running, 1 allowed" in found.text


def test_a_rate_limit_says_when_it_frees(
    app: Packhorse, work: Work, worker: HandWorker, clock: VirtualClock
) -> None:
    app.queue("default", rate_limit=(1, "64s"))
    work.enqueue("a")
    waiting = work.enqueue("b")
    started_us = clock.now_us()
    worker.claim()

    found = reason(waiting)

    assert found.code == "rate_limit"
    assert found.at is not None
    wait_s = (found.at - to_datetime(started_us)).total_seconds()
    assert 64 <= wait_s <= 65
    clock.advance(wait_s)
    assert worker.claim().id == waiting.id


def test_a_queue_without_a_live_worker_and_a_task_no_worker_knows_are_told(
    app: Packhorse, work: Work
) -> None:
    job = work.enqueue()
    assert job.explain().codes == ("no_worker",)

    HandWorker(app.store, "other").take(0)
    assert job.explain().codes == ("unknown_task",)

    app.store.run(app.store.upkeep.park(after_us=10**9, limit=10))
    assert job.explain().codes == ("parked",)


def test_a_mistyped_queue_is_told_with_the_one_that_was_meant(
    app: Packhorse, work: Work, worker: HandWorker
) -> None:
    worker.take(0)
    with pytest.warns(UserWarning, match="did you mean 'default'"):
        job = work.using(queue="defualt").enqueue()

    assert reason(job).text == "no live worker serves queue 'defualt'; did you mean 'default'?"


@pytest.mark.usefixtures("worker")
def test_a_job_behind_others_counts_them(work: Work) -> None:
    work.enqueue_many([{"who": "a"}, {"who": "b"}])

    found = reason(work.enqueue("c"))

    assert (found.code, found.count) == ("behind", 2)


def test_a_deadline_that_has_passed_is_told(
    work: Work, worker: HandWorker, clock: VirtualClock
) -> None:
    deadline = to_datetime(clock.now_us()) + timedelta(seconds=5)
    job = work.using(deadline=deadline).enqueue()
    clock.advance(6)

    found = job.explain().reasons[0]

    assert (found.code, found.at) == ("deadline_passed", deadline)


def test_an_explanation_is_read_by_people_line_by_line(work: Work, worker: HandWorker) -> None:
    job = work.using(delay="1h", ordering_key="k").enqueue()

    lines = str(job.explain()).splitlines()

    assert lines[0] == f"job {job.id} of task work in queue default is pending:"
    assert lines[1].startswith("- it is not due until ")
    assert len(lines) == 2
    assert str(reason(job)) == reason(job).text


async def test_explaining_has_async_twins(app: Packhorse, work: Work) -> None:
    job = await work.using(tenant="acme").aenqueue()

    told = [await job.aexplain(), await app.aexplain(job.id)]
    told.append(await app.tenant("acme").aexplain(job.id))

    assert [each.codes for each in told] == [("no_worker",)] * 3
    assert all(isinstance(each, Explanation) for each in told)


def test_a_tenant_is_told_of_its_own_jobs_and_the_names_of_no_others(
    app: Packhorse, work: Work, worker: HandWorker
) -> None:
    theirs = work.using(tenant="other").enqueue("ada")
    mine = work.using(tenant="mine").enqueue("ada")
    assert worker.claim().id == theirs.id

    told = app.tenant("mine").explain(mine.id)

    assert (told.codes, told.reasons[0].jobs) == (("concurrency",), ())
    assert theirs.id not in str(told)
    with pytest.raises(JobNotFound):
        app.tenant("mine").explain(theirs.id)
    with pytest.raises(JobNotFound):
        asyncio.run(app.aexplain("unknown"))
