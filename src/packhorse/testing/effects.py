# SPDX-License-Identifier: MIT
"""Watch the effects of a handler, and interrupt it at a chosen place."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.attempt_host import DetachedHost
from packhorse.client.store_access import Connection
from packhorse.context import Context
from packhorse.core.interpreter import in_event_loop
from packhorse.core.job import NewJob
from packhorse.core.text import counted
from packhorse.errors import UsageError
from packhorse.events import EventBus
from packhorse.stores import open_store
from packhorse.stores.requests import Submitted
from packhorse.testing.virtual_clock import VirtualClock

#: An argument of this name is an idempotency key, wherever its value comes from.
_KEY: Final = "idempotency_key"
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


class Interruption(StrEnum):
    """How an attempt is interrupted."""

    CRASH = "crash"  #: it ends there; the job is delivered again
    PAUSE = "pause"  #: it loses its lease, the job is delivered again, and then it goes on


class Died(BaseException):
    """The process of this attempt is gone: nothing it does takes effect any more."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One attempt at the job."""

    number: int  #: from 1
    dead: bool = False
    stale: bool = False  #: a later one has begun


class Happened(NamedTuple):
    """One effect on the world."""

    effect: str
    key: str | None  #: the outside system does once what it is asked for under one key
    arguments: str


_DELIVERY: Final[ContextVar[Delivery | None]] = ContextVar("packhorse_delivery", default=None)


