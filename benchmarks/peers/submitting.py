# SPDX-License-Identifier: MIT
"""Submits jobs, turn by turn, and prints how long each turn took.

`python -m benchmarks.peers.submitting MODULE WAY`; each line of its input is a number of jobs. It
speaks as `benchmarks.workloads.producer` does, and needs nothing but Python and what the module
needs, which has `ways` or `async_ways`.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Final

from benchmarks.workloads import event_loop

#: Jobs in one call of a bulk submit, as for all contestants.
MANY: Final = 1000


@dataclass(frozen=True, slots=True)
class Ways:
    """How a peer submits from sync code."""

    one: Callable[[int], object]
    many: Callable[[Sequence[int]], object] | None = None


@dataclass(frozen=True, slots=True)
class AsyncWays:
    """How a peer submits from async code."""

    one: Callable[[int], Awaitable[object]]
    many: Callable[[Sequence[int]], Awaitable[object]] | None = None


Opened = Callable[[], AbstractContextManager[Ways]]
AsyncOpened = Callable[[], AbstractAsyncContextManager[AsyncWays]]


def main(module: str, way: str) -> None:
    """Submit as told until the input ends: `one`, `async one`, or `many` as it does best."""
    app = importlib.import_module(module)
    opened: Opened | None = getattr(app, "ways", None)
    async_opened: AsyncOpened | None = getattr(app, "async_ways", None)
    if async_opened is not None and (opened is None or way == "async one"):
        event_loop.run(_take_async_turns(async_opened, many=way == "many"))
    elif opened is not None:
        _take_turns(opened, many=way == "many")
    else:
        raise SystemExit(f"{module} has no way to submit {way}")


def _take_turns(opened: Opened, *, many: bool) -> None:
    with opened() as ways:
        for line in sys.stdin:
            count, began = int(line), time.perf_counter()
            if many and ways.many is not None:
                for portion in portions(count):
                    ways.many(portion)
            else:
                for number in range(count):
                    ways.one(number)
            _tell(count, time.perf_counter() - began)


async def _take_async_turns(opened: AsyncOpened, *, many: bool) -> None:
    """Between turns the loop stands still, as nothing is under way then."""
    async with opened() as ways:
        for line in sys.stdin:
            count, began = int(line), time.perf_counter()
            if many and ways.many is not None:
                for portion in portions(count):
                    await ways.many(portion)
            else:
                for number in range(count):
                    await ways.one(number)
            _tell(count, time.perf_counter() - began)


def portions(count: int) -> list[range]:
    """The calls of a bulk submit, of which the last may be smaller."""
    return [range(start, min(start + MANY, count)) for start in range(0, count, MANY)]


def _tell(count: int, seconds: float) -> None:
    print(json.dumps({"count": count, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
