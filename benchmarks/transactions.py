# SPDX-License-Identifier: MIT
"""Compare a transaction that submits a job with one that inserts a plain row in its place.

`python -m benchmarks.transactions [--seconds 1] [--rounds 9]` takes about two minutes and prints a
table: PostgreSQL through psycopg from one and from sixteen client processes, then SQLite through
`sqlite3` from one, since it has one writer. All sides insert one row of the user's own, then a
plain row, a job of the store in this database, or one for an outbox in it, and commit with an
fsync, in alternating turns. Nothing admits or drains meanwhile: what that costs is a worker's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.estimates import estimate, paired_ratios
from packhorse import Packhorse
from tests.servers.postgres import PostgresServer

_WORK: Final = Path(__file__).resolve().parent.parent / ".cache" / "benchmarks"
_CLIENTS: Final = (1, 16)
_BOUND: Final = 0.8
_SIDES: Final = ("row", "job", "outbox")
_TABLES: Final = (
    "create table orders (id {number} primary key, name text)",
    "create table letters (id {number} primary key, body text)",
)
_LETTER: Final = '{"order": "17"}'

#: Does one transaction of a side.
_Acts = dict[str, Callable[[], Any]]


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print what came out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transactions")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args(arguments)
    _WORK.mkdir(parents=True, exist_ok=True)
    server = PostgresServer(Path(tempfile.mkdtemp(dir=_WORK)), careful=True)
    try:
        _prepare(server.url())
        for clients in _CLIENTS:
            rates = _measured(server.url(), clients, chosen.rounds, chosen.seconds)
            _tell(f"PostgreSQL, {clients} clients", rates)
    finally:
        server.remove()
    with tempfile.TemporaryDirectory(dir=_WORK) as folder:
        _tell("SQLite", _on_sqlite(Path(folder) / "jobs.db", chosen.rounds, chosen.seconds))
    return 0


def _prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in _TABLES:
            connection.execute(table.format(number="bigint generated always as identity").encode())
    with closing(Packhorse(url)) as app:
        app.store.migrate()
    with closing(Packhorse("memory://")) as app:
        app.outbox(url).create()


def _tell(where: str, rates: dict[str, list[float]]) -> None:
    row = estimate(rates["row"]).middle
    for side in _SIDES[1:]:
        ratio = estimate(paired_ratios(rates[side], rates["row"]))
        met = "met" if ratio.low >= _BOUND else "not met in this run"
        sys.stdout.write(
            f"{where}, {side}: {estimate(rates[side]).middle:,.0f} transactions/s, {row:,.0f} with "
            f"a row: {ratio.middle:.2f} ({ratio.low:.2f} to {ratio.high:.2f}), "
            f"bound {_BOUND}: {met}\n"
        )
    sys.stdout.flush()


def _turns(rounds: int, turn: Callable[[str], float]) -> dict[str, list[float]]:
    """What each side came to, round by round, the other way round in the next one."""
    rates: dict[str, list[float]] = {side: [] for side in _SIDES}
    for side in _SIDES:
        turn(side)  # to warm up
    for number in range(rounds):
        for side in _SIDES if number % 2 else reversed(_SIDES):
            rates[side].append(turn(side))
    return rates


def _measured(url: str, clients: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Transactions a second of each side, round by round."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(clients)]
    workers = [context.Process(target=_serve, args=(url, theirs)) for _, theirs in pairs]
    for worker in workers:
        worker.start()
    ours = [pipe for pipe, _ in pairs]
    try:
        return _turns(rounds, lambda side: _turn(url, ours, side, seconds))
    finally:
        for pipe in ours:
            pipe.send(None)
        for worker in workers:
            worker.join()


def _turn(url: str, pipes: list[Any], side: str, seconds: float) -> float:
    for pipe in pipes:
        pipe.send((side, seconds))
    rate = float(sum(pipe.recv() for pipe in pipes))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("truncate orders, letters, packhorse.requests, packhorse_outbox")
    return rate


def _serve(url: str, pipe: Pipe[Any, Any]) -> None:
    """One client: answers each order with its transactions a second."""
    with psycopg.connect(url) as connection:

        def transact(act: Callable[[], Any]) -> None:
            with connection.transaction():
                connection.execute("insert into orders (name) values (%s)", ("17",))
                act()

        acts = _acts(url, connection, "insert into letters (body) values (%s)")
        while (asked := pipe.recv()) is not None:
            side, seconds = asked
            pipe.send(_rate(partial(transact, acts[side]), seconds))


def _on_sqlite(path: Path, rounds: int, seconds: float) -> dict[str, list[float]]:
    """The same through `sqlite3`, with a durable commit."""
    url = f"sqlite:///{path}"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        for table in _TABLES:
            connection.execute(table.format(number="integer"))
        acts = _acts(url, connection, "insert into letters (body) values (?)")

        def transact(act: Callable[[], Any]) -> None:
            connection.execute("begin immediate")
            connection.execute("insert into orders (name) values (?)", ("17",))
            act()
            connection.execute("commit")

        def turn(side: str) -> float:
            rate = _rate(partial(transact, acts[side]), seconds)
            for table in ("orders", "letters", "packhorse_requests", "packhorse_outbox"):
                connection.execute(f"delete from {table}")
            return rate

        return _turns(rounds, turn)


def _acts(url: str, connection: Any, letter: str) -> _Acts:
    """What each side does beside the row of the user's own."""
    app, elsewhere = Packhorse(url), Packhorse("memory://")
    app.store.migrate()
    elsewhere.outbox(url).create()

    def send(order: str) -> None: ...

    own, forwarded = (each.task(send).using(tx=connection) for each in (app, elsewhere))
    return {
        "row": lambda: connection.execute(letter, (_LETTER,)),
        "job": lambda: own.enqueue("17"),
        "outbox": lambda: forwarded.enqueue("17"),
    }


def _rate(transact: Callable[[], None], seconds: float) -> float:
    begun, count, elapsed = time.perf_counter(), 0, 0.0
    while elapsed < seconds:
        transact()
        count += 1
        elapsed = time.perf_counter() - begun
    return count / elapsed


if __name__ == "__main__":
    sys.exit(main())
