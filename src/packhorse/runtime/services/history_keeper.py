# SPDX-License-Identifier: MIT
"""Keep the history: every worker writes what it did; the one on duty counts queues and folds.

A worker writes each part once, as a record of its own. Folding adds parts to the records of their
minute, hour and day and removes them, in one change that checks versions. So two workers that both
believe to be on duty count nothing twice, and what a worker wrote outlives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Final

from packhorse.core.clock import SECOND_US
from packhorse.core.job import WAITING, JobStatus
from packhorse.core.policies.history import (
    PART_KEPT_US,
    PART_KIND,
    TIERS,
    HistoryPart,
    QueueTotals,
    SpanTotals,
    decode_part,
    decode_series,
    decode_totals,
    encode_part,
    encode_series,
    encode_totals,
    key_of_span,
    totals_added,
    totals_of,
)
from packhorse.core.policies.records import Put, Record, RecordChange, RecordId, Remove
from packhorse.core.policies.series import Series, added, risen
from packhorse.errors import PackhorseError, StoreCopied
from packhorse.runtime.services.service import REST_PER_COST, Duty, Service, ServiceContext
from packhorse.stores.protocol import Store
from packhorse.stores.records import RecordPage
from packhorse.stores.requests import Counts

_MINUTE_S: Final = 60
#: Parts of a minute are folded this long after it began: no worker writes to it any more.
_CLOSED_S: Final = 2 * _MINUTE_S
_PAGE: Final = 500
#: Minutes folded in one run; the next run goes on.
_MINUTES_MAX: Final = 100
#: How long a worker that leaves may take for its last part.
_LAST_S: Final = 2.0


class HistoryKeeper(Service):
    """Write what a worker did; on duty, count queues and fold parts for the fleet."""

    name = "history"
    interval_s = 10.0

    def __init__(self, context: ServiceContext, *, totals: Callable[[], Sequence[Series]]) -> None:
        super().__init__(context)
        self._totals = totals
        self._duty = Duty(context, self.name)
        self._written: dict[tuple[str, str], Series] = {}
        self._unsure: tuple[Put, dict[tuple[str, str], Series]] | None = None
        self._number = 0  # of the next part
        self._ahead_us: int | None = None  # the store's clock less this worker's monotonic one
        self._looked = -1  # the last minute that was counted and folded, here or elsewhere
        self._counted_until = float("-inf")  # no counting before

    async def run_once(self) -> float:
        """Write what was done since the last run; count and fold if no other worker has."""
        with suppress(StoreCopied):  # reported elsewhere; written once the mark is lifted
            await self.write()
            await self._count_and_fold()
        return self._wait_s()

    async def close(self) -> None:
        """Write the last part, and fold old ones, since this worker may be the only one.

        What cannot be written now is lost.
        """
        with suppress(Exception):  # the worker leaves, whatever the store says
            await asyncio.wait_for(self._last(), _LAST_S)

    async def _last(self) -> None:
        await self.write()
        if self._number:  # it ran something
            page = await self._parts()
            if _closed(page) and await self._duty.is_mine():
                await self._fold(page)

    async def write(self) -> None:
        """Write one part, if there is something to write."""
        if self._unsure is None:
            self._unsure = await self._next_part()
        if self._unsure is None:
            return
        put, totals = self._unsure  # kept until it is answered
        changed = await self._change(put)
        # A conflict says that it was written before, and only the answer was lost.
        self._written, self._unsure = totals, None
        self._set_clock(changed.now_us)

    async def _next_part(self) -> tuple[Put, dict[tuple[str, str], Series]] | None:
        totals = {each.key: each for each in self._totals()}
        news = [
            risen(self._written.get(key), each)
            for key, each in totals.items()
            if each != self._written.get(key)
        ]
        if not any(any(each.outcomes) for each in news):
            return None
        key = f"{key_of_span(await self._minute())}/{self._worker}/{self._number}"
        self._number += 1
        return _put_part(key, HistoryPart(tuple(news))), totals

    # ---------------------------------------------------------------------------- the store's time

    def _set_clock(self, now_us: int) -> None:
        self._ahead_us = now_us - int(self._monotonic() * SECOND_US)

    async def _minute(self) -> int:
        """Return the current minute by the store's clock, as far as it is known here."""
        if self._ahead_us is None:
            await self._parts(limit=1)  # it sets the clock
        return _minute_at(int(self._monotonic() * SECOND_US) + (self._ahead_us or 0))

    async def _parts(self, limit: int = _PAGE) -> RecordPage:
        page = await self._page(PART_KIND, limit=limit)
        self._set_clock(page.now_us)
        return page

    # ------------------------------------------------------------------------ once over the fleet

    async def _count_and_fold(self) -> None:
        """Count the queues and fold old parts, once a minute over the fleet."""
        minute = await self._minute()
        if minute == self._looked:
            return
        named = RecordId(PART_KIND, "", f"{key_of_span(minute)}/")
        if await self._record(named) is None:
            if not await self._duty.is_mine():
                return
            page = await self._parts()
            if self._monotonic() >= self._counted_until:
                await self._count_queues(named.key, page.now_us)
            await self._fold(page)
        self._looked = minute

    async def _count_queues(self, key: str, now_us: int) -> None:
        """Write how many jobs the queues hold."""
        began = self._monotonic()
        counts, took_s = await self._counts()
        self._counted_until = began + took_s * REST_PER_COST
        queues = tuple(_queue_totals(each, now_us) for each in counts)
        looked = SpanTotals(1, tuple(each for each in queues if each.waiting or each.running))
        await self._change(_put_part(key, HistoryPart(looked=looked)))  # or another worker did

    async def _fold(self, page: RecordPage) -> None:
        """Fold the minutes that are over, oldest first."""
        for _ in range(_MINUTES_MAX):
            if not (closed := _closed(page)):
                return
            minute, parts = next(groupby(closed, key=_minute_of))
            changes = await self._folded(minute, list(parts), page.now_us)
            if not (await self._change(*changes)).applied:
                return  # another worker folds, too
            page = await self._parts()

    async def _folded(
        self, minute: int, records: Sequence[Record], now_us: int
    ) -> list[RecordChange]:
        """Return the changes that add parts to the records of their minute, hour and day."""
        parts = [decode_part(record.document) for record in records]
        totals, series = totals_of(parts), added(*(part.series for part in parts))
        changes: list[RecordChange] = [Remove(each.id, each.version) for each in records]
        for tier in TIERS:
            start_s = minute // tier.span_s * tier.span_s
            key = key_of_span(start_s)
            if (keep_us := (start_s + tier.kept_s) * SECOND_US - now_us) > 0:
                before = await self._record(RecordId(tier.kind, "", key))
                known = [] if before is None else [decode_totals(before.document)]
                document = encode_totals(totals_added([*known, totals]))
                changes.append(_put(tier.kind, key, document, before, keep_us))
            if series and (keep_us := (start_s + tier.tasks_kept_s) * SECOND_US - now_us) > 0:
                before = await self._record(RecordId(tier.tasks_kind, "", key))
                earlier = () if before is None else decode_series(before.document)
                document = encode_series(added(earlier, series))
                changes.append(_put(tier.tasks_kind, key, document, before, keep_us))
        return changes


