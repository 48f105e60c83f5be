# SPDX-License-Identifier: MIT
"""Wake-ups between processes that share a database, by NOTIFY.

All topics of a store travel on one channel, shortened to a few letters. A process notifies a topic
at most once in a window: what comes earlier is sent with the first commit after the window, or by a
thread if none comes, so that no last change is lost. Wake-ups only speed things up: every waiter
also looks by the clock.

One thread with one connection listens for a whole process. A channel that looks open may carry
nothing: a pooler in transaction mode takes LISTEN and forgets it. So the thread notifies itself the
way every wake-up goes, and until it hears that, it wakes its listeners by the clock.
"""

from __future__ import annotations

import hashlib
import select
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

from psycopg import Connection, Error

from packhorse.core.clock import SystemChance, SystemClock, new_id
from packhorse.stores.listener import ANYTHING, TopicListener

#: A process notifies a topic at most once in this time.
WINDOW_S: Final = 0.01
#: Topics whose last notification is remembered.
_REMEMBERED_MAX: Final = 4096
#: A payload may have 8,000 bytes, a short topic has 16 and a space.
_TOPICS_MAX: Final = 400

Notify = Callable[[Sequence[str]], None]


@lru_cache(maxsize=_REMEMBERED_MAX)
def short(topic: str) -> str:
    """A few letters for a topic; two topics with the same letters wake each other, no more."""
    return hashlib.blake2b(topic.encode(), digest_size=8).hexdigest()


def channel_of(schema: str, prefix: str) -> str:
    """The channel of a store."""
    return f"packhorse_{schema}_{prefix}"[:63]


class Due(NamedTuple):
    """What becomes of the topics of a commit."""

    payloads: Sequence[str]  #: to send with it
    waiting: Sequence[str]  #: topics for `Notices.later`, once it is answered


class Notices:
    """Decides which topics are notified now, and sends the others a little later."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._time = SystemClock()
        self._lock = threading.Lock()
        self._sent: dict[str, float] = {}
        self._waiting: dict[str, float] = {}  # until when, if no commit takes them along
        self._serving = False  # a thread waits for their time
        self._sending = threading.Lock()
        # What still waits when the interpreter ends is sent before that. It keeps the store alive.
        self._ending = weakref.finalize(self, _send_rest, self._lock, self._waiting, notify)

    def due(self, topics: Sequence[str]) -> Due:
        """Which to send right after the commit they are about, and which `later`."""
        now = self._time.monotonic()
        names: list[str] = []
        waiting: list[str] = []
        with self._lock:
            if len(self._sent) > _REMEMBERED_MAX:
                self._sent = {name: at for name, at in self._sent.items() if now - at < WINDOW_S}
            for topic in topics:
                name = short(topic)
                if now - self._sent.get(name, -WINDOW_S) < WINDOW_S:
                    waiting.append(topic)
                    continue
                self._sent[name] = now
                names.append(name)
                if name in self._waiting:  # told once more, for what is not committed yet
                    self._waiting[name] = now + 2 * WINDOW_S
        return Due(_payloads(names), waiting)

    def later(self, topics: Sequence[str]) -> None:
        """Send these a little later, from a thread of our own: what they are about is committed."""
        until = self._time.monotonic() + WINDOW_S
        with self._lock:
            for name in map(short, topics):
                self._waiting[name] = min(self._waiting.get(name, until), until)
            if not self._serving:
                self._serving = self._start()

    def flush(self) -> None:
        """Send now what still waits; what the thread is sending has been sent then, too."""
        with self._sending:
            _send_rest(self._lock, self._waiting, self._notify)

    def close(self) -> None:
        """Send now what still waits, and let go of the store."""
        self.flush()
        self._ending.detach()

    def _start(self) -> bool:
        thread = threading.Thread(target=self._serve, name="packhorse-notices", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is going down; the finalizer sends the rest
            return False
        return True

    def _serve(self) -> None:
        """Send what no commit took along, until nothing waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._serving = False
                    return
                now = self._time.monotonic()
                left_s = min(self._waiting.values()) - now
                if left_s <= 0:
                    self._sent.update(dict.fromkeys(self._waiting, now))
            if left_s <= 0:
                self.flush()
            else:  # no longer than a window: what comes meanwhile may have less time
                threading.Event().wait(min(left_s, WINDOW_S))


