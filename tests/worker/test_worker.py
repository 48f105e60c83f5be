# SPDX-License-Identifier: MIT
"""A worker on a store: which jobs it runs, how often, and what it says of them."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import DeadReason, JobOptions, JobStatus, RetryRule
from packhorse.core.policies.retry import RetryPolicy
from packhorse.errors import ConfigError
from packhorse.events import JobCompleted, JobFailed, JobRetried, JobStarted, WorkerStarted
from packhorse.insights import Insights
from packhorse.runtime.worker import EXIT_OK, fetcher
from packhorse.signals import Reject, Snooze
from packhorse.stores.requests import QueueSettings
from tests.worker.support import Yard, heard, names, until, worker_options

SOON = RetryPolicy(max_retries=2, backoff="fixed", initial_delay="1ms", max_delay="1ms")


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.mark.req("S1-28", "S4-28")
async def test_each_job_is_run_by_the_handler_of_its_task(yard: Yard) -> None:
    async def double(number: int) -> int:
        return number * 2

    def shout(word: str) -> str:
        return word.upper()

    yard.task(double)
    yard.task(shout)
    first, second = yard.submit("double", {"number": 4}), yard.submit("shout", {"word": "hi"})

    report = await yard.burst()

    assert yard.job(first).result == b"8"
    assert yard.job(second).result == b'"HI"'
    assert yard.status(first) is yard.status(second) is JobStatus.COMPLETED
    assert (report.processed, report.succeeded, report.exit_code) == (2, 2, EXIT_OK)


async def test_more_jobs_than_slots_and_look_ahead_all_run_once(yard: Yard) -> None:
    ran: list[int] = []

    async def note(number: int) -> None:
        ran.append(number)

    yard.task(note)
    for number in range(2_000):
        yard.submit("note", {"number": number})

    report = await yard.burst(concurrency=3)

    assert sorted(ran) == list(range(2_000))
    assert report.succeeded == 2_000


async def test_no_more_jobs_run_at_once_than_there_are_slots(yard: Yard) -> None:
    running, most = 0, 0

    async def wait() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    yard.task(wait)
    for _ in range(40):
        yard.submit("wait")

    await yard.burst(concurrency=4)

    assert most == 4


@pytest.mark.req("S1-25")
async def test_only_the_queues_named_are_served(yard: Yard) -> None:
    async def noop() -> None: ...

    yard.task(noop)
    served, other = yard.submit("noop", queue="mail"), yard.submit("noop", queue="reports")

    await yard.burst(queues=("mail",))

    assert yard.status(served) is JobStatus.COMPLETED
    assert yard.status(other) is JobStatus.QUEUED


@pytest.mark.req("S1-26")
def test_a_worker_without_queues_fails_at_start_up(yard: Yard) -> None:
    with pytest.raises(ConfigError, match="queues is empty"):
        worker_options(queues=())


@pytest.mark.req("S1-33", "S1-37", "S1-38", "S1-39", "S3-23", "S4-16", "S4-17", "S4-26")
@pytest.mark.req("S0-21", "X-1", "X-2")
async def test_a_job_that_always_fails_runs_once_and_for_each_retry_then_is_dead(
    yard: Yard,
) -> None:
    async def fail() -> None:
        raise ValueError("always")

    yard.task(fail, retry=SOON)
    job_id = yard.submit("fail")

    report = await yard.burst()

    job, history = yard.job(job_id), yard.history(job_id)
    assert (job.status, job.dead_reason) == (JobStatus.DEAD, DeadReason.POISON_MESSAGE)
    assert job.error is not None
    assert job.error.reason == "exception:ValueError"
    assert [each.attempt for each in history] == [1, 2, 3]
    assert [each.will_retry for each in history] == [True, True, False]
    assert all(each.error and each.error.message == "always" for each in history)
    assert (report.failed, report.retried, report.dead) == (3, 2, 1)


@pytest.mark.req("S4-18", "S3-37")
async def test_every_retry_is_told_with_its_attempt_count(yard: Yard) -> None:
    async def fail() -> None:
        raise ValueError("always")

    yard.task(fail, retry=SOON)
    yard.submit("fail")
    yard.record()

    await yard.burst()

    retries = yard.told(JobRetried)
    assert [(each.attempt, each.retry, each.max_retries) for each in retries] == [
        (1, 1, 2),
        (2, 2, 2),
    ]
    assert {each.reason for each in retries} == {"exception:ValueError"}
    assert len(yard.told(JobFailed)) == 3


@pytest.mark.req("S1-32", "S4-16")
@pytest.mark.parametrize(
    ("of_job", "of_task", "of_queue", "runs"),
    [(0, 1, 2, 1), (None, 1, 2, 2), (None, None, 2, 3), (None, None, None, 4)],
)
async def test_the_retry_policy_is_the_jobs_else_the_tasks_else_the_queues_else_the_default(
    of_job: int | None, of_task: int | None, of_queue: int | None, runs: int
) -> None:
    def rule(retries: int) -> RetryRule:
        return RetryRule(max_retries=retries, initial_us=1, max_us=1)

    yard, ran = Yard(), 0

    async def fail() -> None:
        nonlocal ran
        ran += 1
        raise ValueError

    own = {} if of_task is None else {"retry": RetryPolicy(of_task, initial_delay="1ms")}
    yard.task(fail, **own)
    if of_queue is not None:
        yard.declare(QueueSettings("default", retry=rule(of_queue)))
    options = None if of_job is None else JobOptions(retry=rule(of_job))
    job_id = yard.submit("fail", options=options)

    def dead_by_now() -> bool:
        if yard.status(job_id) is JobStatus.FAILED:
            yard.store_clock.ahead_us += 100_000  # the default delays are seconds
        return yard.status(job_id) is JobStatus.DEAD

    async with yard.running(poll_interval_us=5_000):
        await until(dead_by_now)

    assert ran == runs


async def test_a_snoozed_job_uses_up_no_retry(yard: Yard) -> None:
    ran = 0

    async def wait_a_little() -> str:
        nonlocal ran
        ran += 1
        if ran < 3:
            raise Snooze("1ms")
        return "ready"

    yard.task(wait_a_little, retry=RetryPolicy(max_retries=0))
    job_id = yard.submit("wait_a_little")

    async with yard.running():
        await until(lambda: yard.status(job_id) is JobStatus.COMPLETED)

    counters = yard.job(job_id).counters
    assert (counters.snoozes, counters.failures, counters.attempts) == (2, 0, 3)


async def test_a_rejected_job_is_dead_at_once(yard: Yard) -> None:
    def refuse() -> None:
        raise Reject("no such customer")

    yard.task(refuse)
    job_id = yard.submit("refuse")

    await yard.burst()

    assert yard.job(job_id).dead_reason is DeadReason.REJECTED


@pytest.mark.req("S1-29")
async def test_a_job_of_an_unknown_task_is_left_alone_and_keeps_no_slot_busy(yard: Yard) -> None:
    async def known() -> None: ...

    yard.task(known)
    job_id = yard.submit("unknown")

    report = await yard.burst()

    assert yard.status(job_id) is JobStatus.QUEUED
    assert report.processed == 0


@pytest.mark.req("S4-27")
@pytest.mark.parametrize("kind", ["on_the_loop", "in_a_thread"])
async def test_jobs_that_run_side_by_side_do_not_see_each_others_context(
    yard: Yard, kind: str
) -> None:
    seen: dict[str, tuple[str, str]] = {}
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")
    all_have_set = threading.Barrier(3)

    async def on_the_loop(name: str) -> None:
        found = variable.get()
        variable.set(name)
        await asyncio.to_thread(all_have_set.wait, 10)
        seen[name] = found, variable.get()

    def in_a_thread(name: str) -> None:
        found = variable.get()
        variable.set(name)
        all_have_set.wait(10)
        seen[name] = found, variable.get()

    yard.task(on_the_loop)
    yard.task(in_a_thread)
    for name in "abc":
        yard.submit(kind, {"name": name})

    await yard.burst(concurrency=3)

    assert seen == {name: ("clean", name) for name in "abc"}


@pytest.mark.req("S3-19")
async def test_what_a_job_puts_into_context_variables_the_next_does_not_see(yard: Yard) -> None:
    seen: list[str] = []
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")

    async def on_the_loop() -> None:
        seen.append(variable.get())
        variable.set("used")

    def in_a_thread() -> None:
        seen.append(variable.get())
        variable.set("used")

    yard.task(on_the_loop)
    yard.task(in_a_thread)
    for kinds in (["on_the_loop"], ["in_a_thread"], ["on_the_loop", "in_a_thread"]):
        for name in kinds * 10:
            yard.submit(name)

    await yard.burst(concurrency=1)

    assert seen == ["clean"] * 40


@pytest.mark.req("S4-19", "S4-22", "S3-32")
async def test_start_and_end_are_told_with_the_jobs_fields(yard: Yard) -> None:
    async def noop() -> None: ...

    yard.task(noop)
    job_id = yard.submit("noop", tenant="acme", trace_id="t-1", upstream_request_id="r-9")
    yard.record()

    report = await yard.burst()

    (started,), (ended,) = yard.told(JobStarted), yard.told(JobCompleted)
    for event in (started, ended):
        assert (event.job_id, event.worker) == (job_id, report.worker)
        assert (event.tenant, event.trace_id, event.upstream_request_id) == ("acme", "t-1", "r-9")
        assert (event.queue, event.task, event.attempt) == ("default", "noop", 1)
    assert started.span_id == ended.span_id != ""
    assert ended.status == "completed"
    assert ended.duration_ms > 0


@pytest.mark.req("S4-3", "S1-25")
async def test_an_idle_worker_polls_at_its_interval_and_no_faster() -> None:
    claims: list[float] = []
    yard = Yard(lambda verb, moment: claims.append(0.0) if verb == "claim" else None)

    async def noop() -> None: ...

    yard.task(noop)
    async with yard.running(poll_interval_us=SECOND_US // 20):
        await until(lambda: len(claims) >= 4)
        before = len(claims)
        await asyncio.sleep(0.2)
        rate = (len(claims) - before) / 2  # told before and after each

    assert 1 <= rate <= 5


@pytest.mark.req("S1-23")
async def test_a_scheduled_job_starts_when_it_is_due_without_waiting_for_a_poll(
    yard: Yard,
) -> None:
    done = asyncio.Event()

    async def finish() -> None:
        done.set()

    yard.task(finish)
    async with yard.running(poll_interval_us=600 * SECOND_US):
        yard.submit("finish", delay_us=50_000)
        await heard(done)


async def test_a_submitted_job_wakes_an_idle_worker(yard: Yard) -> None:
    done = asyncio.Event()
    ready = asyncio.Event()

    async def finish() -> None:
        done.set()

    yard.task(finish)
    yard.bus.subscribe(WorkerStarted, lambda _: ready.set())
    async with yard.running(poll_interval_us=600 * SECOND_US):
        await heard(ready)
        yard.submit("finish")
        await heard(done)


async def test_a_burst_worker_waits_for_retries_but_not_for_scheduled_work(yard: Yard) -> None:
    ran = 0

    async def fail_once() -> None:
        nonlocal ran
        ran += 1
        if ran == 1:
            raise ValueError

    yard.task(fail_once, retry=RetryPolicy(initial_delay="50ms", max_delay="50ms"))
    job_id = yard.submit("fail_once")
    later = yard.submit("fail_once", delay_us=600 * SECOND_US)

    await yard.burst()

    assert yard.status(job_id) is JobStatus.COMPLETED
    assert yard.status(later) is JobStatus.PENDING


async def test_a_worker_leaves_after_max_jobs_attempts(yard: Yard) -> None:
    async def noop() -> None: ...

    yard.task(noop)
    jobs = [yard.submit("noop") for _ in range(10)]

    worker = yard.worker(max_jobs=3)
    report = await asyncio.wait_for(worker.run(), 10)

    assert report.succeeded == 3
    assert [yard.status(job_id) for job_id in jobs].count(JobStatus.QUEUED) == 7


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_what_was_given_back_as_too_late_does_not_count_for_max_jobs(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(fetcher, "GRANT_S", -1.0)  # however soon it starts, that is too late

    async def on_the_loop() -> None: ...
    def in_a_thread() -> None: ...

    yard.task(on_the_loop if kind == "coroutine" else in_a_thread, name="work")
    yard.declare(QueueSettings("default", concurrency=1))
    jobs = [yard.submit("work") for _ in range(3)]
    running = asyncio.create_task(yard.worker(max_jobs=2, poll_interval_us=10_000).run())
    await until(lambda: yard.job(jobs[0]).counters.releases > 3)
    monkeypatch.setattr(fetcher, "GRANT_S", 600.0)

    report = await asyncio.wait_for(running, 10)

    assert report.succeeded == 2
    assert yard.status(jobs[2]) is JobStatus.QUEUED


async def test_thread_handlers_run_side_by_side(yard: Yard) -> None:
    together = threading.Barrier(4)

    def meet() -> int:
        return together.wait(timeout=10)

    yard.task(meet)
    for _ in range(4):
        yard.submit("meet")

    report = await yard.burst(concurrency=4)

    assert report.succeeded == 4


async def test_a_worker_tells_of_its_own_life(yard: Yard) -> None:
    async def noop() -> None: ...

    yard.task(noop)
    yard.record("worker.*")

    await yard.burst()

    assert names(yard.events) == ["worker.started", "worker.stopping", "worker.stopped"]


@pytest.mark.req("S1-64")
async def test_each_worker_tells_the_store_what_it_has_done_and_that_only_rises(yard: Yard) -> None:
    async def work(*, fail: bool) -> None:
        if fail:
            raise ValueError("broken")

    yard.task(work, retry=RetryPolicy(max_retries=0))
    for fail in (False, False, True):
        yard.submit("work", {"fail": fail})

    async with yard.running(lease_us=300_000):
        await until(
            lambda: any(each.totals.failed for each in yard.do(yard.store.leases.workers()))
        )
        (worker,) = await Insights(yard.store).aworkers()

    assert (worker.stats.worker_name, worker.stats.uptime_ms > 0) == (worker.id, True)
    assert (worker.stats.total_processed, worker.stats.succeeded, worker.stats.failed) == (3, 2, 1)
