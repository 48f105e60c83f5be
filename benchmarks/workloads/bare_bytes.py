# SPDX-License-Identifier: MIT
"""Writes large values once, with no product around: what a drain of large jobs is held against.

`python -m benchmarks.workloads.bare_bytes URL COUNT` writes COUNT values, a commit for each
batch of as many as a worker settles together, and prints how many seconds that took.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Final

from benchmarks.workloads.shapes_app import large_text

#: Values of one commit: the slots of a worker.
_BATCH: Final = 100
_SQL: Final = "insert into bare_values (value) values ({})"
_TABLE: Final = "create table bare_values (id integer primary key {}, value {} not null)"


def _sqlite(path: str, opened: ExitStack) -> Callable[[Sequence[bytes]], object]:
    connection = opened.enter_context(closing(sqlite3.connect(path)))
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute(_TABLE.format("", "blob"))

    def write(values: Sequence[bytes]) -> None:
        with connection:
            connection.executemany(_SQL.format("?"), [(value,) for value in values])

    return write


def _postgres(url: str, opened: ExitStack) -> Callable[[Sequence[bytes]], object]:
    import psycopg

    connection = opened.enter_context(psycopg.connect(url, autocommit=True))
    connection.execute(_TABLE.format("generated always as identity", "bytea").encode())
    text = b"insert into bare_values (value) select unnest(%b::bytea[])"
    cursor = connection.cursor(binary=True)

    def write(values: Sequence[bytes]) -> None:
        cursor.execute(text, (list(values),), prepare=True)

    return write


def _redis(url: str, opened: ExitStack) -> Callable[[Sequence[bytes]], object]:
    import redis

    client = opened.enter_context(redis.Redis.from_url(url))

    def write(values: Sequence[bytes]) -> None:
        with client.pipeline(transaction=True) as pipeline:
            for value in values:
                pipeline.rpush("bare-values", value)
            pipeline.execute()

    return write


def main(url: str, count: str) -> None:
    """Write them, and print the seconds."""
    with ExitStack() as opened:
        scheme = url.partition("://")[0]
        make = {"postgresql": _postgres, "redis": _redis}.get(scheme, _sqlite)
        write = make(url, opened)
        value = large_text().encode()
        began = time.perf_counter()
        for start in range(0, int(count), _BATCH):
            write([value] * min(_BATCH, int(count) - start))
        sys.stdout.write(f"{time.perf_counter() - began:.6f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
