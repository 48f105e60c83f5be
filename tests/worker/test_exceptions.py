# SPDX-License-Identifier: MIT
"""What was raised: an object in events and middlewares, text everywhere else."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from packhorse.client.waiting import WaitLoop
from packhorse.context import Context
from packhorse.core.job import JobStatus
from packhorse.core.outcome import Failed, GivenUp
from packhorse.core.policies.attachments import Attaching
from packhorse.core.policies.retry import RetryPolicy
from packhorse.core.settlement import Settlement, SettlementKind
from packhorse.errors import StoreUnavailable
from packhorse.events import JobDead, JobFailed, JobRetried, ObserverFailed
from packhorse.runtime.worker.attaching import AttachmentWriter
from packhorse.runtime.worker.transactions import WorkerTransaction
from packhorse.steps import ON_LOOP
from packhorse.steps.calls import IN_THREAD, Invoke
from packhorse.steps.runner import StepRunner
from packhorse.stores.memory import MemoryStore
from tests.worker.support import PATIENCE_S, Yard, until

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


async def raised_by(work: Awaitable[object]) -> weakref.ref[BaseException]:
    """What it raises; without a collection, it is gone unless it is in a cycle."""
    raised: list[weakref.ref[BaseException]] = []
    gc.disable()
    try:
        await work
    except BaseException as error:  # noqa: BLE001 - also a cancel
        raised.append(weakref.ref(error))
    await asyncio.sleep(0)  # the loop lets go of what it was just called with
    gc.enable()
    return raised[0]


async def called(function: Callable[..., object], *args: Any) -> object:
    return function(*args)


async def test_an_error_of_a_step_with_a_timeout_is_in_no_cycle() -> None:
    step = Invoke("step", in_a_thread, (), PATIENCE_S)

    raised = await raised_by(IN_THREAD.invoke(step))

    assert raised() is None


async def test_an_error_of_values_that_cannot_be_kept_is_in_no_cycle() -> None:
    def fail(verb: str, _moment: str) -> None:
        if verb == "attach":
            raise Lost

    writer = AttachmentWriter(MemoryStore(faults=fail))

    raised = await raised_by(called(writer.keep, Attaching("job", 1, {"a": b"1"})))

    assert raised() is None


async def test_an_error_of_a_wait_in_a_thread_is_in_no_cycle() -> None:
    waits = WaitLoop()

    raised = await raised_by(called(waits.run, on_the_loop))

    waits.close()
    assert raised() is None


class Committing(WorkerTransaction):
    """A transaction whose commit ends as told."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    def _require_wanted(self) -> None: ...

    def _committed(self, completion: Settlement, *, applied: bool) -> None: ...

    async def _afinish(self, completion: Settlement) -> bool:
        self.begun.set()
        await self.may_end.wait()
        if self._error is not None:
            error, self._error = self._error, None
            try:
                raise error
            finally:
                del error
        return True


COMPLETION = Settlement("job", 1, SettlementKind.COMPLETED, JobStatus.COMPLETED)


async def test_an_error_of_a_commit_is_in_no_cycle() -> None:
    transaction = Committing(Lost())
    transaction.may_end.set()

    raised = await raised_by(transaction.acommit(COMPLETION))

    assert raised() is None


async def test_a_cancel_during_a_commit_is_in_no_cycle() -> None:
    transaction = Committing(None)
    committing = asyncio.create_task(raised_by(transaction.acommit(COMPLETION)))
    await transaction.begun.wait()

    committing.cancel()
    asyncio.get_running_loop().call_soon(transaction.may_end.set)

    raised = await committing
    assert raised() is None


async def test_an_error_of_a_store_that_stays_away_is_in_no_cycle() -> None:
    host = SimpleNamespace(lease_lost=lambda: True)
    steps = cast("StepRunner", SimpleNamespace(_host=host))

    away = StepRunner._patiently(steps, ON_LOOP, on_the_loop, met=StoreUnavailable("away"))
    raised = await raised_by(away)

    del away
    assert raised() is None
