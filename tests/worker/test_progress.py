# SPDX-License-Identifier: MIT
"""Progress: said often, written seldom, and the newest always arrives."""

from __future__ import annotations

import asyncio

import pytest

from packhorse.context import Context
from packhorse.core.job import JobStatus, Progress
from packhorse.errors import StoreUnavailable
from tests.worker.support import Counting, Yard, heard, until


class Failing(Counting):
    """Fails some of the writes of progress."""

    failing = 0

    def __call__(self, verb: str, moment: str) -> None:
        super().__call__(verb, moment)
        if (verb, moment) == ("note_progress", "before") and self.failing:
            self.failing -= 1
            raise StoreUnavailable("not now")


@pytest.fixture
def counting() -> Failing:
    return Failing()


@pytest.fixture
def yard(counting: Failing) -> Yard:
    return Yard(counting)


@pytest.mark.req("S2-2")
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_the_newest_arrives_and_few_writes_are_made(
    yard: Yard, counting: Failing, kind: str
) -> None:
    async def in_a_coroutine(ctx: Context) -> None:
        for done in range(1_000):
            ctx.progress(done + 1, 1_000, note="busy")
            if done % 100 == 0:
                await asyncio.sleep(0)

    def in_a_thread(ctx: Context) -> None:
        for done in range(1_000):
            ctx.progress(done + 1, 1_000, note="busy")

    yard.task(in_a_coroutine if kind == "coroutine" else in_a_thread, name="work")
    job_id = yard.submit("work")

    await yard.burst()

    assert yard.job(job_id).progress == Progress(1_000, 1_000, "busy")
    assert counting.calls["note_progress"] <= 5


@pytest.mark.req("S2-2")
async def test_progress_can_be_seen_while_the_job_runs(yard: Yard) -> None:
    go_on = asyncio.Event()

    async def work(ctx: Context) -> None:
        ctx.progress(1, 2)
        await go_on.wait()

    yard.task(work)
    job_id = yard.submit("work")
    async with yard.running():
        await until(lambda: yard.job(job_id).progress == Progress(1, 2))
        assert yard.status(job_id) is JobStatus.PROCESSING
        go_on.set()


async def test_what_the_store_does_not_take_now_it_takes_later(
    yard: Yard, counting: Failing
) -> None:
    said, go_on = asyncio.Event(), asyncio.Event()
    counting.failing = 1

    async def work(ctx: Context) -> None:
        ctx.progress(5)
        said.set()
        await go_on.wait()

    yard.task(work)
    job_id = yard.submit("work")
    async with yard.running():
        await heard(said)
        await until(lambda: yard.job(job_id).progress == Progress(5))
        go_on.set()


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_what_was_said_last_arrives_though_the_store_is_away_when_the_job_ends(
    yard: Yard, counting: Failing, monkeypatch: pytest.MonkeyPatch, kind: str, failing: int
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.store_health._FIRST_S", 0.002)
    counting.failing = failing

    async def in_a_coroutine(ctx: Context) -> None:
        ctx.progress(5)

    def in_a_thread(ctx: Context) -> None:
        ctx.progress(5)

    yard.task(in_a_coroutine if kind == "coroutine" else in_a_thread, name="work")
    job_id = yard.submit("work")
    async with yard.running() as worker:
        await until(lambda: yard.status(job_id) is JobStatus.COMPLETED)
        runtime = worker._runtime
        assert runtime is not None
        await until(lambda: not runtime.slots.held)
        await until(lambda: not runtime.progress.newest)

    assert counting.failing == 0
    assert yard.job(job_id).progress == Progress(5)


async def test_a_handler_may_ask_whether_the_job_is_still_its_own(yard: Yard) -> None:
    answers: list[bool] = []

    async def ask(ctx: Context) -> None:
        answers.append(await ctx.astill_mine())
        answers.append(ctx.still_mine())
        yard.do(yard.store.jobs.cancel(ctx.job.id))
        answers.append(await ctx.astill_mine())

    yard.task(ask)
    yard.submit("ask")

    await yard.burst()

    assert answers == [True, True, False]


async def test_a_context_knows_its_job(yard: Yard) -> None:
    seen: list[object] = []

    async def look(ctx: Context) -> None:
        job = ctx.job
        seen.append((job.id, job.attempt, job.fence, job.tenant, job.trace_id, job.queue, job.task))

    yard.task(look)
    job_id = yard.submit("look", tenant="acme", trace_id="trace")

    await yard.burst()

    assert seen == [(job_id, 1, 1, "acme", "trace", "default", "look")]