def _send_rest(lock: threading.Lock, waiting: dict[str, float], notify: Notify) -> None:
    with lock:
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

    def after_fork_in_child(self) -> object:
        """After a fork, in the child: thread and connection are the parent's."""
        thread, self._thread, self._lock = self._thread, None, threading.Lock()
        return thread

    def _drop(self, thread: ListenerThread) -> None:
        """Stop a thread whose last listener has gone."""
        with self._lock:
            if self._thread is thread and thread.is_deserted:
                self._thread = None
                thread.stop(wait=False)


#: How often listeners are woken by the clock while the channel carries nothing.
POLL_S: Final = 0.25
#: How long the channel's own test may take, and how often it is made.
_TEST_S: Final = 2.0
_TEST_EVERY_S: Final = 60.0
#: Between two tries to connect: from, to.
_RETRY_S: Final = (0.1, 5.0)
#: What the payload of a test begins with; no short topic does.
_TEST: Final = "?"
_STOP_S: Final = 5.0
#: How long a new listener waits for the connection; if that takes longer, the listener is woken,
#: since something may have changed meanwhile.
_READY_S: Final = 0.5
#: How long the connection is kept after the last listener has gone: another may come.
_KEEP_S: Final = 10.0


class ListenerThread:
    """Receives notifications, and wakes the listeners they are for."""

    def __init__(
        self,
        connect: Callable[[], Connection[Any]],
        channel: str,
        notify: Callable[[list[str]], None],
        received: Callable[[frozenset[str]], None],
        deserted: Callable[[ListenerThread], None],
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._notify = notify  #: sends payloads the way every wake-up goes
        self._received = received  #: the store itself listens, too
        self._deserted = deserted
        self._time = SystemClock()
        self._chance = SystemChance()
        self._lock = threading.Lock()
        #: Their topics by short name.
        self._listeners: dict[TopicListener, dict[str, str]] = {}
        self._deserted_at = 0.0
        self._interrupt = socket.socketpair()  #: ends a wait for the server
        self._ready = threading.Event()
        self._stopped = False
        self._pause_s = 0.0  #: how long to do without a connection, if that is asked for
        self._test_payload = ""  #: the payload that was sent as a test and not received yet
        self.works = False  #: the last test was received
        self.trouble = ""
        self._thread = threading.Thread(target=self._serve, name="packhorse-listener", daemon=True)
        self._thread.start()

    @property
    def is_deserted(self) -> bool:
        return not self._listeners

    @property
    def state(self) -> str:
        if self.works:
            return "by NOTIFY"
        why = f" ({self.trouble})" if self.trouble else ""
        return f"by looking every {POLL_S:g} s: NOTIFY was not heard{why}"

    def add(self, listener: TopicListener, topics: dict[str, str]) -> None:
        """Wake this one too, from now on; `topics` by their short names."""
        connected = self._ready.wait(_READY_S)
        with self._lock:
            for closed in [one for one in self._listeners if one.loop.is_closed()]:
                del self._listeners[closed]
            self._listeners[listener] = topics
        if not connected:
            listener.hear_soon((ANYTHING,))

    def remove(self, listener: TopicListener) -> None:
        with self._lock:
            self._listeners.pop(listener, None)
            self._deserted_at = self._time.monotonic()

    def stop(self, *, wait: bool = True) -> None:
        """End the thread and its connection."""
        if not self._stopped:
            self._stopped = True
            with suppress(OSError):  # the thread has seen it already
                self._interrupt[1].send(b"!")
        if wait and threading.current_thread() is not self._thread:
            self._thread.join(_STOP_S)

    def pause(self, span_s: float) -> None:
        """Close the connection for a while: others need it more."""
        self._pause_s = span_s
        with suppress(OSError):  # the thread has ended
            self._interrupt[1].send(b"!")

    # ------------------------------------------------------------------------- in its own thread

    def _serve(self) -> None:
        pause_s = _RETRY_S[0]
        try:
            while not self._stopped:
                try:
                    self._listen()
                    pause_s = _RETRY_S[0]
                except Exception as error:  # noqa: BLE001 - listening is tried again, whatever it was
                    self.trouble = " ".join(str(error).split())
                self.works = False
                asked_s, self._pause_s = self._pause_s, 0.0
                self._pause(asked_s or pause_s * (0.5 + self._chance.roll()))
                pause_s = min(pause_s * 2, _RETRY_S[1])
        finally:
            for end in self._interrupt:
                end.close()

    def _pause(self, span_s: float) -> None:
        """Wait before the next try to connect; wake listeners by the clock meanwhile."""
        until = self._time.monotonic() + span_s
        while not self._stopped and (left_s := until - self._time.monotonic()) > 0:
            self._wait(None, min(left_s, POLL_S))
            self._wake_all()

    def _listen(self) -> None:
        connection = self._connect()
        try:
            connection.execute(f'listen "{self._channel}"'.encode())
            self._ready.set()
            self._wake_all()  # notifications sent before were not received
            self._receive(connection)
        finally:
            self._ready.clear()
            with suppress(Error):
                connection.close()

    def _receive(self, connection: Connection[Any]) -> None:
        tested_at = self._test()
        while not self._stopped and not self._pause_s:
            now = self._time.monotonic()
            quiet = self.works or now - tested_at < _TEST_S
            self._wait(connection, _TEST_S if quiet else POLL_S)
            self._wake(self._received_names(connection))
            if self._test_payload and self._time.monotonic() - tested_at >= _TEST_S:
                self.works = False
                self._wake_all()
            if self._time.monotonic() - tested_at >= _TEST_EVERY_S:
                tested_at = self._test()
            if self.is_deserted and self._time.monotonic() - self._deserted_at > _KEEP_S:
                self._deserted(self)

    def _test(self) -> float:
        self._test_payload = f"{_TEST}{new_id()}"
        self._notify([self._test_payload])
        return self._time.monotonic()

    def _received_names(self, connection: Connection[Any]) -> frozenset[str]:
        pgconn = connection.pgconn
        pgconn.consume_input()
        names: set[str] = set()
        while (notice := pgconn.notifies()) is not None:
            names.update(notice.extra.decode().split())
        if self._test_payload in names:
            self._test_payload, self.works, self.trouble = "", True, ""
        return frozenset(names)

    def _wait(self, connection: Connection[Any] | None, span_s: float) -> None:
        """Wait for the server, an interrupt, or the end of the span."""
        poll = select.poll()
        poll.register(self._interrupt[0], select.POLLIN)
        if connection is not None:
            poll.register(connection.pgconn.socket, select.POLLIN)
        if any(ready == self._interrupt[0].fileno() for ready, _ in poll.poll(span_s * 1000)):
            self._interrupt[0].recv(64)

    def _wake(self, names: frozenset[str]) -> None:
        """Wake the listeners of short topics, or all."""
        if not names:
            return
        self._received(names)
        with self._lock:
            listeners = tuple(self._listeners.items())
        for listener, topics in listeners:
            heard = {topics[name] for name in names & topics.keys()}
            if ANYTHING in names:
                heard = {ANYTHING}
            if heard:
                listener.hear_soon(heard)

    def _wake_all(self) -> None:
        self._wake(frozenset({ANYTHING}))
