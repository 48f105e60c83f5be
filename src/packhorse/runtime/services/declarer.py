# SPDX-License-Identifier: MIT
"""Write to the store what a release declares, again and again: schedules, subscribers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.core.generators import adrive
from packhorse.core.policies.records import Put, Record, RecordId
from packhorse.core.releases import SEEN_EVERY_US, Declaration, Declared, Release
from packhorse.errors import PackhorseError
from packhorse.runtime.services.service import ServiceContext, in_parts
from packhorse.stores.records import Changed, all_records, store_clock

#: Workers of a release renew its record; when it expires, others may replace its declarations.
_RELEASE_US: Final = 180 * SECOND_US
_RELEASE_EVERY_S: Final = 60.0


class Declarer:
    """Write declarations that are new, have changed, or were not renewed for long."""

    def __init__(
        self,
        context: ServiceContext,
        kind: str,
        declarations: Sequence[Declaration],
        release: str,
        *,
        failed: Callable[[str, Exception], None] | None = None,
        wrote: Callable[[Put], None] = lambda _: None,
    ) -> None:
        self._store = context.store
        self._monotonic = context.clock.monotonic
        self._kind = kind
        #: Called with the key of a declaration that cannot be written; without it that is an error.
        self._failed = failed
        self._wrote = wrote  #: called with each record that was written
        self._declarations = {each.id.key: each for each in declarations}
        self._release = RecordId("release", "", release[:400])
        self._renew_at = self._declare_at = float("-inf")

    async def declare(self) -> None:
        """Renew this release and what it declares, if that is due."""
        now = self._monotonic()
        if not self._declarations or now < self._renew_at:
            return
        release = await self._renew_release()
        if now >= self._declare_at:
            await self._declare(release)
            self._declare_at = now + SEEN_EVERY_US / SECOND_US
        self._renew_at = now + _RELEASE_EVERY_S

    async def records(self, keys: Collection[str] | None = None) -> tuple[dict[str, Record], int]:
        """Read the records of its kind by key, all or these, and the store's clock."""
        page = await adrive(all_records(self._store.records, self._kind), self._store.arun)
        by_key = {record.id.key: record for record in page.records}
        wanted = by_key if keys is None else {key: by_key[key] for key in keys if key in by_key}
        return wanted, page.now_us

    async def change(self, *changes: Put) -> Changed:
        """Write these records, or none of them."""
        return await self._store.arun(self._store.records.change(changes))

    async def _renew_release(self) -> Release:
        """Renew the record of this release; its first worker notes since when it lives."""
        while True:
            record = await self._store.arun(self._store.records.record(self._release))
            if record is None:
                since_us = await adrive(store_clock(self._store.records), self._store.arun)
                version = 0
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
                put = await self._put(declaration, stored.get(key), release, now_us)
                if put is None:
                    del left[key]
                else:
                    puts.append(put)
            for part in in_parts(puts, lambda put: len(put.document)):
                changed = await self.change(*part)
                # On a conflict another worker has declared it meanwhile: compare again.
                for put in part if changed.applied else ():
                    del left[put.id.key]
                    self._wrote(put)

    async def _put(
        self, declaration: Declaration, record: Record | None, release: Release, now_us: int
    ) -> Put | None:
        lives = record is None or await self._holder_lives(record, release)
        try:
            return declaration.put(record, release, now_us, holder_lives=lives)
        except (PackhorseError, msgspec.DecodeError) as error:
            if self._failed is None:
                raise
            self._failed(declaration.id.key, error)  # it must not keep others undeclared
            return None

    async def _holder_lives(self, record: Record, release: Release) -> bool:
        holder = msgspec.json.decode(record.document, type=Declared).release
        if holder == release:
            return True
        named = self._release._replace(key=holder.name)
        return await self._store.arun(self._store.records.record(named)) is not None
