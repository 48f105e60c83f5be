# SPDX-License-Identifier: MIT
"""Open connections with Packhorse's settings, and drive them by a thread or an event loop."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any, Final, TypeVar

from psycopg import AsyncConnection, Connection, Error, OperationalError
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus
from psycopg.waiting import Ready, Wait

from packhorse.core.clock import SystemClock
from packhorse.stores.postgres.errors import Unanswered
from packhorse.stores.postgres.pipeline import Exchange, PipelinedConnection
from packhorse.stores.postgres.settings import PostgresSettings

T = TypeVar("T")

#: What an old PgBouncer says of parameters it does not know.
_REFUSED: Final = "unsupported startup parameter"
#: For statements without a transaction around them; see `transaction.BEGIN`.
_ISOLATION: Final = r"-c default_transaction_isolation=read\ committed"
#: How much longer than the server's own timeout we wait for its answer.
GRACE_S: Final = 2.0


class StartupOptions:
    """Opens connections of psycopg; knows whether `server_settings` hold from the start."""

    __slots__ = ("hold",)

    def __init__(self) -> None:
        #: False behind a pooler that drops startup options: set them in each transaction.
        self.hold = True

    def connect(self, settings: PostgresSettings) -> Connection[Any]:
        """Open a connection for a thread."""
        try:
            return Connection.connect(settings.conninfo, **connection_arguments(settings, self))
        except OperationalError as error:
            self._give_up(error)
        return Connection.connect(settings.conninfo, **connection_arguments(settings, self))

    async def aconnect(self, settings: PostgresSettings) -> AsyncConnection[Any]:
        """Open a connection for the running event loop."""
        connect = AsyncConnection.connect
        try:
            return await connect(settings.conninfo, **connection_arguments(settings, self))
        except OperationalError as error:
            self._give_up(error)
        return await connect(settings.conninfo, **connection_arguments(settings, self))

    def _give_up(self, error: OperationalError) -> None:
        """Do without startup options, or raise an error that is about something else."""
        if not self.hold or _REFUSED not in str(error):
            raise error
        self.hold = False


def connection_arguments(settings: PostgresSettings, options: StartupOptions) -> dict[str, Any]:
    """What psycopg is given besides the URL."""
    arguments = plain_arguments(settings)
    if options.hold:
        asked = str(conninfo_to_dict(settings.conninfo).get("options") or "")
        ours = [f"-c {name}={value}" for name, value in settings.server_settings.items()]
        arguments["options"] = " ".join([asked, *ours, _ISOLATION]).strip()
    return arguments


def plain_arguments(settings: PostgresSettings) -> dict[str, Any]:
    """The same for connections that others run statements on, which our settings are not for."""
    return {
        "autocommit": True,
        "client_encoding": "utf8",
        "connect_timeout": max(2, round(settings.connect_timeout_s)),
        "prepare_threshold": None,
    }


class ThreadConnection(PipelinedConnection):
    """A connection that blocks the thread that uses it."""

    def __init__(self, connection: Connection[Any], settings: PostgresSettings) -> None:
        super().__init__(connection, prepares=settings.prepare)
        self._connection = connection
        self._time = SystemClock()
        self._timeout_s = settings.statement_timeout_s + GRACE_S
        self._poll = select.poll()

    def drive(self, exchange: Exchange[T]) -> T:
        """Run an exchange to its end."""
        poll, left_s = self._poll, self._timeout_s
        until = self._time.monotonic() + left_s
        try:
            wanted = next(exchange)
            while True:
                poll.register(self.pgconn.socket, _events(wanted))
                events = poll.poll(left_s * 1000) if left_s > 0 else []
                if not events:
                    raise _no_answer(self._timeout_s)
                wanted = exchange.send(_ready(events[0][1]))
                left_s = until - self._time.monotonic()
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            exchange.close()

    def lend(self) -> Connection[Any]:
        """Psycopg's own connection, for a user; `take_back` ends that."""
        self.pgconn.exit_pipeline_mode()
        return self._connection

    def take_back(self) -> None:
        self.pgconn.enter_pipeline_mode()

    def close(self) -> None:
        self._connection.close()


