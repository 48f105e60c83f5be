# SPDX-License-Identifier: MIT
"""Packhorse with limits that do not bind. `python -m benchmarks.workloads.limits_app` is a worker.

The store is named by PACKHORSE_URL. The argument is how many slots.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from benchmarks.probe import hitter
from benchmarks.workloads import event_loop
from packhorse import Call, Packhorse, logs

#: Tenants that share a queue, and keys that jobs are ordered by.
KEYS: Final = 1000
#: More than any machine starts in a second.
_NEVER_REACHED: Final = (10_000_000, "1s")

app = Packhorse()
app.queue("rated", rate_limit=_NEVER_REACHED)
_hit = hitter()


@app.task
async def noop(number: int) -> int:
    _hit()
    return number


@app.task(queue="rated")
async def rated(number: int) -> int:
    _hit()
    return number


#: The call of each number, by what is asked of the store.
CALLS: Final[Mapping[str, Callable[[int], Call[Any]]]] = MappingProxyType(
    {
        "unlimited": noop.call,
        "rated": rated.call,
        "fair": lambda number: noop.call(number).using(tenant=f"tenant-{number % KEYS}"),
        "ordered": lambda number: noop.call(number).using(ordering_key=f"key-{number % KEYS}"),
    }
)


def main(concurrency: str) -> None:
    """Run a worker until it is told to stop."""
    logs.configure("warning", "json")
    event_loop.run(app.arun(queues=["default", "rated"], concurrency=int(concurrency)))


if __name__ == "__main__":
    main(*sys.argv[1:])
