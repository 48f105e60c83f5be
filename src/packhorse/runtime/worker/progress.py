# SPDX-License-Identifier: MIT
"""Write the newest progress of each running job, a few times a second."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Container, Iterable
from typing import Final

import msgspec

from packhorse.core.clock import Clock
from packhorse.core.job import NOTE_LENGTH_MAX, Progress
from packhorse.core.settlement import plain_text
from packhorse.errors import StoreRefused, StoreUnavailable
from packhorse.runtime.worker.attempt import Attempt, Stage
from packhorse.runtime.worker.store_health import StoreHealth
from packhorse.stores.protocol import Store
from packhorse.stores.requests import ProgressNote

#: Between two writes; a newer note replaces one that waits.
_INTERVAL_S: Final = 0.25


class ProgressWriter:
    """Takes notes from any thread; keeps one per attempt."""

    def __init__(
        self, store: Store, clock: Clock, health: StoreHealth, held: Container[Attempt]
    ) -> None:
        self._store = store
        self._held = held  # what is not is settled: the store refuses its notes
        self._monotonic = clock.monotonic
        self._health = health
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        #: What waits to be written: at most one entry per held job.
        self.newest: dict[Attempt, Progress] = {}
        self._under_way: dict[Attempt, Progress] = {}  # its write may come too late
        self._scheduled = False
        self._written_at = float("-inf")
        self._writer: asyncio.Task[None] | None = None

    def note(self, attempt: Attempt, progress: Progress) -> None:
        """Keep a note of a running job; called from its thread, or from the event loop."""
        with self._lock:
            if attempt.stage is not Stage.RUNNING:
                return  # abandoned: ignore it
            self.newest[attempt] = progress
            first, self._scheduled = not self._scheduled, True
        if first:
            self._loop.call_soon_threadsafe(self._schedule)

    async def write(self, attempts: Iterable[Attempt]) -> None:
        """Write the last notes of these before their settlements, after which notes are refused."""
        notes = self._take(attempts)
        try:
            await self._write(notes)
        except StoreUnavailable:
            self._put_back(notes)  # the settlements wait as well
            raise

    def take_last(self, attempt: Attempt) -> Progress | None:
        """Take the last note, which may not be written yet; callable from its thread."""
        with self._lock:
            return self.newest.pop(attempt, None) or self._under_way.get(attempt)

    def _schedule(self) -> None:
        wait_s = max(0.0, self._written_at + _INTERVAL_S - self._monotonic())
        self._loop.call_later(wait_s, self._start_writing)

    def _start_writing(self) -> None:
        self._writer = self._loop.create_task(self._write_all())

    async def _write_all(self) -> None:
        with self._lock:
            self._scheduled = False
            notes, self.newest = self.newest, {}
            self._under_way = notes
        self._written_at = self._monotonic()
        try:
            await self._write(notes)
        except Exception as error:  # noqa: BLE001 - the store is in trouble; the notes wait
            self._health.failed("progress", error)
            self._put_back(notes)
            if self.newest:
                return
        finally:
            self._under_way = {}
        self._health.worked("progress")  # or need not be written any more

    async def _write(self, notes: dict[Attempt, Progress]) -> None:
        if notes:
            batch = [ProgressNote(a.job.id, a.job.fence, said) for a, said in notes.items()]
            try:
                await self._store.arun(self._store.jobs.note_progress(batch))
            except StoreRefused:  # the store can never hold one of them: simplify all
                plain = [_in_plain_words(note) for note in batch]
                with contextlib.suppress(StoreRefused):
                    await self._store.arun(self._store.jobs.note_progress(plain))

    def _take(self, attempts: Iterable[Attempt]) -> dict[Attempt, Progress]:
        with self._lock:
            found = ((attempt, self.newest.pop(attempt, None)) for attempt in attempts)
            return {attempt: said for attempt, said in found if said is not None}

    def _put_back(self, notes: dict[Attempt, Progress]) -> None:
        """Keep what could not be written; newer notes have come meanwhile, or settlements."""
        with self._lock:
            for attempt, said in notes.items():
                if attempt in self._held:
                    self.newest.setdefault(attempt, said)
            first = bool(self.newest) and not self._scheduled
            self._scheduled = self._scheduled or first
        if first:
            self._schedule()


def _in_plain_words(note: ProgressNote) -> ProgressNote:
    words = plain_text(note.progress.note, NOTE_LENGTH_MAX)
    return msgspec.structs.replace(
        note, progress=msgspec.structs.replace(note.progress, note=words)
    )
