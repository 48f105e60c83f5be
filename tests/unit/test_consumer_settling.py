# SPDX-License-Identifier: MIT
"""What a runtime of one's own says became of its jobs, on every store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import (
    ConfigError,
    DeadReason,
    JobStatus,
    Packhorse,
    PayloadError,
    RetryPolicy,
)
from packhorse.core.clock import SECOND_US, from_datetime, to_datetime
from packhorse.core.job import JobOptions, RetryRule
from packhorse.core.outcome import MESSAGE_LENGTH_MAX, Failed, TimedOut
from packhorse.events import JobCompleted, JobRetried, JobStale
from packhorse.protocol import TaskError
from packhorse.runtime.consumer.fetched import failed_once
from packhorse.stores.requests import QueueSettings
from tests.unit.consumer_support import EVERY_STORE, Depot, HeldStore, depot_on, fetched
from tests.worker.support import PATIENCE_S

NOTHING_S = 0.02


@pytest.fixture(params=EVERY_STORE)
def depot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Depot]:
    yield from depot_on(request.param, tmp_path)


@pytest.mark.req("S3-1", "S3-5")
async def test_each_job_gets_its_own_result_with_many_in_flight(depot: Depot) -> None:
    numbers = range(40)
    for number in numbers:
        depot.submit(f"job-{number}", payload=json.dumps({"number": number}).encode())

    async with depot.consumer() as consumer:

        async def work() -> None:
            job = await fetched(consumer)
            await asyncio.sleep(job.payload["number"] % 3 / 1000)  # they end in another order
            result = {"trace": job.trace_id, "doubled": 2 * job.payload["number"]}
            assert await consumer.mark_complete(job, result=result, latency_s=1.25)

        await asyncio.gather(*(work() for _ in numbers))

    for number in numbers:
        record = depot.record(f"job-{number}")
        assert record.status is JobStatus.COMPLETED
        assert json.loads(record.result or b"") == {
            "trace": record.trace_id,
            "doubled": 2 * number,
        }
    assert {event.duration_ms for event in depot.told(JobCompleted)} == {1250.0}


async def test_a_producer_gets_the_result_as_its_task_declares_it(depot: Depot) -> None:
    @depot.app.task(queue="mail")
    def count(words: list[str]) -> tuple[int, str]:
        raise NotImplementedError

    handle = await count.aenqueue(["a", "b"])
    async with depot.consumer() as consumer:
        job = await fetched(consumer)
        assert job.payload == {"words": ["a", "b"]}
        await consumer.mark_complete(job, result=(2, "words"))

        assert await handle.aresult(timeout=PATIENCE_S) == (2, "words")


async def test_how_long_a_job_was_held_is_measured_where_its_holder_does_not_say(
    depot: Depot,
) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer:
        job = await fetched(consumer)
        depot.clock.ahead_s += 5

        await consumer.mark_complete(job)

    [told] = depot.told(JobCompleted)
    assert 5_000 <= told.duration_ms < 5_000 + 1_000 * PATIENCE_S


async def test_a_fetched_job_cannot_be_changed(depot: Depot) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer:
        job = await fetched(consumer)

        with pytest.raises(AttributeError):
            job.tenant = "other"  # type: ignore[misc]


async def test_a_long_reason_is_cut_at_its_end(depot: Depot) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer:
        job = await fetched(consumer)

        await consumer.mark_failed(job, reason="no" * 100 + "!", details="x" * 200_000)

    error = depot.record("job").error
    assert error is not None
    assert error.reason == "no" * 99 + "n…"
    assert error.message == "x" * (MESSAGE_LENGTH_MAX - 1) + "…"


@pytest.mark.req("S3-12")
@pytest.mark.parametrize("kind", ["exception", "TaskError"])
async def test_an_error_handed_in_as_a_result_is_a_failure(depot: Depot, kind: str) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer:
        job = await fetched(consumer)
        failure = TaskError(message="node fell over", code="NODE_EXCEPTION")
        result = ValueError("no good") if kind == "exception" else failure

        assert await consumer.mark_complete(job, result=result)

    record = depot.record("job")
    assert record.status is JobStatus.FAILED
    assert record.result is None
    assert record.error is not None
    assert record.error.code == ("EXCEPTION" if kind == "exception" else "NODE_EXCEPTION")


@pytest.mark.req("S3-11")
async def test_a_result_that_comes_after_the_deadline_is_no_success(depot: Depot) -> None:
    now_us = from_datetime(to_datetime(depot.clock.now_us()))
    depot.submit("late", deadline_us=now_us + 10 * SECOND_US)  # a busy machine takes its time
    async with depot.consumer() as consumer:
        job = await fetched(consumer)
        depot.clock.ahead_s = 11

        assert await consumer.mark_complete(job, result="too late")

    record = depot.record("late")
    assert (record.status, record.dead_reason) == (JobStatus.DEAD, DeadReason.EXPIRED)


async def test_a_result_that_cannot_be_carried_leaves_the_job_open(depot: Depot) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer:
        job = await fetched(consumer)

        with pytest.raises(PayloadError, match="job is still open"):
            await consumer.mark_complete(job, result=object())

        assert await consumer.mark_complete(job, result="plain")
    assert depot.status("job") is JobStatus.COMPLETED


async def test_a_large_result_becomes_an_artifact(tmp_path: Path) -> None:
    app = Packhorse("memory://", artifacts=tmp_path)

    @app.task(max_result_bytes=100)
    def render() -> str:
        raise NotImplementedError

    handle, result = await render.aenqueue(), "x" * 1_000
    async with app.consumer(queues=["default"]) as consumer:
        assert await consumer.mark_complete(await fetched(consumer), result=result)

    (artifact,) = await handle.aartifacts()
    assert await handle.aresult(timeout=PATIENCE_S) == result
    assert artifact.size == len(result) + 2
    app.close()


@pytest.mark.req("S3-1", "S3-30")
async def test_a_retry_waits_its_delay_and_keeps_its_reason(depot: Depot) -> None:
    depot.submit("slow", timeout_us=2 * SECOND_US)
    async with depot.consumer() as consumer:
        job = await fetched(consumer)

        assert await consumer.retry_job(job)

    record = depot.record("slow")
    assert record.status is JobStatus.TIMEOUT
    assert record.due_us - record.updated_us == 5 * SECOND_US
    assert record.error is not None
    assert (record.error.reason, record.error.code) == ("job_timeout", "TASK_TIMEOUT")
    assert record.error.message == "Task exceeded 2000ms timeout"
    assert [event.reason for event in depot.told(JobRetried)] == ["job_timeout"]


@pytest.mark.req("S3-30", "S3-29")
@pytest.mark.parametrize(
    ("details", "message"),
    [
        (ValueError("no good"), "no good"),
        ("no good", "no good"),
        ({"node": "parse"}, '{"node":"parse"}'),
        (None, ""),
    ],
)
async def test_the_reason_and_its_details_are_stored_with_the_attempt(
    depot: Depot, details: Any, message: str
) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer:
        job = await fetched(consumer)
        await consumer.retry_job(job, 0.5, reason="exception:ValueError", details=details)

    (attempt,) = depot.history("job")
    assert attempt.error is not None
    assert attempt.error.reason == "exception:ValueError"
    assert (attempt.error.type, attempt.error.message) == ("ValueError", message)
    assert (attempt.status, attempt.will_retry) == (JobStatus.FAILED, True)


@pytest.mark.req("S3-23", "S3-4")
async def test_a_job_that_always_fails_ends_dead_by_its_policy(depot: Depot) -> None:
    depot.submit("poison", options=JobOptions(retry=RetryRule(max_retries=2)))
    traces: list[tuple[str, str]] = []

    async with depot.consumer() as consumer:
        for _ in range(3):
            job = await fetched(consumer)
            traces.append((job.trace_id, job.attempt_trace_id))
            assert job.attempts == len(traces) - 1
            await consumer.retry_job(job, delay_s=0, reason="exception:OSError")
        assert await consumer.fetch(timeout=NOTHING_S) is None

    record = depot.record("poison")
    assert (record.status, record.dead_reason) == (JobStatus.DEAD, DeadReason.POISON_MESSAGE)
    assert record.counters.failures == 3
    assert len({trace for trace, _ in traces}) == 1, "one trace id per job"
    assert len({trace for _, trace in traces}) == 3, "no attempt waits for one before it"


@pytest.mark.req("S3-23")
@pytest.mark.parametrize("declared", ["here", "elsewhere"])
async def test_the_queues_policy_bounds_retries_of_tasks_declared_elsewhere(
    depot: Depot, declared: str
) -> None:
    once = RetryPolicy(max_retries=0)
    if declared == "here":
        depot.app.queue("mail", retry=once)
    else:
        depot.store.run(depot.store.queues.declare([QueueSettings("mail", retry=once.rule)]))
    depot.submit("once")

    async with depot.consumer() as consumer:
        await consumer.retry_job(await fetched(consumer), delay_s=0, reason="exception:OSError")

    assert depot.record("once").dead_reason is DeadReason.POISON_MESSAGE


async def test_without_a_delay_of_its_own_a_retry_follows_the_policy(depot: Depot) -> None:
    rule = RetryRule(initial_us=40 * SECOND_US, jitter=False)
    depot.submit("job", options=JobOptions(retry=rule))
    async with depot.consumer() as consumer:
        await consumer.retry_job(await fetched(consumer), delay_s=None, reason="busy")

    record = depot.record("job")
    assert record.due_us - record.updated_us == 40 * SECOND_US


@pytest.mark.req("S3-1")
@pytest.mark.parametrize(
    ("reason", "max_retries", "dead_reason"),
    [
        ("exception:ValueError", 3, DeadReason.REJECTED),
        ("exception:ValueError", 0, DeadReason.POISON_MESSAGE),
        ("job_timeout", 3, DeadReason.REJECTED),
        ("deadline", 3, DeadReason.EXPIRED),
    ],
)
async def test_a_job_marked_failed_is_dead_for_good(
    depot: Depot, reason: str, max_retries: int, dead_reason: DeadReason
) -> None:
    depot.submit("job", options=JobOptions(retry=RetryRule(max_retries=max_retries)))
    async with depot.consumer() as consumer:
        job = await fetched(consumer)

        assert await consumer.mark_failed(job, reason=reason, details="it cannot work")

    record = depot.record("job")
    assert (record.status, record.dead_reason) == (JobStatus.DEAD, dead_reason)
    assert record.error is not None
    assert (record.error.reason, record.error.message) == (reason, "it cannot work")


async def test_a_reason_without_a_word_is_refused_and_the_job_stays_open(depot: Depot) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer:
        job = await fetched(consumer)

        with pytest.raises(ConfigError, match="reason"):
            await consumer.mark_failed(job, reason="")

        assert await consumer.mark_failed(job, reason="x" * 500 + "\x00")
    error = depot.record("job").error
    assert error is not None
    assert len(error.reason) <= 200


async def test_a_released_job_is_ready_at_once_and_nothing_is_burnt(depot: Depot) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer:
        first = await fetched(consumer)

        assert await consumer.release(first)

        second = await fetched(consumer)
        assert (second.id, second.attempts) == ("job", 1)
        assert second.fence > first.fence
        assert depot.record("job").counters.failures == 0
        assert not await consumer.mark_complete(first, result="stale"), "it is the second's now"
        assert await consumer.mark_complete(second, result="fresh")
    assert depot.record("job").result == b'"fresh"'
    assert len(depot.told(JobStale)) == 1


async def test_the_same_end_told_twice_is_one_end(depot: Depot) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer:
        job = await fetched(consumer)

        assert await consumer.mark_complete(job, result=1)
        assert await consumer.mark_complete(job, result=1)

        assert not await consumer.mark_failed(job, reason="changed_my_mind")
    assert depot.status("job") is JobStatus.COMPLETED
    assert len(depot.told(JobCompleted)) == 1


async def test_of_two_ends_told_at_once_each_gets_its_own_answer(depot: Depot) -> None:
    depot.submit("job")
    async with depot.consumer() as consumer, asyncio.timeout(PATIENCE_S):
        job = await fetched(consumer)

        first, second = await asyncio.gather(
            consumer.mark_complete(job, result=1), consumer.mark_failed(job, "changed_my_mind")
        )

    assert (first, second) == (True, False)
    assert depot.record("job").result == b"1"


@pytest.mark.parametrize("fails", [True, False])
async def test_an_end_whose_telling_was_cancelled_does_not_answer_the_next_one(
    depot: Depot, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Its write was under way: if it fails it is not repeated, else it is the end."""
    monkeypatch.setattr("packhorse.runtime.worker.store_health._FIRST_S", 0.002)
    depot.submit("job")
    async with depot.consumer() as consumer, asyncio.timeout(PATIENCE_S):
        job = await fetched(consumer)
        store = HeldStore(consumer._runtime, depot.store)
        telling = asyncio.create_task(consumer.mark_complete(job, result=1))
        await store.reached.wait()
        telling.cancel()
        await asyncio.wait({telling})

        other = asyncio.create_task(consumer.mark_failed(job, "changed_my_mind"))
        await asyncio.sleep(0)
        store.fails = fails
        store.may_go.set()

        assert await other is fails
    assert depot.status("job") is (JobStatus.DEAD if fails else JobStatus.COMPLETED)
    assert telling.cancelled()


