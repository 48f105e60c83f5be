# SPDX-License-Identifier: MIT
"""Circuit breakers of handlers: `ctx.breaker("stripe")`, one for the whole fleet.

Their state is a record of the store. A process reads the open ones once a second, so that a call
through a closed one reads nothing; failures and the outcomes of probes are written.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from datetime import datetime
from math import inf
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

import msgspec

from packhorse.core.clock import SECOND_US, optional_datetime, to_datetime
from packhorse.core.durations import Duration, positive_microseconds
from packhorse.core.generators import adrive, drive
from packhorse.core.interpreter import in_event_loop
from packhorse.core.options import count, name_text
from packhorse.core.policies.breaker import (
    FAILURES_MAX,
    BreakerPhase,
    BreakerRule,
    BreakerState,
    admission,
    breaker_phase,
    call_failed,
    probe_begun,
    probe_ended,
)
from packhorse.core.policies.records import Put, Record, RecordId, Remove, check_changes
from packhorse.errors import ConfigError, StoreError, UsageError
from packhorse.signals import BreakerOpen

R = TypeVar("R")
T = TypeVar("T")

#: The kind of records that breakers are.
BREAKER_KIND: Final = "breaker"
#: How old a process's list of open breakers may be.
_AGE_S: Final = 1.0
_PAGE: Final = 1_000
_PAGES_MAX: Final = 1_000
#: Tries of a write that conflicts with others.
_TRIES: Final = 5
#: An open breaker that no call has tried for a day is forgotten.
_KEEP_US: Final = 86_400 * SECOND_US

_LOG: Final = logging.getLogger("packhorse.job")
_STATE: Final = msgspec.json.Decoder(BreakerState)

#: Makes a plan, given the store.
StoreVerb = Callable[[Any], Any]
_Work = Generator[StoreVerb, Any, T]


class BreakerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker that has failures to show, or is open."""

    name: str
    tenant: str
    state: BreakerPhase
    failures: int  #: those that were counted last
    probing: bool  #: one call is under way as a probe
    opened_at: datetime | None
    retry_at: datetime | None  #: when a call is let through, as a probe


def breaker_info(record: Record, now_us: int) -> BreakerInfo:
    """Describe a breaker from its record."""
    state = _STATE.decode(record.document)
    probing_us = state.probe_until_us
    return BreakerInfo(
        name=record.id.key,
        tenant=record.id.tenant,
        state=breaker_phase(state, now_us),
        failures=len(state.failed_us),
        probing=probing_us is not None and now_us < probing_us,
        opened_at=optional_datetime(state.opened_us),
        retry_at=optional_datetime(state.open_until_us),
    )


class BreakerBook:
    """The open breakers of a store, as one process knows them."""

    def __init__(
        self,
        ask: Callable[[StoreVerb], Any],
        aask: Callable[[StoreVerb], Awaitable[Any]],
        monotonic: Callable[[], float],
    ) -> None:
        self._ask = ask
        self._aask = aask
        self._monotonic = monotonic
        self._open: dict[RecordId, Record] = {}
        self._read_at = -inf
        self._offset_us = 0  # the store's clock less this process's monotonic one

    def run(self, work: _Work[T]) -> T:
        """Run work in this thread."""
        return drive(work, self._ask)

    async def arun(self, work: _Work[T]) -> T:
        """As `run`, without blocking the event loop."""
        return await adrive(work, self._aask)

    def enter(self, named: RecordId, rule: BreakerRule) -> _Work[Record | None]:
        """Let a call through, or raise `BreakerOpen`; return the record if the call is a probe."""
        with suppress(StoreError):  # go by what was read before: an outage must not stop the call
            yield from self._look()
        known = self._open.get(named)
        for _ in range(_TRIES):
            if known is None:
                return None
            state, now_us = _STATE.decode(known.document), self._now_us()
            phase, retry_us = admission(state, rule, now_us)
            if phase is BreakerPhase.OPEN:
                raise BreakerOpen(named.key, retry_us, retry_us - now_us)
            if phase is BreakerPhase.HALF_OPEN:
                probe = probe_begun(state, rule, now_us)
                # The store's clock decides whether a first probe, or one after a lost one, is due.
                since_us = state.probe_until_us or state.open_until_us
                written = yield from self._write(named, probe, rule, known.version, since_us)
                if written is not None:
                    return written
            known = yield from self._reread(named)
        now_us = self._now_us()
        raise BreakerOpen(named.key, now_us + SECOND_US, SECOND_US)

    def failed(self, named: RecordId, rule: BreakerRule) -> _Work[None]:
        """Count the failure of a call that was let through."""
        yield from self._look()
        # Each conflict is a failure that another call counted, and enough of them open it.
        for _ in range(rule.failures + _TRIES):
            record: Record | None = yield lambda store: store.records.record(named)
            state = BreakerState() if record is None else _STATE.decode(record.document)
            after = call_failed(state, rule, self._now_us())
            if after is None:
                return
            version = 0 if record is None else record.version
            if (yield from self._write(named, after, rule, version)) is not None:
                if after.open_until_us is not None:
                    moment = to_datetime(after.open_until_us)
                    _LOG.warning("breaker %r is open until %s", named.key, moment.isoformat())
                return

    def probed(self, record: Record, rule: BreakerRule, *, ok: bool, failed: bool) -> _Work[None]:
        """Write the outcome of a probe, unless another probe has replaced it."""
        if ok:
            yield lambda store: store.records.change([Remove(record.id, record.version)])
            self._open.pop(record.id, None)
            return
        state = _STATE.decode(record.document)
        after = probe_ended(state, rule, self._now_us(), failed=failed)
        yield from self._write(record.id, after, rule, record.version)

    def _look(self) -> _Work[None]:
        """Read which breakers are open, unless that was done within a second."""
        before, now = self._read_at, self._monotonic()
        if now - before < _AGE_S:
            return
        if before > -inf:  # other threads use the old list meanwhile; at first there is none
            self._read_at = now
        found: dict[RecordId, Record] = {}
        after: str | None = None
        try:
            for _ in range(_PAGES_MAX):
                page = yield _open_after(after)
                found |= {record.id: record for record in page.records}
                self._learn(page.now_us)
                after = page.after
                if after is None:
                    break
        except BaseException:
            self._read_at = before
            raise
        self._open = found
        self._read_at = now

    def _reread(self, named: RecordId) -> _Work[Record | None]:
        record: Record | None = yield lambda store: store.records.record(named)
        if record is None or record.order is None:  # closed by now
            self._open.pop(named, None)
            return None
        self._open[named] = record
        return record

    def _write(
        self,
        named: RecordId,
        state: BreakerState,
        rule: BreakerRule,
        version: int,
        not_before: int | None = None,
    ) -> _Work[Record | None]:
        """Replace the state of this version; None on a conflict, or before `not_before`."""
        document, order = msgspec.json.encode(state), state.open_until_us
        keep_us = rule.window_us if order is None else rule.open_us + _KEEP_US
        put = Put(named, document, expected=version, order=order, keep_us=keep_us)
        changed = yield lambda store: store.records.change([put], not_before=not_before)
        self._learn(changed.now_us)
        if not changed.applied:
            return None
        record = Record(named, document, changed.versions[0], order)
        if order is not None:
            self._open[named] = record
        return record

    def _learn(self, store_us: int) -> None:
        self._offset_us = store_us - int(self._monotonic() * SECOND_US)

    def _now_us(self) -> int:
        return int(self._monotonic() * SECOND_US) + self._offset_us


