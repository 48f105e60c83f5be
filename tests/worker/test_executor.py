# SPDX-License-Identifier: MIT
"""What a handler does, and what the executor makes of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pytest

from packhorse.client.registry import Registry, define_task
from packhorse.context import Context
from packhorse.core.job import DeadReason, Job
from packhorse.core.outcome import (
    MESSAGE_LENGTH_MAX,
    Cancelled,
    Failed,
    GivenUp,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)
from packhorse.core.text import STACK_LENGTH_MAX
from packhorse.protocol import TaskError
from packhorse.runtime.worker.attempt import Attempt, Ending, Stage
from packhorse.runtime.worker.executor import Executor
from packhorse.runtime.worker.handlers import HandlerBook, rules_of
from packhorse.signals import JobSignal, Reject, Retry, Snooze


def attempt_of(function: Callable[..., Any], payload: str = "{}") -> Attempt:
    registry = Registry()
    registry.add(define_task(function, {"name": "work"}))
    job = Job(
        *("job-1", "work", "default", 7, payload, 2, "acme", 0, 0, 0, 0, 0),
        *(None, None, "trace", None, None, 0),
    )
    attempt = Attempt(job, HandlerBook(registry, {}, 1_000_000).find(job), 0, 0)
    attempt.stage = Stage.RUNNING
    return attempt


async def outcome_of(function: Callable[..., Any], payload: str = "{}") -> Outcome:
    attempt = attempt_of(function, payload)
    executor = Executor(lambda _attempt: Context.detached())
    if asyncio.iscoroutinefunction(function):
        return await executor.execute(attempt)
    return executor.execute_here(attempt)


def raising(error: BaseException) -> list[Callable[..., Any]]:
    async def in_a_coroutine() -> None:
        raise error

    def in_a_thread() -> None:
        raise error

    return [in_a_coroutine, in_a_thread]


def returning(value: Any) -> list[Callable[..., Any]]:
    async def from_a_coroutine() -> Any:
        return value

    def from_a_thread() -> Any:
        return value

    return [from_a_coroutine, from_a_thread]


@pytest.mark.req("S1-28")
async def test_a_handler_is_called_with_its_decoded_arguments() -> None:
    async def add(left: int, right: int = 5) -> int:
        return left + right

    assert await outcome_of(add, '{"left": 2}') == Succeeded("7")


@pytest.mark.parametrize("handler", returning(None))
async def test_a_handler_that_returns_nothing_succeeds(handler: Callable[..., Any]) -> None:
    assert await outcome_of(handler) == Succeeded("null")


@pytest.mark.req("S3-30", "S3-29", "S4-24")
@pytest.mark.parametrize("handler", raising(ValueError("bad weather")))
async def test_an_exception_is_a_failure_with_its_type_as_reason(
    handler: Callable[..., Any],
) -> None:
    outcome = await outcome_of(handler)

    assert isinstance(outcome, Failed)
    assert outcome.error.type == "ValueError"
    assert outcome.error.message == "bad weather"
    assert outcome.error.code == "EXCEPTION"
    assert outcome.error.reason == "exception:ValueError"
    assert "builtins.ValueError" in outcome.kinds
    assert "builtins.Exception" in outcome.kinds


@pytest.mark.req("S4-24")
@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), RecursionError(), MemoryError()],
    ids=lambda error: type(error).__name__,
)
async def test_nothing_a_handler_raises_gets_past_the_executor(error: BaseException) -> None:
    for handler in raising(error):
        outcome = await outcome_of(handler)

        assert isinstance(outcome, Failed)
        assert outcome.error.type == type(error).__name__
        assert "builtins.Exception" in outcome.kinds


@pytest.mark.req("S3-12")
@pytest.mark.parametrize("handler", returning(ValueError("returned")))
async def test_a_returned_exception_is_a_failure(handler: Callable[..., Any]) -> None:
    outcome = await outcome_of(handler)

    assert isinstance(outcome, Failed)
    assert outcome.error.reason == "exception:ValueError"


FAILURE = TaskError(message="node x took too long", code="NODE_TIMEOUT", stack="in node x")


@pytest.mark.req("S3-12")
@pytest.mark.parametrize("handler", returning(FAILURE))
async def test_a_returned_error_of_the_protocol_is_a_failure_with_its_own_code(
    handler: Callable[..., Any],
) -> None:
    outcome = await outcome_of(handler)

    assert isinstance(outcome, Failed)
    assert outcome.error.code == "NODE_TIMEOUT"
    assert outcome.error.message == "node x took too long"
    assert outcome.error.stack == "in node x"
    assert outcome.error.reason == "exception:TaskError"


@dataclass
class Receipt:
    """A user's own type, which has a code and can be written."""

    code: str = "R-17"

    def to_payload(self) -> dict[str, str]:
        return {"code": self.code}


