# SPDX-License-Identifier: MIT
"""Submits jobs in one of several ways, turn by turn, and prints how long each turn took.

`python -m benchmarks.workloads.producer CONTESTANT WAY`; each line of its input is a number of jobs
to submit. A process of its own for each contestant: none inherits another's threads or caches; and
turns, so that those who are compared share every mood of the disk.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from benchmarks.workloads import event_loop

if TYPE_CHECKING:
    from packhorse import Call, Packhorse

BARE_FILE: Final = "BENCHMARK_BARE_FILE"
BARE_SYNCHRONOUS: Final = "BENCHMARK_BARE_SYNCHRONOUS"

#: Jobs in one call of a bulk submit.
MANY: Final = 1000
#: Submits under way at once, as in a busy web server.
CONCURRENT: Final = 100


class Timing(msgspec.Struct, frozen=True):
    """How long it took to submit so many jobs."""

    count: int
    seconds: float

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.count / self.seconds


Submit = Callable[[int], object]
AsyncSubmit = Callable[[int], Awaitable[object]]
SubmitMany = Callable[[Sequence[int]], object]


def packhorse(way: str) -> None:
    """The public verbs, as users call them."""
    from benchmarks.workloads.packhorse_app import app, mixed_nap, nap, noop, stepped

    def many(numbers: Sequence[int], task: Any = noop) -> None:
        app.enqueue_many([task.call(number) for number in numbers])

    try:
        match way:
            case "one":
                _take_turns(partial(_one_at_a_time, noop.enqueue))
            case "async one":
                event_loop.run(_take_async_turns(partial(_async_one_at_a_time, noop.aenqueue)))
            case "concurrent":
                event_loop.run(_take_async_turns(partial(_concurrently, noop.aenqueue)))
            case "naps":
                _take_turns(partial(_in_bulk, partial(many, task=nap)))
            case "stepped":
                _take_turns(partial(_in_bulk, partial(many, task=stepped)))
            case "mixed naps":
                _take_turns(partial(_in_bulk, partial(many, task=mixed_nap)))
            case _:
                _take_turns(partial(_in_bulk, many))
    finally:
        app.close()


def limits(way: str) -> None:
    """In bulk, with what `way` asks of the store."""
    from benchmarks.workloads.limits_app import CALLS, app

    _submit_calls(app, CALLS[way])


def shapes(way: str) -> None:
    """In bulk, of the shape that `way` names."""
    from benchmarks.workloads.shapes_app import CALLS, app

    _submit_calls(app, CALLS[way])


def _submit_calls(app: Packhorse, call: Callable[[int], Call[Any]]) -> None:
    try:
        _take_turns(
            partial(_in_bulk, lambda numbers: app.enqueue_many([call(each) for each in numbers]))
        )
    finally:
        app.close()


def bare(way: str) -> None:
    """The statements alone. From async code they run in one thread, which owns the connection."""
    from benchmarks.workloads import bare_sqlite

    path, synchronous = Path(os.environ[BARE_FILE]), os.environ[BARE_SYNCHRONOUS]
    connection = bare_sqlite.connect(path, synchronous)
    owner = ThreadPoolExecutor(max_workers=1)

    async def in_owner(number: int) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(owner, bare_sqlite.insert_one, connection, number)

    match way:
        case "one":
            _take_turns(partial(_one_at_a_time, partial(bare_sqlite.insert_one, connection)))
        case "one, named":
            _take_turns(partial(_one_at_a_time, partial(bare_sqlite.insert_one_named, connection)))
        case "async one":
            event_loop.run(_take_async_turns(partial(_async_one_at_a_time, in_owner)))
        case "many, named":
            _take_turns(partial(_in_bulk, partial(bare_sqlite.insert_many_named, connection)))
        case _:
            _take_turns(partial(_in_bulk, partial(bare_sqlite.insert_many, connection)))


def huey(_: str) -> None:
    """The peer submits one at a time only."""
    from benchmarks.workloads.huey_app import noop

    _take_turns(partial(_one_at_a_time, noop))


CONTESTANTS: Final[Mapping[str, Callable[[str], None]]] = MappingProxyType(
    {"packhorse": packhorse, "limits": limits, "shapes": shapes, "bare": bare, "huey": huey}
)


def _take_turns(turn: Callable[[int], Timing]) -> None:
    for line in sys.stdin:
        _tell(turn(int(line)))


async def _take_async_turns(turn: Callable[[int], Awaitable[Timing]]) -> None:
    """Between turns the loop stands still, as nothing is under way then."""
    for line in sys.stdin:
        _tell(await turn(int(line)))


def _tell(timing: Timing) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(timing) + b"\n")
    sys.stdout.buffer.flush()


def _one_at_a_time(submit: Submit, count: int) -> Timing:
    began = time.perf_counter()
    for number in range(count):
        submit(number)
    return Timing(count, time.perf_counter() - began)


async def _async_one_at_a_time(submit: AsyncSubmit, count: int) -> Timing:
    began = time.perf_counter()
    for number in range(count):
        await submit(number)
    return Timing(count, time.perf_counter() - began)


async def _concurrently(submit: AsyncSubmit, count: int) -> Timing:
    """Each of some callers submits one at a time; all of them at once."""
    share = max(1, count // CONCURRENT)

    async def caller() -> None:
        for number in range(share):
            await submit(number)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CONCURRENT)))
    return Timing(share * CONCURRENT, time.perf_counter() - began)


def _in_bulk(submit: SubmitMany, count: int) -> Timing:
    began = time.perf_counter()
    for start in range(0, count, MANY):
        submit(range(start, min(start + MANY, count)))
    return Timing(count, time.perf_counter() - began)


def main(contestant: str, way: str) -> None:
    """Submit as told until the input ends."""
    CONTESTANTS[contestant](way)


if __name__ == "__main__":
    main(*sys.argv[1:])
