# SPDX-License-Identifier: MIT
"""The steps of one attempt.

Each verb is written once, as a coroutine that is given its `Calls`: `IN_THREAD`, where
`StepRunner.run` runs it, or `ON_LOOP`, where it is awaited.
"""

from __future__ import annotations

import logging
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from typing import Any, Final, NoReturn, Protocol, TypeVar

import msgspec

from packhorse.attempt_host import AttemptHost
from packhorse.core.approvals import Approval, Consent
from packhorse.core.clock import SECOND_US
from packhorse.core.interpreter import in_event_loop
from packhorse.core.job import Job, RetryRule
from packhorse.core.outcome import FOREVER_US, Outcome, Snoozed, forever_us
from packhorse.core.policies.attachments import ATTACHED_MAX, Attachments
from packhorse.core.results import ResultCodec
from packhorse.core.sealing import require_open
from packhorse.core.steps import KeptStep, StepKind, StepLog, StepState, has_attachments
from packhorse.errors import StepRefused, StoreUnavailable, UsageError, WaitTimeout
from packhorse.signals import Declined, Suspend
from packhorse.steps.calls import IN_THREAD, ON_LOOP, Calls, Invoke, Waiter, Work, called, finished
from packhorse.steps.cursor import Cursor, asynchronous, size_of
from packhorse.steps.publishing import kept_result
from packhorse.steps.spending import Spending

T = TypeVar("T")

#: Waits between tries to write a step to a store that cannot be reached.
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 5.0


class _Owner(Waiter, Protocol):
    """What steps ask of their context."""

    def progress(self, done: float, total: float | None = None, note: str = "") -> None: ...
    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]: ...

    approval: Approval | None


