# SPDX-License-Identifier: MIT
"""The base of all services, the loop that runs one, and the record that picks one worker for it."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from packhorse.core.clock import SECOND_US, Chance, Clock
from packhorse.core.policies.records import Put, Record, RecordChange, RecordId
from packhorse.errors import SchemaOutOfDate, StoreCopied, StoreUnavailable
from packhorse.events import EventBus
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RecordPage
from packhorse.stores.requests import Counts

T = TypeVar("T")
_LOG: Final = logging.getLogger("packhorse.worker")
#: Errors that are not about one record or group: all would fail.
STORE_AWAY: Final = (StoreUnavailable, StoreCopied, SchemaOutOfDate, OSError)
#: The longest wait of a service after an error; its interval may be a minute.
_AFTER_ERROR_S_MAX: Final = 5.0
#: How long a worker that is not on duty waits before it asks again.
OFF_DUTY_S: Final = 1.0
#: A worker on duty renews its record within this time, or another worker takes over. Short, since
#: the work of a killed worker stands still for as long; an idle worker does not renew.
_DUTY_US: Final = 3 * SECOND_US
#: A service whose look at the store took long rests this many times as long: counting is slow in a
#: store with millions of jobs, or past rows that an old snapshot keeps alive.
REST_PER_COST: Final = 200
#: Records written in one change: few, since one conflict makes it run again.
_PART_RECORDS: Final = 50
#: Bytes written in one change, well below what a store takes; a larger record goes alone.
_PART_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What every service needs of its worker."""

    store: Store
    clock: Clock
    chance: Chance
    bus: EventBus
    worker: str


class Service(ABC):
    """Work that a worker repeats for its store, beside its jobs."""

    name: ClassVar[str]  #: in events
    interval_s: ClassVar[float]  #: the usual wait between two runs
    #: Whether it runs once at the start, and not only after a random part of its interval.
    begins_at_once: ClassVar[bool] = False

    def __init__(self, context: ServiceContext) -> None:
        self._store = context.store
        self._monotonic = context.clock.monotonic
        self._chance = context.chance
        self._bus = context.bus
        self._worker = context.worker
        self._failing: set[str] = set()  # at most a page of records

    @abstractmethod
    async def run_once(self) -> float:
        """Do the work once; return after how many seconds to do it again."""

    def _wait_s(self, interval_s: float | None = None) -> float:
        """Return the usual interval, or this one, spread by chance."""
        return spread(self.interval_s if interval_s is None else interval_s, self._chance)

    def _until_due_s(self, page: RecordPage) -> float:
        """Return how long to wait for the next record of a page by order, at most the interval."""
        orders = [record.order or 0 for record in page.records]
        waits = [(order - page.now_us) / SECOND_US for order in orders if order > page.now_us]
        return min([self._wait_s(), *waits])

    async def _page(
        self, kind: str, *, limit: int, by_order: bool = False, after: str | None = None
    ) -> RecordPage:
        records = self._store.records
        plan = records.records(kind, by_order=by_order, after=after, limit=limit)
        return await self._store.arun(plan)

    async def _record(self, named: RecordId) -> Record | None:
        return await self._store.arun(self._store.records.record(named))

    async def _change(self, *changes: RecordChange, **more: Any) -> Changed:
        """Write these changes, or none of them."""
        return await self._store.arun(self._store.records.change(changes, **more))

    async def _with_each(
        self, items: Iterable[T], name: Callable[[T], str], work: Callable[[T], Awaitable[object]]
    ) -> int:
        """Do the work for each; one that fails keeps no other from it. Return how many did not."""
        before, self._failing, worked = self._failing, set(), 0
        for item in items:
            try:
                await work(item)
                worked += 1
            except STORE_AWAY:
                raise
            except Exception as error:  # noqa: BLE001 - logged once, and tried again
                self._failing.add(name(item))
                if name(item) not in before:
                    text = "%s: %s fails, and is tried again from time to time: %r"
                    _LOG.warning(text, self.name, name(item), error)
        return worked

    async def _counts(self) -> tuple[tuple[Counts, ...], float]:
        """Count the jobs of every queue; return also how many seconds that took."""
        began = self._monotonic()
        # In a thread: it may take a while, and on the loop's own runner it would hold up claims.
        counts = await asyncio.to_thread(self._store.run, self._store.inspection.counts())
        return counts, self._monotonic() - began


def text_of_id(record: Record) -> str:
    """Name a record in the log."""
    return record.id.text


def due_records(page: RecordPage) -> list[Record]:
    """Return the records of a page by order whose time has come."""
    return [record for record in page.records if (record.order or 0) <= page.now_us]


def in_parts(
    items: Iterable[T],
    size: Callable[[T], int],
    *,
    most: int = _PART_RECORDS,
    most_bytes: int = _PART_BYTES,
) -> Iterator[list[T]]:
    """Cut what is to be written into parts that go into one write; `size` says the bytes."""
    part: list[T] = []
    part_bytes = 0
    for item in items:
        item_bytes = size(item)
        if part and (len(part) >= most or part_bytes + item_bytes > most_bytes):
            yield part
            part, part_bytes = [], 0
        part.append(item)
        part_bytes += item_bytes
    if part:
        yield part


def spread(interval_s: float, chance: Chance) -> float:
    """Vary an interval by up to a quarter, so that the workers of a fleet do not act in step."""
    return interval_s * (0.75 + 0.5 * chance.roll())


@dataclass(frozen=True, slots=True)
class Driver:
    """Run a service until it is cancelled; run it again after an error."""

    sleep: Callable[[float], Awaitable[None]]  #: ends early when the worker stops
    stopped: Callable[[], bool]
    failed: Callable[[str, BaseException], None]
    worked: Callable[[str], None]
    chance: Chance

    async def run(self, service: Service) -> None:
        """Run one service."""
        if not service.begins_at_once:
            await self.sleep(service.interval_s * self.chance.roll())
        while not self.stopped():
            try:
                wait_s = await service.run_once()
            except Exception as error:  # noqa: BLE001 - reported, and tried again
                self.failed(service.name, error)
                wait_s = spread(min(service.interval_s, _AFTER_ERROR_S_MAX), self.chance)
            else:
                self.worked(service.name)
            await self.sleep(wait_s)


class Duty:
    """Find out whether this worker is the one of the fleet that does the work of a service.

    A record names the worker for a short time. That only saves the others the work: what a service
    writes checks versions or journal lines, so that two workers on duty do nothing twice.
    """

    def __init__(self, context: ServiceContext, service: str, hold_us: int = _DUTY_US) -> None:
        self._store = context.store
        self._monotonic = context.clock.monotonic
        self._named = RecordId("duty", "", service)
        self._worker = context.worker.encode()
        self._hold_us = hold_us
        self._until = float("-inf")

    async def is_mine(self) -> bool:
        """Take or renew the duty unless another worker has it; return whether this worker does."""
        now = self._monotonic()
        if now < self._until:
            return True
        records = self._store.records
        record = await self._store.arun(records.record(self._named))
        if record is not None and record.document != self._worker:
            return False
        version = 0 if record is None else record.version
        put = Put(self._named, self._worker, version, keep_us=self._hold_us)
        if not (await self._store.arun(records.change([put]))).applied:
            return False
        self._until = now + self._hold_us / SECOND_US / 2
        return True