@pytest.mark.parametrize("handler", returning(Receipt()))
async def test_any_other_object_is_a_result_whatever_attributes_it_has(
    handler: Callable[..., Any],
) -> None:
    assert await outcome_of(handler) == Succeeded('{"code":"R-17"}')


@pytest.mark.parametrize("how", [raising, returning], ids=["raised", "returned"])
async def test_signals_mean_the_same_raised_or_returned(
    how: Callable[[Any], list[Callable[..., Any]]],
) -> None:
    for handler in how(Snooze("5s")):
        assert await outcome_of(handler) == Snoozed(5_000_000)
    for handler in how(Reject("not ours")):
        outcome = await outcome_of(handler)
        assert isinstance(outcome, GivenUp)
        assert outcome.reason is DeadReason.REJECTED
        assert outcome.error.message == "not ours"
    for handler in how(Retry(delay="2s", reason="later")):
        outcome = await outcome_of(handler)
        assert isinstance(outcome, Failed)
        assert outcome.asked
        assert outcome.retry_delay_us == 2_000_000


async def test_a_signal_of_no_known_kind_is_a_failure() -> None:
    class Strange(JobSignal):
        pass

    for handler in raising(Strange()):
        assert isinstance(await outcome_of(handler), Failed)


async def test_a_handlers_except_does_not_swallow_a_signal() -> None:
    async def careless() -> None:
        try:
            Context.detached().snooze("1s")
        except Exception:  # noqa: BLE001 - what is being tested
            return

    assert await outcome_of(careless) == Snoozed(1_000_000)


@pytest.mark.req("S4-26")
@pytest.mark.parametrize("payload", ["not json", "[1, 2]", '"text"', ""])
async def test_a_payload_that_is_no_object_is_undecodable(payload: str) -> None:
    async def handler(number: int) -> None: ...

    outcome = await outcome_of(handler, payload)

    assert isinstance(outcome, GivenUp)
    assert outcome.reason is DeadReason.UNDECODABLE
    assert outcome.error.code == "UNDECODABLE"


@pytest.mark.parametrize("payload", ['{"number": "seven"}', "{}", '{"number": 1, "more": 2}'])
async def test_a_payload_that_does_not_fit_is_an_invalid_request(payload: str) -> None:
    def handler(number: int) -> None: ...

    outcome = await outcome_of(handler, payload)

    assert isinstance(outcome, GivenUp)
    assert outcome.reason is DeadReason.INVALID_REQUEST
    assert "seven" not in outcome.error.message


@pytest.mark.parametrize("value", [object(), float("nan"), [float("inf")], {"a": b"raw"}])
async def test_a_result_that_json_cannot_carry_is_a_failure_not_a_success(value: Any) -> None:
    for handler in returning(value):
        outcome = await outcome_of(handler)

        assert isinstance(outcome, Failed)
        assert outcome.error.code == "INVALID_OUTPUT"


@pytest.mark.req("S0-39", "S0-6")
@pytest.mark.parametrize("value", ["a text", {"a": "one"}, None, 5])
async def test_a_result_that_is_not_as_annotated_is_a_failure_not_a_success(value: Any) -> None:
    def count() -> dict[str, int]:
        return cast("dict[str, int]", value)

    async def acount() -> dict[str, int]:
        return count()

    for handler in (count, acount):
        outcome = await outcome_of(handler)

        assert isinstance(outcome, Failed)
        assert outcome.error.code == "INVALID_OUTPUT"


@pytest.mark.req("S3-17")
async def test_a_cancelled_error_of_the_handlers_own_making_is_its_failure() -> None:
    async def awaits_something_cancelled() -> None:
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    outcome = await outcome_of(awaits_something_cancelled)

    assert isinstance(outcome, Failed)
    assert outcome.error.type == "CancelledError"


