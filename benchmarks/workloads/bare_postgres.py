# SPDX-License-Identifier: MIT
"""The bare loop on PostgreSQL: the statements alone, through psycopg, with no product around.

No ids that callers make, no counters, no history, no leases that are renewed, no retries, no
wake-ups. `python -m benchmarks.workloads.bare_postgres BATCH` drains a database; while one batch
is being completed on one connection, the next is claimed on another.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import msgspec
import psycopg

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import AsyncWays, Ways
from benchmarks.probe import hitter
from benchmarks.workloads import event_loop

_READY, _HELD, _DONE = 1, 2, 3
_OWNER: Final = "w"

_SCHEMA: Final = f"""
create table if not exists jobs (
    id bigint generated always as identity primary key,
    queue text not null,
    priority smallint not null,
    state smallint not null default {_READY},
    due timestamptz not null default now(),
    attempts integer not null default 0,
    lease_until timestamptz,
    owner text,
    task text not null,
    payload bytea not null,
    result bytea,
    finished_at timestamptz
);
create index if not exists ready on jobs (queue, priority, due, id) where state = {_READY};
create index if not exists held on jobs (lease_until) where state = {_HELD};
"""
_INSERT: Final = (
    "insert into jobs (queue, priority, task, payload) values ('d', 2, 'noop', %s) returning id"
)
_INSERT_MANY: Final = """
insert into jobs (queue, priority, task, payload)
select 'd', 2, 'noop', payload from unnest(%s::bytea[]) as payload
returning id
"""
_CLAIM: Final = f"""
with chosen as (
    select id from jobs where state = {_READY} and queue = 'd' and due <= now()
    order by priority, due, id limit %s
    for update skip locked
)
update jobs
set state = {_HELD}, attempts = attempts + 1, owner = '{_OWNER}',
    lease_until = now() + interval '30 s'
from chosen where jobs.id = chosen.id
returning jobs.id, jobs.task, jobs.payload, jobs.attempts
"""
_COMPLETE: Final = f"""
update jobs set state = {_DONE}, result = done.result, finished_at = now()
from unnest(%s::bigint[], %s::bytea[]) as done (id, result)
where jobs.id = done.id and jobs.state = {_HELD} and jobs.owner = '{_OWNER}'
"""
_FINISHED: Final = f"select count(*) from jobs where state = {_DONE} and result is not null"


class _Arguments(msgspec.Struct):
    number: int


_decode: Final = msgspec.json.Decoder(_Arguments).decode
_encode: Final = msgspec.json.encode


def _payload(number: int) -> bytes:
    return _encode(_Arguments(number))


@contextmanager
def ways() -> Iterator[Ways]:
    """From sync code."""
    with psycopg.connect(server_url(), autocommit=True) as connection:
        connection.execute(_SCHEMA.encode())
        cursor = connection.cursor(binary=True)

        def one(number: int) -> object:
            return cursor.execute(_INSERT, (_payload(number),), prepare=True).fetchone()

        def many(numbers: Sequence[int]) -> object:
            payloads = [_payload(number) for number in numbers]
            return cursor.execute(_INSERT_MANY, (payloads,), prepare=True).fetchall()

        yield Ways(one, many)


@asynccontextmanager
async def async_ways() -> AsyncIterator[AsyncWays]:
    """From async code."""
    connection = await psycopg.AsyncConnection.connect(server_url(), autocommit=True)
    async with connection:
        await connection.execute(_SCHEMA.encode())
        cursor = connection.cursor(binary=True)

        async def one(number: int) -> object:
            await cursor.execute(_INSERT, (_payload(number),), prepare=True)
            return await cursor.fetchone()

        yield AsyncWays(one)


async def drain(url: str, batch: int, handler: Callable[[int], Awaitable[int]]) -> int:
    """Claim a batch, run it on the loop, complete it, until there is nothing left."""

    async def attempt(data: bytes) -> bytes:
        return _encode(await handler(_decode(data).number))

    connect = psycopg.AsyncConnection.connect
    claiming, completing = [await connect(url, autocommit=True) for _ in range(2)]
    cursor = claiming.cursor(binary=True)
    done = 0
    pending: asyncio.Task[Any] | None = None
    while True:
        await cursor.execute(_CLAIM, (batch,), prepare=True)
        rows = await cursor.fetchall()
        tasks = [asyncio.create_task(attempt(row[2])) for row in rows]
        results = await asyncio.gather(*tasks)
        if pending is not None:
            await pending
        if not rows:
            break
        ends = ([row[0] for row in rows], results)
        pending = asyncio.create_task(completing.execute(_COMPLETE, ends, prepare=True))
        done += len(rows)
    await claiming.close()
    await completing.close()
    return done


def finished(url: str) -> int:
    """How many jobs of a database are done and have their result."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(_FINISHED.encode()).fetchone()
    assert row is not None, "a count is always a row"
    count: int = row[0]
    return count


def main(batch: str) -> None:
    """Drain a database in this process."""
    hit = hitter()

    async def noop(number: int) -> int:
        hit()
        return number

    event_loop.run(drain(server_url(), int(batch), noop))


if __name__ == "__main__":
    main(*sys.argv[1:])
