# SPDX-License-Identifier: MIT
"""Wake-ups between processes that share a database, by NOTIFY.

All topics of a store travel on one channel, shortened to a few letters. A process notifies a topic
at most once in a window: what comes earlier is sent when the window ends, so that no last change
is lost. Wake-ups only speed things up: every waiter also looks by the clock.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from packhorse.core.clock import SystemClock
from packhorse.stores.listener import TopicListener
from packhorse.stores.postgres.listener import ListenerThread

#: A process notifies a topic at most once in this time.
WINDOW_S: Final = 0.01
#: Topics whose last notification is remembered.
_REMEMBERED_MAX: Final = 4096
#: A payload may have 8,000 bytes, a short topic has 16 and a space.
_TOPICS_MAX: Final = 400
#: The thread that sends what had to wait ends after being idle for so long.
_IDLE_S: Final = 5.0

Notify = Callable[[Sequence[str]], None]


@lru_cache(maxsize=_REMEMBERED_MAX)
def short(topic: str) -> str:
    """A few letters for a topic; two topics with the same letters wake each other, no more."""
    return hashlib.blake2b(topic.encode(), digest_size=8).hexdigest()


def channel_of(schema: str, prefix: str) -> str:
    """The channel of a store."""
    return f"packhorse_{schema}_{prefix}"[:63]


class Notices:
    """Decides which topics are notified now, and sends the others a little later."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._time = SystemClock()
        self._changed = threading.Condition(threading.Lock())
        self._sent: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._thread: threading.Thread | None = None
        self._sending = threading.Lock()
        # What still waits when the interpreter ends is sent before that. It keeps the store alive.
        self._ending = weakref.finalize(self, _send_rest, self._changed, self._waiting, notify)

    def due(self, topics: Sequence[str]) -> list[str]:
        """The payloads to send now, right after the commit they are about."""
        now = self._time.monotonic()
        names = []
        with self._changed:
            idle = not self._waiting
            if len(self._sent) > _REMEMBERED_MAX:
                self._sent = {name: at for name, at in self._sent.items() if now - at < WINDOW_S}
            for name in map(short, topics):
                if now - self._sent.get(name, -WINDOW_S) >= WINDOW_S:
                    self._sent[name] = now
                    names.append(name)
                else:
                    self._waiting.add(name)
            if self._waiting and idle:  # else the thread knows already that there is something
                self._start()
        return _payloads(names)

    def later(self, topics: Sequence[str]) -> None:
        """Send these a little later, from a thread of our own."""
        with self._changed:
            idle = not self._waiting
            self._waiting.update(map(short, topics))
            if idle:
                self._start()

    def flush(self) -> None:
        """Send now what still waits; what the thread is sending has been sent then, too."""
        with self._sending:
            _send_rest(self._changed, self._waiting, self._notify)

    def close(self) -> None:
        """Send now what still waits, and let go of the store."""
        self.flush()
        self._ending.detach()

    def _start(self) -> None:
        if self._thread is None:
            # Without a reference to us: what waits is sent, but keeps no store alive.
            thread = threading.Thread(
                target=_serve, args=(weakref.ref(self),), name="packhorse-notices", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the interpreter is going down; the finalizer sends the rest
                return
            self._thread = thread
        else:
            self._changed.notify()

    def _served(self) -> bool:
        """Wait for something to send, and send it; False when the thread may end."""
        with self._changed:
            if not self._waiting and not self._changed.wait(_IDLE_S) and not self._waiting:
                self._thread = None
                return False
            # Until the window of all that wait has passed.
            self._changed.wait_for(_never, WINDOW_S)
            now = self._time.monotonic()
            self._sent.update(dict.fromkeys(self._waiting, now))
        self.flush()
        return True


def _never() -> bool:
    return False


def _serve(known: weakref.ref[Notices]) -> None:
    while (notices := known()) is not None and notices._served():  # noqa: SLF001 - its own thread
        del notices


def _send_rest(changed: threading.Condition, waiting: set[str], notify: Notify) -> None:
    with changed:
        names = sorted(waiting)
        waiting.clear()
    if names:
        notify(_payloads(names))


def _payloads(names: Sequence[str]) -> list[str]:
    """Short topics in few payloads."""
    return [
        " ".join(names[start : start + _TOPICS_MAX]) for start in range(0, len(names), _TOPICS_MAX)
    ]


class PostgresWakeups:
    """Makes the listeners of one store; all of a process share one connection."""

    def __init__(self, make: Callable[[Callable[[ListenerThread], None]], ListenerThread]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._thread: ListenerThread | None = None

    def listen(self, topics: frozenset[str]) -> TopicListener:
        with self._lock:
            if self._thread is None:
                self._thread = self._make(self._drop)
            listener = TopicListener(topics, self._thread.remove)
            self._thread.add(listener, {short(one): one for one in topics})
        return listener

    @property
    def state(self) -> str:
        """How listeners are woken, for people."""
        thread = self._thread
        return "no listener here" if thread is None else thread.state

    def pause(self, span_s: float) -> None:
        """Close the connection for a while; listeners are woken by the clock meanwhile."""
        thread = self._thread
        if thread is not None:
            thread.pause(span_s)

    def close(self) -> None:
        """Close the connection; listeners go on, by looking for themselves."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def forget(self) -> object:
        """After a fork, in the child: thread and connection are the parent's."""
        thread, self._thread, self._lock = self._thread, None, threading.Lock()
        return thread

    def _drop(self, thread: ListenerThread) -> None:
        """Stop a thread whose last listener has gone."""
        with self._lock:
            if self._thread is thread and thread.is_deserted:
                self._thread = None
                thread.stop(wait=False)
