# SPDX-License-Identifier: MIT
"""Wake-ups through Redis: the scripts publish, every event loop that listens subscribes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from packhorse.stores.redis.connection import Wire
from packhorse.stores.redis.listening import Ear, RedisListener

__all__ = ["RedisWakeups", "in_its_loop"]

#: How long an event loop of another thread is waited for.
_PATIENCE_S: Final = 5.0


class RedisWakeups:
    """Makes listeners; telling is the scripts' business."""

    def __init__(self, tag: str, connect: Callable[[float | None], Wire]) -> None:
        self._tag = tag
        self._connect = connect
        self._lock = threading.RLock()
        self._ears: dict[asyncio.AbstractEventLoop, Ear] = {}

    def listen(self, topics: frozenset[str]) -> RedisListener:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._ears:
                self._forget_closed()
                self._ears[loop] = Ear(self._tag, self._connect)
            ear = self._ears[loop]
        return ear.listener(topics)

    def close(self) -> None:
        """Let go of every connection; who still listens goes on hearing."""
        with self._lock:
            ears = list(self._ears.values())
            self._forget_closed()
        for ear in ears:
            in_its_loop(ear.loop, ear.close)

    def forget(self) -> list[Ear]:
        """After a fork, in the child: those who listen are the parent's."""
        ears = list(self._ears.values())
        self._lock, self._ears = threading.RLock(), {}
        return ears

    def _forget_closed(self) -> None:
        """Clear up behind event loops that were closed before their listeners."""
        for loop in [loop for loop in self._ears if loop.is_closed()]:
            self._ears.pop(loop).close()


def in_its_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call in the thread of a loop that runs elsewhere; here, if it is ours or stands still."""
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here or not loop.is_running():
        call()
        return
    done = threading.Event()

    def called() -> None:
        call()
        done.set()

    try:
        loop.call_soon_threadsafe(called)
    except RuntimeError:  # it was closed meanwhile
        call()
        return
    done.wait(_PATIENCE_S)
