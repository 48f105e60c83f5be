# SPDX-License-Identifier: MIT
"""Results that go to a result store of the user's own, before their jobs are completed."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import Context, Contract, JobStatus
from packhorse.context import JobView
from packhorse.testing import TestApp
from tests.servers.every_store import every_store

__all__ = ["every_store"]  # pytest finds the fixture here

_CONTRACT = Contract(worker_id="w", max_attempts=2, tools_allowed=["write_result_store"])


class ResultStore:
    """Keeps results; is away for the first so many writes."""

    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.tries = 0
        self.kept: dict[str, Any] = {}

    def write(self, job: JobView, result: Any) -> None:
        self.tries += 1
        if self.tries <= self.away:
            raise ConnectionError("the result store is away")
        self.kept[job.id] = result


@pytest.mark.req("S0-38")
def test_a_job_is_completed_only_when_its_result_was_written(packhorse_app: TestApp) -> None:
    store, seen = ResultStore(), []

    def write(job: JobView, result: Any) -> None:
        seen.append(packhorse_app.job(job.id).status())
        store.write(job, result)

    packhorse_app.tool("write_result_store", write)

    @packhorse_app.task(contract=_CONTRACT)
    def work(n: int) -> dict[str, int]:
        return {"n": n}

    job = work.enqueue(7)
    packhorse_app.run_jobs()

    assert seen == [JobStatus.PROCESSING]
    assert store.kept == {job.id: {"n": 7}}
    assert job.result() == {"n": 7}


@pytest.mark.req("S0-23", "S0-25", "S0-38")
@pytest.mark.parametrize("size", [1, 200_000])
def test_an_unavailable_result_store_is_tried_again_and_the_handler_is_not(
    packhorse_app: TestApp, size: int
) -> None:
    store, ran = ResultStore(away=4), []
    packhorse_app.tool("write_result_store", store.write)

    @packhorse_app.task(contract=_CONTRACT)
    def work(ctx: Context) -> str:
        ran.append(ctx.job.attempt)
        return "ä" * size

    job = work.enqueue()
    began_us = packhorse_app.clock.now_us()
    packhorse_app.run_jobs()  # which moves the clock to where something is due

    assert (ran, store.tries) == ([1], 5)  # more tries than attempts: the handler ran once
    assert store.kept == {job.id: "ä" * size}
    assert (job.result(), job.info().failures) == ("ä" * size, 0)
    assert packhorse_app.clock.now_us() - began_us > 4_000_000  # the delay grows each time
    tried = [line.error.code for line in job.history() if line.error]
    assert tried == ["RESULT_STORE_UNAVAILABLE"] * 4


def test_coroutines_write_results_too_and_a_coroutine_serves_threads(
    packhorse_app: TestApp,
) -> None:
    store = ResultStore(away=1)

    async def write(job: JobView, result: Any) -> None:
        store.write(job, result)

    packhorse_app.tool("write_result_store", write)

    @packhorse_app.task(contract=_CONTRACT)
    async def coroutine() -> str:
        return "a"

    @packhorse_app.task(contract=_CONTRACT)
    def thread() -> str:
        return "b"

    jobs = [coroutine.enqueue(), thread.enqueue()]
    packhorse_app.run_jobs()

    assert [job.result() for job in jobs] == ["a", "b"]
    assert store.kept == {jobs[0].id: "a", jobs[1].id: "b"}


def test_tasks_that_do_not_name_it_keep_their_results_to_themselves(
    packhorse_app: TestApp,
) -> None:
    store = ResultStore()
    packhorse_app.tool("write_result_store", store.write)

    @packhorse_app.task
    def work() -> str:
        return "a"

    job = work.enqueue()
    packhorse_app.run_jobs()

    assert (job.result(), store.tries) == ("a", 0)
