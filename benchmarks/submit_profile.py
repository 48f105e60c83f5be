# SPDX-License-Identifier: MIT
"""Where the time of a submit to a server goes: writes results/submit-profile-STORE.md.

`python -m benchmarks.submit_profile --store postgres [--jobs 2000]`

Packhorse and the bare loop take turns, each way in each; then Packhorse runs once more under a
profiler. One at a time, client and server take turns as well, so that what neither of them
computes is waiting: for the disk, the sockets and the scheduler.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import importlib
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil

from benchmarks import machine
from benchmarks.peers.server import SERVER
from benchmarks.peers.submitting import portions
from benchmarks.profile import function_lines
from packhorse import Packhorse
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer, free_port

_HERE: Final = Path(__file__).resolve().parent
_WORK: Final = _HERE.parent / ".cache" / "benchmarks"
_TURNS: Final = 9
_TOP: Final = 18
_WAYS: Final = ("one, sync", "one, async", "many")
#: A bulk submit takes so many times fewer seconds a job.
_MANY_TIMES: Final = 20

Turn = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _Server:
    """A server of the run's own."""

    pid: int
    url: Callable[[int], str]  #: an empty database, by number

    def cpu_seconds(self) -> float:
        first = psutil.Process(self.pid)
        times = [one.cpu_times() for one in (first, *first.children(recursive=True))]
        return float(sum(one.user + one.system for one in times))


@dataclass(slots=True)
class _Costs:
    """Of one contestant in one way, turn by turn: microseconds a job."""

    wall: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)

    def line(self, way: str, who: str) -> str:
        wall, client, server = (median(each) for each in (self.wall, self.client, self.server))
        rest = max(0.0, wall - client - server)
        return f"| {way} | {who} | {wall:.1f} | {client:.1f} | {server:.1f} | {rest:.1f} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, profile, and write the page."""
    options = _options(arguments)
    _WORK.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(_WORK)
    with _SERVERS[options.store](_WORK) as server:
        text = "\n".join(_page(server, options.store, options.jobs, facts))
    path = options.output / f"submit-profile-{options.store}.md"
    path.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.submit_profile", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--store", choices=sorted(_SERVERS), required=True)
    parser.add_argument("--jobs", type=int, default=2_000, help="of a turn, one at a time")
    parser.add_argument("--output", type=Path, default=_HERE / "results")
    return parser.parse_args(arguments)


def _page(server: _Server, store: str, jobs: int, facts: dict[str, str]) -> Iterator[str]:
    yield f"# Where the time of a submit to {_TITLES[store]} goes"
    yield ""
    yield from (f"- **{name}**: {value}" for name, value in facts.items())
    yield f"- **run**: {_TURNS} turns of {jobs:,} jobs each, {jobs * _MANY_TIMES:,} in bulk"
    yield ""
    yield "Microseconds a job, medians of the turns. *Rest* is what neither of them computes."
    yield ""
    yield "| Way | Contestant | all | client's processor | server's processor | rest |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    profiles: list[tuple[str, pstats.Stats, int]] = []
    for number, way in enumerate(_WAYS):
        count = jobs * _MANY_TIMES if way == "many" else jobs
        with ExitStack() as stack:
            ours = stack.enter_context(_packhorse(server.url(2 * number + 1), way))
            bare = stack.enter_context(_bare(store, server.url(2 * number + 2), way))
            costs = _take_turns(server, {"Packhorse": ours, "bare loop": bare}, count)
            yield from (cost.line(way, who) for who, cost in costs.items())
            profiles.append((way, _profiled(ours, count), count))
    for way, stats, count in profiles:
        yield ""
        yield f"## Packhorse, {way}: functions by own time, waiting included"
        yield ""
        yield from function_lines(stats, count, _TOP)


def _take_turns(server: _Server, turns: dict[str, Turn], count: int) -> dict[str, _Costs]:
    costs = {who: _Costs() for who in turns}
    for number in range(_TURNS + 1):
        for who in sorted(turns, reverse=bool(number % 2)):
            wall, client, used = time.perf_counter(), time.process_time(), server.cpu_seconds()
            turns[who](count)
            if number:  # the first one warms up
                told = costs[who]
                told.wall.append((time.perf_counter() - wall) / count * 1e6)
                told.client.append((time.process_time() - client) / count * 1e6)
                told.server.append((server.cpu_seconds() - used) / count * 1e6)
    return costs


def _profiled(turn: Turn, count: int) -> pstats.Stats:
    profiler = cProfile.Profile()
    profiler.runcall(turn, count)
    return pstats.Stats(profiler)


@contextmanager
def _packhorse(url: str, way: str) -> Iterator[Turn]:
    """The public verbs, as users call them."""
    app = Packhorse(url)
    app.store.migrate()

    @app.task
    async def noop(number: int) -> int:
        return number

    def many(numbers: Sequence[int]) -> None:
        app.enqueue_many([noop.call(number) for number in numbers])

    with _runner() as runner:
        yield _turn(way, noop.enqueue, many, noop.aenqueue, runner)
        app.close()


@contextmanager
def _bare(store: str, url: str, way: str) -> Iterator[Turn]:
    """The statements alone."""
    os.environ[SERVER] = url
    module = importlib.import_module(f"benchmarks.workloads.bare_{store}")
    with _runner() as runner, module.ways() as ways:
        opened = module.async_ways()
        async_ways = runner.run(opened.__aenter__())
        yield _turn(way, ways.one, ways.many, async_ways.one, runner)
        runner.run(opened.__aexit__(None, None, None))


def _turn(
    way: str,
    one: Callable[[int], object],
    many: Callable[[Sequence[int]], object],
    async_one: Callable[[int], Any],
    runner: asyncio.Runner,
) -> Turn:
    async def in_loop(count: int) -> None:
        for number in range(count):
            await async_one(number)

    def turn(count: int) -> None:
        if way == "many":
            for portion in portions(count):
                many(portion)
        elif way == "one, async":
            runner.run(in_loop(count))
        else:
            for number in range(count):
                one(number)

    return turn


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


@contextmanager
def _postgres(folder: Path) -> Iterator[_Server]:
    server = PostgresServer(Path(tempfile.mkdtemp(dir=folder)), careful=True)

    def url(number: int) -> str:
        with server.connect() as connection:
            connection.execute(f"create database submit_{number}".encode())
        return server.url(f"submit_{number}")

    try:
        yield _Server(server.pid, url)
    finally:
        server.remove()


@contextmanager
def _redis(folder: Path) -> Iterator[_Server]:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        server = RedisServer(Path(own), port=free_port())
        try:
            yield _Server(server.pid, lambda number: f"{server.url}/{number}")
        finally:
            server.stop()


_SERVERS: Final[dict[str, Callable[[Path], AbstractContextManager[_Server]]]] = {
    "postgres": _postgres,
    "redis": _redis,
}
_TITLES: Final = {"postgres": "PostgreSQL", "redis": "Redis"}

if __name__ == "__main__":
    sys.exit(main())
