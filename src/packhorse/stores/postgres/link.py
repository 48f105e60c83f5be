# SPDX-License-Identifier: MIT
"""Connections: opened the way Packhorse wants them, and driven by a thread or an event loop."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any, Final, TypeVar

from psycopg import AsyncConnection, Connection, Error, OperationalError
from psycopg.adapt import Loader
from psycopg.pq import ConnStatus, Format, TransactionStatus
from psycopg.waiting import Ready, Wait

from packhorse.clock import SystemClock
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.wire import Conversation, Line

__all__ = ["AsyncLink", "SyncLink", "Timeouts", "connection_arguments", "new_connection"]

T = TypeVar("T")

#: What an old PgBouncer says of parameters it does not know.
_REFUSED: Final = "unsupported startup parameter"
#: How much longer than the server we wait for its answer.
PATIENCE_S: Final = 2.0


class _JsonbLoader(Loader):
    """The text of a jsonb value; whoever wants it decoded does that."""

    format = Format.BINARY

    def load(self, data: Any) -> str:
        return bytes(data[1:]).decode()


class _JsonLoader(Loader):
    """The text of a json value."""

    format = Format.BINARY

    def load(self, data: Any) -> str:
        return bytes(data).decode()


class Timeouts:
    """What is known of the server's own timeouts: whether they hold without being asked."""

    __slots__ = ("by_startup",)

    def __init__(self) -> None:
        #: False where a pooler does not hand on what a connection asks for when it begins.
        self.by_startup = True


def connection_arguments(settings: PostgresSettings, timeouts: Timeouts) -> dict[str, Any]:
    """What psycopg is given besides the URL."""
    arguments: dict[str, Any] = {
        "autocommit": True,
        "client_encoding": "utf8",
        "connect_timeout": max(2, round(settings.connect_timeout_s)),
        "prepare_threshold": None,
    }
    if timeouts.by_startup:
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

        asked = str(conninfo_to_dict(settings.conninfo).get("options") or "")
        limits = [f"-c {name}={value}" for name, value in settings.server_timeouts.items()]
        arguments["options"] = " ".join([asked, *limits]).strip()
    return arguments


def new_connection(settings: PostgresSettings, timeouts: Timeouts) -> Connection[Any]:
    """A plain connection of psycopg, for what is not on the hot path."""
    try:
        return Connection.connect(settings.conninfo, **connection_arguments(settings, timeouts))
    except OperationalError as error:
        if not timeouts.by_startup or _REFUSED not in str(error):
            raise
        timeouts.by_startup = False
        return Connection.connect(settings.conninfo, **connection_arguments(settings, timeouts))


async def _new_async_connection(
    settings: PostgresSettings, timeouts: Timeouts
) -> AsyncConnection[Any]:
    try:
        return await AsyncConnection.connect(
            settings.conninfo, **connection_arguments(settings, timeouts)
        )
    except OperationalError as error:
        if not timeouts.by_startup or _REFUSED not in str(error):
            raise
        timeouts.by_startup = False
        return await AsyncConnection.connect(
            settings.conninfo, **connection_arguments(settings, timeouts)
        )


def _line(connection: Any, settings: PostgresSettings) -> Line:
    connection.adapters.register_loader("json", _JsonLoader)
    connection.adapters.register_loader("jsonb", _JsonbLoader)
    line = Line(connection, prepares=settings.prepare)
    line.pgconn.nonblocking = 1
    line.pgconn.enter_pipeline_mode()
    return line


def _is_at_rest(line: Line) -> bool:
    """Whether nothing is under way on it."""
    pgconn = line.pgconn
    return pgconn.status == ConnStatus.OK and pgconn.transaction_status == TransactionStatus.IDLE


def _ear(line: Line) -> select.poll:
    """Hears whether the server says something."""
    poll = select.poll()
    poll.register(line.pgconn.socket, select.POLLIN)
    return poll


def _is_usable(line: Line, ear: select.poll) -> bool:
    """Whether nothing is under way on it, and the server has said nothing while it was idle.

    What a server says unasked is mostly that it will hang up, a moment before it does. A changed
    setting is told, too, and costs a new connection.
    """
    return _is_at_rest(line) and not ear.poll(0)


class SyncLink:
    """A connection that a thread drives."""

    def __init__(self, connection: Connection[Any], settings: PostgresSettings) -> None:
        self._connection = connection
        self._time = SystemClock()
        self._patience_s = settings.statement_timeout_s + PATIENCE_S
        self.line = _line(connection, settings)
        self._ear = _ear(self.line)
        self._poll = select.poll()

    def drive(self, conversation: Conversation[T]) -> T:
        """Hold a conversation to its end, however often it has to wait."""
        poll, patience_s = self._poll, self._patience_s
        until = self._time.monotonic() + patience_s
        left_s = patience_s
        try:
            wanted = next(conversation)
            while True:
                poll.register(self.line.pgconn.socket, _events(wanted))
                events = poll.poll(left_s * 1000) if left_s > 0 else []
                if not events:
                    raise OperationalError(
                        f"no answer within {patience_s:g} s; the connection was given up"
                    )
                wanted = conversation.send(_ready(events[0][1]))
                left_s = until - self._time.monotonic()
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            conversation.close()

    @property
    def usable(self) -> bool:
        """Whether it may be used, as far as can be seen."""
        return _is_usable(self.line, self._ear)

    @property
    def at_rest(self) -> bool:
        """Whether it may be kept for the next one, who looks whether it is `usable`."""
        return _is_at_rest(self.line)

    def close(self) -> None:
        self._connection.close()


