# SPDX-License-Identifier: MIT
"""A worker on queues with limits: no look-ahead, no hot loop, nothing burnt or left behind."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from packhorse.context import Context
from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus, RateRule, RetryRule
from packhorse.core.outcome import Outcome
from packhorse.core.policies.retry import RetryPolicy
from packhorse.events import JobCompleted, JobFailed, JobLimited
from packhorse.runtime.worker import fetcher
from packhorse.signals import RateLimited
from packhorse.stores.requests import QueueSettings, TaskSettings
from tests.worker.support import PATIENCE_S, Counting, Yard, heard, turns, until

NEVER = RetryPolicy(max_retries=0)


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.mark.parametrize("how", ["raise", "return"])
async def test_a_job_that_meets_a_limit_burns_nothing_and_runs_when_the_limit_frees(
    yard: Yard, how: str
) -> None:
    yard.record()
    ran: list[float] = []

    async def fetch() -> object:
        ran.append(time.monotonic())
        if len(ran) > 1:
            return "got it"
        if how == "raise":
            raise RateLimited("150ms")
        return RateLimited("150ms")

    yard.task(fetch, retry=NEVER)
    job_id = yard.submit("fetch")

    report = await yard.burst()

    counters = yard.job(job_id).counters
    assert yard.status(job_id) is JobStatus.COMPLETED
    assert (counters.failures, counters.releases, counters.attempts) == (0, 1, 2)
    assert ran[1] - ran[0] >= 0.15
    assert [each.status for each in yard.history(job_id)] == ["queued", "completed"]
    (limited,) = yard.told(JobLimited)
    assert (limited.job_id, limited.retry_after_ms) == (job_id, 150.0)
    assert not yard.told(JobFailed)
    assert (report.limited, report.failed, report.succeeded) == (1, 0, 1)


async def test_a_limit_that_was_met_holds_back_its_rate_key_and_no_other(yard: Yard) -> None:
    ran: list[str] = []

    async def fetch(key: str) -> None:
        ran.append(key)
        if key == "busy":
            raise RateLimited("10m")

    yard.task(fetch)
    yard.submit("fetch", {"key": "busy"}, rate_key="busy")
    held = yard.submit("fetch", {"key": "busy"}, rate_key="busy")
    other = yard.submit("fetch", {"key": "other"}, rate_key="other")

    async with yard.running(concurrency=1):
        await until(lambda: yard.status(other) is JobStatus.COMPLETED)

    assert ran == ["busy", "other"]
    assert yard.job(held).counters.attempts == 0


async def test_look_ahead_of_the_same_kind_goes_back_when_a_limit_is_met(yard: Yard) -> None:
    ran: Counter[int] = Counter()

    async def fetch(number: int) -> None:
        ran[number] += 1
        if number >= 30:
            raise RateLimited("10m")

    yard.task(fetch)
    for number in range(60):
        yard.submit("fetch", {"number": number})
    async with yard.running(concurrency=1):
        await until(lambda: ran[30])
        await until(lambda: yard.store.run(yard.store.queues.depth("default")) == 30)

    assert sum(ran.values()) == 31


@pytest.mark.req("S1-21")
async def test_no_more_of_a_queue_run_at_once_than_its_concurrency_over_all_workers(
    yard: Yard,
) -> None:
    running, most = 0, 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    yard.task(work)
    yard.declare(QueueSettings("default", concurrency=3))
    for _ in range(60):
        yard.submit("work")

    reports = await asyncio.gather(*(yard.burst(concurrency=10) for _ in range(3)))

    assert most == 3
    assert sum(report.succeeded for report in reports) == 60


@pytest.mark.req("S1-22")
async def test_a_burst_worker_stays_until_the_rate_limit_has_let_everything_go(yard: Yard) -> None:
    started: list[float] = []

    async def work() -> None:
        started.append(time.monotonic())

    yard.task(work)
    yard.declare(QueueSettings("default", rate=RateRule(5, 200_000)))
    for _ in range(12):
        yard.submit("work")

    report = await yard.burst()

    assert report.succeeded == 12
    assert all(late - early >= 0.19 for early, late in zip(started, started[5:], strict=False))


def blocking_after_claims(seconds: list[float]) -> Callable[[str, str], None]:
    """Blocks the event loop after claims, so that what was granted is heard of so much later."""

    def block(verb: str, moment: str) -> None:
        if (verb, moment) == ("claim", "after") and seconds:
            time.sleep(seconds.pop(0))

    return block


def most_in_a_window(started: list[float], window_s: float) -> int:
    return max(sum(0 <= each - first < window_s for each in started) for first in started)


@pytest.mark.req("S1-66", "S1-22")
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_no_more_handlers_begin_in_a_window_than_its_limit_though_the_loop_was_blocked(
    kind: str,
) -> None:
    blocked = [0.6, 0.0, 0.3]
    yard = Yard(blocking_after_claims(blocked))
    started: list[float] = []

    async def coroutine() -> None:
        started.append(time.monotonic())

    def thread() -> None:
        started.append(time.monotonic())

    yard.task(coroutine if kind == "coroutine" else thread, name="work")
    yard.declare(QueueSettings("default", rate=RateRule(5, 200_000)))
    for _ in range(12):
        yard.submit("work")

    report = await yard.burst(concurrency=20)

    assert report.succeeded == 12
    assert not blocked
    assert most_in_a_window(started, 0.2) <= 5


@pytest.mark.req("S1-66")
async def test_what_was_let_go_under_a_limit_the_worker_has_not_heard_of_starts_in_time() -> None:
    blocked: list[float] = []
    yard = Yard(blocking_after_claims(blocked))
    started: list[float] = []

    async def work() -> None:
        started.append(time.monotonic())

    yard.task(work)
    async with yard.running(concurrency=20), yard.running(concurrency=20):
        await until(lambda: len(yard.do(yard.store.leases.workers())) == 2)
        blocked.append(0.6)
        rated = QueueSettings("default", rate=RateRule(5, 200_000))
        yard.do(yard.store.queues.override("default", rated))
        jobs = [yard.submit("work") for _ in range(12)]
        await until(lambda: all(yard.status(job) is JobStatus.COMPLETED for job in jobs))

    assert most_in_a_window(started, 0.2) <= 5


async def test_a_queue_without_room_is_not_asked_again_and_again() -> None:
    counting = Counting()
    yard = Yard(counting)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        await go_on.wait()

    yard.task(work)
    yard.declare(QueueSettings("default", concurrency=1))
    jobs = [yard.submit("work") for _ in range(5)]
    async with yard.running(concurrency=10):
        await heard(began)
        await turns()
        before = counting.calls["claim"]
        await turns()
        assert counting.calls["claim"] - before <= 1  # the poll, at most
        go_on.set()
        await until(lambda: all(yard.status(job) is JobStatus.COMPLETED for job in jobs))


class Deaf:
    """A listener that hears nothing."""

    async def wait(self, timeout_s: float | None) -> frozenset[str]:
        await asyncio.sleep(PATIENCE_S)
        return frozenset()

    def close(self) -> None: ...


async def test_the_end_of_one_lets_the_next_go_though_no_wake_up_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verbs: list[str] = []

    def note(verb: str, moment: str) -> None:
        if moment == "before" and verb in ("settle", "claim"):
            verbs.append(verb)

    async def work() -> None: ...

    yard = Yard(note)
    monkeypatch.setattr(yard.store.wakeups, "listen", lambda topics: Deaf())
    yard.task(work)
    yard.declare(QueueSettings("default", concurrency=1))
    jobs = [yard.submit("work") for _ in range(10)]
    async with yard.running(poll_interval_us=600 * SECOND_US):  # nor is it found by looking
        await until(lambda: all(yard.status(job) is JobStatus.COMPLETED for job in jobs))

    settled = [number for number, verb in enumerate(verbs) if verb == "settle"]
    # The claim goes with the settlement that makes the room.
    assert [verbs[number + 1] for number in settled[: len(jobs) - 1]] == ["claim"] * 9


async def test_a_used_up_rate_limit_is_waited_for_without_asking() -> None:
    counting = Counting()
    yard = Yard(counting)

    async def work() -> None: ...

    yard.task(work)
    yard.declare(QueueSettings("default", rate=RateRule(1, 300_000)))
    first, second = yard.submit("work"), yard.submit("work")
    async with yard.running():
        await until(lambda: yard.status(first) is JobStatus.COMPLETED)
        await turns()
        before = counting.calls["claim"]
        await until(lambda: yard.status(second) is JobStatus.COMPLETED)

    assert counting.calls["claim"] - before <= 2


async def test_a_limited_queue_holds_nothing_ahead(yard: Yard) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def work(*, wait: bool) -> None:
        if wait:
            began.set()
            await go_on.wait()

    yard.task(work)
    yard.declare(QueueSettings("default", rate=RateRule(10_000, SECOND_US)))
    for _ in range(50):
        yard.submit("work", {"wait": False})
    yard.submit("work", {"wait": True})
    behind = yard.submit("work", {"wait": False})
    async with yard.running(concurrency=1):
        await heard(began)
        await turns()
        assert yard.status(behind) is JobStatus.QUEUED
        assert yard.job(behind).fence == 0
        go_on.set()


async def test_a_queue_whose_task_got_a_limit_elsewhere_holds_nothing_ahead(yard: Yard) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def work(*, wait: bool) -> None:
        if wait:
            began.set()
            await go_on.wait()

    yard.task(work)
    yard.do(yard.store.queues.declare_tasks([TaskSettings("work", concurrency=100)]))
    for _ in range(50):
        yard.submit("work", {"wait": False}, queue="other")
    yard.submit("work", {"wait": True}, queue="other")
    behind = yard.submit("work", {"wait": False}, queue="other")
    async with yard.running(concurrency=1, queues=("other",)):
        await heard(began)
        await turns()
        assert yard.job(behind).fence == 0
        go_on.set()


async def test_beside_a_limited_queue_a_plain_one_still_looks_ahead() -> None:
    counting = Counting()
    yard = Yard(counting)

    async def work() -> None: ...

    yard.task(work)
    yard.declare(QueueSettings("mail", concurrency=1))
    for _ in range(2_000):
        yard.submit("work", queue="default")
    mail = [yard.submit("work", queue="mail") for _ in range(5)]

    report = await yard.burst(concurrency=2, queues=("mail", "default"))

    assert report.succeeded == 2_005
    assert all(yard.status(job) is JobStatus.COMPLETED for job in mail)
    assert counting.calls["claim"] < 200  # by free slots alone it would be a thousand


async def test_what_starts_too_long_after_its_limit_let_it_go_is_given_back(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "GRANT_S", 0.1)
    ran: list[int] = []

    async def block(number: int) -> None:
        ran.append(number)
        time.sleep(0.2)  # a mistake people make: the others of the same claim wait

    yard.task(block)
    yard.declare(QueueSettings("default", rate=RateRule(2, 400_000)))
    yard.record()
    first, second = (yard.submit("block", {"number": number}) for number in (1, 2))

    await yard.burst()

    assert ran == [1, 2]
    assert yard.job(second).counters.releases >= 1
    assert yard.job(second).counters.attempts == 1
    one, two = (yard.history(job)[0].started_us for job in (first, second))
    assert two - one >= 400_000  # it was not refunded
    assert len(yard.told(JobCompleted)) == 2


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_middlewares_do_not_see_what_is_given_back_before_it_began(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(fetcher, "GRANT_S", -1.0)  # however soon it starts, that is too late
    wrapped: list[str] = []

    async def watch(context: Context, proceed: Callable[[], Awaitable[Outcome]]) -> Outcome:
        wrapped.append(context.job.id)
        return await proceed()

    async def on_the_loop() -> None: ...
    def in_a_thread() -> None: ...

    yard.middlewares.append(watch)
    yard.task(on_the_loop if kind == "coroutine" else in_a_thread, name="work")
    yard.declare(QueueSettings("default", concurrency=1))
    job = yard.submit("work")
    async with yard.running(poll_interval_us=10_000):
        await until(lambda: yard.job(job).counters.releases > 0)
        monkeypatch.setattr(fetcher, "GRANT_S", 600.0)
        await until(lambda: yard.status(job) is JobStatus.COMPLETED)

    assert wrapped == [job]
    assert yard.job(job).counters.attempts == 1


async def test_plain_jobs_start_however_late(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "GRANT_S", 0.01)

    async def block() -> None:
        time.sleep(0.03)

    yard.task(block)
    jobs = [yard.submit("block") for _ in range(3)]

    await yard.burst()

    assert [yard.job(job).counters.releases for job in jobs] == [0, 0, 0]


@pytest.mark.req("S0-16")
async def test_a_tenant_at_its_limit_does_not_delay_another(yard: Yard) -> None:
    async def work() -> None: ...

    yard.task(work)
    yard.declare(QueueSettings("default", tenant_rate=RateRule(2, 600 * SECOND_US)))
    greedy = [yard.submit("work", tenant="greedy") for _ in range(20)]
    modest = [yard.submit("work", tenant="modest") for _ in range(2)]
    async with yard.running():
        await until(lambda: all(yard.status(job) is JobStatus.COMPLETED for job in modest))

    done = [job for job in greedy if yard.status(job) is JobStatus.COMPLETED]
    assert len(done) == 2
    assert {yard.status(job) for job in greedy} == {JobStatus.COMPLETED, JobStatus.QUEUED}


@pytest.mark.req("S0-24")
async def test_retries_do_not_let_later_jobs_of_the_same_key_overtake(yard: Yard) -> None:
    ran: list[tuple[str, int]] = []

    async def work(key: str, number: int) -> None:
        ran.append((key, number))
        if len([each for each in ran if each == (key, number)]) == 1:
            raise ValueError("once")

    yard.task(work, retry=RetryPolicy(backoff="fixed", initial_delay="5ms", jitter=False))
    for number in range(5):
        for key in ("a", "b"):
            yard.submit("work", {"key": key, "number": number}, ordering_key=key)

    await yard.burst()

    for key in ("a", "b"):
        numbers = [number for each, number in ran if each == key]
        assert numbers == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_a_cap_holds_for_its_queue_in_this_worker_alone(yard: Yard) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    async def work(queue: str) -> None:
        running[queue] += 1
        most[queue] = max(most[queue], running[queue])
        await asyncio.sleep(0.002)
        running[queue] -= 1

    yard.task(work)
    for _ in range(40):
        for queue in ("mail", "default"):
            yard.submit("work", {"queue": queue}, queue=queue)

    report = await yard.burst(concurrency=8, queues=("mail", "default"), queue_caps={"mail": 2})

    assert report.succeeded == 80
    assert most == {"mail": 2, "default": 8} or (most["mail"], most["default"]) == (2, 7)


async def test_an_operators_retry_policy_holds_instead_of_the_declared_one(yard: Yard) -> None:
    ran = 0

    async def fail() -> None:
        nonlocal ran
        ran += 1
        raise ValueError

    yard.task(fail)
    yard.declare(QueueSettings("default", retry=RetryRule(max_retries=5, initial_us=1, max_us=1)))
    override = QueueSettings("default", retry=RetryRule(max_retries=1, initial_us=1, max_us=1))
    yard.do(yard.store.queues.override("default", override))
    job_id = yard.submit("fail")

    await yard.burst()

    assert yard.status(job_id) is JobStatus.DEAD
    assert ran == 2