@pytest.mark.parametrize("reason", [None, 7, b"late", ""])
async def test_a_reason_is_a_text_or_the_job_stays_open(depot: Depot, reason: Any) -> None:
    depot.submit("one")
    async with depot.consumer() as consumer:
        job = await fetched(consumer)
        with pytest.raises(ConfigError, match="give a text that is not empty"):
            await consumer.retry_job(job, reason=reason)
        with pytest.raises(ConfigError, match="give a text that is not empty"):
            await consumer.mark_failed(job, reason)

        assert await consumer.mark_complete(job)


def test_a_timeout_is_told_as_one_whatever_the_error_calls_itself() -> None:
    late = failed_once("job_timeout", ValueError("slow"), 2.0)
    other = failed_once("exception:OSError", ValueError("gone"), 2.0)

    assert isinstance(late, TimedOut)
    assert isinstance(other, Failed)
    assert (late.error.type, late.error.code, late.error.message) == (
        *("Timeout", "TASK_TIMEOUT", "slow"),
    )
    assert (other.error.type, other.error.reason) == ("ValueError", "exception:OSError")


async def test_a_job_whose_deadline_is_to_come_is_completed(depot: Depot) -> None:
    depot.submit("job", deadline_us=depot.clock.now_us() + 3600 * SECOND_US)
    async with depot.consumer() as consumer:
        assert await consumer.mark_complete(await fetched(consumer), result=1)

    assert depot.status("job") is JobStatus.COMPLETED


@pytest.mark.parametrize("reason", ["a wish", "deadlines", "job_timeouts", "zebra"])
def test_a_reason_in_own_words_is_told_in_those_words(reason: str) -> None:
    outcome = failed_once(reason, None, 1.0)

    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.error.code) == ("Failure", "REPORTED")
    assert outcome.error.message == reason
