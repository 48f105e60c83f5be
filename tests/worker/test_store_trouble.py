# SPDX-License-Identifier: MIT
"""A store that fails for a while: nothing ends, nothing is lost, an observer is told once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from packhorse.context import Context
from packhorse.core.clock import SystemChance
from packhorse.core.job import JobStatus
from packhorse.core.settlement import Settlement, Verdict
from packhorse.errors import StoreUnavailable
from packhorse.events import Event, EventBus, StoreRecovered, StoreTrouble
from packhorse.runtime.worker.store_health import Backoff, StoreHealth
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Listener
from tests.worker.support import Yard, heard, until


class Weather:
    """Store calls that fail while it is bad; counts them."""

    def __init__(self, *verbs: str, moment: str = "before") -> None:
        self.verbs = verbs
        self.moment = moment
        self.left = 0
        self.calls: Counter[str] = Counter()

    def __call__(self, verb: str, moment: str) -> None:
        if moment == "before":
            self.calls[verb] += 1
        if self.left and moment == self.moment and (verb in self.verbs or not self.verbs):
            self.left -= 1
            raise StoreUnavailable(f"no {verb} today")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.store_health._FIRST_S", 0.002)


@pytest.mark.req("S3-28", "S4-2", "S0-25")
@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("verb", ["claim", "settle", "renew", "outlook"])
async def test_a_verb_that_fails_for_a_while_costs_nothing_but_time(verb: str, moment: str) -> None:
    weather = Weather(verb, moment=moment)
    yard = Yard(weather)
    ran: Counter[int] = Counter()

    async def note(number: int) -> None:
        ran[number] += 1

    yard.task(note)
    jobs = [yard.submit("note", {"number": number}) for number in range(20)]
    weather.left = 3

    report = await yard.burst()

    assert {yard.status(job_id) for job_id in jobs} == {JobStatus.COMPLETED}
    assert ran == Counter(range(20))
    assert report.stale == 0


@pytest.mark.req("S3-28", "S4-2")
@pytest.mark.usefixtures("fast")
async def test_a_store_that_is_gone_altogether_comes_back_to_a_worker_that_goes_on() -> None:
    weather = Weather()
    yard = Yard(weather)
    began, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        began.set()
        await go_on.wait()
        return "kept"

    yard.task(wait)
    yard.record("store.*")
    running = yard.submit("wait")
    async with yard.running():
        await heard(began)
        weather.left = 1_000_000
        go_on.set()
        await until(lambda: weather.calls["settle"] >= 3)
        weather.left = 0
        await until(lambda: yard.status(running) is JobStatus.COMPLETED)
        after = yard.submit("wait")
        await until(lambda: yard.status(after) is JobStatus.COMPLETED)
        await until(lambda: yard.told(StoreRecovered))

    assert yard.job(running).result == b'"kept"'
    assert len(yard.told(StoreTrouble)) == 1
    assert len(yard.told(StoreRecovered)) == 1


@pytest.mark.req("S3-28")
async def test_a_question_about_jobs_that_are_not_held_any_more_is_no_trouble() -> None:
    weather = Weather("cancelled")
    yard = Yard(weather)
    go_on = asyncio.Event()
    yard.task(go_on.wait, name="wait")
    yard.record("store.*")
    weather.left = 1_000_000  # and it stays so
    yard.submit("wait")
    async with yard.running():
        await until(lambda: yard.told(StoreTrouble))
        go_on.set()
        await until(lambda: yard.told(StoreRecovered))


@pytest.mark.req("S3-28")
async def test_progress_of_a_job_that_ended_meanwhile_is_no_trouble() -> None:
    yard = Yard()
    arun = yard.store.arun
    job_ids: list[str] = []
    writing = asyncio.Event()

    async def slow_progress(plan: Plan[Any]) -> Any:
        if plan.verb == "note_progress":
            writing.set()
            await until(lambda: yard.status(job_ids[0]) is JobStatus.COMPLETED)
            raise StoreUnavailable("given up")
        return await arun(plan)

    yard.store.arun = slow_progress  # type: ignore[method-assign]

    async def tell(ctx: Context) -> None:
        ctx.progress(1, 2)
        await heard(writing)

    yard.task(tell)
    yard.record("store.*")
    async with yard.running():
        job_ids.append(yard.submit("tell"))
        await until(lambda: yard.told(StoreTrouble))
        await until(lambda: yard.told(StoreRecovered))


@pytest.mark.usefixtures("fast")
async def test_a_settlement_whose_answer_was_lost_is_sent_again_and_counts_once() -> None:
    weather = Weather("settle", moment="after")
    yard = Yard(weather)

    async def fail() -> None:
        raise ValueError

    yard.task(fail)
    job_id = yard.submit("fail")
    weather.left = 2
    async with yard.running():
        await until(lambda: yard.status(job_id) is JobStatus.FAILED)
        await until(lambda: weather.calls["settle"] >= 3)

    assert yard.job(job_id).counters.failures == 1
    assert len(yard.history(job_id)) == 1


@pytest.mark.usefixtures("fast")
async def test_one_settlement_the_store_cannot_write_does_not_keep_the_others_back() -> None:
    yard = Yard()

    async def noop() -> None: ...

    yard.task(noop)
    jobs = [yard.submit("noop") for _ in range(8)]
    settle = yard.store.jobs.settle

    def picky(settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        if any(each.job_id == jobs[3] for each in settlements) and len(settlements) > 1:
            raise ValueError("one of these is strange")
        return settle(settlements)

    yard.store.jobs.settle = picky  # type: ignore[method-assign]
    async with yard.running(concurrency=8):
        await until(lambda: {yard.status(job_id) for job_id in jobs} == {JobStatus.COMPLETED})


@pytest.mark.usefixtures("fast")
async def test_without_wake_ups_polling_still_finds_the_work() -> None:
    yard = Yard()

    def deaf(topics: frozenset[str]) -> Listener:
        raise StoreUnavailable("nothing can be heard")

    yard.store.wakeups.listen = deaf  # type: ignore[method-assign]

    async def noop() -> None: ...

    yard.task(noop)
    yard.record("store.*")
    async with yard.running(poll_interval_us=10_000):
        job_id = yard.submit("noop")
        await until(lambda: yard.status(job_id) is JobStatus.COMPLETED)

    assert yard.told(StoreTrouble)[0].operation == "listen"


@pytest.mark.req("S4-2")
def test_back_off_doubles_to_a_ceiling_and_is_spread_by_chance() -> None:
    class Always:
        def __init__(self, value: float) -> None:
            self.value = value

        def roll(self) -> float:
            return self.value

    longest = Backoff(Always(1.0))
    assert [round(longest.next_s(), 3) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    longest.reset()
    assert longest.next_s() == 0.1
    assert Backoff(Always(0.0)).next_s() == 0.05


def test_trouble_is_told_once_and_recovery_when_all_of_it_is_over() -> None:
    bus = EventBus()
    told: list[Event] = []
    bus.subscribe("store.*", told.append)
    health = StoreHealth(bus, Yard().clock, "w")

    health.failed("claim", ValueError("a"))
    health.failed("settle", ValueError("b"))
    health.worked("claim")
    assert [event.name for event in told] == ["store.trouble"]
    health.worked("settle")
    health.worked("settle")

    assert [event.name for event in told] == ["store.trouble", "store.recovered"]


def test_chance_is_repeatable_when_seeded() -> None:
    assert Backoff(SystemChance(1)).next_s() == Backoff(SystemChance(1)).next_s()
