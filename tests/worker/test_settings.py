# SPDX-License-Identifier: MIT
"""What queues and tasks are set to in the store holds in the worker, soon after it is set."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from packhorse.core.clock import SystemClock
from packhorse.core.job import JobStatus, RateRule, RetryRule
from packhorse.errors import ConfigError, StoreUnavailable
from packhorse.events import StoreRecovered, StoreTrouble
from packhorse.runtime.worker import settings as settings_module
from packhorse.runtime.worker.settings import (
    Settings,
    SettingsWatch,
    declared_settings,
    dividing_queues,
    limited_queues,
)
from packhorse.runtime.worker.store_health import StoreHealth
from packhorse.stores.plan import Plan
from packhorse.stores.requests import QueueSettings, QueueState, TaskSettings
from tests.worker.support import PATIENCE_S, Yard, heard, until, worker_options

RATE = RateRule(5, 1_000_000)
QUEUES = ("mail", "calls", "plain", "undeclared")
PLACES = [(queue, task) for queue in QUEUES for task in ("send", "fetch", "other")]


@pytest.fixture
def yard() -> Yard:
    return Yard()


@contextlib.asynccontextmanager
async def watching(yard: Yard, declared: Settings | None = None) -> AsyncIterator[list[Settings]]:
    """A watch that has looked once, and what it has told."""
    told: list[Settings] = []
    watch = SettingsWatch(
        yard.store,
        SystemClock(),
        StoreHealth(yard.bus, SystemClock(), "me"),
        declared=declared or Settings(),
        changed=told.append,
    )
    task = asyncio.create_task(watch.run())
    await heard(watch.looked)
    try:
        yield told
    finally:
        task.cancel()


async def test_the_store_is_asked_before_anything_is_claimed(yard: Yard) -> None:
    yard.declare(QueueSettings("mail", concurrency=3))
    yard.do(yard.store.queues.declare_tasks([TaskSettings("send", rate=RATE)]))

    async with watching(yard) as told:
        (settings,) = told

    assert settings.queue("mail").concurrency == 3
    assert settings.queue("unknown") == QueueSettings("unknown")
    assert set(settings.tasks) == {"send"}


async def test_an_operators_word_is_heard_of_within_the_refresh(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "_REFRESH_S", 0.02)
    monkeypatch.setattr(settings_module, "_AFTER_WAKE_S", 0.01)
    yard.declare(QueueSettings("mail", concurrency=3))

    async with watching(yard) as told:
        yard.do(yard.store.queues.override("mail", QueueSettings("mail", concurrency=1)))
        await until(lambda: len(told) == 2)

    assert [each.queue("mail").concurrency for each in told] == [3, 1]


async def test_while_the_store_does_not_answer_what_was_declared_holds() -> None:
    def faults(verb: str, moment: str) -> None:
        if verb == "queues":
            raise StoreUnavailable("an outage")

    yard = Yard(faults)
    yard.record()

    async with watching(yard, Settings({"mail": QueueSettings("mail")})) as told:
        assert told == []

    assert [each.operation for each in yard.told(StoreTrouble)] == ["settings"]


async def test_a_read_that_timed_out_is_no_costly_read(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "_REFRESH_S", 0.02)
    monkeypatch.setattr(settings_module, "_AFTER_WAKE_S", 0.01)
    outage = [1]
    queues = yard.store.queues.queues

    def slow_at_first(*, holding: bool = True) -> Plan[tuple[QueueState, ...]]:
        if outage:
            outage.pop()
            time.sleep(0.5)  # a store that stands still, until the call is given up
            raise StoreUnavailable("no answer within 0.5 s")
        return queues()

    yard.store.queues.queues = slow_at_first  # type: ignore[method-assign]
    yard.record()

    async with watching(yard):
        await until(lambda: yard.told(StoreRecovered), within_s=20.0)  # not 200 times 0.5 s


async def test_a_running_worker_hears_of_a_change_by_its_wake_up(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_module, "_REFRESH_S", 600.0)

    async def fail() -> None:
        raise ValueError

    yard.task(fail)
    yard.declare(QueueSettings("default", retry=RetryRule(max_retries=0)))
    generous = QueueSettings("default", retry=RetryRule(initial_us=1, max_us=1))
    async with yard.running():
        first = yard.submit("fail")
        await until(lambda: yard.status(first) is JobStatus.DEAD)
        yard.do(yard.store.queues.override("default", generous))

        async def retried() -> bool:
            job = yard.submit("fail")
            await until(lambda: yard.status(job) is JobStatus.DEAD)
            return yard.job(job).counters.failures == 4

        async with asyncio.timeout(PATIENCE_S):
            while not await retried():
                await asyncio.sleep(0.05)


def test_limited_are_queues_with_limits_and_homes_of_tasks_with_limits(yard: Yard) -> None:
    def send() -> None: ...
    def scan() -> None: ...

    yard.task(send, queue="outbox", concurrency=2)
    yard.task(scan, queue="files")
    queues = {
        "mail": QueueSettings("mail", rate=RATE),
        "calls": QueueSettings("calls", concurrency=1),
        "hooks": QueueSettings("hooks", tenant_rate=RATE),
        "plain": QueueSettings("plain", max_depth=5, fair=True),
    }

    settings = declared_settings(queues, yard.registry)

    assert set(settings.tasks) == {"send"}
    assert limited_queues(settings, yard.registry) == {"mail", "calls", "hooks", "outbox"}
    assert dividing_queues(settings, yard.registry) == {"hooks", "outbox"}


def test_a_jobs_task_and_its_queue_say_whether_it_is_held_back_and_whether_it_counts() -> None:
    settings = Settings(
        {
            "mail": QueueSettings("mail", rate=RATE),
            "calls": QueueSettings("calls", concurrency=1),
            "plain": QueueSettings("plain", max_depth=5),
        },
        {
            "send": TaskSettings("send", concurrency=2),
            "fetch": TaskSettings("fetch", rate=RATE),
        },
    )
    limited = {(queue, task) for queue, task in PLACES if settings.limits(queue, task)}
    counted = {(queue, task) for queue, task in PLACES if settings.counts(queue, task)}

    assert limited == {*PLACES} - {("plain", "other"), ("undeclared", "other")}
    assert counted == {
        (queue, task) for queue, task in PLACES if queue == "calls" or task == "send"
    }


def test_a_read_that_takes_long_is_made_rarer_and_yet_an_operator_is_heard() -> None:
    assert settings_module._rest_s(0.0) == 1.0
    assert settings_module._rest_s(0.05) == pytest.approx(10.0)
    assert settings_module._rest_s(3600.0) == 60.0


@pytest.mark.parametrize("caps", [{"mail": 0}, {"mail": True}, {"elsewhere": 3}])
def test_a_cap_that_means_nothing_is_refused(caps: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="queue_caps"):
        worker_options(queues=("mail",), queue_caps=caps)
