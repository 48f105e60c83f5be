# SPDX-License-Identifier: MIT
"""Waiting for wake-ups in one event loop, the same for every store that hears by some channel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

__all__ = ["ANYTHING", "LoopListener"]

#: Stands for any topic: something changed, look yourself.
ANYTHING: Final = "*"


class LoopListener:
    """What was heard since the last look; see `Listener`. Only its loop's thread may touch it."""

    def __init__(self) -> None:
        self._heard: set[str] = set()
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False

    async def wait(self, timeout_s: float | None) -> frozenset[str]:
        if not self._heard and not self._closed:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._wait_for(self._waiting, timeout_s)
        heard, self._heard = frozenset(self._heard), set()
        return heard

    def hear(self, topics: Iterable[str]) -> None:
        """Called by whoever keeps the channel."""
        self._heard.update(topics)
        self._end_wait()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._end_wait()
            self._leave()

    async def _wait_for(self, heard: asyncio.Future[None], timeout_s: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await heard

    def _leave(self) -> None:
        """Tell whoever keeps the channel that this one hears no more."""
        raise NotImplementedError

    def _end_wait(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
