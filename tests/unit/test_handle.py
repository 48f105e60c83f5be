# SPDX-License-Identifier: MIT
"""What a handle tells of its job, and what it can do to it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from packhorse import (
    ConfigError,
    DeadReason,
    FunctionTask,
    JobCancelled,
    JobConflict,
    JobDead,
    JobHandle,
    JobInfo,
    JobNotFound,
    JobStatus,
    Packhorse,
    PayloadError,
    Progress,
    ResultTimeout,
    RetryPolicy,
    UsageError,
)
from packhorse.core.lifecycle import JobRules
from packhorse.core.outcome import Snoozed, Succeeded
from packhorse.core.policies.retention import Retention
from packhorse.protocol import TaskStatus, to_wire
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.app_support import NO_RETRY, HandWorker, memory_app


@dataclass
class Receipt:
    number: int
    paid_at: datetime


RECEIPT = '{"number": 7, "paid_at": "2026-01-02T03:04:05Z"}'


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def app(clock: VirtualClock) -> Packhorse:
    return memory_app(clock)


@pytest.fixture
def pay(app: Packhorse) -> FunctionTask[[int], Receipt]:
    @app.task
    def pay(order: int) -> Receipt:
        return Receipt(order, datetime(2026, 1, 1, tzinfo=UTC))

    return pay


@pytest.fixture
def worker(app: Packhorse) -> HandWorker:
    return HandWorker(app.store, "pay")


def test_info_has_exactly_the_published_fields_in_their_order() -> None:
    published = (
        "id task queue status priority tenant tags attempts failures crashes snoozes releases "
        "fence worker timeout deadline ordering_key dead_reason dead_letter error progress "
        "trace_id created_at updated_at due_at started_at finished_at created_by "
        "upstream_request_id concurrency_key rate_key idempotency_key steps approvals tokens_spent"
    )

    assert JobInfo.__struct_fields__ == tuple(published.split())


def test_info_of_a_new_job_says_what_the_caller_decided(
    pay: FunctionTask[[int], Receipt], clock: VirtualClock
) -> None:
    deadline = datetime(2031, 1, 1, tzinfo=UTC)
    chosen = pay.using(
        priority="low",
        delay="10s",
        tenant="acme",
        tags=["a"],
        timeout="1m30s",
        deadline=deadline,
        created_by="ada",
        upstream_request_id="request-1",
    )

    info = chosen.enqueue(1).info()

    created = datetime.fromtimestamp(clock.now_us() / 1_000_000, UTC)
    assert (info.task, info.queue, info.status) == ("pay", "default", JobStatus.PENDING)
    assert (info.priority, info.tenant, info.tags) == ("low", "acme", ("a",))
    assert (info.timeout, info.deadline) == (90.0, deadline)
    assert (info.created_by, info.upstream_request_id) == ("ada", "request-1")
    assert (info.created_at, info.due_at) == (created, created + timedelta(seconds=10))
    assert (info.attempts, info.fence, info.worker, info.ordering_key) == (0, 0, None, None)
    assert (info.started_at, info.finished_at, info.error, info.dead_reason) == (None,) * 4
    with pytest.raises(AttributeError):
        info.queue = "other"  # type: ignore[misc]


@pytest.mark.req("S2-2")
def test_status_and_progress_can_be_looked_up_while_a_job_runs(
    pay: FunctionTask[[int], Receipt], worker: HandWorker
) -> None:
    job = pay.enqueue(1)
    assert job.status() is JobStatus.QUEUED
    assert job.progress() is None

    claimed = worker.claim()
    worker.note(claimed, Progress(3, 10, "half-way"))

    assert job.status() is JobStatus.PROCESSING
    assert job.progress() == Progress(3, 10, "half-way")
    info = job.info()
    assert (info.attempts, info.fence, info.worker) == (1, claimed.fence, "by-hand")


@pytest.mark.req("S2-25")
def test_a_kept_result_is_read_as_the_task_annotates_it(
    app: Packhorse, pay: FunctionTask[[int], Receipt], worker: HandWorker
) -> None:
    job = pay.enqueue(1)
    worker.complete(RECEIPT)

    expected = Receipt(7, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert job.result(timeout=0) == expected
    assert app.job(job.id).result() == expected


def test_the_result_of_a_task_not_declared_here_is_plain_json(
    app: Packhorse, worker: HandWorker
) -> None:
    job = app.submit({"id": "w1", "type": "elsewhere", "payload": {}})
    HandWorker(app.store, "elsewhere").complete(RECEIPT)

    assert job.result() == {"number": 7, "paid_at": "2026-01-02T03:04:05Z"}


def test_a_result_of_another_shape_than_annotated_is_a_payload_error(
    pay: FunctionTask[[int], Receipt], worker: HandWorker
) -> None:
    job = pay.enqueue(1)
    worker.complete('{"number": "seven"}')

    with pytest.raises(PayloadError, match="not what its annotation says"):
        job.result()


def test_the_result_of_a_dead_job_is_its_reason_and_last_error(
    pay: FunctionTask[[int], Receipt], worker: HandWorker
) -> None:
    job = pay.enqueue(1)
    worker.fail(NO_RETRY)

    with pytest.raises(JobDead) as raised:
        job.result()

    assert (raised.value.reason, raised.value.job_id) == ("poison_message", job.id)
    assert raised.value.error == "ValueError: no good"
    info = job.info()
    assert (info.dead_reason, info.failures) == (DeadReason.POISON_MESSAGE, 1)
    assert info.error is not None
    assert info.error.message == "no good"


def test_the_result_of_a_cancelled_job_is_an_error(pay: FunctionTask[[int], Receipt]) -> None:
    job = pay.enqueue(1)
    assert job.cancel() is True

    with pytest.raises(JobCancelled):
        job.result()


def test_a_result_not_there_in_time_says_so_and_touches_nothing() -> None:
    app = memory_app()  # on real time, since it is really waited for
    job = app.submit({"id": "slow", "type": "slow", "payload": {}})

    with pytest.raises(ResultTimeout, match=r"did not finish within 0\.01 s") as raised:
        job.result(timeout=0.01)

    assert isinstance(raised.value, TimeoutError)
    assert job.status() is JobStatus.QUEUED
    with pytest.raises(ConfigError, match="timeout is 'soon'"):
        job.result(timeout="soon")


def test_a_result_whose_lifetime_has_passed_says_so(
    pay: FunctionTask[[int], Receipt], worker: HandWorker, clock: VirtualClock
) -> None:
    job = pay.enqueue(1)
    worker.complete(
        RECEIPT, JobRules(retention=Retention(finished_us=None), result_keep_us=60_000_000)
    )
    clock.advance(59)
    assert job.result().number == 7

    clock.advance(2)

    with pytest.raises(JobConflict, match="its result is no longer kept"):
        job.result()
    assert job.status() is JobStatus.COMPLETED


@pytest.mark.req("S3-14")
def test_cancelling_says_whether_it_came_in_time(
    app: Packhorse, pay: FunctionTask[[int], Receipt], worker: HandWorker
) -> None:
    waiting, running, done = (pay.enqueue(number) for number in range(3))
    waiting.cancel()
    worker.claim()

    assert running.cancel() is True
    assert running.status() is JobStatus.PROCESSING

    worker.complete(RECEIPT)
    assert done.cancel() is False
    assert done.status() is JobStatus.COMPLETED
    with pytest.raises(JobNotFound):
        app.job("nothing").cancel()


async def test_every_verb_says_when_there_is_no_such_job(app: Packhorse) -> None:
    job = app.job("nothing")

    for verb in (job.status, job.info, job.progress, job.history, job.cancel, job.retry):
        with pytest.raises(JobNotFound, match="job nothing is not in this store"):
            verb()
    for averb in (
        *(job.astatus, job.ainfo, job.aprogress, job.ahistory, job.acancel, job.aretry),
        job.aresult,
    ):
        with pytest.raises(JobNotFound):
            await averb()


def test_a_finished_job_is_run_again_by_hand(
    pay: FunctionTask[[int], Receipt], worker: HandWorker
) -> None:
    job = pay.using(retry=RetryPolicy(max_retries=0)).enqueue(1)
    worker.fail(NO_RETRY)

    job.retry()

    assert job.status() is JobStatus.QUEUED
    assert job.info().failures == 0
    with pytest.raises(JobConflict, match="ready or running already"):
        job.retry()
    worker.complete(RECEIPT)
    assert job.result().number == 7


@pytest.mark.req("S1-38")
def test_history_has_one_wire_result_per_attempt(
    pay: FunctionTask[[int], Receipt], worker: HandWorker, clock: VirtualClock
) -> None:
    job = pay.enqueue(1)
    worker.fail()
    clock.advance(5)
    worker.settle(worker.claim(), Snoozed(1_000_000))
    clock.advance(5)
    claimed = worker.claim()
    clock.advance(1.5)
    worker.settle(claimed, Succeeded(RECEIPT))

    failed, snoozed, completed = job.history()

    assert [each.attempt for each in (failed, snoozed, completed)] == [1, 2, 3]
    assert [each.will_retry for each in (failed, snoozed, completed)] == [True, True, False]
    assert [each.status for each in (failed, snoozed, completed)] == [
        TaskStatus.FAILED,
        TaskStatus.PENDING,
        TaskStatus.COMPLETED,
    ]
    assert to_wire(failed)["error"] == {"message": "no good", "code": "EXCEPTION"}
    assert "result" not in to_wire(failed)
    assert completed.duration_ms == 1500
    assert completed.result == {"number": 7, "paid_at": "2026-01-02T03:04:05Z"}
    assert to_wire(completed)["startedAt"].endswith("Z")


def test_only_the_last_attempt_has_the_result_that_is_kept(
    pay: FunctionTask[[int], Receipt], worker: HandWorker
) -> None:
    job = pay.enqueue(1)
    worker.complete(RECEIPT)
    job.retry()
    worker.complete('{"number": 8, "paid_at": "2026-01-02T03:04:05Z"}')

    first, second = (to_wire(attempt) for attempt in job.history())

    assert "result" not in first
    assert second["result"]["number"] == 8


async def test_every_verb_has_a_twin_that_does_the_same(
    pay: FunctionTask[[int], Receipt], worker: HandWorker
) -> None:
    verbs = [
        name
        for name, _ in inspect.getmembers(JobHandle, inspect.isfunction)
        if not name.startswith(("_", "a"))
    ]
    for name in verbs:
        twin, verb = getattr(JobHandle, f"a{name}"), getattr(JobHandle, name)
        assert inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(verb)

    job = await pay.aenqueue(1)
    assert await job.astatus() is JobStatus.QUEUED
    assert await job.aprogress() is None
    worker.complete(RECEIPT)
    assert (await job.aresult(timeout="1s")).number == 7
    assert await job.acancel() is False
    assert len(await job.ahistory()) == 1
    await job.aretry()
    assert (await job.ainfo()).status is JobStatus.QUEUED


async def test_waiting_in_the_thread_of_an_event_loop_is_refused(
    pay: FunctionTask[[int], Receipt],
) -> None:
    job = await pay.aenqueue(1)

    with pytest.raises(UsageError, match=r"await job\.aresult\(\)"):
        job.result(timeout=0)


def test_handles_are_values(app: Packhorse) -> None:
    assert app.job("a") == app.job("a")
    assert app.job("a") != app.job("b")
    assert repr(app.job("a")) == "JobHandle(id='a', deduplicated=False)"
