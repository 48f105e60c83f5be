# SPDX-License-Identifier: MIT
"""Packhorse with the same jobs. `python -m benchmarks.workloads.packhorse_app` runs a worker.

The store is named by PACKHORSE_URL. Arguments: how many slots, and `quiet` or `lines` for a JSON
log line at each job's start and end.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.probe import hitter, stamper
from benchmarks.workloads import event_loop
from benchmarks.workloads.naps import NAP_SECONDS, nap_seconds
from packhorse import Context, Packhorse, logs

app = Packhorse()
_hit = hitter()
_stamp = stamper()


@app.task
async def noop(number: int) -> int:
    _hit()
    return number


@app.task
async def nap(number: int) -> int:
    _hit()
    await asyncio.sleep(NAP_SECONDS)
    return number


@app.task
async def mixed_nap(number: int) -> int:
    await asyncio.sleep(nap_seconds(number))
    _hit()
    return number


async def _double(number: int) -> int:
    return 2 * number


@app.task
async def stepped(ctx: Context, number: int) -> int:
    for name in ("first", "second", "third"):
        number = await ctx.astep(name, _double, number)
    _hit()
    return number


@app.task
async def timed(number: int) -> int:
    _stamp(number)
    return number


def main(concurrency: str, lines: str) -> None:
    """Run a worker until it is told to stop."""
    logs.configure("info" if lines == "lines" else "warning", "json")
    logs.attach(app.bus)
    event_loop.run(app.arun(concurrency=int(concurrency)))


if __name__ == "__main__":
    main(*sys.argv[1:])
