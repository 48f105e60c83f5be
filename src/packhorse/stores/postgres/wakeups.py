# SPDX-License-Identifier: MIT
"""Wake-ups between processes that share a database, by NOTIFY.

All topics of a store travel on one channel, shortened to a few letters. A topic is told at once
when it has not been for a while; else it waits for the end of that while, and is told then, so
that the last change is never kept from those who wait. It is an accelerator: whoever waits keeps
a floor of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from packhorse.clock import SystemClock
from packhorse.stores.postgres.listening import Hearing, PostgresListener

__all__ = ["Notices", "PostgresWakeups", "channel_of", "short"]

#: A topic is told at most once in this time by one process.
WINDOW_S: Final = 0.01
#: Topics whose last telling is remembered.
_REMEMBERED_MAX: Final = 4096
#: A payload may have 8,000 bytes, a short topic has 16 and a space.
_TOPICS_MAX: Final = 400
#: The thread that tells what had to wait ends when it was idle for so long.
_IDLE_S: Final = 5.0

Tell = Callable[[Sequence[str]], None]


@lru_cache(maxsize=_REMEMBERED_MAX)
def short(topic: str) -> str:
    """A few letters for a topic; two topics with the same letters wake each other, no more."""
    return hashlib.blake2b(topic.encode(), digest_size=8).hexdigest()


def channel_of(schema: str, prefix: str) -> str:
    """The channel of a store."""
    return f"packhorse_{schema}_{prefix}"[:63]


class Notices:
    """Which topics are told now, and which a little later."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._time = SystemClock()
        self._changed = threading.Condition(threading.Lock())
        self._told: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._thread: threading.Thread | None = None
        # What still waits when the interpreter ends is told before that.
        weakref.finalize(self, _tell_rest, self._changed, self._waiting, tell)

    def due(self, topics: Sequence[str]) -> list[str]:
        """The payloads to send now, right after the commit they tell of."""
        now = self._time.monotonic()
        names = []
        with self._changed:
            idle = not self._waiting
            if len(self._told) > _REMEMBERED_MAX:
                self._told = {name: at for name, at in self._told.items() if now - at < WINDOW_S}
            for name in map(short, topics):
                if now - self._told.get(name, -WINDOW_S) >= WINDOW_S:
                    self._told[name] = now
                    names.append(name)
                else:
                    self._waiting.add(name)
            if self._waiting and idle:  # else the thread knows already that there is something
                self._start()
        return _payloads(names)

    def flush(self) -> None:
        """Tell now what still waits."""
        _tell_rest(self._changed, self._waiting, self._tell)

    def _start(self) -> None:
        if self._thread is None:
            # Without a reference to us: what waits is told, but keeps nobody alive.
            thread = threading.Thread(
                target=_serve, args=(weakref.ref(self),), name="packhorse-notices", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the interpreter is going down; the finalizer tells the rest
                return
            self._thread = thread
        else:
            self._changed.notify()

    def _served(self) -> bool:
        """Wait for something to tell, and tell it; False when the thread may end."""
        with self._changed:
            if not self._waiting and not self._changed.wait(_IDLE_S) and not self._waiting:
                self._thread = None
                return False
            # Until the window of all that wait has passed, whoever else comes meanwhile.
            self._changed.wait_for(_never, WINDOW_S)
            now = self._time.monotonic()
            self._told.update(dict.fromkeys(self._waiting, now))
        self.flush()
        return True


def _never() -> bool:
    return False


def _serve(known: weakref.ref[Notices]) -> None:
    while (notices := known()) is not None and notices._served():  # noqa: SLF001 - its own thread
        del notices


def _tell_rest(changed: threading.Condition, waiting: set[str], tell: Tell) -> None:
    with changed:
        names = sorted(waiting)
        waiting.clear()
    if names:
        tell(_payloads(names))


def _payloads(names: Sequence[str]) -> list[str]:
    """Short topics as few payloads."""
    return [
        " ".join(names[start : start + _TOPICS_MAX]) for start in range(0, len(names), _TOPICS_MAX)
    ]


class PostgresWakeups:
    """Makes the listeners of one store; all of a process share one connection."""

    def __init__(self, make: Callable[[Callable[[Hearing], None]], Hearing]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._hearing: Hearing | None = None

    def listen(self, topics: frozenset[str]) -> PostgresListener:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._hearing is None:
                self._hearing = self._make(self._drop)
            listener = PostgresListener(loop, self._hearing, {short(one): one for one in topics})
            self._hearing.join(listener)
        return listener

    @property
    def state(self) -> str:
        """How those who listen hear, for people."""
        hearing = self._hearing
        return "nobody listens here" if hearing is None else hearing.state

    def close(self) -> None:
        """Let go of the connection; who still listens goes on, by looking for itself."""
        with self._lock:
            hearing, self._hearing = self._hearing, None
        if hearing is not None:
            hearing.stop()

    def forget(self) -> object:
        """After a fork, in the child: thread and connection are the parent's."""
        hearing, self._hearing, self._lock = self._hearing, None, threading.Lock()
        return hearing

    def _drop(self, hearing: Hearing) -> None:
        """The last listener has gone."""
        with self._lock:
            if self._hearing is hearing and hearing.is_deserted:
                self._hearing = None
                hearing.stop(wait=False)
