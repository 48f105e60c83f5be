# SPDX-License-Identifier: MIT
"""Check that a handler may run again: each of its effects happens once all the same.

The handler runs in memory. It runs without harm first, to see what is right and where it may be
interrupted: after each effect, after each write of a step, and when it has returned. Then it runs
once for each of these places and each `Interruption`, and in stories with several of them that
a seed draws.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse.client.submission import new_job
from packhorse.context import Context, detached_job
from packhorse.core.clock import SECOND_US, new_id
from packhorse.core.interpreter import in_event_loop
from packhorse.core.job import Job, JobOptions
from packhorse.core.outcome import FOREVER_US
from packhorse.core.text import counted
from packhorse.errors import UsageError
from packhorse.signals import RateLimited, Retry, Snooze, Suspend
from packhorse.steps import ON_LOOP
from packhorse.task import Task
from packhorse.testing.effects import (
    Delivery,
    Died,
    Happened,
    Interruption,
    KeyedContext,
    Watch,
    WatchedHost,
    watched,
)

#: Attempts of one run, after which its handler is said not to end.
_DELIVERIES_MAX: Final = 100
#: Places that are tried one by one; of a handler with more, so many are drawn.
_PLACES_MAX: Final = 200
_INTERRUPTIONS_MAX: Final = 3
#: The stories that a seed draws.
_STORIES: Final = 50

_CLEAN: Final[Mapping[int, Interruption]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference from an uninterrupted run."""

    kind: str  #: twice, lost, key_reused, state, failed
    what: str  #: the effect, or what the attempt raised
    times: int  #: how often it happened
    expected: int  #: how often it happens without harm
    where: str  #: the interruptions, in order
    seed: int  #: `check_idempotent(..., seed=seed)` finds it again

    def __str__(self) -> str:
        said = {
            "twice": f"{self.what} happened {self.times} times instead of {self.expected}",
            "lost": f"{self.what} happened {self.times} times instead of {self.expected}",
            "key_reused": f"{self.what} was asked for other things under one idempotency key",
            "state": "the state afterwards is not that of a run without harm",
            "failed": f"the attempt afterwards raised {self.what}",
        }
        return f"{said[self.kind]}: {self.where}"


@dataclass(frozen=True, slots=True)
class IdempotencyReport:
    """What a check found."""

    task: str
    runs: int
    places: tuple[str, ...]  #: where the handler was interrupted
    findings: tuple[Finding, ...]
    seed: int

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        tried = f"{counted(self.runs, 'run')}, {counted(len(self.places), 'place')}"
        if self.ok:
            return f"task {self.task} is idempotent as far as seen: {tried}, seed {self.seed}"
        lines = [f"task {self.task} is not idempotent ({tried}, seed {self.seed}):"]
        return "\n  - ".join([*lines, *map(str, self.findings)])


class NotIdempotent(AssertionError):
    """A handler did something twice, or lost it; `report` has all findings."""

    def __init__(self, report: IdempotencyReport) -> None:
        super().__init__(str(report))
        self.report = report