def _events(wanted: Wait) -> int:
    if wanted == Wait.R:
        return select.POLLIN
    readable = select.POLLIN if wanted & Wait.R else 0
    return readable | (select.POLLOUT if wanted & Wait.W else 0)


def _ready(events: int) -> Ready:
    if events == select.POLLIN:
        return Ready.R
    # Trouble is something to be read: libpq finds out what it is.
    readable = Ready.R if events & ~select.POLLOUT else Ready.NONE
    return Ready(readable | (Ready.W if events & select.POLLOUT else Ready.NONE))


class AsyncLink:
    """A connection that an event loop drives.

    A conversation goes on by itself once it has begun: whoever waited for it may be cancelled, and
    the connection is in order all the same. The loop watches the socket as long as the link lives,
    which is cheaper than to begin and end that for every wait.
    """

    def __init__(self, connection: AsyncConnection[Any], settings: PostgresSettings) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._patience_s = settings.statement_timeout_s + PATIENCE_S
        self._conversation: Conversation[Any] | None = None
        self._future: asyncio.Future[Any] | None = None
        self._finished: Callable[[], None] = _nothing
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0  # by the loop's time: so long the conversation may take
        self._writing = False
        self.line = _line(connection, settings)
        self._ear = _ear(self.line)
        self._socket = self.line.pgconn.socket
        self._loop.add_reader(self._socket, self._on_readable)
        self._watched = True

    @classmethod
    async def open(cls, settings: PostgresSettings, timeouts: Timeouts) -> AsyncLink:
        return cls(await _new_async_connection(settings, timeouts), settings)

    def drive(
        self, conversation: Conversation[T], finished: Callable[[], None]
    ) -> asyncio.Future[T]:
        """Begin a conversation; `finished` is called when the link is free again."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._conversation, self._future, self._finished = conversation, future, finished
        self._until = self._loop.time() + self._patience_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._until, self._look_at_time)
        self._step(None)
        return future

    @property
    def usable(self) -> bool:
        """Whether it may be used, as far as can be seen."""
        return _is_usable(self.line, self._ear)

    @property
    def at_rest(self) -> bool:
        """Whether it may be kept for the next one, who looks whether it is `usable`."""
        return _is_at_rest(self.line)

    def close(self) -> None:
        """In the event loop's own thread, or when it does not run any more."""
        self._look_away()
        if self._timer is not None:
            self._timer.cancel()
        # Not `AsyncConnection.close`, which wants to be awaited to do the same.
        self.line.pgconn.finish()

    def _on_readable(self) -> None:
        if self._conversation is not None:
            self._step(Ready.R)
            return
        try:  # the server says something unasked: most likely goodbye
            self.line.pgconn.consume_input()
            while self.line.pgconn.notifies():
                pass
        except Error:
            self._look_away()

    def _look_away(self) -> None:
        """Stop watching, at once when libpq has closed the socket: its number is given out anew."""
        if self._watched and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._watched = False

    def _on_writable(self) -> None:
        self._step(Ready.W)

    def _step(self, ready: Ready | None) -> None:
        conversation = self._conversation
        assert conversation is not None  # noqa: S101 - only watched while there is one
        try:
            wanted = next(conversation) if ready is None else conversation.send(ready)
        except StopIteration as finished:
            self._end(finished.value, None)
        except Exception as error:  # noqa: BLE001 - belongs to whoever waits for the answer
            self._end(None, error)
        else:
            self._watch(writing=bool(wanted & Wait.W))

    def _watch(self, *, writing: bool) -> None:
        if writing != self._writing:
            self._writing = writing
            if writing:
                self._loop.add_writer(self._socket, self._on_writable)
            else:
                self._loop.remove_writer(self._socket)

    def _look_at_time(self) -> None:
        """One timer for many conversations, each of which would pay more for one of its own."""
        self._timer, conversation = None, self._conversation
        if conversation is None:
            return
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._look_at_time)
        else:
            conversation.close()
            message = f"no answer within {self._patience_s:g} s; the connection was given up"
            self._end(None, OperationalError(message))

    def _end(self, answer: Any, error: Exception | None) -> None:
        future, finished = self._future, self._finished
        self._conversation, self._future, self._finished = None, None, _nothing
        if self.line.pgconn.status == ConnStatus.BAD:
            self._look_away()
        else:
            self._watch(writing=False)
        finished()
        assert future is not None  # noqa: S101 - as above
        if future.cancelled():
            return
        if error is None:
            future.set_result(answer)
        else:
            future.set_exception(error)


def _nothing() -> None:
    pass
