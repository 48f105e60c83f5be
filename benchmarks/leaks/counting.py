# SPDX-License-Identifier: MIT
"""Count what a worker leaves behind: objects, their size, and file descriptors, in this process.

    python -m benchmarks.leaks.counting --store redis --jobs 20000

Memory as the system counts it says little about a short run. Objects can be counted: after a first
part of the jobs, and again at the end. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.leaks.feeding import PORTION, Feeder
from benchmarks.leaks.serving import serving
from benchmarks.leaks.tasks import create_app
from packhorse import Packhorse
from packhorse.events import WorkerStarted

#: Jobs of which the first count is taken: every kind of thing has happened by then.
WARM: Final = 3 * PORTION
CONCURRENCY: Final = 10
#: How long a worker may take to come to rest, and how long it must have been at rest.
REST_S_MAX: Final = 60.0
REST_S: Final = 0.3
#: Types that are told of, those that grew most first.
TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class Count:
    """What there is at one moment."""

    objects: Counter[str]
    size: int
    descriptors: int


class Growth(msgspec.Struct, frozen=True):
    """What there is more of at the end."""

    jobs: int  #: between the two counts
    retried: int
    cancelled: int
    cut: int  #: connections
    objects: int
    size: int  #: bytes, of what can hold others
    descriptors: int
    types: dict[str, int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20 * PORTION)
    parser.add_argument("--store", choices=["sqlite", "postgres", "redis"], default="sqlite")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="packhorse-leaks-") as folder:
        growth = asyncio.run(counted(options.store, Path(folder), options.jobs))
    sys.stdout.write(msgspec.json.encode(growth).decode() + "\n")
    return 0


async def counted(store: str, folder: Path, jobs: int) -> Growth:
    """How much more there is after all jobs than after the first of them."""
    with serving(store, folder) as (url, cutter):
        app = create_app(url)
        feeder = Feeder(app, cutter, seed=1)
        feeder.prepare()
        started = asyncio.Event()
        app.on(WorkerStarted)(lambda _: started.set())
        worker = asyncio.create_task(
            app.arun(["default"], concurrency=CONCURRENCY, handle_signals=False)
        )
        try:
            async with asyncio.timeout(REST_S_MAX):
                await started.wait()  # a connection cut before that would end it
            await _fed(app, feeder, WARM)
            first = _count()
            jobs_then, retried, cancelled = feeder.submitted, feeder.retried, feeder.cancelled
            cut = cutter.cuts
            await _fed(app, feeder, jobs)
            last = _count()
        finally:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker
            await asyncio.to_thread(app.close)
    grown = last.objects - first.objects
    return Growth(
        jobs=feeder.submitted - jobs_then,
        retried=feeder.retried - retried,
        cancelled=feeder.cancelled - cancelled,
        cut=cutter.cuts - cut,
        objects=last.objects.total() - first.objects.total(),
        size=last.size - first.size,
        descriptors=last.descriptors - first.descriptors,
        types=dict(grown.most_common(TOLD)),
    )


async def _fed(app: Packhorse, feeder: Feeder, jobs: int) -> None:
    """Submit up to so many jobs, cut connections with each portion, and wait until all rests."""
    while feeder.submitted < jobs:
        await asyncio.to_thread(feeder.feed, cut_every=PORTION)
    async with asyncio.timeout(REST_S_MAX):
        rested = 0
        while rested < 2:
            await asyncio.sleep(REST_S)
            running = [one.running for one in await asyncio.to_thread(app.insights.workers)]
            depth = await asyncio.to_thread(feeder.depth)
            rested = rested + 1 if not depth and not any(running) else 0


def _count() -> Count:
    gc.collect()
    objects = gc.get_objects()
    return Count(
        objects=Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in objects),
        size=sum(sys.getsizeof(each) for each in objects),
        descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - only how many
    )


if __name__ == "__main__":
    sys.exit(main())
