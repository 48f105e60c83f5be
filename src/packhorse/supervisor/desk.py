# SPDX-License-Identifier: MIT
"""The supervisor's own way to the store: one thread, connected when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from packhorse.stores import open_store
from packhorse.stores.protocol import Store

__all__ = ["StoreDesk"]

T = TypeVar("T")


class StoreDesk:
    """Asks the store in a thread of its own, so that probes and signals never wait for it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._store: Store | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="packhorse-supervisor-store")

    def prepare(self) -> None:
        """Import what is needed, in the thread: when a lease is to be kept there is no time."""
        self._thread.submit(self._answer, lambda _store: None)

    async def ask(self, question: Callable[[Store], T]) -> T:
        """The answer to a question; raises what the store raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._answer, question)

    def close(self) -> None:
        """Close the store once nobody asks any more; does not wait for a call that hangs."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=False)

    def _answer(self, question: Callable[[Store], T]) -> T:
        if self._store is None:
            self._store = open_store(self._url)
        return question(self._store)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