def check_idempotent(
    task: Task[..., Any],
    *args: Any,
    effects: Iterable[Any] = (),
    state: Callable[[], Any] | None = None,
    reset: Callable[[], Any] | None = None,
    ctx_state: Mapping[str, Any] | None = None,
    signals: Mapping[str, Sequence[Any]] | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> IdempotencyReport:
    """Interrupt a task's handler at every place, deliver its job again, and compare.

    `effects` are the functions whose calls count: bound methods, functions, or pairs of an object
    and a name. A call with an idempotency key counts once for each key. `state` returns what is
    compared with the state after a run without harm, `reset` sets the world back before each run.
    `ctx_state` is what lifespan hooks would yield, `signals` what `ctx.wait_for` gets. The other
    arguments are the handler's. `NotIdempotent`, an `AssertionError`, says what was found.
    """
    __tracebackhide__ = True
    if in_event_loop():
        raise UsageError(
            "check_idempotent() starts an event loop, and one is running here: use 'await "
            "acheck_idempotent(...)'"
        )
    trial = _Trial(task, args, kwargs, effects, state, reset, ctx_state, signals)
    return asyncio.run(_judged(trial, seed))


async def acheck_idempotent(
    task: Task[..., Any],
    *args: Any,
    effects: Iterable[Any] = (),
    state: Callable[[], Any] | None = None,
    reset: Callable[[], Any] | None = None,
    ctx_state: Mapping[str, Any] | None = None,
    signals: Mapping[str, Sequence[Any]] | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> IdempotencyReport:
    """As `check_idempotent`, on the running event loop; `state` and `reset` may be coroutines."""
    __tracebackhide__ = True
    trial = _Trial(task, args, kwargs, effects, state, reset, ctx_state, signals)
    return await _judged(trial, seed)


async def _judged(trial: _Trial, seed: int) -> IdempotencyReport:
    """Run all stories, and compare each with an uninterrupted run."""
    __tracebackhide__ = True
    clean = await trial.run(_CLEAN)
    if clean.failed is not None:
        raise clean.failed
    if _differences(clean, await trial.run(_CLEAN)):
        raise UsageError(
            f"two runs of task {trial.task.name} without any harm differ, so that nothing can be "
            "compared: give reset= a function that sets the world back before each run"
        )
    findings: list[Finding] = []
    runs = 2
    for story, alone in _stories(len(clean.places), seed):
        ended = await trial.run(story)
        runs += 1
        known = {(each.kind, each.what) for each in findings}
        for kind, what, times, expected in _differences(clean, ended):
            if alone or (kind, what) not in known:
                where = _where(story, ended.places)
                findings.append(Finding(kind, what, times, expected, where, seed))
    report = IdempotencyReport(trial.task.name, runs, clean.places, tuple(findings), seed)
    if not report.ok:
        raise NotIdempotent(report)
    if not clean.happened and trial.state is None:
        raise UsageError(
            f"task {trial.task.name} was seen to do nothing, so that nothing can be seen twice: "
            "name what it calls as effects=, or give state= a function that returns what it changes"
        )
    return report


def _stories(places: int, seed: int) -> Iterator[tuple[dict[int, Interruption], bool]]:
    """Every place with every interruption, alone; then several interruptions in one run."""
    kinds = tuple(Interruption)
    tried = range(places)
    if places > _PLACES_MAX:
        tried = range(_drawn(seed, 0, 0, places // _PLACES_MAX), places, places // _PLACES_MAX)
    for how in kinds:
        for place in tried:
            yield {place: how}, True
    for story in range(1, _STORIES + 1):
        several = 2 + _drawn(seed, story, 0, _INTERRUPTIONS_MAX - 1)
        yield (
            {
                _drawn(seed, story, 2 * n + 1, 2 * places): kinds[_drawn(seed, story, 2 * n + 2, 2)]
                for n in range(several)
            },
            False,
        )


def _drawn(seed: int, story: int, number: int, below: int) -> int:
    """Return a number from 0, the same for the same seed on every machine."""
    text = f"{seed}/{story}/{number}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8]) % below


def _where(story: Mapping[int, Interruption], places: Sequence[str]) -> str:
    return ", ".join(
        f"{how} after {places[place]}"
        for place, how in sorted(story.items())
        if place < len(places)
    )


# -------------------------------------------------------------------------------------- comparing


@dataclass(frozen=True, slots=True)
class _Ended:
    """The result of a run."""

    places: tuple[str, ...]
    happened: tuple[Happened, ...]
    failed: BaseException | None
    state: Any


def _differences(clean: _Ended, ended: _Ended) -> list[tuple[str, str, int, int]]:
    found = []
    if ended.failed is not None:
        found.append(("failed", f"{type(ended.failed).__name__}: {ended.failed}", 1, 0))
    right, seen = _counts(clean.happened), _counts(ended.happened)
    for effect in sorted(right.keys() | seen.keys()):
        if seen[effect] > right[effect]:
            found.append(("twice", effect, seen[effect], right[effect]))
        elif seen[effect] < right[effect] and ended.failed is None:
            found.append(("lost", effect, seen[effect], right[effect]))
    found += (("key_reused", effect, 2, 1) for effect in _reused_keys(ended.happened))
    if ended.failed is None and clean.state != ended.state:
        found.append(("state", "state", 1, 0))
    return found


def _counts(happened: Sequence[Happened]) -> Counter[str]:
    """Count each effect; calls with one idempotency key count once."""
    keyed = {(each.effect, each.key) for each in happened if each.key is not None}
    plain = (each.effect for each in happened if each.key is None)
    return Counter([*plain, *(effect for effect, _ in keyed)])


def _reused_keys(happened: Sequence[Happened]) -> list[str]:
    asked = {each for each in happened if each.key is not None}
    often = Counter((each.effect, each.key) for each in asked)
    return sorted({effect for (effect, _), times in often.items() if times > 1})


# ---------------------------------------------------------------------------------------- running


@dataclass(frozen=True, slots=True)
class _Trial:
    """One handler and its world, run again and again."""

    task: Task[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    effects: Iterable[Any]
    state: Callable[[], Any] | None
    reset: Callable[[], Any] | None
    ctx_state: Mapping[str, Any] | None
    signals: Mapping[str, Sequence[Any]] | None

    async def run(self, story: Mapping[int, Interruption]) -> _Ended:
        """Deliver the job until it is over, interrupted as the story says."""
        await _value_of(self.reset)
        job = self._job()
        watch = Watch(story, lambda watch: self._deliver(watch, job))
        connection = self.task.submission.connection
        with watched(watch, tuple(self.effects), self.task.function, connection):
            await self._deliver(watch, job)
        state = copy.deepcopy(await _value_of(self.state))
        return _Ended(tuple(watch.places), tuple(watch.happened), watch.failed, state)

    def _job(self) -> Job:
        connection = self.task.submission.connection
        call = self.task.call(*self.args, **self.kwargs)
        new = new_job(call, connection.declarations, new_id())
        options = msgspec.structs.replace(new.options or JobOptions(), attached=True)
        return msgspec.structs.replace(
            detached_job(new.task),
            id=new.id,
            queue=new.queue,
            payload=new.payload.decode(),
            tenant=new.tenant,
            trace_id=new.trace_id,
            options=msgspec.json.encode(options).decode(),
        )

    async def _deliver(self, watch: Watch, job: Job) -> None:
        """Deliver the job until an attempt settles it."""
        while watch.latest.number < _DELIVERIES_MAX:
            # A task of its own: what it sets must not outlive it.
            if await asyncio.create_task(self._attempt(watch, job)):
                return
        raise UsageError(
            f"task {self.task.name} was delivered {_DELIVERIES_MAX} times and did not end; does it "
            "snooze, or ask for a retry, without end?"
        )

    async def _attempt(self, watch: Watch, job: Job) -> bool:
        """Run the handler once; return whether the job is over."""
        delivery = watch.begin()
        number = delivery.number
        job = msgspec.structs.replace(job, fence=number, attempts=number - 1)
        host = WatchedHost(watch, delivery, self.signals)
        connection = self.task.submission.connection
        tools = self.task.definition.tools(connection.registry.tools)
        context = KeyedContext(job, host, worker="test", state=self.ctx_state or {}, tools=tools)
        context.given = watch.keys
        try:
            await self._call(job, context)
            watch.require_alive()  # it may have caught what ended it
            await watch.apassed("the handler's return")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - judged below
            if not (delivery.dead or delivery.stale) and context.unwritten_steps is not None:
                with suppress(Exception):  # as in a worker: lost, they run again
                    await context.unwritten_steps.write(ON_LOOP)
            return _settles(watch, delivery, error)
        return True

    async def _call(self, job: Job, context: Context) -> None:
        task = self.task.definition
        arguments = task.signature.decode(job.payload)
        given = (context,) if task.wants_context else ()
        if task.coroutine:
            await task.signature.call(task.function, arguments, *given)
        else:
            await asyncio.to_thread(task.signature.call, task.function, arguments, *given)


def _settles(watch: Watch, delivery: Delivery, error: BaseException) -> bool:
    """Whether a job is over whose attempt raised this."""
    if delivery.stale:  # its successor has settled it
        return True
    if delivery.dead or isinstance(error, Died):
        return False
    match error:
        case Suspend() if error.delay_us > FOREVER_US // 2:
            watch.failed = UsageError("the handler waits for a signal: give signals={name: [...]}")
        case Suspend() | Snooze():
            watch.clock.advance(error.delay_us / SECOND_US)
            return False
        case Retry() | RateLimited():
            return False
        case _:
            watch.failed = error
    return True


async def _value_of(function: Callable[[], Any] | None) -> Any:
    value = None if function is None else function()
    return await value if inspect.isawaitable(value) else value