def _open_after(after: str | None) -> StoreVerb:
    """Return the verb that reads breakers that are not closed: only these have an order."""
    return lambda store: store.records.records(
        BREAKER_KIND, by_order=True, after=after, limit=_PAGE
    )


class Breaker:
    """Guard calls to another system: `with`, `async with`, or `breaker(function, *args)`.

    It raises `BreakerOpen` while calls must not be tried. An exception raised inside counts as a
    failure if it is one of `trip_on`.
    """

    def __init__(
        self,
        book: BreakerBook | None,
        name: str,
        *,
        failures: int,
        window: Duration,
        open_for: Duration,
        tenant: str,
        trip_on: tuple[type[Exception], ...],
    ) -> None:
        self._book = book  # None: a handler that is called directly
        self._named = RecordId(BREAKER_KIND, tenant, name_text(name, "breaker: name"))
        check_changes([Remove(self._named)])  # refuse a name that no store keeps
        if not 1 <= count(failures, "breaker: failures") <= FAILURES_MAX:
            raise ConfigError(f"breaker: failures is {failures}; give 1 to {FAILURES_MAX}")
        self._rule = BreakerRule(
            failures,
            positive_microseconds(window, setting="breaker: window"),
            positive_microseconds(open_for, setting="breaker: open_for"),
        )
        self._trip_on = trip_on
        self._entered = False
        self._probe: Record | None = None

    def __enter__(self) -> Self:
        if in_event_loop():
            raise UsageError(
                f"'with ctx.breaker({self._named.key!r})' would block the running event loop: "
                "write 'async with'"
            )
        self._begin()
        if self._book is not None:
            self._probe = self._book.run(self._book.enter(self._named, self._rule))
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        work = self._end(error)
        if self._book is not None and work is not None:
            with suppress(StoreError):  # a failure that is not counted; a probe expires
                self._book.run(work)

    async def __aenter__(self) -> Self:
        self._begin()
        if self._book is not None:
            self._probe = await self._book.arun(self._book.enter(self._named, self._rule))
        self._entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        work = self._end(error)
        if self._book is not None and work is not None:
            with suppress(StoreError):
                await self._book.arun(work)

    def __call__(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Call a function through the breaker; await the return value of a coroutine function."""
        if inspect.iscoroutinefunction(function):
            return cast("R", self._acall(function, args, kwargs))
        with self:
            return function(*args, **kwargs)

    async def _acall(self, function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any) -> Any:
        async with self:
            return await function(*args, **kwargs)

    def _begin(self) -> None:
        if self._entered:
            raise UsageError(
                f"breaker {self._named.key!r} is in a call already: call ctx.breaker() for each"
            )

    def _end(self, error: BaseException | None) -> _Work[None] | None:
        """Return what to write after the call; None, as after most calls: nothing."""
        probe, self._probe, self._entered = self._probe, None, False
        failed = isinstance(error, self._trip_on)
        if self._book is None:
            return None
        if probe is not None:
            answered = error is None or isinstance(error, Exception)
            return self._book.probed(probe, self._rule, ok=answered and not failed, failed=failed)
        return self._book.failed(self._named, self._rule) if failed else None
