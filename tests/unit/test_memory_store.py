# SPDX-License-Identifier: MIT
"""The runners of the memory store: atomic, fair, thread-safe, and able to fail on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Literal

import pytest

from packhorse.core.job import JobStatus
from packhorse.errors import ConfigError, PayloadError, StoreUnavailable
from packhorse.stores.memory import MemoryStore
from packhorse.stores.memory.state import Key, SortedKeys
from packhorse.stores.protocol import Store
from packhorse.stores.requests import ClaimRequest, JobFilter, QueueSettings, Renewal
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.memory_trial import memory_trial

Moment = Literal["before", "after"]


@pytest.fixture
def trial() -> Trial:
    return memory_trial()


def outage(verb: str, moment: Moment) -> Callable[[str, Moment], None]:
    """The first such verb fails, at that moment."""
    armed = [True]

    def faults(asked: str, now: Moment) -> None:
        if armed and (asked, now) == (verb, moment):
            armed.clear()
            raise StoreUnavailable(f"{verb} failed {moment} its effect")

    return faults


def test_a_memory_store_is_a_store() -> None:
    store: Store = MemoryStore()

    assert store.label == "memory://"
    assert store.migrate() == store.migrate() == 1
    assert store.facts()["durability"].startswith("none")


def test_without_a_clock_of_its_own_a_store_judges_by_the_machines() -> None:
    store = MemoryStore()
    (answer,) = store.run(store.jobs.submit([new_job("now"), new_job("later", delay_us=10**9)]))[:1]

    assert answer.status is JobStatus.QUEUED
    assert store.facts()["jobs"] == "2"


def test_two_stores_share_nothing() -> None:
    first, second = MemoryStore(), MemoryStore()
    first.run(first.jobs.submit([new_job("here")]))

    assert second.run(second.inspection.job("here")) is None


def test_a_fault_before_the_effect_leaves_nothing_behind() -> None:
    trial = memory_trial(outage("submit", "before"))

    with pytest.raises(StoreUnavailable):
        trial.submit(new_job("job"))

    assert trial.find("job") is None
    assert not trial.submit(new_job("job"))[0].deduplicated


def test_a_fault_after_the_effect_loses_only_the_answer() -> None:
    trial = memory_trial(outage("submit", "after"))

    with pytest.raises(StoreUnavailable):
        trial.submit(new_job("job"))

    assert trial.status("job") is JobStatus.QUEUED
    assert trial.submit(new_job("job"))[0].deduplicated


async def test_a_fault_reaches_async_callers_too() -> None:
    store = MemoryStore(faults=outage("job", "before"))

    with pytest.raises(StoreUnavailable):
        await store.arun(store.inspection.job("any"))

    assert await store.arun(store.inspection.job("any")) is None


def test_a_payload_that_is_no_text_is_refused_before_anything_is_stored(trial: Trial) -> None:
    with pytest.raises(PayloadError, match="bad is not UTF-8"):
        trial.submit(new_job("good"), new_job("bad", payload=b"\xff"))

    assert trial.search() == []


def test_a_refused_declaration_names_both_sides_and_keeps_nothing(trial: Trial) -> None:
    with pytest.raises(ConfigError, match="'dead' is declared as a queue and as the dead-letter"):
        trial.declare(QueueSettings("mail", dead_letter="dead"), QueueSettings("dead"))

    assert trial.run(trial.store.queues.queues()) == ()


def test_a_place_in_a_list_that_is_none_is_refused(trial: Trial) -> None:
    with pytest.raises(ConfigError, match="'nowhere' is no place in a list"):
        trial.store.inspection.search(JobFilter(), limit=1, after="nowhere")


async def test_plans_run_together_take_turns() -> None:
    store, turns = MemoryStore(), []

    async def submit(name: str) -> None:
        for n in range(3):
            await store.arun(store.jobs.submit([new_job(f"{name}{n}")]))
            turns.append(name)

    await asyncio.gather(submit("a"), submit("b"))

    assert turns == ["a", "b"] * 3


async def test_a_caller_cancelled_before_its_turn_knows_that_nothing_happened() -> None:
    store = MemoryStore()
    caller = asyncio.create_task(store.arun(store.jobs.submit([new_job("job")])))
    await asyncio.sleep(0)
    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller
    assert store.run(store.inspection.job("job")) is None


@pytest.mark.req("S2-23")
def test_threads_that_claim_at_once_are_given_every_job_once() -> None:
    store, together = MemoryStore(), threading.Barrier(4)
    given: list[str] = []
    jobs = [new_job(f"job-{n}") for n in range(400)]
    store.run(store.jobs.submit(jobs))

    def work(worker: str) -> None:
        store.run(store.leases.renew(Renewal(worker, lease_us=10**9)))
        request = ClaimRequest(worker, (QUEUE,), (TASK,), limit=3, default_timeout_us=10**9)
        together.wait()
        while claimed := store.run(store.jobs.claim(request)).jobs:
            given.extend(job.id for job in claimed)

    threads = [threading.Thread(target=work, args=(f"worker-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(given) == sorted(job.id for job in jobs)


def test_a_claim_looks_at_few_jobs_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = memory_trial()
    unknown = [new_job(f"u-{n}", task="resize", priority=0) for n in range(3_000)]
    later = [new_job(f"l-{n}", delay_us=10**9) for n in range(3_000)]
    trial.submit(*unknown, *later, *(new_job(f"job-{n}") for n in range(3_000)))
    looked: list[Key] = []
    original = SortedKeys.__iter__

    def counting(keys: SortedKeys) -> object:
        for key in original(keys):
            looked.append(key)
            yield key

    monkeypatch.setattr(SortedKeys, "__iter__", counting)

    assert [job.id for job in trial.claim(limit=3)] == ["job-0", "job-1", "job-2"]
    assert len(looked) < 10


def test_what_a_store_judges_by_is_the_clock_it_was_given() -> None:
    clock = VirtualClock(start_us=1_000)
    store = MemoryStore(clock=clock)
    store.run(store.jobs.submit([new_job("job", delay_us=1_000_000)]))

    clock.advance(1)

    assert store.run(store.upkeep.promote(limit=1)) == 1
    record = store.run(store.inspection.job("job"))
    assert record is not None
    assert (record.created_us, record.updated_us) == (1_000, 1_001_000)
