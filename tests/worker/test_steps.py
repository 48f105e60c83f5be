# SPDX-License-Identifier: MIT
"""Steps: what a handler has done once is not done again, on every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from packhorse import (
    Context,
    JobDead,
    JobHandle,
    PayloadError,
    RetryPolicy,
    StepMismatch,
    StepRefused,
    StepTimeout,
    StoreUnavailable,
    UsageError,
)
from packhorse.core.lifecycle import JobRules, settle
from packhorse.core.outcome import Succeeded
from packhorse.core.policies.attachments import STEP_PREFIX, Attachments
from packhorse.core.steps import KeptStep, StepKind, StepLog, StepState
from packhorse.steps import IN_THREAD, StepRunner
from packhorse.testing import TestApp, make_context
from packhorse.testing.contexts import RecordingHost
from tests.servers.every_store import every_store
from tests.worker.support import Trouble

__all__ = ["every_store"]  # pytest finds the fixture here


@dataclass
class Receipt:
    """What a step may return."""

    number: int
    lines: tuple[str, ...]


# ------------------------------------------------------------------------------------ on stores


def test_a_step_that_was_kept_is_not_run_again(packhorse_app: TestApp) -> None:
    ran: list[str] = []

    def charge(order: int) -> Receipt:
        ran.append("charge")
        return Receipt(order, ("a", "b"))

    @packhorse_app.task
    def pay(ctx: Context, order: int) -> list[str]:
        receipt = ctx.step("charge", charge, order)
        assert receipt == Receipt(order, ("a", "b"))
        if ctx.job.attempt < 3:
            ran.append("fails")
            raise Trouble
        return list(receipt.lines)

    job = pay.enqueue(7)
    packhorse_app.run_jobs()

    assert job.result() == ["a", "b"]
    assert ran == ["charge", "fails", "fails"]


def test_coroutines_have_steps_too_and_so_have_plain_functions_in_them(
    packhorse_app: TestApp,
) -> None:
    ran: list[str] = []

    async def charge(order: int) -> int:
        ran.append("charge")
        return order + 1

    def receipt(number: int, text: str = "no") -> str:
        ran.append(threading.current_thread().name)
        return f"{text} {number}"

    @packhorse_app.task
    async def pay(ctx: Context, order: int) -> str:
        number = await ctx.astep("charge", charge, order)
        text = await ctx.astep("receipt", receipt, number)
        if ctx.job.attempt == 1:
            raise Trouble
        return text

    job = pay.enqueue(7)
    packhorse_app.run_jobs()

    assert job.result() == "no 8"
    assert ran[0] == "charge"
    assert len(ran) == 2
    assert ran[1] != threading.main_thread().name


def test_values_come_back_the_same_way_the_first_time(packhorse_app: TestApp) -> None:
    seen: list[Any] = []

    @packhorse_app.task
    def show(ctx: Context) -> None:
        seen.append(ctx.step("plain", lambda: {"pair": (1, 2)}))
        if ctx.job.attempt == 1:
            raise Trouble

    show.enqueue()
    packhorse_app.run_jobs()

    assert seen == [{"pair": [1, 2]}] * 2


def test_a_loop_goes_on_behind_the_last_item_it_was_through_with(packhorse_app: TestApp) -> None:
    seen: list[int] = []

    @packhorse_app.task
    def walk(ctx: Context) -> None:
        for number in ctx.each(range(6)):
            seen.append(number)
            if number == 3 and ctx.job.attempt == 1:
                raise Trouble

    job = walk.enqueue()
    packhorse_app.run_jobs()

    assert seen == [0, 1, 2, 3, 3, 4, 5]
    progress = job.progress()
    assert progress is not None
    assert (progress.done, progress.total) == (6, 6)
    assert [step.state for step in job.info().steps] == [StepState.DONE]


def test_a_loop_finds_its_place_by_key(packhorse_app: TestApp) -> None:
    seen: list[str] = []

    async def rows(more: list[str]) -> AsyncIterator[str]:
        for row in [*more, "ada", "bob", "eve"]:
            yield row

    @packhorse_app.task
    async def walk(ctx: Context) -> None:
        first = ctx.job.attempt == 1
        async for row in ctx.aeach(rows([] if first else ["new"]), key=lambda row: row):
            seen.append(row)
            if first and row == "bob":
                raise Trouble

    walk.enqueue()
    packhorse_app.run_jobs()

    assert seen == ["ada", "bob", "bob", "eve"]


def test_a_step_of_a_job_that_is_over_is_not_kept(packhorse_app: TestApp) -> None:
    raised: list[str] = []

    @packhorse_app.task
    def overtaken(ctx: Context) -> None:
        store = packhorse_app.store
        ended = settle(ctx._job, Succeeded("1"), JobRules(), roll=0.5)
        try:
            ctx.step("late", lambda: store.run(store.jobs.settle([ended])) and None)
        except StepRefused as error:
            raised.append(error.code)

    job = overtaken.enqueue()
    packhorse_app.run_jobs()

    assert (raised, job.info().steps) == (["STEP_REFUSED"], ())


def test_steps_that_share_a_write_are_kept_when_the_handler_fails(packhorse_app: TestApp) -> None:
    ran: list[str] = []

    @packhorse_app.task
    def work(ctx: Context) -> None:
        for name in ("one", "two"):
            ctx.step(name, ran.append, name, durable=False)
        if ctx.job.attempt == 1:
            raise Trouble

    work.enqueue()
    packhorse_app.run_jobs()

    assert ran == ["one", "two"]


def test_what_is_too_large_for_a_step_is_said(packhorse_app: TestApp) -> None:
    @packhorse_app.task(retry=RetryPolicy(max_retries=0))
    def large(ctx: Context) -> None:
        ctx.step("large", lambda: "x" * 70_000)

    job: JobHandle[None] = large.enqueue()
    packhorse_app.run_jobs()

    with pytest.raises(JobDead, match="large"):
        job.result()


# ---------------------------------------------------------------------------- without a store


def test_a_name_is_used_once_in_an_attempt() -> None:
    ctx = make_context()
    ctx.step("a", int)

    with pytest.raises(UsageError, match="used twice"):
        ctx.step("a", int)
    with pytest.raises(UsageError, match="no name of a step"):
        ctx.step("", int)


def test_another_order_of_steps_is_told_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    first = make_context()
    for name in ("a", "b"):
        first.step(name, str)

    def again() -> Any:
        return _next_attempt(first)

    ctx = again()
    ctx.step("a", str, strict=True)
    ctx.step("b", str, strict=True)
    ctx.step("c", str, strict=True)
    assert not caplog.records

    ctx = again()
    assert ctx.step("b", str) == ""
    assert "the order of steps has changed" in caplog.text
    with pytest.raises(StepMismatch, match="number 2 in an earlier attempt"):
        again().step("b", str, strict=True)
    ctx = again()
    ctx.step("b", str)
    with pytest.raises(StepMismatch, match="'a'"):
        ctx.step("c", str, strict=True)


def test_of_several_steps_in_another_order_an_attempt_warns_once() -> None:
    kept = {
        f"{STEP_PREFIX}{name}": KeptStep(StepKind.STEP, at) for at, name in ((1, "a"), (2, "b"))
    }
    warned: list[str] = []
    log = StepLog({name: step.encoded() for name, step in kept.items()}, warned.append)

    log.begin("b", StepKind.STEP)
    log.begin("a", StepKind.STEP)

    assert len(warned) == 1


def test_a_step_that_fails_is_tried_again_by_its_own_policy() -> None:
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return "there"

    soon = RetryPolicy(max_retries=2, initial_delay=0.001, retry_on=(ConnectionError,))
    assert make_context().step("flaky", flaky, retry=soon) == "there"
    tries.clear()
    with pytest.raises(ConnectionError):
        make_context().step("flaky", flaky)
    assert len(tries) == 1
    with pytest.raises(ZeroDivisionError):
        make_context().step("other", lambda: 1 / 0, retry=soon)


@pytest.mark.req("S3-7")
async def test_a_step_that_is_late_is_left() -> None:
    release = threading.Event()
    with pytest.raises(StepTimeout, match="late"):
        await asyncio.to_thread(lambda: make_context().step("late", release.wait, timeout=0.01))
    release.set()
    with pytest.raises(StepTimeout, match="late"):
        await make_context().astep("late", asyncio.Event().wait, timeout=0.01)
    assert await make_context().astep("quick", asyncio.sleep, 0, "slept", timeout=5) == "slept"


async def test_the_twin_is_named_where_a_step_would_block_the_loop() -> None:
    with pytest.raises(UsageError, match="astep"):
        make_context().step("a", int)
    with pytest.raises(UsageError, match="asleep"):
        make_context().sleep("a", 1)
    with pytest.raises(UsageError, match="await_for"):
        make_context().wait_for("a")


def test_a_coroutine_function_needs_the_twin() -> None:
    async def charge() -> None: ...

    with pytest.raises(UsageError, match="astep"):
        _ = make_context().step("charge", charge)


def test_handlers_called_directly_neither_sleep_nor_wait() -> None:
    ctx = make_context(signals={"paid": [1, 2]})
    ctx.sleep("nap", "1h")
    assert [ctx.wait_for("paid"), ctx.wait_for("paid")] == [1, 2]
    with pytest.raises(UsageError, match="cannot wait"):
        ctx.wait_for("paid")


def test_a_step_is_written_again_while_the_store_is_away() -> None:
    class Host(RecordingHost):
        failures = 2

        def attach(self, values: dict[str, bytes]) -> bool:
            if self.failures:
                self.failures -= 1
                raise StoreUnavailable("away")
            return super().attach(values)

    ran: list[int] = []
    host, ctx = Host(), make_context()
    steps = StepRunner(ctx._job, host, ctx)
    work = steps.step(IN_THREAD, "a", ran.append, (1,), (None, None), durable=True, strict=False)
    steps.run(work, "step")
    assert (ran, list(host.attached)) == ([1], ["step:a"])

    host.failures, host.lost = 1, True
    work = steps.step(IN_THREAD, "b", int, (), (None, None), durable=True, strict=False)
    with pytest.raises(StoreUnavailable):
        steps.run(work, "step")
    host.failures = 0
    work = steps.step(IN_THREAD, "c", int, (), (None, None), durable=True, strict=False)
    with pytest.raises(StepRefused):
        steps.run(work, "step")


def test_a_place_that_is_gone_is_said() -> None:
    first = make_context()
    loop = first.each(["a", "b", "c"], key=str)
    assert [next(loop), next(loop)] == ["a", "b"]

    with pytest.raises(UsageError, match="'a'"):
        list(_next_attempt(first).each(["b", "c"], key=str))
    assert list(_next_attempt(first).each(["a", "b"], key=str)) == ["b"]


def test_what_json_cannot_carry_is_no_value_of_a_step() -> None:
    with pytest.raises(PayloadError, match="step 'nan'"):
        make_context().step("nan", lambda: float("nan"))


def _next_attempt(before: Any) -> Any:
    """A context that is given what an earlier one kept."""
    kept: dict[str, bytes] = before._recorder.attached
    ctx = make_context(attempt=2)
    ctx._recorder.attached.update(kept)
    assert isinstance(ctx._recorder.ask(ctx._recorder.attachments), Attachments)
    return ctx


def test_a_result_that_is_too_large_to_keep_is_told_with_its_step(packhorse_app: TestApp) -> None:
    @packhorse_app.task(retry=RetryPolicy(max_retries=0))
    def copy(ctx: Context) -> None:
        ctx.step("fetch all", lambda: "x" * 70_000)

    job = copy.enqueue()
    packhorse_app.run_jobs()

    error = job.info().error
    assert error is not None
    assert error.message.startswith("the result of step 'fetch all' has ")