@pytest.mark.req("S3-29", "S3-11")
@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (Ending.CANCEL, Cancelled),
        (Ending.SHUTDOWN, Released),
        (Ending.TIMEOUT, TimedOut),
        (Ending.DEADLINE, TimedOut),
    ],
)
async def test_what_the_worker_ended_counts_as_that_whatever_the_handler_makes_of_it(
    ending: Ending, expected: type
) -> None:
    async def returns_anyway() -> str:
        attempt.ending = ending
        return "all is well"

    async def raises_anyway() -> str:
        attempt.ending = ending
        raise ValueError

    for handler in (returns_anyway, raises_anyway):
        attempt = attempt_of(handler)
        executor = Executor(lambda _attempt: Context.detached())
        assert isinstance(await executor.execute(attempt), expected)


@pytest.mark.req("S1-31")
async def test_a_timeout_says_how_many_milliseconds() -> None:
    async def never_begins() -> None: ...

    attempt = attempt_of(never_begins)
    attempt.ending, attempt.timeout_s = Ending.TIMEOUT, 300.0
    outcome = await Executor(lambda _attempt: Context.detached()).execute(attempt)

    assert isinstance(outcome, TimedOut)
    assert outcome.error.message == "Task exceeded 300000ms timeout"
    assert outcome.error.code == "TASK_TIMEOUT"
    assert outcome.error.reason == "job_timeout"


async def test_a_stack_begins_in_user_code_and_shows_no_values() -> None:
    async def fails(secret: str) -> None:
        hidden = secret * 2
        raise ValueError(len(hidden))

    outcome = await outcome_of(fails, '{"secret": "swordfish"}')

    assert isinstance(outcome, Failed)
    stack = outcome.error.stack or ""
    assert "in fails" in stack
    assert "worker/executor.py" not in stack
    assert "swordfish" not in stack


async def test_messages_and_stacks_are_bounded() -> None:
    def dig(depth: int) -> None:
        if depth == 0:
            raise ValueError("x" * 100_000)
        dig(depth - 1)

    async def fails() -> None:
        dig(sys.getrecursionlimit() // 2)

    outcome = await outcome_of(fails)

    assert isinstance(outcome, Failed)
    assert len(outcome.error.message) == MESSAGE_LENGTH_MAX
    assert len(outcome.error.stack or "") <= STACK_LENGTH_MAX


async def test_an_exception_that_cannot_be_printed_is_still_a_failure() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    for handler in raising(Unprintable()):
        outcome = await outcome_of(handler)

        assert isinstance(outcome, Failed)
        assert outcome.error.message == "<unprintable Unprintable>"


async def test_what_no_store_can_write_is_escaped() -> None:
    for handler in raising(ValueError("lone \ud800 and \x00")):
        outcome = await outcome_of(handler)

        assert isinstance(outcome, Failed)
        assert outcome.error.message == "lone \\ud800 and \\x00"


async def test_a_job_of_a_task_not_asked_for_fails_and_may_be_retried() -> None:
    async def other() -> None: ...

    job = attempt_of(other).job
    attempt = Attempt(job, HandlerBook(Registry(), {}, 1).find(job), 0, 0)

    outcome = await Executor(lambda _attempt: Context.detached()).execute(attempt)

    assert isinstance(outcome, Failed)
    assert outcome.error.type == "UnknownTask"


def test_options_of_another_release_do_not_stop_a_job() -> None:
    async def handler() -> None: ...

    attempt = attempt_of(handler)
    odd = msgspec.structs.replace(attempt.job, options='{"retry": "always"}')

    assert rules_of(odd, attempt.handler) == attempt.handler.rules


def test_a_store_is_told_the_longest_timeout_so_that_no_hold_ends_too_soon() -> None:
    async def slow() -> None: ...

    registry = Registry()
    registry.add(define_task(slow, {"timeout": "1h"}))

    assert HandlerBook(registry, {}, 1_000_000).longest_timeout_us == 3_600_000_000


@pytest.mark.parametrize("ending", [None, Ending.TIMEOUT])
def test_a_context_that_is_made_once_its_attempt_was_told_to_stop_knows_it(
    ending: Ending | None,
) -> None:
    attempt = attempt_of(lambda: None)
    executor = Executor(lambda _attempt: Context.detached())
    attempt.ending = ending

    context = executor.context(attempt)

    assert context.cancel_requested is (ending is not None)
    assert executor.context(attempt) is context
