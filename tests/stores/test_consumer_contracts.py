# SPDX-License-Identifier: MIT
"""A runtime of one's own spends and asks people within the contract of a task, as handlers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from packhorse import Contract, NeedsHuman, Packhorse
from packhorse.errors import BudgetExceeded
from packhorse.protocol import AnswerError, AnswerStatus, WorkerResponse
from packhorse.runtime.consumer import Consumer, FetchedJob

_LIMIT: Final = Contract(worker_id="writer", max_tokens=100)


@pytest.fixture
def app(new_app: Callable[[], Packhorse]) -> Packhorse:
    app = new_app()

    @app.task(contract=_LIMIT)
    def write(page: str) -> dict[str, Any]:
        raise NotImplementedError  # the work is done elsewhere

    return app


async def fetched(consumer: Consumer) -> FetchedJob:
    job = await consumer.fetch(timeout=10)
    assert job is not None
    return job


@pytest.mark.req("S0-14")
async def test_a_fetched_job_stops_at_its_budget_over_all_attempts(app: Packhorse) -> None:
    handle = await app.tasks["write"].aenqueue("home")
    async with app.consumer() as consumer:
        first = await fetched(consumer)
        assert (first.budget.spent, first.budget.remaining) == (0, 100)
        await consumer.spend(first, tokens=60)
        await consumer.spend(first.id, tokens=20)
        assert await consumer.retry_job(first, delay_s=0, reason="again")

        second = await fetched(consumer)
        assert (second.budget.spent, second.budget.remaining) == (80, 20)
        with pytest.raises(BudgetExceeded) as stopped:
            await consumer.spend(second, tokens=30)
        assert await consumer.mark_complete(second, result={"pages": 1})

    info = await handle.ainfo()
    assert (stopped.value.spent, info.tokens_spent) == (110, 110)
    assert (info.status, info.dead_reason) == ("dead", "rejected")
    assert info.error is not None
    assert (info.error.code, info.failures) == ("BUDGET_EXCEEDED", 1)


@pytest.mark.req("S0-14")
async def test_a_job_without_budget_is_not_given_out(app: Packhorse) -> None:
    handle = await app.tasks["write"].aenqueue("home")
    async with app.consumer() as consumer:
        job = await fetched(consumer)
        with pytest.raises(BudgetExceeded):
            await consumer.spend(job, tokens=101)
        # The consumer ends before it says what became of the job.
    async with app.consumer() as other:
        assert await other.fetch(timeout=0.1) is None

    info = await handle.ainfo()
    assert (info.dead_reason, info.tokens_spent) == ("rejected", 101)


_ANSWER: Final = WorkerResponse(
    status=AnswerStatus.NEEDS_HUMAN, error=AnswerError(code="large_sum", message="may I?")
)


@pytest.mark.parametrize("asked", [_ANSWER, NeedsHuman("may I?", code="large_sum")], ids=type)
async def test_a_job_that_needs_a_person_waits_and_is_fetched_with_the_answer(
    app: Packhorse, asked: object
) -> None:
    handle = await app.tasks["write"].aenqueue("home")
    declined = await app.tasks["write"].aenqueue("away")
    async with app.consumer() as consumer:
        for _ in range(2):
            job = await fetched(consumer)
            assert job.approval is None
            assert await consumer.mark_complete(job, result=asked)
        assert await consumer.fetch(timeout=0.05) is None
        response = await handle.aresponse()
        assert response is not None
        assert (response.status, (await handle.aexplain()).codes[0]) == ("needs_human",) * 2

        assert await handle.aapprove(by="ada", note="go on")
        again = await fetched(consumer)
        assert again.approval is not None
        assert (again.id, again.approval.by, again.approval.note) == (handle.id, "ada", "go on")
        assert await consumer.mark_complete(again, result={"pages": 1})
        assert await declined.adecline(by="bob")
        assert await consumer.fetch(timeout=0.1) is None

    assert await handle.aresult(timeout=5) == {"pages": 1}
    info = await declined.ainfo()
    assert (info.status, info.dead_reason, info.failures) == ("dead", "rejected", 0)