class StepRunner:
    """Run the steps of one attempt."""

    __slots__ = ("_host", "_job", "_log", "_max_tokens", "_owner", "_spending", "kept")

    def __init__(
        self,
        job: Job,
        host: AttemptHost,
        owner: _Owner,
        max_tokens: int | None = None,
    ) -> None:
        self._job = job
        self._host = host
        self._owner = owner
        self._log: StepLog | None = None
        self.kept: Attachments | None = None  # as of the attempt's begin; None: not read
        self._max_tokens = max_tokens
        self._spending: Spending | None = None

    @property
    def spending(self) -> Spending:
        """The spending of the job; made on first use."""
        if self._spending is None:
            self._spending = Spending(self._job.task, self._max_tokens, self._write_now)
        return self._spending

    def let_go(self) -> None:
        """Drop what refers to this runner, when the attempt is over."""
        self._spending = None

    @property
    def overspent(self) -> bool:
        """Whether the job has spent more than it may."""
        return self._spending is not None and self._spending.budget.exceeded

    @property
    def has_unwritten(self) -> bool:
        """Whether steps that share a write have not been written."""
        return self._log is not None and bool(self._log.unwritten)

    # --------------------------------------------------------------------------------- running

    def run(self, work: Work[T], verb: str) -> T:
        """Run work in this thread."""
        if in_event_loop():
            work.close()
            raise UsageError(
                f"ctx.{verb}() would block the running event loop: use 'await ctx.a{verb}()'"
            )
        return finished(work)

    async def _read(self, calls: Calls) -> Attachments:
        """Read attachments; raise if one cannot be decrypted, since its step would run again."""
        kept = await calls.ask(self._host, self._host.attachments)
        for value in kept.everything:
            require_open(value, self._job.id, "steps")
        return kept

    async def open(self, calls: Calls) -> str | None:
        """Read attachments before the handler starts; return the result of an earlier attempt.

        Raise if the handler may not start: a person declined, or has not answered yet.
        """
        kept = await self._patiently(calls, self._read, calls)
        self.kept, consent = kept, Consent(kept)
        if (why := consent.refusal) is not None:
            raise Declined(why)
        if consent.waits and consent.question is not None:  # it came for another reason
            error = consent.question.error
            raise Suspend(self._forever_us(), waits=kept.delivered, error=error)
        self._owner.approval = consent.approval
        self.spending.begin(kept)
        return kept_result(kept.values)

    async def ask(self, calls: Calls, asked: Snoozed) -> Outcome:
        """Store the question that the handler asks a person, and wait for the answer."""
        if asked.error is None or not self._host.suspends:
            return asked
        await self.write(calls)
        kept = Attachments() if self.kept is None else self.kept
        question = Consent(kept).next_question(asked.error)
        await self.keep(calls, question.encoded())
        delay_us = self._forever_us()
        return msgspec.structs.replace(asked, delay_us=delay_us, waits=kept.delivered, asks=False)

    def _forever_us(self) -> int:
        return forever_us(self._job.deadline_us, self._host.now_us())

    # ------------------------------------------------------------------------------------ work

    async def step(
        self,
        calls: Calls,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        bounds: tuple[int | None, RetryRule | None],
        *,
        durable: bool,
        strict: bool,
    ) -> Any:
        """Call a function once per job, and keep what it returns before going on."""
        log = self._log or await self._opened(calls)
        number, kept = log.begin(name, StepKind.STEP, strict=strict)
        codec = ResultCodec.of_function(f"step {name!r}", function)
        if kept is not None:
            return codec.decode(bytes(kept.value))
        timeout_us, rule = bounds
        began_us = self._host.now_us()
        timeout_s = None if timeout_us is None else timeout_us / SECOND_US
        asked = Invoke(name, function, args, timeout_s)
        value = await (
            calls.invoke(asked) if rule is None else called(calls, self._owner, asked, rule)
        )
        text = codec.encode(value)
        spent_us = self._host.now_us() - began_us
        step = KeptStep(StepKind.STEP, number, value=msgspec.Raw(text), duration_us=spent_us)
        log.keep(name, step)
        if durable:
            await self.write(calls)
        return codec.read_back(value, text)

    async def sleep(self, calls: Calls, name: str, delay_us: int) -> None:
        """End the attempt; a later one continues behind this step when the time has come."""
        log = await self._opened(calls)
        number, kept = log.begin(name, StepKind.SLEEP)
        if kept is not None and kept.state is StepState.DONE:
            return
        due_us, left_us = self._due(kept, delay_us)
        step = KeptStep(StepKind.SLEEP, number, StepState.OPEN, due_us=due_us)
        if left_us <= 0 or not self._host.suspends:
            log.keep(name, msgspec.structs.replace(step, state=StepState.DONE))
            return  # written with the next step; until then another attempt finds it due again
        if kept is None:
            log.keep(name, step)
        await self.write(calls)
        raise Suspend(left_us, waits=ATTACHED_MAX)  # no signal ends it

    def _due(self, kept: KeptStep | None, delay_us: int) -> tuple[int, int]:
        """Return when the step is over, and how long to wait for that: 0 if it is.

        A worker knows the store's time only roughly: a step starts when it has surely come.
        """
        passed_us = self._host.passed_us()
        if kept is None or kept.due_us is None:
            return passed_us + delay_us, delay_us
        return kept.due_us, 0 if self._host.now_us() >= kept.due_us else kept.due_us - passed_us

    async def wait_for(self, calls: Calls, signal: str, timeout_us: int | None) -> Any:
        """End the attempt until a signal comes; return its value."""
        log = await self._opened(calls)
        name = log.next_wait(signal)
        number, kept = log.begin(name, StepKind.WAIT)
        codec = ResultCodec.of_function(f"signal {signal!r}")
        if kept is not None and kept.state is StepState.DONE:
            log.took_signal(signal)
            return codec.decode(bytes(kept.value))
        if kept is not None and kept.state is StepState.TIMED_OUT:
            raise _too_late(signal)
        found = await self._read(calls)
        came, next_one = found.signals.get(signal, ()), log.next_signal(signal)
        step = KeptStep(StepKind.WAIT, number)
        if next_one < len(came):
            log.took_signal(signal)
            log.keep(name, msgspec.structs.replace(step, value=msgspec.Raw(came[next_one])))
            await self.write(calls)
            return codec.decode(came[next_one])
        if not self._host.suspends:
            raise UsageError(
                f"no signal {signal!r} came, and a handler that is called directly cannot wait for "
                "one: give make_context(signals={...}) what it needs"
            )
        seen = found.delivered
        raise await self._ended(calls, log, name, step, kept, timeout_us=timeout_us, seen=seen)

    async def _ended(
        self,
        calls: Calls,
        log: StepLog,
        signal_step: str,
        step: KeptStep,
        kept: KeptStep | None,
        *,
        timeout_us: int | None,
        seen: int,
    ) -> WaitTimeout | Suspend:
        """Store the state of the wait, and return what to raise: a suspension, or a timeout."""
        due_us, left_us = self._due(kept, FOREVER_US if timeout_us is None else timeout_us)
        over = left_us <= 0
        state = StepState.TIMED_OUT if over else StepState.OPEN
        if over or kept is None:
            kept = msgspec.structs.replace(
                step, state=state, due_us=due_us, timeless=timeout_us is None
            )
            log.keep(signal_step, kept)
        await self.write(calls)
        if over:
            return _too_late(signal_step.rpartition("#")[0])
        return Suspend(self._forever_us() if timeout_us is None else left_us, waits=seen)

    async def write(self, calls: Calls) -> None:
        """Write the steps that have not been written."""
        log = self._log
        if log is None or not log.unwritten:
            return
        values, log.unwritten = log.unwritten, {}
        try:
            try:
                held = await calls.write(self._host, values)  # one layer less than below
            except StoreUnavailable as met:
                held = await self._patiently(calls, calls.write, self._host, values, met=met)
            if not held:
                self._refuse()
        except BaseException:
            log.unwritten = {**values, **log.unwritten}
            raise

    async def keep(self, calls: Calls, values: dict[str, bytes]) -> None:
        """Store values before this returns."""
        if not await self._patiently(calls, calls.write, self._host, values):
            self._refuse()

    async def _patiently(
        self,
        calls: Calls,
        ask: Callable[..., Awaitable[T]],
        *about: Any,
        met: StoreUnavailable | None = None,
    ) -> T:
        """Call the store again while it is unavailable and this attempt holds the job.

        `met` is the error of a call that was made just before.
        """
        pause_s = _PAUSE_S
        while True:
            try:
                if met is not None:
                    raise met
                return await ask(*about)
            except StoreUnavailable:
                # A step cannot be undone: giving up now would run it twice.
                met = None  # it holds this frame: a cycle that would keep it alive
                if self._host.lease_lost() or await calls.pause(self._owner, pause_s):
                    raise
                pause_s = min(_PAUSE_S_MAX, 2 * pause_s)

    def _write_now(self, values: dict[str, bytes]) -> None:
        """Store values before this returns; on an event loop, call the store only once."""
        if in_event_loop():
            if not self._host.attach(values):
                self._refuse()
        else:
            finished(self.keep(IN_THREAD, values))

    def _refuse(self) -> NoReturn:
        problem = "is held by another worker by now, or is over: what this attempt did last"
        told = f"job {self._job.id} {problem} was not kept; stop here"
        raise StepRefused(told, job_id=self._job.id)

    async def _opened(self, calls: Calls) -> StepLog:
        """Read the steps of earlier attempts, if there are any."""
        if self._log is None:
            values: Mapping[str, bytes] = {}
            if self.kept is not None:
                values = self.kept.values
            elif not self._host.suspends or has_attachments(self._job):
                values = (await self._read(calls)).values
            if self._log is None:  # else a concurrent step has read them
                owner = self._owner
                self._log = StepLog(values, lambda problem: owner.log.warning("%s", problem))
        return self._log

    # ----------------------------------------------------------------------------------- loops

    def each(
        self, items: Iterable[T], name: str, key: Callable[[T], Any] | None, every: int
    ) -> Iterator[T]:
        """Iterate over items, and skip those that an earlier attempt confirmed."""
        cursor = Cursor(name, key, every, size_of(items), self._host.now_us)
        self.run(self._open_cursor(IN_THREAD, cursor), "each")
        if cursor.done:
            return
        for item in items:
            if cursor.skips(item):
                continue
            yield item
            self.run(self._confirm(IN_THREAD, cursor, item), "each")
        self.run(self._finish(IN_THREAD, cursor), "each")

    async def aeach(
        self,
        items: Iterable[T] | AsyncIterable[T],
        name: str,
        key: Callable[[T], Any] | None,
        every: int,
    ) -> AsyncIterator[T]:
        """As `each`, without blocking the event loop."""
        cursor = Cursor(name, key, every, size_of(items), self._host.now_us)
        await self._open_cursor(ON_LOOP, cursor)
        if cursor.done:
            return
        async for item in asynchronous(items):
            if cursor.skips(item):
                continue
            yield item
            await self._confirm(ON_LOOP, cursor, item)
        await self._finish(ON_LOOP, cursor)

    async def _open_cursor(self, calls: Calls, cursor: Cursor[Any]) -> None:
        log = await self._opened(calls)
        number, kept = log.begin(cursor.name, StepKind.EACH)
        cursor.open(number, kept)

    async def _confirm(self, calls: Calls, cursor: Cursor[T], item: T) -> None:
        log = await self._opened(calls)
        log.keep(cursor.name, cursor.confirm(item))
        self._owner.progress(cursor.confirmed, cursor.total)
        if cursor.confirmed % cursor.every == 0:
            await self.write(calls)

    async def _finish(self, calls: Calls, cursor: Cursor[Any]) -> None:
        cursor.require_found()
        log = await self._opened(calls)
        log.keep(cursor.name, cursor.kept(StepState.DONE))
        await self.write(calls)


def _too_late(signal: str) -> WaitTimeout:
    return WaitTimeout(f"no signal {signal!r} came in time")
