# SPDX-License-Identifier: MIT
"""Tells the store what a release declares, again and again: schedules, subscribers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from packhorse.core.clock import SECOND_US, Clock
from packhorse.core.policies.records import Put, Record, RecordId
from packhorse.core.releases import SEEN_EVERY_US, Declaration, Declared, Release
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RecordPage

#: Workers of a release say that it lives; without that, declarations of others hold.
_RELEASE_US: Final = 180 * SECOND_US
_RELEASE_EVERY_S: Final = 60.0
_PAGE: Final = 100
#: Records written in one change: few, since one conflict makes it run again.
_TOGETHER: Final = 50


class Declarer:
    """Writes down what is new, is declared otherwise, or was not seen for long."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        kind: str,
        declarations: Sequence[Declaration],
        release: str,
    ) -> None:
        self._store = store
        self._monotonic = clock.monotonic
        self._kind = kind
        self._declarations = {each.id.key: each for each in declarations}
        self._release = RecordId("release", "", release[:400])
        self._renew_at = self._declare_at = float("-inf")

    async def declare(self) -> None:
        """Say that this release lives and what it declares, if that is due."""
        now = self._monotonic()
        if not self._declarations or now < self._renew_at:
            return
        release = await self._renew_release()
        if now >= self._declare_at:
            await self._declare(release)
            self._declare_at = now + SEEN_EVERY_US / SECOND_US
        self._renew_at = now + _RELEASE_EVERY_S

    async def records(self, keys: Collection[str] | None = None) -> tuple[dict[str, Record], int]:
        """The records of its kind by key, all or these, and the store's clock."""
        found: dict[str, Record] = {}
        after: str | None = None
        while True:
            page = await self._page(after)
            found.update(
                {each.id.key: each for each in page.records if keys is None or each.id.key in keys}
            )
            after = page.after
            if after is None:
                return found, page.now_us

    async def change(self, *changes: Put) -> Changed:
        """Write these records, or none of them."""
        return await self._store.arun(self._store.records.change(changes))

    async def _page(self, after: str | None = None) -> RecordPage:
        plan = self._store.records.records(self._kind, after=after, limit=_PAGE)
        return await self._store.arun(plan)

    async def _renew_release(self) -> Release:
        """Say that this release lives; the first to say so says since when."""
        while True:
            record = await self._store.arun(self._store.records.record(self._release))
            if record is None:
                since_us, version = (await self._page()).now_us, 0
            else:
                known = msgspec.json.decode(record.document, type=Release)
                since_us, version = known.since_us, record.version
            release = Release(self._release.key, since_us)
            document = msgspec.json.encode(release)
            put = Put(self._release, document, version, keep_us=_RELEASE_US)
            if (await self.change(put)).applied:
                return release

    async def _declare(self, release: Release) -> None:
        left = dict(self._declarations)
        while left:
            stored, now_us = await self.records(left)
            puts = []
            for key, declaration in list(left.items()):
                record = stored.get(key)
                lives = record is None or await self._holder_lives(record, release)
                put = declaration.put(record, release, now_us, holder_lives=lives)
                if put is None:
                    del left[key]
                else:
                    puts.append(put)
            for begin in range(0, len(puts), _TOGETHER):
                part = puts[begin : begin + _TOGETHER]
                changed = await self.change(*part)
                # What conflicts was declared by another worker meanwhile: compare again.
                for put in part if changed.applied else ():
                    del left[put.id.key]

    async def _holder_lives(self, record: Record, release: Release) -> bool:
        holder = msgspec.json.decode(record.document, type=Declared).release
        if holder == release:
            return True
        named = self._release._replace(key=holder.name)
        return await self._store.arun(self._store.records.record(named)) is not None
