# SPDX-License-Identifier: MIT
"""Slots kept for urgent jobs, and background jobs that run while nothing else waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import pytest

from packhorse import ConfigError, JobStatus, Packhorse
from packhorse.core.job import Priority
from packhorse.runtime.worker.claim_policy import Urgency
from packhorse.testing import TestApp
from tests.worker.schedule_support import every_store

__all__ = ["every_store"]  # pytest finds the fixture here

_PATIENCE_S: Final = 30


class Yard:
    """Jobs that run until they are let go."""

    def __init__(self, app: Packhorse) -> None:
        self.began: list[str] = []
        self.go = asyncio.Event()

        @app.task
        async def hold(name: str) -> None:
            self.began.append(name)
            await self.go.wait()

        self.hold = hold

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while not holds():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def working(app: Packhorse, **options: Any) -> AsyncIterator[None]:
    running = asyncio.create_task(app.arun(handle_signals=False, **options))
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.req("S1-65")
async def test_a_critical_job_has_a_slot_while_others_have_all_that_are_theirs() -> None:
    app = Packhorse("memory://")
    yard = Yard(app)
    ordinary = [await yard.hold.using(priority="high").aenqueue(f"o{n}") for n in range(4)]

    async with working(app, concurrency=3, reserve={"critical": 1}):
        await yard.until(lambda: len(yard.began) == 2)
        await yard.hold.using(priority="critical").aenqueue("critical")
        await yard.until(lambda: len(yard.began) == 3)

        assert yard.began == ["o0", "o1", "critical"]
        statuses = [await job.astatus() for job in ordinary]
        assert statuses.count(JobStatus.QUEUED) == 2
        yard.go.set()
        await yard.until(lambda: len(yard.began) == 5)


@pytest.mark.req("S1-65")
async def test_critical_jobs_may_have_every_slot() -> None:
    app = Packhorse("memory://")
    yard = Yard(app)
    for number in range(3):
        await yard.hold.using(priority="critical").aenqueue(f"c{number}")

    async with working(app, concurrency=3, reserve={"critical": 1}):
        await yard.until(lambda: len(yard.began) == 3)
        yard.go.set()


@pytest.mark.parametrize(
    ("held", "free", "expected"),
    [
        ([], 10, (4, 5)),  # five of ten are kept
        ([2] * 5, 5, (1, 3)),  # ordinary jobs have all that is theirs
        ([2] * 5 + [1] * 3, 2, (0, 2)),
        ([0] * 8, 2, (4, 2)),  # what is kept is in use by those it is kept for
        ([0] * 10, 0, (0, 0)),
    ],
)
def test_a_kept_slot_is_for_its_priority_and_more_urgent_ones(
    held: list[int], free: int, expected: tuple[int, int]
) -> None:
    urgency = Urgency(
        {"high": 3, "critical": 2}, 10, lambda level: sum(each > level for each in held)
    )

    asked = urgency.within(("a",), free)

    assert (asked.level, asked.limit) == expected
    assert asked.levels == ({} if asked.level == 4 else {"a": asked.level})


def test_all_but_background_jobs_are_asked_for_until_nothing_else_waits() -> None:
    urgency = Urgency({}, 10, lambda _: 0)
    urgency.set_background(["night"])

    first = urgency.within(("night", "day"), 5)
    assert (first.levels, first.limit, first.spared) == ({"night": Priority.LOW}, 5, True)
    assert urgency.answered(first, full=False)
    second = urgency.within(("night", "day"), 5)

    assert (second.levels, second.spared) == ({}, False)
    assert not urgency.answered(second, full=False)
    assert urgency.within(("day",), 5).spared is False


@pytest.mark.req("S1-65")
def test_background_jobs_run_while_nothing_else_waits(packhorse_app: TestApp) -> None:
    app = packhorse_app
    app.queue("default", background_only=True)
    ran: list[str] = []

    @app.task
    def note(name: str) -> None:
        ran.append(name)
        if name == "b0":  # comes while background jobs run
            note.using(queue="other", priority="low").enqueue("late")

    background = [note.using(priority="background").enqueue(f"b{n}") for n in range(3)]
    note.using(queue="other", priority="low").enqueue("low")
    note.enqueue("normal")

    reasons = background[0].explain().reasons
    app.run(["default", "other"], burst=True, concurrency=1)

    assert "background_only" in [reason.code for reason in reasons]
    assert ran == ["normal", "low", "b0", "late", "b1", "b2"]


def test_contradictions_are_refused() -> None:
    app = Packhorse("memory://")

    with pytest.raises(ConfigError, match="give one of them"):
        app.queue("slow", background_only=True, ageing="5m")
    for reserve in ({"urgent": 1}, {"critical": 0}, {"critical": 5}):
        with pytest.raises(ConfigError, match="reserve"):
            app.run(burst=True, concurrency=5, reserve=reserve)