class Watch:
    """The effects of one job over its attempts, and where these are interrupted."""

    def __init__(
        self, story: Mapping[int, Interruption], deliver: Callable[[Watch], Awaitable[None]]
    ) -> None:
        self.clock = VirtualClock()
        self.happened: list[Happened] = []
        self.places: list[str] = []  #: where an attempt could have been interrupted, in order
        self.keys: set[str] = set()  #: what `ctx.idempotency_key` returned
        self.attached: dict[str, bytes] = {}  #: what is kept with the job
        self.failed: BaseException | None = None  #: what its last attempt raised
        self.latest = Delivery(0)
        self._story = story
        self._deliver = deliver
        self._lock = threading.Lock()

    def begin(self) -> Delivery:
        """The job is delivered; from here on this task runs it."""
        self.latest = Delivery(self.latest.number + 1)
        _DELIVERY.set(self.latest)
        return self.latest

    @property
    def current(self) -> Delivery:
        """Return the attempt that calls; in a thread that the handler started, the newest."""
        return _DELIVERY.get() or self.latest

    def require_alive(self) -> None:
        """Stop code that runs on in a dead attempt, as `finally` does."""
        if self.current.dead:
            raise Died

    def saw(self, effect: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """An effect happened."""
        given = [*args, *kwargs.values()]
        own = [value for value in given if isinstance(value, str) and value in self.keys]
        key = kwargs.get(_KEY, own[0] if own else None)
        told = _ADDRESS.sub("", repr((args, sorted(kwargs.items()))))
        with self._lock:
            self.happened.append(Happened(effect, None if key is None else str(key), told))

    def passed(self, place: str) -> None:
        """An attempt may be interrupted here."""
        if not self._is_paused(place):
            return
        if not in_event_loop():
            asyncio.run(_finish(self._deliver(self)))
            return
        thread = threading.Thread(target=lambda: asyncio.run(_finish(self._deliver(self))))
        thread.start()
        thread.join()

    async def apassed(self, place: str) -> None:
        """As `passed`, on the running event loop."""
        if self._is_paused(place):
            await asyncio.create_task(_finish(self._deliver(self)))  # with a context of its own

    def _is_paused(self, place: str) -> bool:
        delivery = self.current
        with self._lock:
            how = self._story.get(len(self.places))
            self.places.append(f"{place} in attempt {delivery.number}")
        if how is Interruption.CRASH:
            delivery.dead = True
            raise Died
        if how is None or delivery.stale:
            return False
        delivery.stale = True
        return True


async def _finish(work: Awaitable[None]) -> None:
    await work


class KeyedContext(Context):
    """A context that remembers the keys it gave away."""

    __slots__ = ("given",)

    given: set[str]

    def idempotency_key(self, step: str = "") -> str:
        key = super().idempotency_key(step)
        self.given.add(key)
        return key


class WatchedHost(DetachedHost):
    """The `packhorse.attempt_host.AttemptHost` of an attempt that is watched."""

    suspends = True

    def __init__(
        self, watch: Watch, delivery: Delivery, signals: Mapping[str, Sequence[Any]] | None
    ) -> None:
        super().__init__()
        self._watch = watch
        self._delivery = delivery
        self.attached = watch.attached
        for name, values in (signals or {}).items():
            self.signals[name] = tuple(map(msgspec.json.encode, values))

    def now_us(self) -> int:
        return self._watch.clock.now_us()

    def lease_lost(self) -> bool:
        return self._delivery.stale

    def attach(self, values: dict[str, bytes]) -> bool:
        if not self._is_kept(values):
            return False
        self._watch.passed(_step_place(values))
        return True

    async def aattach(self, values: dict[str, bytes]) -> bool:
        if not self._is_kept(values):
            return False
        await self._watch.apassed(_step_place(values))
        return True

    def _is_kept(self, values: dict[str, bytes]) -> bool:
        if self._delivery.dead:
            raise Died
        if not self._delivery.stale:
            self.attached.update(values)
        return not self._delivery.stale


def _step_place(values: Iterable[str]) -> str:
    return "the write of " + ", ".join(name.replace("step:", "step ", 1) for name in values)


# ------------------------------------------------------------------------------- watching effects


@contextmanager
def watched(
    watch: Watch, effects: Iterable[Any], handler: Callable[..., Any], connection: Connection
) -> Iterator[None]:
    """Watch these functions, and what is submitted, in a block.

    Jobs are submitted to an empty store in memory, and are not run.
    """
    with ExitStack() as stack:
        for owner, name in _targets(effects, handler):
            label = f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"
            wrapped = _watching(watch, getattr(owner, name), label)
            stack.enter_context(_replaced(owner, name, wrapped))
        stack.enter_context(_watched_submits(watch, connection))
        yield


def _watching(watch: Watch, original: Callable[..., Any], label: str) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            watch.require_alive()
            result = await original(*args, **kwargs)
            watch.saw(label, args, kwargs)
            await watch.apassed(label)
            return result

        return acall

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        watch.require_alive()
        result = original(*args, **kwargs)
        watch.saw(label, args, kwargs)
        watch.passed(label)
        return result

    return call


def _targets(effects: Iterable[Any], handler: Callable[..., Any]) -> Iterator[tuple[Any, str]]:
    """Where each effect is looked up when it is called."""
    for effect in effects:
        match effect:
            case (owner, str(name)) if callable(getattr(owner, name, None)):
                yield owner, name
            case _ if inspect.ismethod(effect):
                yield effect.__self__, effect.__name__
            case _ if inspect.isfunction(effect):
                yield from _homes(effect, handler)
            case _:
                raise UsageError(
                    f"{effect!r} cannot be watched: give a bound method (gateway.charge), a "
                    "function of a module, or a pair of an object and the name of its method"
                )


def _homes(function: Callable[..., Any], handler: Callable[..., Any]) -> list[tuple[Any, str]]:
    """Where a plain function is found: in its own module, and in that of the handler."""
    modules = {sys.modules.get(each.__module__) for each in (function, handler)} - {None}
    homes = [
        (module, name)
        for module in modules
        for name, value in list(vars(module).items())
        if value is function
    ]
    if not homes:
        raise UsageError(
            f"{function!r} is in no module, so that calls of it cannot be watched: give a bound "
            "method, or a pair of an object and the name of its method"
        )
    return homes


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = vars(owner).get(name) if hasattr(owner, "__dict__") else None
    if isinstance(own, staticmethod | classmethod):
        value = staticmethod(value)
    try:
        setattr(owner, name, value)
    except (AttributeError, TypeError) as error:
        raise UsageError(
            f"{owner!r} does not let its {name!r} be watched ({error}); give its class instead: "
            f"({type(owner).__name__}, {name!r})"
        ) from error
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


@contextmanager
def _watched_submits(watch: Watch, connection: Connection) -> Iterator[None]:
    store = open_store("memory://", clock=watch.clock)
    aside = Connection(
        lambda: store, registry=connection.registry, bus=EventBus(), clock=watch.clock
    )
    aside.declarations, connection.declarations.told = connection.declarations, 0

    def submit(jobs: Sequence[NewJob], **options: Any) -> tuple[Submitted, ...]:
        watch.require_alive()
        answers = aside.submit(jobs, **options)
        watch.passed(_submitted(watch, jobs, answers))
        return answers

    async def asubmit(jobs: Sequence[NewJob], **options: Any) -> tuple[Submitted, ...]:
        watch.require_alive()
        answers = await aside.asubmit(jobs, **options)
        await watch.apassed(_submitted(watch, jobs, answers))
        return answers

    try:
        with _replaced(connection, "submit", submit), _replaced(connection, "asubmit", asubmit):
            yield
    finally:
        connection.declarations.told = 0
        aside.close()
        store.close()


def _submitted(watch: Watch, jobs: Sequence[NewJob], answers: Sequence[Submitted]) -> str:
    for job, answer in zip(jobs, answers, strict=True):
        if not answer.deduplicated:
            watch.saw(f"{job.task}.enqueue", (), {})
    return f"the submit of {counted(len(jobs), 'job')}"
