# SPDX-License-Identifier: MIT
"""Workflows that wait, in large numbers, and large ones: what it costs to start and to run them.

    python -m benchmarks.workflows --store sqlite --open 100000
    python -m benchmarks.workflows --store sqlite --nodes 10000 --depth 1000

The first opens so many workflows of two nodes whose first one is due tomorrow, and shows before and
behind that what it costs to run others from start to end, to list and to show: it should stay as
it was, and so should the memory. The second runs one of so many nodes side by side and one so deep.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
from pathlib import Path
from typing import Any

from packhorse import Packhorse, chain
from packhorse.core.clock import SystemClock

_TOGETHER = 100  # starts that are under way at once
_PROBES = 200  # workflows that are run to see what a step costs
_FEW = 100  # open ones, before there are many
_CLOCK = SystemClock()


def main() -> None:
    """Run it, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="sqlite", help="sqlite, memory, or a URL")
    parser.add_argument("--open", type=int, default=0, help="workflows that wait")
    parser.add_argument("--nodes", type=int, default=0, help="of one workflow, side by side")
    parser.add_argument("--depth", type=int, default=0, help="of one workflow")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = {"sqlite": f"sqlite:///{Path(folder) / 'jobs.db'}", "memory": "memory://"}.get(
            chosen.store, chosen.store
        )
        app = Packhorse(url)

        @app.task
        async def pass_on(number: int) -> int:
            return number

        @app.task
        async def count(numbers: list[int]) -> int:
            return len(numbers)

        asyncio.run(_measure(app, pass_on, count, chosen))
        app.close()


async def _measure(app: Packhorse, pass_on: Any, count: Any, chosen: argparse.Namespace) -> None:
    if chosen.open:
        await _open(app, pass_on, range(_FEW))
        await _look(app, pass_on, _FEW)
        await _open(app, pass_on, range(_FEW, chosen.open))
        await _look(app, pass_on, chosen.open)
    if chosen.nodes:
        flow = app.workflow("wide")
        parts = [flow.add(pass_on.call(number)) for number in range(chosen.nodes - 1)]
        flow.add(count.call([part.result for part in parts]))
        await _run(app, flow, f"{chosen.nodes} nodes")
    if chosen.depth:
        links = [pass_on.call(1), *[pass_on] * (chosen.depth - 1)]
        await _run(app, app.workflow("deep", chain(*links)), f"{chosen.depth} deep")


async def _open(app: Packhorse, task: Any, numbers: range) -> None:
    began, late = _CLOCK.monotonic(), task.using(delay="1d")
    waiting = asyncio.Semaphore(_TOGETHER)

    async def start(number: int) -> None:
        async with waiting:
            await app.workflow(f"open-{number:06}", chain(late.call(number), task)).astart()

    for begin in range(numbers.start, numbers.stop, 1_000):
        part = range(begin, min(begin + 1_000, numbers.stop))
        await asyncio.gather(*(start(number) for number in part))
    took = _CLOCK.monotonic() - began
    print(f"opened {len(numbers)} in {took:.1f} s: {1000 * took / len(numbers):.2f} ms each")


async def _look(app: Packhorse, task: Any, there: int) -> None:
    """What others cost while so many are open."""
    flows = [app.workflow(f"probe-{there}-{n}", chain(task.call(n), task)) for n in range(_PROBES)]
    await asyncio.gather(*(flow.astart() for flow in flows))
    began = _CLOCK.monotonic()
    await app.arun(burst=True)
    ran = 1000 * (_CLOCK.monotonic() - began) / _PROBES
    handle = await app.workflows.aget(f"probe-{there}-0")
    states = {node.state for node in await handle.anodes()}
    timed = []
    for asking in (lambda: app.workflows.apage(limit=50), handle.anodes):
        began = _CLOCK.monotonic()
        await asking()
        timed.append(1000 * (_CLOCK.monotonic() - began))
    print(
        f"with {there} open: {ran:.2f} ms for one of two nodes ({', '.join(states)}), "
        f"a page of 50 {timed[0]:.1f} ms, one shown {timed[1]:.1f} ms, {_memory_mib():.0f} MiB"
    )


async def _run(app: Packhorse, flow: Any, what: str) -> None:
    began = _CLOCK.monotonic()
    handle = await flow.astart()
    started = _CLOCK.monotonic()
    await app.arun(burst=True)
    ended = _CLOCK.monotonic()
    state = await handle.astatus()
    print(
        f"{what}: started in {started - began:.1f} s, {state} {ended - started:.1f} s later, "
        f"{_memory_mib():.0f} MiB"
    )


def _memory_mib() -> float:
    """The most this process has had so far: what is flat stays as it was."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
