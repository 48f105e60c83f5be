# SPDX-License-Identifier: MIT
"""A batch of many items beside the same number of jobs without one, in one run.

    python -m benchmarks.batches --store sqlite --items 1000000

Prints how fast each is drained by one worker in this process, and how much memory the process has
while the batch is filled and while it is worked off: both should be flat, whatever the number.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packhorse import Packhorse
from packhorse.core.clock import SystemClock

_SAMPLES = 10
_BARE_MAX = 50_000  # jobs of the drain without a batch
_CLOCK = SystemClock()


def main() -> None:
    """Run it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="sqlite", help="sqlite, memory, or a URL")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=100)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = {"sqlite": f"sqlite:///{Path(folder) / 'jobs.db'}", "memory": "memory://"}.get(
            chosen.store, chosen.store
        )
        app = Packhorse(url)

        @app.task
        async def nothing(number: int) -> None:
            del number

        _measure(app, nothing, chosen.items, chosen.batch_size)
        app.close()


def _measure(app: Packhorse, task: Any, items: int, batch_size: int) -> None:
    bare = min(items, _BARE_MAX)
    for begin in range(0, bare, 1_000):
        task.enqueue_many([{"number": number} for number in range(begin, begin + 1_000)])
    began = _CLOCK.monotonic()
    app.run(burst=True)
    without = bare / (_CLOCK.monotonic() - began)
    print(f"without a batch: {bare} jobs, {without:,.0f} jobs/s")
    began = _CLOCK.monotonic()
    batch = app.batch(task, _numbers(items), batch_size=batch_size)
    filled = items / (_CLOCK.monotonic() - began)
    print(f"filled: {filled:,.0f} items/s, {_memory_mib():.0f} MiB")
    began = _CLOCK.monotonic()
    asyncio.run(_drain(app, batch, items))
    rate = items / (_CLOCK.monotonic() - began)
    progress = batch.progress()
    print(f"drained: {progress.succeeded} items, {progress.status}, {rate:,.0f} items/s")
    print(f"ratio to the drain without a batch: {rate / without:.2f}")


def _numbers(items: int) -> Iterator[int]:
    """The items, with the memory of the producer at some of them."""
    for number in range(items):
        if number % max(1, items // _SAMPLES) == 0:
            print(f"  producer at {number}: {_memory_mib():.0f} MiB")
        yield number


async def _drain(app: Packhorse, batch: Any, items: int) -> None:
    """Work the batch off, with the memory of the worker now and then."""
    worker = asyncio.create_task(app.arun(burst=True))
    shown = 0
    async for progress in batch.watch():
        if progress.processed >= shown:
            print(f"  worker at {progress.processed}: {_memory_mib():.0f} MiB")
            shown = progress.processed + items // _SAMPLES
    await worker


def _memory_mib() -> float:
    """The most this process has had so far: what is flat stays as it was."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
