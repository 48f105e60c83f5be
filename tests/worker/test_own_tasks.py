# SPDX-License-Identifier: MIT
"""Every coroutine handler runs in an asyncio task of its own; none can touch a neighbour's."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from packhorse.core.job import JobStatus
from packhorse.runtime.worker.stacks import stack_of_task
from tests.worker.support import Yard, until


@pytest.fixture
def yard() -> Yard:
    return Yard()


class Seen:
    """The tasks of the event loop that handlers found themselves in."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[object]] = []

    def note(self) -> asyncio.Task[object]:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        return task


async def test_every_handler_has_a_task_of_its_own_also_if_it_never_waits(yard: Yard) -> None:
    seen = Seen()

    async def brief() -> None:
        seen.note()

    yard.task(brief, name="brief")
    for _ in range(10):
        yard.submit("brief")

    report = await yard.burst(concurrency=10)

    assert report.succeeded == 10
    assert len(set(seen.tasks)) == 10


async def test_a_handler_that_has_its_task_cancelled_later_does_not_end_its_neighbours(
    yard: Yard,
) -> None:
    gate = asyncio.Event()

    async def cancels_later() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        loop.call_soon(task.cancel)
        loop.call_soon(loop.call_soon, gate.set)

    async def waits() -> str:
        await gate.wait()
        return "done"

    yard.task(cancels_later, name="cancels_later")
    yard.task(waits, name="waits")
    yard.submit("cancels_later")
    jobs = [yard.submit("waits") for _ in range(4)]

    report = await yard.burst(concurrency=5)

    assert (report.succeeded, report.failed) == (5, 0)
    assert [yard.job(job).result for job in jobs] == [b'"done"'] * 4


async def test_a_handler_that_waits_has_one_task_from_its_first_line_to_its_last(
    yard: Yard,
) -> None:
    seen, gate = Seen(), asyncio.Event()

    async def waits(number: int) -> int:
        before = seen.note()
        async with asyncio.timeout(5):
            await gate.wait()
        assert asyncio.current_task() is before
        return number

    yard.task(waits, name="waits")
    jobs = [yard.submit("waits", {"number": number}) for number in range(5)]

    async with yard.running(concurrency=5):
        await until(lambda: len(seen.tasks) == 5)
        gate.set()
        await until(lambda: all(yard.status(job) is JobStatus.COMPLETED for job in jobs))

    assert len(set(seen.tasks)) == 5


async def test_context_variables_of_a_handler_that_waits_are_its_own_throughout(
    yard: Yard,
) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=-1)
    found: list[tuple[int, int]] = []

    async def sets(number: int) -> None:
        found.append((variable.get(), -1))
        variable.set(number)
        if number % 2:
            await asyncio.sleep(0)
        found.append((variable.get(), number))

    yard.task(sets, name="sets")
    for number in range(8):
        yard.submit("sets", {"number": number})

    await yard.burst(concurrency=4)

    assert len(found) == 16
    assert all(value == expected for value, expected in found)


async def test_a_handler_that_cancels_itself_and_ends_does_not_end_its_neighbours(
    yard: Yard,
) -> None:
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def waits() -> None:
        await asyncio.sleep(0)

    yard.task(cancels_itself, name="cancels_itself")
    yard.task(waits, name="waits")
    names = ["cancels_itself", "waits", "cancels_itself", "cancels_itself", "waits"]
    for name in names:
        yard.submit(name)

    report = await yard.burst(concurrency=5)

    assert (report.succeeded, report.failed) == (5, 0)


async def test_a_handler_is_cancelled_where_it_waits_for_the_first_time(yard: Yard) -> None:
    seen: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    yard.task(stubborn, name="stubborn")
    job = yard.submit("stubborn", timeout_us=50_000)

    async with yard.running():
        await until(lambda: yard.status(job) is JobStatus.TIMEOUT)

    assert seen == ["cancelled"]


async def test_where_a_handler_waits_is_seen_in_its_stack(yard: Yard) -> None:
    seen, gate = Seen(), asyncio.Event()

    async def innermost() -> None:
        await gate.wait()

    async def waits() -> None:
        seen.note()
        await innermost()

    yard.task(waits, name="waits")
    yard.submit("waits")

    async with yard.running():
        await until(lambda: seen.tasks)
        stack = stack_of_task(seen.tasks[0])
        gate.set()

    assert "in waits" in stack
    assert "in innermost" in stack
