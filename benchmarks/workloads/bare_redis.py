# SPDX-License-Identifier: MIT
"""The bare loop on Redis: one short script for each verb, with no product around.

No counters, no history, no leases that are renewed, no retries, no wake-ups.
`python -m benchmarks.workloads.bare_redis BATCH` drains a database; while one batch is being
completed, the next is claimed.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import msgspec
import redis
import redis.asyncio

from benchmarks.peers.server import server_url
from benchmarks.peers.submitting import AsyncWays, Ways
from benchmarks.probe import hitter
from benchmarks.workloads import event_loop

_READY, _HELD, _DONE = "ready", "held", "done"
_OWNER: Final = "w"
_LEASE: Final = 1
#: A claim answers with an id, a payload and an attempt for each job.
_WIDTH: Final = 3

_SUBMIT: Final = """
for i = 1, #ARGV, 2 do
  redis.call('HSET', 'job:' .. ARGV[i], 'p', ARGV[i + 1], 's', '1', 'a', '0')
  redis.call('ZADD', KEYS[1], 2, ARGV[i])
end
return #ARGV / 2
"""
_CLAIM: Final = """
local ids, answer = redis.call('ZPOPMIN', KEYS[1], ARGV[1]), {}
for i = 1, #ids, 2 do
  local job = 'job:' .. ids[i]
  redis.call('ZADD', KEYS[2], ARGV[2], ids[i])
  redis.call('HSET', job, 's', '2', 'l', ARGV[3])
  local attempt = redis.call('HINCRBY', job, 'a', 1)
  answer[#answer + 1] = ids[i]
  answer[#answer + 1] = redis.call('HGET', job, 'p')
  answer[#answer + 1] = attempt
end
return answer
"""
_COMPLETE: Final = """
local count = 0
for i = 2, #ARGV, 2 do
  local job = 'job:' .. ARGV[i]
  if redis.call('HGET', job, 'l') == ARGV[1] then
    redis.call('ZREM', KEYS[1], ARGV[i])
    redis.call('HSET', job, 's', '3', 'r', ARGV[i + 1])
    redis.call('HDEL', job, 'l')
    count = count + 1
  end
end
redis.call('INCRBY', KEYS[2], count)
return count
"""


class _Arguments(msgspec.Struct):
    number: int


_decode: Final = msgspec.json.Decoder(_Arguments).decode
_encode: Final = msgspec.json.encode


def _jobs(ids: Iterator[int], numbers: Sequence[int]) -> list[str | bytes]:
    """Ids and payloads in turn; ids that sort as they were given out."""
    pairs = [(f"{next(ids):020d}", _encode(_Arguments(number))) for number in numbers]
    return [part for pair in pairs for part in pair]


@contextmanager
def ways() -> Iterator[Ways]:
    """From sync code."""
    ids = itertools.count()
    with redis.Redis.from_url(server_url()) as client:
        submit = client.register_script(_SUBMIT)

        def many(numbers: Sequence[int]) -> object:
            return submit(keys=[_READY], args=_jobs(ids, numbers))

        yield Ways(lambda number: many((number,)), many)


@asynccontextmanager
async def async_ways() -> AsyncIterator[AsyncWays]:
    """From async code."""
    ids = itertools.count()
    async with redis.asyncio.Redis.from_url(server_url()) as client:
        submit = client.register_script(_SUBMIT)

        async def one(number: int) -> object:
            return await submit(keys=[_READY], args=_jobs(ids, (number,)))

        yield AsyncWays(one)


async def drain(url: str, batch: int, handler: Callable[[int], Awaitable[int]]) -> int:
    """Claim a batch, run it on the loop, complete it, until there is nothing left."""

    async def attempt(data: bytes) -> bytes:
        return _encode(await handler(_decode(data).number))

    client = redis.asyncio.Redis.from_url(url)
    claim, complete = (client.register_script(text) for text in (_CLAIM, _COMPLETE))
    done = 0
    pending: asyncio.Future[Any] | None = None
    while True:
        rows = await claim(keys=[_READY, _HELD], args=[batch, _LEASE, _OWNER])
        tasks = [asyncio.create_task(attempt(data)) for data in rows[1::_WIDTH]]
        results = await asyncio.gather(*tasks)
        if pending is not None:
            await pending
        if not rows:
            break
        pairs = zip(rows[::_WIDTH], results, strict=True)
        ends = [_OWNER, *(part for pair in pairs for part in pair)]
        pending = asyncio.ensure_future(complete(keys=[_HELD, _DONE], args=ends))
        done += len(results)
    await client.aclose()
    return done


def finished(url: str) -> int:
    """How many jobs of a database are done."""
    with redis.Redis.from_url(url) as client:
        told = client.get(_DONE)
    return int(told or 0)


def main(batch: str) -> None:
    """Drain a database in this process."""
    hit = hitter()

    async def noop(number: int) -> int:
        hit()
        return number

    event_loop.run(drain(server_url(), int(batch), noop))


if __name__ == "__main__":
    main(*sys.argv[1:])
