# SPDX-License-Identifier: MIT
"""The verbs of a context that are about steps, budgets, batches and workflows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
)
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, overload

from packhorse.attempt_host import AttemptHost
from packhorse.core.budgets import Budget
from packhorse.core.durations import Duration, microseconds, positive_microseconds
from packhorse.core.job import Job, RetryRule
from packhorse.steps.calls import IN_THREAD, ON_LOOP
from packhorse.steps.membership import BatchMembership
from packhorse.steps.runner import StepRunner

if TYPE_CHECKING:
    from packhorse.core.policies.retry import RetryPolicy
    from packhorse.workflows.graph import FlowInRun

R = TypeVar("R")
_UNBOUND: Final = (None, None)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StepVerbs(ABC):
    """See `Context`."""

    __slots__ = ()

    _job: Job
    _link: AttemptHost

    @property
    @abstractmethod
    def steps(self) -> StepRunner:
        """The runner of the steps; for the worker."""

    def spend(self, *, tokens: int) -> None:
        """Count tokens that the job has spent; the sum over all attempts is kept at once.

        Beyond the contract's `max_tokens` it raises `BudgetExceeded`, now and ever after: the job
        is a dead letter. It waits for the store: coroutines use `aspend`.
        """
        self.steps.spending.spend(tokens)

    async def aspend(self, *, tokens: int) -> None:
        """As `spend`, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

        await asyncio.to_thread(self.steps.spending.spend, tokens)

    @property
    def budget(self) -> Budget:
        """What the job has spent over all its attempts, and what is left."""
        return self.steps.spending.budget

    @property
    def batch(self) -> BatchMembership:
        """The batch that the job, or the item, belongs to: `ctx.batch.add(items)` adds to it."""
        return BatchMembership(self._job, self._link)

    @property
    def flow(self) -> FlowInRun:
        """The workflow that the job is a node of: `ctx.flow.add(call)`; else a `UsageError`."""
        found: FlowInRun = self._link.flow()
        return found

    def step(
        self,
        name: str,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        timeout: Duration | None = None,
        retry: RetryPolicy | None = None,
        durable: bool = True,
        strict: bool = False,
    ) -> R:
        """Call a function once per job: later attempts are given what it returned.

        What it returns is kept with the job before `step` returns, as JSON, and comes back as its
        annotation says, the first time too. A step that is interrupted runs again: give outside
        systems `ctx.idempotency_key(name)`. With `timeout` the function runs in a thread of its
        own, which is left behind if it is late (`StepTimeout`). `retry` tries it again in this
        attempt. Steps that are not `durable` share the next write. `strict` raises `StepMismatch`
        where earlier attempts had other steps here; else that is logged.
        """
        runner = self.steps
        bounds = _bounds(timeout, retry)
        work = runner.step(IN_THREAD, name, fn, args, bounds, durable=durable, strict=strict)
        result: R = runner.run(work, "step")
        return result

    @overload
    async def astep(
        self,
        name: str,
        fn: Callable[[*Ts], Awaitable[R]],
        /,
        *args: *Ts,
        timeout: Duration | None = None,
        retry: RetryPolicy | None = None,
        durable: bool = True,
        strict: bool = False,
    ) -> R: ...

    @overload
    async def astep(
        self,
        name: str,
        fn: Callable[[*Ts], R],
        /,
        *args: *Ts,
        timeout: Duration | None = None,
        retry: RetryPolicy | None = None,
        durable: bool = True,
        strict: bool = False,
    ) -> R: ...

    def astep(  # type: ignore[misc]  # mypy does not match `*args: Any` with variadics
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        timeout: Duration | None = None,
        retry: RetryPolicy | None = None,
        durable: bool = True,
        strict: bool = False,
    ) -> Coroutine[Any, Any, Any]:
        """As `step`, for coroutine functions; any other is called in a thread."""
        runner = self.steps
        bounds = _bounds(timeout, retry)
        return runner.step(ON_LOOP, name, fn, args, bounds, durable=durable, strict=strict)

    def each(
        self,
        items: Iterable[T],
        *,
        key: Callable[[T], Any] | None = None,
        name: str = "each",
        every: int = 1,
    ) -> Iterator[T]:
        """Go through items; after a crash, on behind the last one that the loop was through with.

        Items must come in the same order again, those that are done among them. Their place is
        found by `key(item)`, or by counting. It is kept after every item, or every `every` items,
        and told as progress. Another loop of the same handler needs another `name`.
        """
        return self.steps.each(items, name, key, every)

    def aeach(
        self,
        items: Iterable[T] | AsyncIterable[T],
        *,
        key: Callable[[T], Any] | None = None,
        name: str = "each",
        every: int = 1,
    ) -> AsyncIterator[T]:
        """As `each`, for `async for`."""
        return self.steps.aeach(items, name, key, every)

    def sleep(self, name: str, delay: Duration) -> None:
        """End this attempt and free its slot; a later one goes on behind this step.

        The time is kept: an attempt that comes for another reason does not sleep again from the
        start. Neither a retry nor a snooze is used up.
        """
        delay_us = microseconds(delay, setting="delay")
        self.steps.run(self.steps.sleep(IN_THREAD, name, delay_us), "sleep")

    async def asleep(self, name: str, delay: Duration) -> None:
        """As `sleep`, in coroutines."""
        await self.steps.sleep(ON_LOOP, name, microseconds(delay, setting="delay"))

    def wait_for(self, signal: str, timeout: Duration | None = None) -> Any:
        """Return the value of the next `job.signal(signal, value)`; one that came before counts.

        Until it comes the attempt has ended and its slot is free. Signals of one name are taken in
        the order of their coming, each by one wait. After `timeout` it raises `WaitTimeout`.
        """
        work = self.steps.wait_for(IN_THREAD, signal, _microseconds(timeout))
        return self.steps.run(work, "wait_for")

    async def await_for(self, signal: str, timeout: Duration | None = None) -> Any:
        """As `wait_for`, in coroutines."""
        return await self.steps.wait_for(ON_LOOP, signal, _microseconds(timeout))


def _microseconds(timeout: Duration | None) -> int | None:
    return None if timeout is None else microseconds(timeout, setting="timeout")


def _bounds(
    timeout: Duration | None, retry: RetryPolicy | None
) -> tuple[int | None, RetryRule | None]:
    if timeout is None and retry is None:
        return _UNBOUND
    timeout_us = None if timeout is None else positive_microseconds(timeout, setting="timeout")
    return timeout_us, None if retry is None else retry.rule
