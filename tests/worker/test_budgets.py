# SPDX-License-Identifier: MIT
"""What a job spends is counted over all its attempts, kept at once, and stops it at the limit."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse import ConfigError, Context, Contract, JobStatus
from packhorse.errors import BudgetExceeded
from packhorse.testing import TestApp, make_context
from tests.servers.every_store import every_store

__all__ = ["every_store"]  # pytest finds the fixture here

_LIMIT = Contract(worker_id="writer", max_tokens=100)


@pytest.mark.req("S0-14")
def test_a_job_stops_at_its_budget_over_all_attempts_and_is_not_tried_again(
    packhorse_app: TestApp,
) -> None:
    began: list[tuple[int, int | None]] = []

    @packhorse_app.task(contract=_LIMIT)
    def write(ctx: Context) -> None:
        began.append((ctx.budget.spent, ctx.budget.remaining))
        ctx.spend(tokens=40)
        raise ValueError("try again")

    job = write.enqueue()
    packhorse_app.run_jobs()

    info = job.info()
    assert began == [(0, 100), (40, 60), (80, 20)]  # the third attempt is the last one
    assert (info.status, info.dead_reason, info.tokens_spent) == (JobStatus.DEAD, "rejected", 120)
    assert info.error is not None
    assert info.error.code == BudgetExceeded.code == "BUDGET_EXCEEDED"
    answer = job.response()
    assert answer is not None
    assert answer.error.code == "budget_exceeded"  # type: ignore[union-attr]


@pytest.mark.req("S0-14")
def test_a_handler_that_catches_it_is_stopped_all_the_same(packhorse_app: TestApp) -> None:
    raised: list[int] = []

    @packhorse_app.task(contract=_LIMIT)
    def write(ctx: Context) -> dict[str, int]:
        for _ in range(3):
            try:
                ctx.spend(tokens=90)
            except BudgetExceeded as error:
                raised.append(error.spent)
        return {"pages": 1}

    job = write.enqueue()
    packhorse_app.run_jobs()

    assert raised == [180, 270]
    assert (job.status(), job.info().attempts) == (JobStatus.DEAD, 1)
    answer = job.response()
    assert answer is not None
    assert answer.outputs == {"pages": 1}  # what it came to is shown, with the error


def test_coroutines_spend_with_and_without_blocking(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    async def write(ctx: Context) -> int:
        ctx.spend(tokens=1)
        await asyncio.gather(*(ctx.aspend(tokens=10) for _ in range(8)))
        return ctx.budget.spent

    job = write.enqueue()
    packhorse_app.run_jobs()

    assert job.result() == job.info().tokens_spent == 81
    assert make_context().budget.remaining is None


def test_threads_of_one_handler_do_not_lose_what_the_others_spend(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def write(ctx: Context) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: ctx.spend(tokens=number), range(20)))
        raise ValueError("lost here, what is kept is what counts")

    job = write.using(retry=None).enqueue()
    packhorse_app.run_jobs()

    assert job.info().tokens_spent == sum(range(20)) * job.info().attempts


def test_a_redrive_keeps_what_was_spent_unless_an_operator_resets_it(
    packhorse_app: TestApp,
) -> None:
    ran: list[int] = []

    @packhorse_app.task(contract=_LIMIT)
    def write(ctx: Context) -> str:
        ran.append(ctx.budget.spent)
        ctx.spend(tokens=101 if len(ran) == 1 else 1)
        return "done"

    job = write.enqueue()
    packhorse_app.run_jobs()
    job.retry()
    packhorse_app.run_jobs()
    assert (job.status(), ran) == (JobStatus.DEAD, [0])  # nothing is left, so it does not begin

    job.retry(reset_budget=True)
    packhorse_app.run_jobs()

    assert (job.result(), ran, job.info().tokens_spent) == ("done", [0, 0], 1)


def test_what_is_no_number_of_tokens_is_refused() -> None:
    context = make_context(max_tokens=10)

    for wrong in (-1, 1.5, True, None):
        with pytest.raises(ConfigError, match="whole number"):
            context.spend(tokens=wrong)  # type: ignore[arg-type]
    context.spend(tokens=10)
    with pytest.raises(BudgetExceeded):
        context.spend(tokens=1)
    assert (context.budget.spent, context.budget.remaining) == (11, 0)
