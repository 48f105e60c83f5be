# SPDX-License-Identifier: MIT
"""Wake-ups: the scripts publish, one connection for each event loop subscribes.

Every waiter also looks from time to time, so a lost connection only makes wake-ups slower: another
is made in the background, and then all listeners look for themselves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from hiredis import PushNotification

from packhorse.errors import PackhorseError
from packhorse.stores.listener import ANYTHING, TopicListener
from packhorse.stores.redis.connection import RedisConnection, pack
from packhorse.stores.redis.faults import Lost, ReplyError
from packhorse.stores.redis.layout import KEYS
from packhorse.stores.redis.pipeline import Connecting, SocketStream

#: How long a new listener may hold up its event loop until Redis has subscribed it.
PATIENCE_S: Final = 0.25
#: How long to wait for an event loop of another thread.
_LOOP_PATIENCE_S: Final = 5.0
#: Between two tries to connect again, at first and at most.
_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0
#: How often a silent connection is pinged, and how long it may take to answer.
_PING_S: Final = 15.0
#: Kinds of topics with many names and few messages: all of a kind share one channel.
_SHARED: Final = ("job", "cancel")


def channel_of(tag: str, topic: str) -> str:
    """The channel of a topic; the scripts use the same."""
    kind = topic.partition(":")[0]
    return f"{tag}{KEYS['wake']}{kind if kind in _SHARED else topic}"


class Subscriber:
    """The subscribed connection of one event loop; it stays when its listeners leave."""

    def __init__(self, tag: str, connect: Callable[[float | None], RedisConnection]) -> None:
        self.loop = asyncio.get_running_loop()
        self._tag = tag
        self._connect = connect
        self._stream: SocketStream | None = None
        self._connecting: Connecting | None = None
        self._retry_s = _RETRY_S
        self._timer: asyncio.TimerHandle | None = None
        self._answered = True
        self._confirmed: set[str] = set()
        self._by_topic: dict[str, set[TopicListener]] = {}

    def listener(self, topics: frozenset[str]) -> TopicListener:
        """Subscribe to these topics, and wait a short time until the server has confirmed it."""
        listener = TopicListener(topics, self.leave)
        for topic in topics:
            self._by_topic.setdefault(topic, set()).add(listener)
        if self._stream is None and self._connecting is None and self._timer is None:
            self._connect_now()
        wanted = {channel_of(self._tag, topic) for topic in topics} - self._confirmed
        if self._stream is not None and wanted:
            self._subscribe(wanted)
            self._await_confirmation(wanted)
        return listener

    def leave(self, listener: TopicListener) -> None:
        for topic in listener.topics:
            others = self._by_topic[topic]
            others.discard(listener)
            if not others:
                del self._by_topic[topic]
                self._unsubscribe(topic)

    def close(self) -> None:
        """Close the connection; remaining listeners get another one."""
        stream, self._stream = self._stream, None
        self._confirmed = set()
        if stream is not None:
            stream.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.abandon()
        elif self._by_topic and self.loop.is_running():
            self._again()

    # -------------------------------------------------------------------------- the connection

    def _connect_now(self) -> None:
        """Connect and block the loop meanwhile, so that no message from now on is missed."""
        try:
            self._take_over(self._connect(PATIENCE_S))
        except (Lost, ReplyError, PackhorseError):
            self._again()

    def _again(self) -> None:
        """Connect in the background, later each time."""
        self._timer = self.loop.call_later(self._retry_s, self._connect_aside)
        self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)

    def _connect_aside(self) -> None:
        self._timer = None
        self._connecting = Connecting(lambda: self._connect(None))
        self._connecting.future.add_done_callback(self._connected_aside)

    def _connected_aside(self, made: asyncio.Future[RedisConnection]) -> None:
        self._connecting = None
        if made.cancelled() or made.exception() is not None:
            if self._by_topic:
                self._again()
            return
        self._take_over(made.result())
        self._subscribe({channel_of(self._tag, topic) for topic in self._by_topic})
        self._hear_all()

    def _take_over(self, connection: RedisConnection) -> None:
        self._stream = SocketStream(
            connection, self.loop, replied=self._replied, lost=self._was_lost
        )
        self._retry_s = _RETRY_S
        self._answered = True
        self._timer = self.loop.call_later(_PING_S, self._ping)

    def _was_lost(self, _trouble: str) -> None:
        self._stream = None
        self._confirmed = set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._by_topic:
            self._hear_all()  # messages may be lost
            self._again()

    def _ping(self) -> None:
        """Ping a silent connection, and give it up if it did not answer the last ping."""
        stream = self._stream
        if stream is None:
            return
        if not self._answered:
            stream.close()
            self._was_lost("no answer")
            return
        self._answered = False
        self._timer = self.loop.call_later(_PING_S, self._ping)
        stream.send(pack(("PING",)))

    # -------------------------------------------------------------------------------- messages

    def _subscribe(self, channels: Iterable[str]) -> None:
        if self._stream is not None and channels:
            self._stream.send(pack(("SUBSCRIBE", *channels)))

    def _unsubscribe(self, topic: str) -> None:
        channel = channel_of(self._tag, topic)
        if channel.endswith(topic) and self._stream is not None and not self.loop.is_closed():
            self._confirmed.discard(channel)
            self._stream.send(pack(("UNSUBSCRIBE", channel)))

    def _await_confirmation(self, channels: set[str]) -> None:
        """Wait until the server has subscribed us; other processes may already publish."""
        until = self.loop.time() + PATIENCE_S
        while not channels <= self._confirmed and self._stream is not None:
            rest_s = until - self.loop.time()
            if rest_s <= 0 or not self._stream.pump(rest_s):
                self._hear_all()  # it may come too late: look instead
                return

    def _replied(self, reply: Any) -> None:
        self._answered = True
        if not isinstance(reply, PushNotification):
            return  # a pong
        kind, channel = reply[0], reply[1].decode()
        if kind == b"message":
            topic = reply[2].decode("utf-8", "replace")
            for listener in tuple(self._by_topic.get(topic, ())):
                listener.hear((topic,))
        elif kind == b"subscribe":
            self._confirmed.add(channel)

    def _hear_all(self) -> None:
        for listeners in tuple(self._by_topic.values()):
            for listener in tuple(listeners):
                listener.hear((ANYTHING,))


class RedisWakeups:
    """Makes listeners; the scripts publish."""

    def __init__(self, tag: str, connect: Callable[[float | None], RedisConnection]) -> None:
        self._tag = tag
        self._connect = connect
        self._lock = threading.RLock()
        self._subscribers: dict[asyncio.AbstractEventLoop, Subscriber] = {}

    def listen(self, topics: frozenset[str]) -> TopicListener:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._subscribers:
                self._forget_closed()
                self._subscribers[loop] = Subscriber(self._tag, self._connect)
            subscriber = self._subscribers[loop]
        return subscriber.listener(topics)

    def close(self) -> None:
        """Close every connection; remaining listeners get another one."""
        with self._lock:
            subscribers = list(self._subscribers.values())
            self._forget_closed()
        for subscriber in subscribers:
            in_its_loop(subscriber.loop, subscriber.close)

    def after_fork_in_child(self) -> list[Subscriber]:
        """After a fork, in the child: the listeners are the parent's."""
        subscribers = list(self._subscribers.values())
        self._lock, self._subscribers = threading.RLock(), {}
        return subscribers

    def _forget_closed(self) -> None:
        """Close the connections of event loops that were closed before their listeners."""
        for loop in [loop for loop in self._subscribers if loop.is_closed()]:
            self._subscribers.pop(loop).close()


def in_its_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call in the thread of the loop; in this thread if the loop is ours or does not run."""
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
    done.wait(_LOOP_PATIENCE_S)
