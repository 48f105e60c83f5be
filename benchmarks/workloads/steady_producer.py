# SPDX-License-Identifier: MIT
"""Submits jobs at a high, steady rate, and notes the instant at which each submit returned.

`python -m benchmarks.workloads.steady_producer STAMPS COUNT PER_SECOND`. The store is named by
PACKHORSE_URL. Jobs are submitted whether or not earlier ones have been run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Final

from benchmarks.probe import stamper
from benchmarks.workloads import event_loop, packhorse_app

#: Between two bursts of submits.
_PAUSE_SECONDS: Final = 0.01
#: Submits that wait for the store at most; beyond that the producer falls behind, visibly.
_UNDER_WAY_MAX: Final = 5000


async def _produce(stamp: Callable[[int], None], count: int, per_second: int) -> float:
    """The seconds it took."""
    room = asyncio.Semaphore(_UNDER_WAY_MAX)
    began = time.monotonic()

    async def submit(number: int) -> None:
        try:
            await packhorse_app.timed.aenqueue(number)
            stamp(number)
        finally:
            room.release()

    submitted = 0
    async with asyncio.TaskGroup() as tasks:
        while submitted < count:
            due = min(count, round((time.monotonic() - began) * per_second))
            for number in range(submitted, due):
                await room.acquire()
                tasks.create_task(submit(number))
            submitted = max(submitted, due)
            await asyncio.sleep(_PAUSE_SECONDS)
    return time.monotonic() - began


def main(stamps: str, count: str, per_second: str) -> None:
    """Submit job 0, 1, 2 ..., and print how long it took."""
    took = event_loop.run(_produce(stamper(stamps), int(count), int(per_second)))
    sys.stdout.write(f"{took:.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
