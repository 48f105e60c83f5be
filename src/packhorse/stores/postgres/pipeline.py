# SPDX-License-Identifier: MIT
"""Send statements to the server and read their results, many in one round trip.

Everything here is a generator that yields what it waits for (`Wait`) and is sent what the socket
is ready for, so that a thread and an event loop drive the same code. Connections stay in pipeline
mode: each `Sync` ends a group of statements, which without BEGIN is a transaction of its own.
"""

from __future__ import annotations

import select
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

from psycopg import AsyncConnection, Connection, OperationalError
from psycopg.adapt import AdaptersMap, PyFormat, Transformer
from psycopg.errors import Error, lookup
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper
from psycopg.waiting import Ready, Wait

from packhorse.stores.postgres.rendering import Statement
from packhorse.stores.sql.statements import Parameters

T = TypeVar("T")

#: Yields what it waits for, is sent what is ready.
Exchange = Generator[Wait, Ready, T]
#: A statement with the types of its parameters.
_Key = tuple[bytes, tuple[int, ...]]

_BINARY: Final = 1
#: Statements one connection keeps prepared; more go unprepared.
_PREPARED_MAX: Final = 500
_OK: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
#: A command that prepares nothing has one result.
_ONE_RESULT: Final = (None,)
#: libpq separates two results by one None; a dead connection returns None for ever.
_NONES_MAX: Final = 10


class Command(NamedTuple):
    """A statement with its parameters."""

    statement: Statement
    parameters: Parameters = ()


class _Adapted(NamedTuple):
    """See `psycopg.abc.AdaptContext`."""

    adapters: AdaptersMap
    connection: Connection[Any] | AsyncConnection[Any]


class PipelinedConnection:
    """One connection with its prepared statements; subclasses wait for its socket."""

    def __init__(
        self, connection: Connection[Any] | AsyncConnection[Any], *, prepares: bool
    ) -> None:
        self.pgconn: PGconn = connection.pgconn
        self.prepares = prepares
        #: The last group commits, and its result is not known yet.
        self.committing = False
        #: A part of the plan is committed: the plan cannot be run again from its beginning.
        self.committed = False
        # Of its own, since a connection may be lent to users.
        adapters = AdaptersMap(connection.adapters)
        # One type for all numbers, so that each statement is prepared once.
        adapters.register_dumper(int, Int8BinaryDumper)
        adapters.register_dumper(str, StrBinaryDumper)
        adapters.register_dumper(tuple, ListBinaryDumper)
        self._transformer = Transformer(_Adapted(adapters, connection))
        self._prepared: dict[_Key, bytes] = {}
        self._unread = select.poll()
        self._unread.register(self.pgconn.socket, select.POLLIN)
        self.pgconn.nonblocking = 1
        self.pgconn.enter_pipeline_mode()

    @property
    def idle(self) -> bool:
        """Whether the connection is open and outside a transaction."""
        pgconn = self.pgconn
        status, transaction = pgconn.status, pgconn.transaction_status
        return status == ConnStatus.OK and transaction == TransactionStatus.IDLE

    @property
    def usable(self) -> bool:
        """Whether the connection is idle and the server has sent nothing unasked.

        A server that sends something unasked mostly says that it is about to close the connection.
        """
        return self.idle and not self._unread.poll(0)

    @property
    def in_transaction(self) -> bool:
        """Whether there is a transaction to roll back on a living connection."""
        return self.pgconn.transaction_status in (
            TransactionStatus.INTRANS,
            TransactionStatus.INERROR,
        )

    def rows(self, result: PGresult) -> list[tuple[Any, ...]]:
        """The rows of a result."""
        count = result.ntuples
        if not count:
            return []
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, count, tuple)

    def send(self, command: Command) -> tuple[_Key | None, ...]:
        """Buffer one command; return, for each result it will have, the key that it prepares."""
        statement = command.statement
        arguments = statement.arguments(command.parameters)
        values = self._transformer.dump_sequence(arguments, [PyFormat.BINARY] * len(arguments))
        declared, formats = (
            statement.typed(self._transformer.types or ()),
            self._transformer.formats,
        )
        key = (statement.name, declared)
        name = self._prepared.get(key)
        if name is not None:
            self.pgconn.send_query_prepared(name, values, formats, _BINARY)
            return _ONE_RESULT
        if not (self.prepares and statement.lasting) or len(self._prepared) >= _PREPARED_MAX:
            self.pgconn.send_query_params(statement.query, values, declared, formats, _BINARY)
            return _ONE_RESULT
        name = b"%s_%08x" % (statement.name, crc32(repr(declared).encode()))
        self.pgconn.send_prepare(name, statement.query, declared)
        self.pgconn.send_query_prepared(name, values, formats, _BINARY)
        self._prepared[key] = name
        return key, None

    def forget(self, key: _Key) -> None:
        """Forget a statement that the server failed to prepare."""
        self._prepared.pop(key, None)


def exchange(
    connection: PipelinedConnection, groups: Sequence[Sequence[Command]]
) -> Exchange[list[PGresult]]:
    """Send groups of commands, each closed by a Sync; return the results of all, in order.

    Raise the first error after the last Sync was answered: the connection can be used again.
    """
    prepares: list[_Key | None] = []
    for group in groups:
        for command in group:
            prepares += connection.send(command)
        connection.pgconn.pipeline_sync()
    results = yield from _results(connection.pgconn, len(groups))
    failed = next((result for result in results if result.status not in _OK), None)
    if failed is not None:
        for key, result in zip(prepares, results, strict=False):  # a lost connection ends early
            if key is not None and result.status not in _OK:
                connection.forget(key)
        raise _error(failed)
    return [result for key, result in zip(prepares, results, strict=True) if key is None]


def _results(pgconn: PGconn, syncs: int) -> Exchange[list[PGresult]]:
    """Read everything up to the last Sync, also for commands skipped after a failed one."""
    results: list[PGresult] = []
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    nones = 0
    while syncs:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            nones += 1
            if nones == _NONES_MAX or pgconn.status == ConnStatus.BAD:
                raise OperationalError(pgconn.get_error_message("utf-8"))
            continue
        nones, status = 0, result.status
        if status == ExecStatus.PIPELINE_SYNC:
            syncs -= 1
            continue
        results.append(result)
        if status not in _OK and pgconn.status == ConnStatus.BAD:
            break
    return results


def _error(result: PGresult) -> Error:
    """The server's error as psycopg's exception."""
    state = result.error_field(DiagnosticField.SQLSTATE)
    message = result.get_error_message("utf-8")
    if state is None:
        return OperationalError(message)
    try:
        kind = lookup(state.decode())
    except KeyError:
        kind = OperationalError
    error = kind(message)
    error.sqlstate = state.decode()
    return error
