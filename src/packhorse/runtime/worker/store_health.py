# SPDX-License-Identifier: MIT
"""Store calls that fail: how long to wait before the next try, and one event per outage."""

from __future__ import annotations

import asyncio
from typing import Final

from packhorse.core.clock import Chance, Clock
from packhorse.events import EventBus, StoreRecovered, StoreTrouble
from packhorse.runtime.worker.shutdown import Shutdown

_FIRST_S: Final = 0.1
_LONGEST_S: Final = 5.0


class Backoff:
    """Waits that double from 0.1 s to 5 s, spread by chance so that a fleet returns one by one."""

    def __init__(self, chance: Chance, *, longest_s: float = _LONGEST_S) -> None:
        self._chance = chance
        self._longest_s = longest_s
        self._next_s = _FIRST_S

    def next_s(self) -> float:
        """How long to wait after one more failure."""
        span = min(self._next_s, self._longest_s)
        self._next_s = min(self._next_s * 2, self._longest_s)
        return span * (0.5 + 0.5 * self._chance.roll())

    def reset(self) -> None:
        """Begin with the shortest wait again."""
        self._next_s = _FIRST_S


class StoreHealth:
    """Emits one event when store calls begin to fail, and one when all of them work again."""

    def __init__(self, bus: EventBus, clock: Clock, worker: str) -> None:
        self._bus = bus
        self._clock = clock
        self._worker = worker
        #: The kinds of calls that fail now; replaced as a whole, so that any thread may read it.
        self.failing: frozenset[str] = frozenset()
        self._since = 0.0
        self._back = asyncio.Event()  # a call that failed works again

    def failed(self, operation: str, error: BaseException) -> None:
        """Note a failed call, which will be tried again."""
        first = not self.failing
        self.failing |= {operation}
        if first:
            self._since = self._clock.monotonic()
            self._bus.emit(
                StoreTrouble(
                    worker=self._worker,
                    operation=operation,
                    error_type=type(error).__name__,
                    error_message=str(error),
                )
            )

    def worked(self, operation: str) -> None:
        """Note a call that worked; needless while none fails."""
        if operation not in self.failing:
            return
        self.failing -= {operation}
        self._back.set()
        if not self.failing:
            seconds = self._clock.monotonic() - self._since
            self._bus.emit(StoreRecovered(worker=self._worker, seconds=seconds))

    async def pause(self, shutdown: Shutdown, seconds: float) -> None:
        """Wait after a call that failed, until another that failed works again or a stop begins."""
        self._back.clear()
        waits = [
            asyncio.create_task(self._back.wait()),
            asyncio.create_task(shutdown.sleep(seconds)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
