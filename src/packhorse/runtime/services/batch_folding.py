# SPDX-License-Identifier: MIT
"""Fold the ends of members into their batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from packhorse.batches.progress import ProgressWatchers, batch_ended
from packhorse.core.batches import (
    BATCH_KIND,
    BatchDocument,
    folded_batch,
    put_batch,
    put_owner,
    read_batch,
)
from packhorse.core.policies.journal import Group, JournalLine
from packhorse.events import EventBus
from packhorse.runtime.services.groups import Fold
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RefusedJob, store_clock

_LOG: Final = logging.getLogger("packhorse.worker")


class BatchFolding:
    """Count the items of a batch, and submit its callbacks."""

    kind = BATCH_KIND

    def __init__(self, watchers: ProgressWatchers, bus: EventBus, worker: str) -> None:
        self._watchers = watchers
        self._bus = bus
        self._worker = worker

    def fold(self, store: Store, group: Group, lines: Sequence[JournalLine]) -> Asking[Fold]:
        """Add up the lines; lines of a removed batch count nowhere."""
        ids = tuple(line.id for line in lines)
        record = yield store.records.record(group.record)
        if record is None:
            return Fold(ids)
        now_us = yield from store_clock(store.records)
        before = read_batch(record.document)
        if before.started_us is None:
            began_us = yield from _began_us(store, lines, now_us)
            before = msgspec.structs.replace(before, started_us=began_us)
        moved = folded_batch(before, lines, now_us)
        puts = (put_batch(moved.document, record.version), *put_owner(before, moved.document))
        told: list[BatchDocument] = []
        if self._watchers.wants(group.key):
            told = _one_by_one(before, lines, now_us)
        after = moved.document
        # A retry and the end after it may come together.
        is_news = before.finished_us is None or after.news != before.news
        has_ended = is_news and after.finished_us is not None
        ended = batch_ended(after, self._worker) if has_ended else None
        return Fold(ids, puts, moved.jobs, (told, ended))

    def folded(self, store: Store, group: Group, fold: Fold, changed: Changed) -> Asking[None]:
        """Call `on_progress` after each member, emit the end, and log refused callbacks."""
        del store
        told_of, ended = fold.note or ((), None)
        for batch in told_of:
            self._watchers.tell(batch)
        if ended is not None:
            self._bus.emit(ended)
        for answer in changed.jobs:
            if isinstance(answer, RefusedJob):
                text = "a callback of batch %s was refused, and is a dead letter: %s"
                _LOG.warning(text, group.key, answer.reason)
        yield from ()


def _began_us(store: Store, lines: Sequence[JournalLine], now_us: int) -> Asking[int]:
    """Return when the member that ended first began; now, if it never did or is gone."""
    if not lines:
        return now_us
    member = yield store.inspection.job(lines[0].job_id)
    began_us = None if member is None else member.started_us
    return now_us if began_us is None else began_us


def _one_by_one(
    batch: BatchDocument, lines: Sequence[JournalLine], now_us: int
) -> list[BatchDocument]:
    steps = []
    for line in lines:
        batch = folded_batch(batch, (line,), now_us).document
        steps.append(batch)
    return steps
