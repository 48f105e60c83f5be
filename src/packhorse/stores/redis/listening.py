# SPDX-License-Identifier: MIT
"""Hearing wake-ups: one subscribed connection for all listeners of an event loop.

Wake-ups are an accelerator over the floor that every waiter keeps, so a connection that is lost
only makes them slower: another is made in the background, and then everybody is told to look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from hiredis import PushNotification

from packhorse.errors import PackhorseError
from packhorse.stores.hearing import ANYTHING, LoopListener
from packhorse.stores.redis.connection import Wire
from packhorse.stores.redis.faults import Lost, ReplyError
from packhorse.stores.redis.flow import Flow
from packhorse.stores.redis.loops import Connecting
from packhorse.stores.redis.packing import pack

__all__ = ["Ear", "RedisListener", "channel_of"]

#: How long a new listener may hold up its event loop until Redis has confirmed that it hears.
PATIENCE_S: Final = 0.25
#: Between two tries to connect again, at first and at most.
_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 5.0
#: How often a silent connection is asked whether it still is one; as long it may take to answer.
_PING_S: Final = 15.0
#: Kinds of topics with many names and few messages: all of a kind share one channel.
_SHARED: Final = ("job", "cancel")


def channel_of(tag: str, topic: str) -> str:
    """Where a topic is told; the scripts agree."""
    kind = topic.partition(":")[0]
    return f"{tag}:wake:{kind if kind in _SHARED else topic}"


class RedisListener(LoopListener):
    """One of those that share an ear."""

    def __init__(self, ear: Ear, topics: frozenset[str]) -> None:
        super().__init__()
        self.topics = topics
        self._ear = ear

    def _leave(self) -> None:
        self._ear.leave(self)


class Ear:
    """What the listeners of one event loop share. It stays when they go: others will come."""

    def __init__(self, tag: str, connect: Callable[[float | None], Wire]) -> None:
        self.loop = asyncio.get_running_loop()
        self._tag = tag
        self._connect = connect
        self._flow: Flow | None = None
        self._connecting: Connecting | None = None
        self._retry_s = _RETRY_S
        self._timer: asyncio.TimerHandle | None = None
        self._answered = True
        self._confirmed: set[str] = set()
        self._by_topic: dict[str, set[RedisListener]] = {}

    def listener(self, topics: frozenset[str]) -> RedisListener:
        """Hear these topics too; confirmed by the server, unless that takes too long."""
        listener = RedisListener(self, topics)
        for topic in topics:
            self._by_topic.setdefault(topic, set()).add(listener)
        if self._flow is None and self._connecting is None and self._timer is None:
            self._connect_now()
        wanted = {channel_of(self._tag, topic) for topic in topics} - self._confirmed
        if self._flow is not None and wanted:
            self._subscribe(wanted)
            self._await_confirmation(wanted)
        return listener

    def leave(self, listener: RedisListener) -> None:
        for topic in listener.topics:
            others = self._by_topic[topic]
            others.discard(listener)
            if not others:
                del self._by_topic[topic]
                self._unsubscribe(topic)

    def close(self) -> None:
        """Let go of the connection; whoever still listens has another made for it."""
        flow, self._flow = self._flow, None
        self._confirmed = set()
        if flow is not None:
            flow.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.abandon()
        elif self._by_topic and self.loop.is_running():
            self._again()

    # -------------------------------------------------------------------------- the connection

    def _connect_now(self) -> None:
        """While the loop stands still, so that nothing told from now on is missed."""
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

    def _connected_aside(self, made: asyncio.Future[Wire]) -> None:
        self._connecting = None
        if made.cancelled() or made.exception() is not None:
            if self._by_topic:
                self._again()
            return
        self._take_over(made.result())
        self._subscribe({channel_of(self._tag, topic) for topic in self._by_topic})
        self._hear_all()

    def _take_over(self, wire: Wire) -> None:
        self._flow = Flow(wire, self.loop, replied=self._replied, lost=self._was_lost)
        self._retry_s = _RETRY_S
        self._answered = True
        self._timer = self.loop.call_later(_PING_S, self._ping)

    def _was_lost(self, _trouble: str) -> None:
        self._flow = None
        self._confirmed = set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._by_topic:
            self._hear_all()  # what was told meanwhile is gone
            self._again()

    def _ping(self) -> None:
        """A connection may die without a word; one that does not answer a ping has."""
        flow = self._flow
        if flow is None:
            return
        if not self._answered:
            flow.close()
            self._was_lost("no answer")
            return
        self._answered = False
        self._timer = self.loop.call_later(_PING_S, self._ping)
        flow.send(pack(("PING",)))

    # ----------------------------------------------------------------------- what is said on it

    def _subscribe(self, channels: Iterable[str]) -> None:
        if self._flow is not None and channels:
            self._flow.send(pack(("SUBSCRIBE", *channels)))

    def _unsubscribe(self, topic: str) -> None:
        channel = channel_of(self._tag, topic)
        if channel.endswith(topic) and self._flow is not None and not self.loop.is_closed():
            self._confirmed.discard(channel)
            self._flow.send(pack(("UNSUBSCRIBE", channel)))

    def _await_confirmation(self, channels: set[str]) -> None:
        """Until the server hears for us; in another process somebody may already tell."""
        until = self.loop.time() + PATIENCE_S
        while not channels <= self._confirmed and self._flow is not None:
            rest_s = until - self.loop.time()
            if rest_s <= 0 or not self._flow.pump(rest_s):
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