def keep_lost(store: Store, worker: str, series: Sequence[Series]) -> None:
    """Write the attempts that ended with a worker process, for the worker that cannot any more.

    What cannot be written now is lost, as at the end of a worker.
    """
    if not series:
        return
    with suppress(PackhorseError):
        now_us = store.run(store.records.records(PART_KIND, limit=1)).now_us
        key = f"{key_of_span(_minute_at(now_us))}/{worker}/lost"
        put = _put_part(key, HistoryPart(tuple(series)))
        store.run(store.records.change([put]))


def _put(kind: str, key: str, document: bytes, before: Record | None, keep_us: int) -> Put:
    version = 0 if before is None else before.version
    return Put(RecordId(kind, "", key), document, version, keep_us=keep_us)


def _put_part(key: str, part: HistoryPart) -> Put:
    return Put(RecordId(PART_KIND, "", key), encode_part(part), 0, keep_us=PART_KEPT_US)


def _minute_at(now_us: int) -> int:
    return now_us // SECOND_US // _MINUTE_S * _MINUTE_S


def _minute_of(record: Record) -> int:
    return int(record.id.key.partition("/")[0])


def _closed(page: RecordPage) -> list[Record]:
    """Return the parts of a page whose minute is over."""
    until_s = page.now_us // SECOND_US - _CLOSED_S
    return [record for record in page.records if _minute_of(record) <= until_s]


def _queue_totals(counts: Counts, now_us: int) -> QueueTotals:
    waiting = sum(counts.by_status.get(status, 0) for status in WAITING)
    since_us = counts.oldest_ready_us
    return QueueTotals(
        counts.queue,
        waiting=waiting,
        running=counts.by_status.get(JobStatus.PROCESSING, 0),
        waiting_max=waiting,
        oldest_ms=0 if since_us is None else max(0, now_us - since_us) // 1_000,
    )