def _events(wanted: Wait) -> int:
    readable = select.POLLIN if wanted & Wait.R else 0
    return readable | (select.POLLOUT if wanted & Wait.W else 0)


def _ready(events: int) -> Ready:
    # Trouble counts as readable: libpq finds out what it is.
    readable = Ready.R if events & ~select.POLLOUT else Ready.NONE
    return Ready(readable | (Ready.W if events & select.POLLOUT else Ready.NONE))


def _no_answer(timeout_s: float) -> Unanswered:
    return Unanswered(f"no answer within {timeout_s:g} s; the connection was given up")


class LoopConnection(PipelinedConnection):
    """A connection that an event loop drives.

    An exchange that has begun goes on by itself: its caller may be cancelled, and the connection
    stays in order. The loop watches the socket as long as the connection lives, which is cheaper
    than to begin and end that for every wait.
    """

    def __init__(self, connection: AsyncConnection[Any], settings: PostgresSettings) -> None:
        super().__init__(connection, prepares=settings.prepare)
        self._connection = connection  # psycopg closes the socket with the last reference
        self._loop = asyncio.get_running_loop()
        self._timeout_s = settings.statement_timeout_s + GRACE_S
        self._exchange: Exchange[Any] | None = None
        self._future: asyncio.Future[Any] | None = None
        self._finished: Callable[[], None] = _nothing
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0  # by the loop's time: when the exchange times out
        self._writing = False
        self._socket = self.pgconn.socket
        self._opened_s = self._loop.time()
        self._loop.add_reader(self._socket, self._on_readable)
        self._watched = True

    @property
    def age_s(self) -> float:
        """How long it has been open."""
        return self._loop.time() - self._opened_s

    def drive(self, exchange: Exchange[T], finished: Callable[[], None]) -> asyncio.Future[T]:
        """Begin an exchange; call `finished` when the connection is free again."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._exchange, self._future, self._finished = exchange, future, finished
        self._until = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._until, self._check_timeout)
        self._step(None)
        return future

    def lend(self) -> AsyncConnection[Any]:
        """Psycopg's own connection, for a user, who watches the socket too; see `take_back`."""
        self._unwatch()
        self.pgconn.exit_pipeline_mode()
        return self._connection

    def take_back(self) -> None:
        self.pgconn.enter_pipeline_mode()
        self._loop.add_reader(self._socket, self._on_readable)
        self._watched = True

    def close(self) -> None:
        """Close it in the loop's own thread, or when the loop does not run."""
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()
        # Not `AsyncConnection.close`, which must be awaited to do the same.
        self.pgconn.finish()

    def _on_readable(self) -> None:
        if self._exchange is not None:
            self._step(Ready.R)
            return
        try:  # the server says something unasked: most likely goodbye
            self.pgconn.consume_input()
            while self.pgconn.notifies():
                pass
        except Error:
            self._unwatch()

    def _unwatch(self) -> None:
        """Stop watching, at once when libpq has closed the socket: its number is used again."""
        if self._watched and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._watched = False

    def _on_writable(self) -> None:
        self._step(Ready.W)

    def _step(self, ready: Ready | None) -> None:
        exchange = self._exchange
        assert exchange is not None  # noqa: S101 - only called while there is one
        try:
            wanted = next(exchange) if ready is None else exchange.send(ready)
        except StopIteration as finished:
            self._end(finished.value, None)
        except Exception as error:  # noqa: BLE001 - belongs to the caller who awaits the answer
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

    def _check_timeout(self) -> None:
        """One timer serves many exchanges: a timer for each would cost more."""
        self._timer, exchange = None, self._exchange
        if exchange is None:
            return
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._check_timeout)
        else:
            exchange.close()
            self._end(None, _no_answer(self._timeout_s))

    def _end(self, answer: Any, error: Exception | None) -> None:
        future, finished = self._future, self._finished
        self._exchange, self._future, self._finished = None, None, _nothing
        if self.pgconn.status == ConnStatus.BAD:
            self._unwatch()
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
