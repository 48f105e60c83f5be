# SPDX-License-Identifier: MIT
"""Talking to the server without waiting: statements out, results in, many at a time.

Everything here is a generator that yields what it waits for (`Wait`) and is sent what the socket
is ready for, so that a thread and an event loop drive the same code. Connections stay in pipeline
mode for good: one round trip carries any number of statements, and each `Sync` ends a group of
them, which without BEGIN is a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

from psycopg import Connection, OperationalError
from psycopg.adapt import Transformer
from psycopg.errors import Error, lookup
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from packhorse.stores.postgres.statements import Like, Parameters
from packhorse.stores.postgres.texts import Statement

__all__ = ["Call", "Conversation", "Line", "converse"]

T = TypeVar("T")

#: Yields what it waits for, is sent what is ready.
Conversation = Generator[Wait, Ready, T]
#: A statement with the types of its parameters.
_Key = tuple[bytes, tuple[int, ...]]

_BINARY: Final = 1
#: Statements one connection keeps prepared; more go unprepared.
_PREPARED_MAX: Final = 500
_OK: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_SYNC: Final = ExecStatus.PIPELINE_SYNC
#: What a call without anything to prepare is answered with.
_ONE: Final = (None,)
#: Nothing comes between two results once; from a dead connection nothing comes for ever.
_SILENCE_MAX: Final = 10


class Call(NamedTuple):
    """A statement with its parameters."""

    statement: Statement
    parameters: Parameters | Like = ()


class Line:
    """One connection, as conversations see it."""

    __slots__ = ("_loaded", "_prepared", "committed", "committing", "pgconn", "prepares")

    def __init__(self, connection: Connection[Any] | Any, *, prepares: bool) -> None:
        self.pgconn: PGconn = connection.pgconn
        self.prepares = prepares
        #: What was sent last commits, and nobody knows yet whether it has.
        self.committing = False
        #: Part of the plan has been committed: it cannot be run again from its beginning.
        self.committed = False
        self._loaded = Transformer(connection)
        self._prepared: dict[_Key, bytes] = {}

    @property
    def in_transaction(self) -> bool:
        """Whether there is something to roll back, and a server to tell."""
        return self.pgconn.transaction_status in (
            TransactionStatus.INTRANS,
            TransactionStatus.INERROR,
        )

    def rows(self, result: PGresult) -> list[tuple[Any, ...]]:
        """The rows of a result."""
        count = result.ntuples
        if not count:
            return []
        self._loaded.set_pgresult(result)
        return self._loaded.load_rows(0, count, tuple)

    def send(self, call: Call) -> tuple[_Key | None, ...]:
        """Put one call into the buffer; for each result it will have, what that prepares."""
        statement = call.statement
        values, declared, formats = statement.bound(call.parameters)
        key = (statement.name, declared)
        name = self._prepared.get(key)
        if name is not None:
            self.pgconn.send_query_prepared(name, values, formats, _BINARY)
            return _ONE
        if not (self.prepares and statement.lasting) or len(self._prepared) >= _PREPARED_MAX:
            self.pgconn.send_query_params(statement.query, values, declared, formats, _BINARY)
            return _ONE
        name = b"%s_%08x" % (statement.name, crc32(repr(declared).encode()))
        self.pgconn.send_prepare(name, statement.query, declared)
        self.pgconn.send_query_prepared(name, values, formats, _BINARY)
        self._prepared[key] = name
        return key, None

    def forget(self, key: _Key) -> None:
        """This statement was not prepared after all."""
        self._prepared.pop(key, None)


def converse(line: Line, groups: Sequence[Sequence[Call]]) -> Conversation[list[PGresult]]:
    """Send groups of calls, each closed by a Sync; the results of all calls, in order.

    The first error ends it, once the last Sync was heard: the connection can be used again.
    """
    prepares: list[_Key | None] = []
    for group in groups:
        for call in group:
            prepares += line.send(call)
        line.pgconn.pipeline_sync()
    results = yield from _results(line.pgconn, len(groups))
    failed = next((result for result in results if result.status not in _OK), None)
    if failed is not None:
        for key, result in zip(prepares, results, strict=False):  # a lost connection ends early
            if key is not None and result.status not in _OK:
                line.forget(key)
        raise _error(failed)
    return [result for key, result in zip(prepares, results, strict=True) if key is None]


def _results(pgconn: PGconn, syncs: int) -> Conversation[list[PGresult]]:
    """Everything up to the last Sync, also what was not done because of what failed before it."""
    results: list[PGresult] = []
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    silence = 0
    while syncs:
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            silence += 1
            if silence == _SILENCE_MAX or pgconn.status == ConnStatus.BAD:
                raise OperationalError(pgconn.get_error_message("utf-8"))
            continue
        silence, status = 0, result.status
        if status == _SYNC:
            syncs -= 1
            continue
        results.append(result)
        if status not in _OK and pgconn.status == ConnStatus.BAD:
            break
    return results


def _error(result: PGresult) -> Error:
    """What the server said, as psycopg says it."""
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
