# SPDX-License-Identifier: MIT
"""Workers and consumers drain outboxes; `doctor` says how many wait, and whether no worker does."""

from __future__ import annotations

import asyncio

import pytest

from packhorse.cli.doctor_checks import Severity, findings
from packhorse.cli.doctor_survey import take_survey
from packhorse.core.clock import SystemClock
from tests.transactions.outbox_support import Outboxed


@pytest.fixture
def orders(outboxed: Outboxed) -> Outboxed:
    return outboxed


def told(orders: Outboxed) -> tuple[Severity, str]:
    survey = take_survey(orders.app, SystemClock())
    [found] = [one for one in findings(survey) if one.check == "outbox"]
    return found.level, found.message


async def reached(orders: Outboxed, ran: list[str]) -> None:
    async with asyncio.timeout(20):
        while orders.ran != ran:
            await asyncio.sleep(0.01)


async def test_a_running_worker_drains_it_and_doctor_sees_who_does(orders: Outboxed) -> None:
    def submit(name: str) -> None:
        with orders.driver() as open_one:
            orders.send.using(tx=open_one.tx).enqueue(name)

    await asyncio.to_thread(submit, "a")
    level, message = await asyncio.to_thread(told, orders)
    assert (level, "1 request" in message) == (Severity.PROBLEM, True)
    assert "no worker of this app is live to drain it" in message

    worker = asyncio.create_task(orders.app.arun(["default"], concurrency=1))
    await reached(orders, ["a"])
    await asyncio.to_thread(submit, "b")  # while it runs, and no caller asks for the job
    await reached(orders, ["a", "b"])
    level, message = await asyncio.to_thread(told, orders)
    assert (level, "is empty; a worker drains it" in message) == (Severity.OK, True)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)


async def test_a_consumer_drains_it_too(orders: Outboxed) -> None:
    with orders.driver() as open_one:
        job = orders.send.using(tx=open_one.tx).enqueue("a")

    async with orders.app.consumer(["default"]) as consumer:
        fetched = None
        async with asyncio.timeout(20):
            while fetched is None:
                fetched = await consumer.fetch("1s")
        assert fetched.id == job.id
        assert await consumer.mark_complete(fetched, "A")
