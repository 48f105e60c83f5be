# SPDX-License-Identifier: MIT
"""Fills a store with many jobs in little time: some are run, the others are copies of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, Final

import psycopg
import redis

from packhorse import Packhorse, RetryPolicy
from packhorse.stores.sql.rows import Lane

_QUEUES: Final = 10
_PART: Final = 5_000
#: Copies have numbers that are so far apart from each other.
_APART: Final = 100_000_000

#: The codes of completed and dead in Redis.
_OVER: Final = (b"3", b"7")
#: Copy finished jobs of Redis: the hash, and where it stands by number, by expiry, among the dead.
_COPY_SCRIPT: Final = """
local tag, times, apart = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
for at = 3, #ARGV do
  local id = ARGV[at]
  local expires = redis.call('ZSCORE', tag .. ':exp', id)
  local dead = redis.call('ZSCORE', tag .. ':dead', id)
  local number = redis.call('ZSCORE', tag .. ':all', id)
  local text = redis.call('DUMP', tag .. ':j:' .. id)
  for copy = 1, times - 1 do
    local name, place = id .. '-' .. copy, string.format('%.0f', number + copy * apart)
    redis.call('RESTORE', tag .. ':j:' .. name, 0, text)
    redis.call('ZADD', tag .. ':all', place, name)
    if expires then redis.call('ZADD', tag .. ':exp', expires, name) end
    if dead then redis.call('ZADD', tag .. ':dead', place, name) end
  end
end
"""


async def fill(app: Packhorse, jobs: int, *, run: bool = True) -> None:
    """Jobs that have completed or died of one of two errors, then some that wait."""
    for number in range(_QUEUES):
        app.queue(f"queue-{number}")

    @app.task
    async def work(number: int) -> int:
        return number

    @app.task(retry=RetryPolicy(max_retries=0))
    async def fail(number: int) -> None:
        raise ValueError(number) if number % 2 else KeyError(number)

    for begin in range(0, jobs, _PART):
        end = min(begin + _PART, jobs)
        calls = []
        for number in range(begin, end):
            task = fail if number % 100 == 0 else work
            calls.append(task.using(queue=f"queue-{number % _QUEUES}").call(number))
        await app.aenqueue_many(calls)
        if run and end <= jobs - jobs * 9 // 100:
            await app.arun(concurrency=64, burst=True)


def multiply(store: str, url: str, times: int) -> None:
    """Copy every row of a store's jobs so often, each with a number and an id of its own."""
    if store == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            names = [row[1] for row in connection.execute("pragma table_info(packhorse_jobs)")]
            for number in range(1, times):
                connection.execute(_copy("packhorse_jobs", names, number))
                connection.commit()
            connection.execute("update packhorse_sequence set value = 10000000000")
            connection.execute("analyze")
            connection.commit()
        return
    if store == "redis":
        _multiply_redis(url, times)
        return
    with psycopg.connect(url.partition("?")[0], autocommit=True) as server:
        where = "table_schema || '.' || table_name"
        text = f"select {where}, column_name from information_schema.columns where table_name = %s"
        rows = server.execute(text + " order by ordinal_position", ("jobs",)).fetchall()
        for number in range(1, times):
            server.execute(_copy(rows[0][0], [name for _, name in rows], number))
        server.execute("vacuum analyze")


def _multiply_redis(url: str, times: int) -> None:
    """Copy finished jobs, which are the oldest; waiting ones are left alone."""
    server: Any = redis.Redis.from_url(url, socket_timeout=None)
    with closing(server):
        [every] = server.keys("*:all")
        tag = every.decode().removesuffix(":all")
        over = 0
        for field, number in server.hgetall(f"{tag}:counts").items():
            if field.partition(b":")[0] in _OVER:
                over += int(number)
                server.hset(f"{tag}:counts", field, int(number) * times)
        copy, ids = server.register_script(_COPY_SCRIPT), server.zrange(every, 0, over - 1)
        for begin in range(0, over, _PART // 100):
            copy(keys=[tag], args=[times, _APART, *ids[begin : begin + _PART // 100]])
        server.set(f"{tag}:n", times * _APART)


def _copy(table: str, names: list[str], number: int) -> str:
    by = number * _APART
    changed = {
        "seq": f"seq + {by}",
        "id": f"id || '-{number}'",
        "rank": f"case when lane = {int(Lane.DEAD)} then rank + {by} else rank end",
    }
    chosen = ", ".join(changed.get(name, name) for name in names)
    return (
        f"insert into {table} ({', '.join(names)}) "
        f"select {chosen} from {table} where seq < {_APART}"
    )
