# SPDX-License-Identifier: MIT
"""A runtime of one's own: the verbs of a consumer, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from packhorse import (
    ConfigError,
    Contract,
    DeadReason,
    JobConflict,
    JobStatus,
    UsageError,
)
from packhorse.core.clock import SECOND_US, to_datetime
from packhorse.events import JobCancelled, JobCancelling, JobReleased
from packhorse.runtime.worker.attempt import Attempt
from tests.unit.consumer_support import EVERY_STORE, Depot, depot_on, fetched
from tests.worker.support import PATIENCE_S, turns, until

NOTHING_S = 0.02


@pytest.fixture(params=EVERY_STORE)
def depot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Depot]:
    yield from depot_on(request.param, tmp_path)


# ------------------------------------------------------------------------------------- fetching


@pytest.mark.req("S3-1", "S3-3", "S3-6")
async def test_a_fetched_job_says_all_a_runtime_needs(depot: Depot) -> None:
    deadline_us = depot.clock.now_us() + 100 * SECOND_US
    (job_id,) = depot.submit(tenant="acme", timeout_us=7 * SECOND_US, deadline_us=deadline_us)

    async with depot.consumer() as consumer:
        job = await fetched(consumer)

        assert (job.id, job.task, job.queue, job.tenant) == (job_id, "send", "mail", "acme")
        assert job.payload == {"to": "a"}
        assert (job.attempts, job.attempt, job.timeout) == (0, 1, 7.0)
        assert job.fence == depot.record(job_id).fence
        assert job.deadline == to_datetime(deadline_us)
        assert job.trace_id == depot.record(job_id).trace_id
        assert depot.status(job_id) is JobStatus.PROCESSING


@pytest.mark.req("S3-3")
async def test_trace_ids_that_no_caller_gave_are_unique_across_jobs_and_tenants(
    depot: Depot,
) -> None:
    @depot.app.task(queue="mail")
    def send(to: str) -> None:
        raise NotImplementedError

    for tenant in ("acme", "acme", "other"):
        await send.using(tenant=tenant).aenqueue("a")

    async with depot.consumer() as consumer:
        jobs = [await fetched(consumer) for _ in range(3)]

    assert len({job.trace_id for job in jobs} - {""}) == 3
    assert sorted(job.tenant for job in jobs) == ["acme", "acme", "other"]


@pytest.mark.req("S3-46")
async def test_ids_of_attempts_are_unique_though_callers_give_jobs_one_trace(depot: Depot) -> None:
    depot.submit("a", tenant="acme", trace_id="shared")
    depot.submit("b", tenant="other", trace_id="shared")
    seen: list[str] = []

    async with depot.consumer() as consumer:
        for _ in range(2):
            jobs = [await fetched(consumer) for _ in range(2)]
            seen += [job.attempt_trace_id for job in jobs]
            for job in jobs:
                await consumer.retry_job(job, delay_s=0, reason="exception:OSError")

    assert len(set(seen)) == 4
    assert all(each.startswith("shared-") for each in seen)


async def test_a_consumer_claims_again_as_soon_as_its_lease_was_renewed(
    depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    nudged: list[bool] = []
    async with depot.consumer() as consumer:
        runtime = consumer._runtime
        assert runtime is not None
        monkeypatch.setattr(runtime.fetcher, "nudge", lambda: nudged.append(True))

        runtime.on_renewed()
        assert nudged == [True]


async def test_nothing_of_a_consumer_runs_on_once_it_is_closed(depot: Depot) -> None:
    before = asyncio.all_tasks()
    async with depot.consumer():
        assert asyncio.all_tasks() > before

    assert asyncio.all_tasks() == before


async def test_what_a_job_holds_is_not_shown_by_its_repr(depot: Depot) -> None:
    depot.submit("one", payload=b'{"password":"hunter2"}')

    async with depot.consumer() as consumer:
        assert "hunter2" not in repr(await fetched(consumer))


async def test_jobs_come_in_the_stores_order_from_the_queues_asked_for(depot: Depot) -> None:
    depot.submit("other", queue="elsewhere")
    depot.submit("low", priority=4)
    depot.submit("high", priority=1)

    async with depot.consumer() as consumer:
        assert [(await fetched(consumer)).id for _ in range(2)] == ["high", "low"]
        assert await consumer.fetch(timeout=NOTHING_S) is None
    assert depot.status("other") is JobStatus.QUEUED


async def test_without_tasks_every_task_is_fetched_and_with_tasks_only_those(depot: Depot) -> None:
    depot.submit("known")
    depot.submit("strange", task="not_declared")

    async with depot.consumer(tasks=["not_declared"]) as consumer:
        assert (await fetched(consumer)).id == "strange"
        assert await consumer.fetch(timeout=NOTHING_S) is None
    async with depot.consumer() as consumer:
        assert {(await fetched(consumer)).id for _ in range(2)} == {"known", "strange"}


@pytest.mark.req("S3-2")
@pytest.mark.parametrize("timeout", [0, 0.05, "50ms", timedelta(milliseconds=50)])
async def test_a_fetch_that_finds_nothing_ends_with_its_timeout(depot: Depot, timeout: Any) -> None:
    async with depot.consumer() as consumer, asyncio.timeout(PATIENCE_S):
        assert await consumer.fetch(timeout=timeout) is None


@pytest.mark.parametrize("timeout", [2.5, "2500ms", timedelta(seconds=2.5)])
async def test_a_fetch_waits_in_seconds(
    depot: Depot, timeout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    call_later, waits_s = loop.call_later, []

    def note(delay_s: float, *others: Any, **options: Any) -> asyncio.TimerHandle:
        waits_s.append(delay_s)
        return call_later(delay_s, *others, **options)

    async with depot.consumer() as consumer:
        await consumer.fetch(timeout=0)
        monkeypatch.setattr(loop, "call_later", note)
        waiting = asyncio.create_task(consumer.fetch(timeout=timeout))
        await asyncio.sleep(0)
        depot.submit("here")
        assert await asyncio.wait_for(waiting, PATIENCE_S) is not None

    assert 2 < waits_s[0] <= 2.5


async def test_a_fetch_looks_once_however_short_its_timeout(depot: Depot) -> None:
    async with depot.consumer() as consumer:
        assert await consumer.fetch(timeout=0) is None
        depot.submit("here")

        job = await consumer.fetch(timeout=0)

    assert job is not None


async def test_a_job_that_comes_ends_the_wait(depot: Depot) -> None:
    async with depot.consumer() as consumer:
        waiting = asyncio.create_task(consumer.fetch(timeout=PATIENCE_S * 2))
        await asyncio.sleep(0)
        depot.submit("late")

        job = await asyncio.wait_for(waiting, PATIENCE_S)

    assert job is not None
    assert job.id == "late"


async def test_a_job_due_later_ends_the_wait_when_it_is_due(depot: Depot) -> None:
    async with depot.consumer() as consumer:
        depot.submit("soon", delay_us=SECOND_US // 20)

        assert (await fetched(consumer)).id == "soon"


@pytest.mark.req("S3-2")
async def test_closing_ends_a_wait_at_once_and_gives_back_what_is_open(depot: Depot) -> None:
    depot.submit("open")
    async with depot.consumer() as consumer:
        await fetched(consumer)
        waiting = asyncio.create_task(consumer.fetch(timeout=PATIENCE_S * 6))
        await turns()

        await asyncio.wait_for(consumer.close(), PATIENCE_S)
        assert await asyncio.wait_for(waiting, PATIENCE_S) is None

    record = depot.record("open")
    assert record.status is JobStatus.QUEUED
    assert (record.counters.releases, record.counters.failures) == (1, 0)
    assert [each.status for each in depot.history("open")] == [JobStatus.QUEUED]
    assert [event.job_id for event in depot.told(JobReleased)] == ["open"]
    assert depot.store.run(depot.store.leases.workers()) == ()
    with pytest.raises(UsageError, match="closed"):
        await consumer.fetch()


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_job_for_a_fetch_that_is_cancelled_just_then_is_not_kept(
    depot: Depot, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    async with depot.consumer() as consumer:
        assert consumer._runtime is not None
        slots = consumer._runtime.slots
        hand_out = slots._run
        doomed = asyncio.create_task(consumer.fetch(timeout=PATIENCE_S))

        def cancel_meanwhile(attempt: Attempt) -> None:
            if moment == "before":
                doomed.cancel()
            hand_out(attempt)
            if moment == "after":
                doomed.cancel()

        with monkeypatch.context() as patch:
            patch.setattr(slots, "_run", cancel_meanwhile)
            depot.submit("wanted")
            with pytest.raises(asyncio.CancelledError):
                await doomed

        assert (await fetched(consumer)).id == "wanted"
        assert depot.record("wanted").counters.attempts == 0


async def test_a_payload_that_cannot_be_read_is_dead_and_never_handed_out(depot: Depot) -> None:
    depot.submit("broken", payload=b'{"to":')
    depot.submit("whole")

    async with depot.consumer() as consumer:
        jobs = [await consumer.fetch(timeout=PATIENCE_S) for _ in range(2)]

    assert [job.id for job in jobs if job] == ["whole"]
    assert depot.record("broken").dead_reason is DeadReason.UNDECODABLE


async def test_the_deadline_shortens_the_time_an_attempt_has(depot: Depot) -> None:
    depot.submit("hurried", deadline_us=depot.clock.now_us() + 5 * SECOND_US)
    depot.submit("patient")

    async with depot.consumer(default_timeout="60s") as consumer:
        hurried, patient = await fetched(consumer), await fetched(consumer)

    assert 0 < hurried.timeout <= 5
    assert patient.timeout == 60


@pytest.mark.req("S0-9")
async def test_a_contract_shortens_the_time_of_a_job_that_asks_for_more(depot: Depot) -> None:
    @depot.app.task(queue="mail", contract=Contract(timeout=5))
    def send(to: str) -> None:
        raise NotImplementedError

    depot.submit("greedy", timeout_us=3600 * SECOND_US)

    async with depot.consumer() as consumer:
        assert (await fetched(consumer)).timeout == 5


# ------------------------------------------------------------------------------------- bare ids


@pytest.mark.req("S3-1")
async def test_a_bare_id_is_taken_while_one_fetch_of_it_is_open(depot: Depot) -> None:
    depot.submit("one", "two", "three")
    async with depot.consumer() as consumer:
        for _ in range(3):
            await fetched(consumer)

        assert await consumer.mark_complete("one", result="done", latency_s=0.5)
        assert await consumer.retry_job("two", 5.0, reason="exception:ValueError")
        assert await consumer.mark_failed("three", reason="bad_input", details="no")

        with pytest.raises(JobConflict, match="no fetch of job one is open"):
            await consumer.mark_complete("one")
    statuses = [depot.status(job_id) for job_id in ("one", "two", "three")]
    assert statuses == [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.DEAD]


async def test_a_verb_before_any_fetch_says_so(depot: Depot) -> None:
    consumer = depot.app.consumer(queues=["mail"])

    with pytest.raises(UsageError, match="fetched nothing"):
        await consumer.mark_complete("job")


# ------------------------------------------------------------------------------------ cancelling


@pytest.mark.req("S3-16", "S3-15")
async def test_a_runtime_hears_of_a_wish_to_cancel_and_any_verb_finishes_it(depot: Depot) -> None:
    depot.submit("wanted", "unwanted")
    async with depot.consumer() as consumer:
        jobs = {job.id: job for job in [await fetched(consumer), await fetched(consumer)]}
        assert await depot.app.job("unwanted").acancel()

        await until(lambda: consumer.cancel_requested("unwanted"))

        assert not consumer.cancel_requested(jobs["wanted"])
        assert await consumer.mark_complete(jobs["unwanted"], result="done all the same")
        assert await consumer.mark_complete(jobs["wanted"], result="done")
    assert depot.status("unwanted") is JobStatus.CANCELLED
    assert depot.status("wanted") is JobStatus.COMPLETED
    assert len(depot.told(JobCancelling)) == len(depot.told(JobCancelled)) == 1


# -------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"queues": []}, "queues is empty"),
        ({"queues": "mail"}, "give a list"),
        ({"tasks": []}, "tasks is empty"),
        ({"tasks": "send"}, "give a list"),
        ({"lease": "0.01s"}, "lease"),
        ({"default_timeout": 0}, "default_timeout"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(
    depot: Depot, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        depot.app.consumer(**options)


@pytest.mark.req("S3-45")
async def test_a_consumer_for_tenants_never_fetches_the_job_of_another(depot: Depot) -> None:
    depot.submit("other", tenant="beta")
    depot.submit("of no task")
    depot.submit("own", tenant="acme")
    async with depot.app.consumer(["mail"], tenants=["acme", "corp"]) as consumer:
        job = await consumer.fetch(timeout=PATIENCE_S)
        assert job is not None
        assert (job.id, job.tenant) == ("own", "acme")
        assert await consumer.mark_complete(job)
        depot.submit("later", tenant="corp")
        job = await consumer.fetch(timeout=PATIENCE_S)
        assert job is not None
        assert job.id == "later"
        assert await consumer.mark_complete(job)
        assert await consumer.fetch(timeout=0) is None
    assert {depot.status(name) for name in ("other", "of no task")} == {JobStatus.QUEUED}


@pytest.mark.parametrize("tenants", [[], [""], ["acme", ""], "acme", [None]])
def test_tenants_of_a_consumer_are_names(depot: Depot, tenants: Any) -> None:
    with pytest.raises(ConfigError, match=r"consumer\(\): tenants"):
        depot.app.consumer(["mail"], tenants=tenants)
