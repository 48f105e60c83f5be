# SPDX-License-Identifier: MIT
"""What was raised: an object in events and middlewares, text everywhere else."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import msgspec
import pytest

from packhorse.context import Context
from packhorse.core.outcome import Failed, GivenUp
from packhorse.core.policies.retry import RetryPolicy
from packhorse.events import JobDead, JobFailed, JobRetried, ObserverFailed
from tests.worker.support import Yard, until

NEVER = RetryPolicy(max_retries=0)
ONCE = RetryPolicy(max_retries=1, backoff="fixed", initial_delay="1ms", jitter=False)


class Lost(Exception):
    """A user's own."""


def in_a_thread() -> None:
    raise Lost("in a thread")


async def on_the_loop() -> None:
    raise Lost("on the loop")


@pytest.fixture
def yard() -> Yard:
    return Yard()


both = pytest.mark.parametrize("handler", [in_a_thread, on_the_loop])


@both
async def test_events_and_middlewares_carry_what_was_raised(yard: Yard, handler: Any) -> None:
    seen: list[object] = []

    async def watch(ctx: Context, proceed: Any) -> None:
        outcome = await proceed()
        assert isinstance(outcome, Failed)
        seen.append(outcome.exception)

    yard.middlewares.append(watch)
    yard.record("job.*")
    yard.task(handler, retry=ONCE)
    yard.submit(handler.__name__)

    await yard.burst()

    failed, (retried,), (dead,) = (yard.told(each) for each in (JobFailed, JobRetried, JobDead))
    assert [type(each) for each in seen] == [Lost, Lost]
    assert seen == [retried.exception, dead.exception]
    assert seen == [each.exception for each in failed]


@both
async def test_the_traceback_is_told_once_an_attempt_from_the_first_frame_of_user_code_on(
    yard: Yard, handler: Any
) -> None:
    yard.record("job.*")
    yard.task(handler, retry=NEVER)
    job_id = yard.submit(handler.__name__)

    await yard.burst()

    (dead,) = yard.told(JobDead)
    first, second, *_ = dead.error_stack.splitlines()
    assert first == "Traceback (most recent call last):"
    assert second.endswith(f"in {handler.__name__}")
    error = yard.job(job_id).error
    assert error is not None
    assert error.stack == dead.error_stack
    with_stack = [each.name for each in yard.events if "Traceback" in repr(each)]
    assert with_stack == ["job.dead"]


async def test_exceptions_are_no_part_of_what_is_written(yard: Yard) -> None:
    yard.record("job.*")
    yard.task(on_the_loop, retry=NEVER)
    yard.submit("on_the_loop")

    await yard.burst()

    (dead,) = yard.told(JobDead)
    assert "exception" not in msgspec.to_builtins(dead)
    assert "exception" not in msgspec.structs.asdict(dead)


async def test_arguments_that_do_not_fit_carry_their_exception_too(yard: Yard) -> None:
    seen: list[object] = []

    async def takes(number: int) -> None: ...

    async def watch(ctx: Context, proceed: Any) -> None:
        seen.append(await proceed())

    yard.middlewares.append(watch)
    yard.task(takes)
    yard.submit("takes", {"number": "seven"})

    await yard.burst()

    (outcome,) = seen
    assert isinstance(outcome, GivenUp)
    assert isinstance(outcome.exception, Exception)


async def test_an_observer_that_fails_is_told_with_its_exception(yard: Yard) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not me")

    def broken(event: object) -> None:
        raise Unprintable

    yard.record("observer.*")
    yard.bus.subscribe("job.started", broken)
    yard.task(on_the_loop, retry=NEVER)
    yard.submit("on_the_loop")

    await yard.burst()

    (told,) = yard.told(ObserverFailed)
    assert isinstance(told.exception, Unprintable)
    assert told.error_message == "<unprintable Unprintable>"
    assert "in broken" in told.error_stack


async def pass_on(ctx: Context, proceed: Any) -> None:
    await proceed()


@pytest.mark.parametrize("middlewares", [[], [pass_on]], ids=["plain", "wrapped"])
@both
async def test_what_was_raised_does_not_outlive_its_telling(
    yard: Yard, handler: Any, middlewares: list[Any]
) -> None:
    yard.middlewares += middlewares
    kept: list[weakref.ref[BaseException]] = []

    def watch(event: JobFailed) -> None:
        assert event.exception is not None
        kept.append(weakref.ref(event.exception))

    yard.bus.subscribe(JobFailed, watch)
    yard.task(handler, retry=NEVER)
    yard.submit(handler.__name__)

    gc.disable()  # it is in no cycle
    try:
        async with yard.running():
            await until(lambda: kept and kept[0]() is None)
    finally:
        gc.enable()
