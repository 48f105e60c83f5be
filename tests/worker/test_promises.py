# SPDX-License-Identifier: MIT
"""Promises that take more than one job, or more than one worker, to see."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from packhorse.context import Context
from packhorse.core.job import DeadReason, JobStatus
from packhorse.core.outcome import Outcome
from packhorse.core.policies.retry import RetryPolicy
from packhorse.stores.requests import QueueSettings
from tests.worker.support import Yard, until

NEVER = RetryPolicy(max_retries=0)


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.mark.req("S4-1")
async def test_workers_side_by_side_run_every_job_once(yard: Yard) -> None:
    ran: Counter[int] = Counter()

    async def work(ctx: Context, number: int) -> None:
        ran[number] += 1
        await asyncio.sleep(0.001)

    yard.task(work)
    for number in range(600):
        yard.submit("work", {"number": number})

    reports = await asyncio.gather(*(yard.burst(concurrency=3) for _ in range(3)))

    assert ran == Counter(range(600))
    assert sum(report.succeeded for report in reports) == 600


@pytest.mark.req("S2-10")
async def test_while_a_failed_job_waits_for_its_retry_its_slot_is_free(yard: Yard) -> None:
    async def fail() -> None:
        raise ValueError

    async def noop() -> None: ...

    yard.task(fail, retry=RetryPolicy(initial_delay="1h", max_delay="1h"))
    yard.task(noop)
    failing, other = yard.submit("fail"), yard.submit("noop")

    async with yard.running(concurrency=1):
        await until(lambda: yard.status(other) is JobStatus.COMPLETED)

    assert yard.status(failing) is JobStatus.FAILED


@pytest.mark.req("S1-40", "S4-17")
async def test_a_dead_job_is_put_on_its_queues_shelf(yard: Yard) -> None:
    def fail() -> None:
        raise ValueError

    yard.task(fail, retry=NEVER)
    yard.declare(QueueSettings("default", dead_letter="default_dead"))
    job_id = yard.submit("fail")

    await yard.burst()

    job = yard.job(job_id)
    assert (job.status, job.dead_letter, job.queue) == (JobStatus.DEAD, "default_dead", "default")


@pytest.mark.req("S1-41")
async def test_without_a_shelf_a_dead_job_can_still_be_looked_at(yard: Yard) -> None:
    def fail() -> None:
        raise ValueError("the reason")

    yard.task(fail, retry=NEVER)
    job_id = yard.submit("fail")

    await yard.burst()

    job = yard.job(job_id)
    assert (job.status, job.dead_letter) == (JobStatus.DEAD, None)
    assert job.dead_reason is DeadReason.POISON_MESSAGE
    assert job.error is not None
    assert job.error.message == "the reason"


@pytest.mark.req("S3-8")
async def test_the_bound_of_an_attempt_covers_what_comes_before_its_handler(yard: Yard) -> None:
    ran: list[str] = []

    async def work() -> None:
        ran.append("work")

    async def hang(ctx: Context, proceed: Callable[[], Awaitable[Outcome]]) -> None:
        await asyncio.Event().wait()

    yard.task(work, retry=NEVER)
    yard.middlewares.append(hang)
    job_id = yard.submit("work", timeout_us=20_000)

    report = await yard.burst()

    error = yard.job(job_id).error
    assert error is not None
    assert error.code == "TASK_TIMEOUT"
    assert (report.timed_out, ran) == (1, [])


@pytest.mark.req("S4-24")
async def test_a_handler_that_wants_to_exit_only_fails_its_own_job(yard: Yard) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    def leave_in_a_thread() -> None:
        raise KeyboardInterrupt

    async def noop() -> None: ...

    for function in (leave, leave_in_a_thread):
        yard.task(function, retry=NEVER)
    yard.task(noop)
    bad = [yard.submit("leave"), yard.submit("leave_in_a_thread")]
    good = [yard.submit("noop") for _ in range(5)]

    report = await yard.burst(concurrency=2)

    assert {yard.status(job_id) for job_id in bad} == {JobStatus.DEAD}
    assert {yard.status(job_id) for job_id in good} == {JobStatus.COMPLETED}
    assert (report.failed, report.succeeded) == (2, 5)


@pytest.mark.req("S4-26", "S0-4")
async def test_a_payload_that_cannot_be_read_is_dead_at_once_and_says_why(yard: Yard) -> None:
    async def add(number: int) -> None: ...

    yard.task(add)
    garbled = yard.submit("add", payload=b"no json")
    misfit = yard.submit("add", {"number": "seven"})

    await yard.burst()

    assert yard.job(garbled).dead_reason is DeadReason.UNDECODABLE
    assert yard.job(misfit).dead_reason is DeadReason.INVALID_REQUEST
    for job_id in (garbled, misfit):
        assert yard.status(job_id) is JobStatus.DEAD
        assert yard.job(job_id).counters.failures == 0
        assert yard.job(job_id).counters.attempts <= 1


async def test_urgent_work_overtakes_all_but_a_moment_of_what_was_there_before(
    yard: Yard,
) -> None:
    order: list[str] = []

    async def work(name: str) -> None:
        order.append(name)
        if len(order) == 10:
            yard.submit("work", {"name": "urgent"}, priority=0)
        await asyncio.sleep(0.005)

    yard.task(work)
    for _ in range(200):
        yard.submit("work", {"name": "ordinary"})

    await yard.burst(concurrency=2)

    assert order.index("urgent") < 100
