# SPDX-License-Identifier: MIT
"""Compare a transaction that submits a job with one that inserts a plain row in its place.

`python -m benchmarks.transactions [--seconds 1] [--rounds 9]` takes about a minute on PostgreSQL
and prints a table. Both sides insert one row of the user's own, then the job or the plain row, and
commit with an fsync, from one and from sixteen client processes, in alternating turns. Nothing
admits meanwhile: what that costs is a worker's, and the same as for other submits.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.estimates import estimate, paired_ratios
from packhorse import Packhorse
from tests.servers.postgres import PostgresServer

__all__ = ["main"]

_WORK: Final = Path(__file__).resolve().parent.parent / ".cache" / "benchmarks"
_CLIENTS: Final = (1, 16)
_BOUND: Final = 0.8
_SIDES: Final = ("row", "job")
_TABLES: Final = (
    "create table orders (id bigint generated always as identity primary key, name text)",
    "create table outbox (id bigint generated always as identity primary key, body text)",
)


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
            _tell(clients, _measured(server.url(), clients, chosen.rounds, chosen.seconds))
    finally:
        server.remove()
    return 0


def _prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in _TABLES:
            connection.execute(table.encode())
    app = Packhorse(url)
    app.store.migrate()
    app.close()


def _tell(clients: int, rates: dict[str, list[float]]) -> None:
    ratio = estimate(paired_ratios(rates["job"], rates["row"]))
    row, job = (estimate(rates[side]).middle for side in _SIDES)
    met = "met" if ratio.low >= _BOUND else "not met in this run"
    sys.stdout.write(
        f"{clients:>2} clients: {job:,.0f} transactions/s with a job, {row:,.0f} with a row: "
        f"{ratio.middle:.2f} ({ratio.low:.2f} to {ratio.high:.2f}), bound {_BOUND}: {met}\n"
    )


def _measured(url: str, clients: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Transactions a second of each side, round by round."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(clients)]
    workers = [context.Process(target=_serve, args=(url, theirs)) for _, theirs in pairs]
    for worker in workers:
        worker.start()
    ours = [pipe for pipe, _ in pairs]
    rates: dict[str, list[float]] = {side: [] for side in _SIDES}
    try:
        for side in _SIDES:
            _turn(ours, side, seconds)  # to warm up
        for number in range(rounds):
            for side in _SIDES if number % 2 else reversed(_SIDES):
                rates[side].append(_turn(ours, side, seconds))
                _empty(url)
    finally:
        for pipe in ours:
            pipe.send(None)
        for worker in workers:
            worker.join()
    return rates


def _turn(pipes: list[Any], side: str, seconds: float) -> float:
    for pipe in pipes:
        pipe.send((side, seconds))
    return float(sum(pipe.recv() for pipe in pipes))


def _empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("truncate orders, outbox, packhorse.requests")


def _serve(url: str, pipe: Pipe[Any, Any]) -> None:
    """One client: answers each order with its transactions a second."""
    app = Packhorse(url)

    @app.task
    def send(order: str) -> None: ...

    with psycopg.connect(url) as connection:
        submit = send.using(tx=connection)

        def add_row() -> None:
            connection.execute("insert into outbox (body) values (%s)", ('{"order": "17"}',))

        sides: dict[str, Callable[[], Any]] = {"row": add_row, "job": lambda: submit.enqueue("17")}
        while (asked := pipe.recv()) is not None:
            side, seconds = asked
            pipe.send(_rate(connection, sides[side], seconds))
    app.close()


def _rate(connection: psycopg.Connection[Any], act: Callable[[], Any], seconds: float) -> float:
    begun, count, elapsed = time.perf_counter(), 0, 0.0
    while elapsed < seconds:
        with connection.transaction():
            connection.execute("insert into orders (name) values (%s)", ("17",))
            act()
        count += 1
        elapsed = time.perf_counter() - begun
    return count / elapsed


if __name__ == "__main__":
    sys.exit(main())
