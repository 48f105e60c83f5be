# SPDX-License-Identifier: MIT
"""Batches on one store, with virtual time: order, errors that stop, progress, tenants, threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping

import pytest

from packhorse import ConfigError, Context, PayloadError, Reject, RetryPolicy, Snooze
from packhorse.group_errors import BatchConflict, BatchNotFound
from packhorse.testing import TestApp

ONCE = RetryPolicy(max_retries=0)


@pytest.mark.req("S1-54")
def test_without_parallel_one_job_follows_the_other_in_order(packhorse_app: TestApp) -> None:
    ran: list[int] = []

    @packhorse_app.task
    async def step(number: int) -> None:
        ran.append(number)
        await asyncio.sleep(0)

    packhorse_app.batch(step, range(40), batch_size=3, parallel=False)
    packhorse_app.run_jobs()

    assert ran == list(range(40))


@pytest.mark.req("S1-55")
@pytest.mark.parametrize("stop", [True, False])
def test_an_error_stops_what_has_not_begun_only_if_asked(
    packhorse_app: TestApp, *, stop: bool
) -> None:
    ran: list[int] = []

    @packhorse_app.task(retry=ONCE)
    def step(number: int) -> None:
        ran.append(number)
        if number == 4:
            raise ValueError("four")

    batch = packhorse_app.batch(step, range(20), batch_size=3, parallel=False, stop_on_error=stop)
    packhorse_app.run_jobs()

    assert ran == list(range(6 if stop else 20))
    progress = batch.progress()
    assert (progress.processed, progress.failed) == ((6, 1) if stop else (20, 1))
    assert progress.status == "failed"


@pytest.mark.req("S1-56")
def test_progress_is_told_after_each_job_and_what_it_raises_is_logged(
    packhorse_app: TestApp, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Mapping[str, int]] = []

    @packhorse_app.task(retry=ONCE)
    def step(number: int) -> None:
        if number == 2:
            raise Reject("two")

    def note(news: Mapping[str, int]) -> None:
        told.append(news)
        raise RuntimeError("a bug of the observer")

    packhorse_app.batch(step, range(7), batch_size=3, parallel=False, on_progress=note)
    with caplog.at_level(logging.ERROR, "packhorse"):
        packhorse_app.run_jobs()

    assert told == [
        {"processed": 3, "total": 7, "failed": 1},
        {"processed": 6, "total": 7, "failed": 1},
        {"processed": 7, "total": 7, "failed": 1},
    ]
    assert "the batch goes on" in caplog.text


def test_items_of_a_job_may_run_side_by_side(packhorse_app: TestApp) -> None:
    together: list[int] = []

    @packhorse_app.task
    async def waits(number: int) -> int:
        together.append(number)
        await asyncio.sleep(0.01)
        most.append(len(together))
        together.remove(number)
        return number

    gate = threading.Barrier(4)

    @packhorse_app.task
    def meets(number: int) -> int:
        gate.wait(10)
        return number

    most: list[int] = []
    first = packhorse_app.batch(waits, range(12), batch_size=12, item_concurrency=4)
    second = packhorse_app.batch(meets, range(8), batch_size=8, item_concurrency=4)
    packhorse_app.run_jobs()

    assert max(most) == 4
    assert list(first.results()) == list(range(12))
    assert list(second.results()) == list(range(8))


def test_an_item_is_arguments_by_name_or_the_only_parameter(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def add(first: int, second: int = 1) -> int:
        return first + second

    @packhorse_app.task
    def size(options: dict[str, int]) -> int:
        return len(options)

    sums = packhorse_app.batch(add, [{"first": 1}, {"first": 2, "second": 3}, 4])
    sizes = packhorse_app.batch(size, [{"a": 1, "b": 2}, {"options": {"c": 3}}])
    packhorse_app.run_jobs()

    assert list(sums.results()) == [2, 5, 5]
    assert list(sizes.results()) == [2, 1]
    with pytest.raises(PayloadError):
        packhorse_app.batch(add, [{"first": "one"}])


def test_an_item_has_steps_and_keys_of_its_own(packhorse_app: TestApp) -> None:
    charged: list[int] = []
    keys: dict[int, set[str]] = {}

    @packhorse_app.task(retry=RetryPolicy(max_retries=2, initial_delay="1s"))
    def charge(ctx: Context, number: int) -> int:
        keys.setdefault(number, set()).add(ctx.idempotency_key())

        def once() -> int:
            charged.append(number)
            return number * 10

        paid = ctx.step("pay", once)
        if number == 1 and ctx.job.attempt == 1:
            raise ValueError("after the step")
        return paid

    batch = packhorse_app.batch(charge, range(3))
    packhorse_app.run_jobs()

    assert charged == [0, 1, 2]
    assert list(batch.results()) == [0, 10, 20]
    assert [len(each) for each in keys.values()] == [1, 1, 1]
    assert len(set.union(*keys.values())) == 3


def test_an_item_that_waits_does_not_hold_up_the_others(packhorse_app: TestApp) -> None:
    ran: list[int] = []

    @packhorse_app.task
    def maybe(ctx: Context, number: int) -> int:
        if number == 0 and ctx.job.attempt == 1:
            raise Snooze("1h")
        ran.append(number)
        return number

    batch = packhorse_app.batch(maybe, range(3))
    packhorse_app.run_jobs()

    assert ran == [1, 2, 0]
    assert batch.progress().status == "completed"


def test_a_tenant_sees_its_own_batches_only(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def step(number: int) -> int:
        return number

    acme, other = packhorse_app.tenant("acme"), packhorse_app.tenant("other")
    batch = acme.batch(step, range(3), id="one")
    packhorse_app.batch(step, range(3), id="two")
    packhorse_app.run_jobs()

    assert [each.batch_id for each in acme.batches.all()] == ["one"]
    assert other.batches.all() == []
    assert list(acme.batches.get("one").results()) == [0, 1, 2]
    assert {each.batch_id for each in packhorse_app.batches.all()} == {"one", "two"}
    assert packhorse_app.batches.get("one").progress() == batch.progress()
    for name in ("one", "two"):
        with pytest.raises(BatchNotFound):
            other.batches.get(name)
    with pytest.raises(ConfigError):
        acme.batch(step.using(tenant="other"), [1])


async def test_async_producers_are_read_as_they_come(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    async def step(number: int) -> int:
        return number

    async def numbers() -> AsyncIterator[int]:
        for number in range(250):
            await asyncio.sleep(0)
            yield number

    batch = await packhorse_app.abatch(step, numbers(), batch_size=20)
    single = await step.amap(numbers())
    await packhorse_app.arun_jobs()

    assert [each async for each in batch.aresults()] == list(range(250))
    assert len([each async for each in single.aresults(ordered=False)]) == 250
    assert [each.status async for each in batch.watch()][-1] == "completed"
    assert (await batch.await_ended("1s")).succeeded == 250


def test_a_batch_of_an_id_that_is_there_is_refused(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def step(number: int) -> None: ...

    packhorse_app.batch(step, [1], id="twice")

    with pytest.raises(BatchConflict):
        packhorse_app.batch(step, [1], id="twice")
    with pytest.raises(ConfigError, match="batch_size"):
        packhorse_app.batch(step, [1], batch_size=0)
    with pytest.raises(ConfigError, match="job_id"):
        packhorse_app.batch(step.using(job_id="x"), [1])
