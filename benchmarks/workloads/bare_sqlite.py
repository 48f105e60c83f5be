# SPDX-License-Identifier: MIT
"""The bare loop: the statements a submit, a claim and a completion need, with no product around.

No ids that callers make, no counters, no history, no leases that are renewed, no retries, no
wake-ups: what is left is what SQLite and an event loop cost, and so the limit to approach.
`python -m benchmarks.workloads.bare_sqlite FILE SYNCHRONOUS BATCH` drains a file.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.probe import hitter
from benchmarks.workloads import event_loop
from packhorse.core.clock import new_id

_MMAP_BYTES: Final = 256 * 1024 * 1024
_READY, _HELD, _DONE = 1, 2, 3

_SCHEMA: Final = f"""
create table if not exists jobs (
    id integer primary key,
    queue text not null,
    priority integer not null,
    state integer not null default {_READY},
    due integer not null default 0,
    attempts integer not null default 0,
    lease_until integer,
    owner text,
    task text not null,
    payload blob not null,
    result blob
);
create table if not exists named_jobs (
    id integer primary key,
    name text not null unique,
    queue text not null,
    priority integer not null,
    state integer not null default {_READY},
    due integer not null default 0,
    task text not null,
    payload blob not null
);
create index if not exists named_ready on named_jobs (queue, priority, due, id)
where state = {_READY};
create index if not exists ready on jobs (queue, priority, due, id) where state = {_READY};
create index if not exists held on jobs (lease_until) where state = {_HELD};
"""
_INSERT: Final = "insert into jobs (queue, priority, task, payload) values ('d', 2, 'noop', ?)"
_INSERT_NAMED: Final = """
insert into named_jobs (name, queue, priority, task, payload) values (?, 'd', 2, 'noop', ?)
on conflict (name) do nothing
"""
_CLAIM: Final = f"""
update jobs set state = {_HELD}, attempts = attempts + 1, lease_until = 1, owner = 'w'
where id in (
    select id from jobs where state = {_READY} and queue = 'd' and due <= 1
    order by priority, due, id limit ?
)
returning id, task, payload, attempts
"""
_COMPLETE: Final = f"""
update jobs set state = {_DONE}, result = ? where id = ? and owner = 'w' and state = {_HELD}
"""


class _Arguments(msgspec.Struct):
    number: int


_decode: Final = msgspec.json.Decoder(_Arguments).decode
_encode: Final = msgspec.json.encode


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    """A connection as fast as it may be at this durability."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma synchronous = {synchronous}")
    connection.execute(f"pragma mmap_size = {_MMAP_BYTES}")
    connection.executescript(_SCHEMA)
    return connection


def payload(number: int) -> bytes:
    """The arguments of one job."""
    return _encode(_Arguments(number))


def insert_one(connection: sqlite3.Connection, number: int) -> None:
    """One job, one commit."""
    connection.execute(_INSERT, (payload(number),))


def insert_many(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Many jobs, one commit."""
    connection.execute("begin immediate")
    connection.executemany(_INSERT, [(payload(number),) for number in numbers])
    connection.execute("commit")


def insert_many_named(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """As `insert_many`, where callers make the ids: what knowing a repeated submit costs."""
    rows = [(new_id(), payload(number)) for number in numbers]
    connection.execute("begin immediate")
    connection.executemany(_INSERT_NAMED, rows)
    connection.execute("commit")


def insert_one_named(connection: sqlite3.Connection, number: int) -> None:
    """As `insert_one`, where callers make the ids."""
    connection.execute(_INSERT_NAMED, (new_id(), payload(number)))


async def drain(
    connection: sqlite3.Connection, batch: int, handler: Callable[[int], Awaitable[int]]
) -> int:
    """Claim a batch, run it on the loop, complete it, until there is nothing left."""

    async def attempt(data: bytes) -> bytes:
        return _encode(await handler(_decode(data).number))

    done = 0
    while rows := connection.execute(_CLAIM, (batch,)).fetchall():
        tasks = [asyncio.create_task(attempt(row[2])) for row in rows]
        results = await asyncio.gather(*tasks)
        connection.execute("begin immediate")
        connection.executemany(
            _COMPLETE, [(result, row[0]) for result, row in zip(results, rows, strict=True)]
        )
        connection.execute("commit")
        done += len(rows)
    return done


def finished(path: Path) -> int:
    """How many jobs of a file are done and have their result."""
    with closing(sqlite3.connect(path)) as connection:
        query = f"select count(*) from jobs where state = {_DONE} and result is not null"
        count: int = connection.execute(query).fetchone()[0]
    return count


def main(path: str, synchronous: str, batch: str) -> None:
    """Drain a file in this process."""
    hit = hitter()

    async def noop(number: int) -> int:
        hit()
        return number

    event_loop.run(drain(connect(Path(path), synchronous), int(batch), noop))


if __name__ == "__main__":
    main(*sys.argv[1:])
