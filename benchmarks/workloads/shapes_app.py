# SPDX-License-Identifier: MIT
"""Packhorse with jobs of other shapes. `python -m benchmarks.workloads.shapes_app` runs a worker.

The store is named by PACKHORSE_URL. Arguments: how many slots, and `one` or `spread` for the queues
it serves. It does not know the tasks of `packhorse_app`, whose jobs are foreign to it.
"""

from __future__ import annotations

import random
import string
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from benchmarks.probe import hitter, stamper
from benchmarks.workloads import event_loop
from packhorse import Call, Packhorse, logs

#: Queues that one worker serves, and characters of a large payload and of its result.
QUEUES: Final = 100
_LARGE: Final = 64_000
_ALPHABET: Final = string.ascii_letters + string.digits


def large_text() -> str:
    """A text that no store can make much smaller, the same in every run."""
    return "".join(random.Random(_LARGE).choices(_ALPHABET, k=_LARGE))


app = Packhorse()
_hit = hitter()
_stamp = stamper()
_LARGE_TEXT: Final = large_text()


@app.task
async def shaped(number: int) -> int:
    _hit()
    return number


@app.task
async def large(text: str) -> str:
    _hit()
    return text


@app.task
async def stamped(number: int) -> int:
    _stamp(number)
    return number


@app.task(executor="process")
def apart(number: int) -> int:
    _hit()
    return number


#: The call of each number, by the shape that is asked for.
CALLS: Final[Mapping[str, Callable[[int], Call[Any]]]] = MappingProxyType(
    {
        "one queue": shaped.call,
        "spread": lambda number: shaped.call(number).using(queue=f"queue-{number % QUEUES}"),
        "large": lambda _: large.call(_LARGE_TEXT),
        "stamped": stamped.call,
        "apart": apart.call,
    }
)


def main(concurrency: str, queues: str) -> None:
    """Run a worker until it is told to stop."""
    logs.configure("warning", "json")
    served = [f"queue-{number}" for number in range(QUEUES)] if queues == "spread" else ["default"]
    event_loop.run(app.arun(queues=served, concurrency=int(concurrency)))


if __name__ == "__main__":
    main(*sys.argv[1:])
