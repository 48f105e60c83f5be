# SPDX-License-Identifier: MIT
"""Compare the store's own PostgreSQL client with psycopg's, plan for plan.

`python -m benchmarks.postgres_client [--jobs 500]` takes about two minutes and prints a table. Both
sides run the same plans on the same server, in turns: the store's runner, psycopg's connection
with one statement at a time, and the same in `pipeline()`. Only the store's runner also sends
wake-ups and takes its connection from a pool.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import psycopg
from psycopg.types.numeric import Int8, Int8BinaryDumper
from psycopg.types.string import StrBinaryDumper

from packhorse.core.clock import new_id
from packhorse.core.job import IdempotencyRule, NewJob
from packhorse.core.lifecycle import JobRules, settle
from packhorse.core.outcome import Succeeded
from packhorse.stores.plan import Plan
from packhorse.stores.postgres.rendering import Texts
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.statements import Lock, Once
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import ClaimRequest, Renewal
from packhorse.stores.sql.statements import Change, Now, Rows, Send, Together
from tests.servers.postgres import PostgresServer

_WORK: Final = Path(__file__).resolve().parent.parent / ".cache" / "benchmarks"
_TURNS: Final = 7
_BATCH: Final = 100
_HOUR_US: Final = 3_600_000_000
_WORKER: Final = "w"

Turn = Callable[[int], None]
Run = Callable[[Plan[Any]], Awaitable[Any]]


class _Psycopg:
    """Runs plans on a connection of psycopg as its documentation says."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._texts = Texts(settings.schema, settings.prefix)
        self._known: dict[str, str] = {}
        self._sync: psycopg.Connection[Any] | None = None
        self._async: psycopg.AsyncConnection[Any] | None = None

    def open(self, stack: ExitStack) -> None:
        connection = psycopg.connect(self._settings.conninfo, autocommit=True)
        self._sync = _prepared(stack.enter_context(connection))

    async def aopen(self, stack: AsyncExitStack) -> None:
        opened = await psycopg.AsyncConnection.connect(self._settings.conninfo, autocommit=True)
        self._async = _prepared(await stack.enter_async_context(opened))

    def submit(self, plan: Plan[Any], *, pipeline: bool) -> Any:
        """A plan that is one statement, in the caller's thread."""
        assert self._sync is not None
        if pipeline:
            with self._sync.pipeline():
                return self.submit(plan, pipeline=False)
        short = plan.short
        cursor = self._sync.cursor(binary=True)
        cursor.execute(self._text(short.text), _parameters(short.parameters))
        return short.answer(cursor.rowcount if short.counts else cursor.fetchall())

    async def one_by_one(self, plan: Plan[Any]) -> Any:
        return await self._run(plan)

    async def in_pipeline(self, plan: Plan[Any]) -> Any:
        assert self._async is not None
        async with self._async.pipeline():
            return await self._run(plan)

    async def _run(self, plan: Plan[Any]) -> Any:
        assert self._async is not None
        cursor = self._async.cursor(binary=True)
        if plan.short is not None:
            short = plan.short
            await cursor.execute(self._text(short.text), _parameters(short.parameters))
            return short.answer(cursor.rowcount if short.counts else await cursor.fetchall())
        if plan.look is not None:
            return await self._follow(cursor, plan.look())
        await cursor.execute("begin")
        answer = await self._follow(cursor, plan.steps())
        await cursor.execute("commit")
        return answer

    async def _follow(self, cursor: Any, steps: Any) -> Any:
        """Run the steps of a plan; as our runner does, ask for the time once."""
        answer: Any = None
        now: Any = None
        try:
            while True:
                step = steps.send(answer)
                asks_time = isinstance(step, Now)
                answer = now if asks_time and now else await self._answer(cursor, step)
                now = answer if asks_time else now
        except StopIteration as finished:
            return finished.value

    async def _answer(self, cursor: Any, step: Any) -> Any:
        if isinstance(step, Rows | Once | Change | Send):
            await cursor.execute(self._text(step.text), _parameters(step.parameters))
            if isinstance(step, Send):
                return None
            return cursor.rowcount if isinstance(step, Change) else await cursor.fetchall()
        if isinstance(step, Together):
            return [await self._answer(cursor, one) for one in step.asked]
        if isinstance(step, Now):
            await cursor.execute(self._text("select {now}"))
            return (await cursor.fetchall())[0][0]
        if isinstance(step, Lock) and step.keys:
            name = "pg_advisory_xact_lock_shared" if step.shared else "pg_advisory_xact_lock"
            text = f"select {name}({{lock_key}}(key)) from unnest(%s::text[]) key"
            await cursor.execute(self._text(text), (sorted(set(step.keys)),))
        return None

    def _text(self, text: str) -> Any:
        if text not in self._known:
            self._known[text] = self._texts.rendered(text)
        return self._known[text]


def _prepared(connection: Any) -> Any:
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(str, StrBinaryDumper)
    connection.prepare_threshold = 0
    return connection


def _parameters(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: _value(value) for name, value in given.items()}
    return tuple(map(_value, given))


def _value(value: Any) -> Any:
    """Lists of integers need their type: psycopg picks the smallest that fits the first."""
    if isinstance(value, list) and value and type(value[0]) is int:
        return [item if item is None else Int8(item) for item in value]
    return value


def _job(number: int, *, queue: str = "default", **changes: Any) -> NewJob:
    payload = b'{"number":%d}' % number
    return NewJob(id=new_id(), task="noop", payload=payload, queue=queue, **changes)


class _Ways:
    """What is measured, with a store that has a worker."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        store.migrate()
        renewal = Renewal(_WORKER, _HOUR_US, queues=("default",), tasks=("noop",))
        store.run(store.leases.renew(renewal))

    def plans(self, count: int) -> Iterator[Plan[Any]]:
        return (self._store.jobs.submit([_job(number)]) for number in range(count))

    async def submit(self, run: Run, count: int) -> None:
        for plan in self.plans(count):
            await run(plan)

    async def submit_keyed(self, run: Run, count: int) -> None:
        """Each in a transaction of several steps."""
        for number in range(count):
            rule = IdempotencyRule(new_id(), "", _HOUR_US)
            job = _job(number, queue="keyed", idempotency=rule)
            await run(self._store.jobs.submit([job]))

    async def work(self, run: Run, count: int) -> None:
        """Claim a batch and complete it, one after the other, as a worker's batches do."""
        jobs = self._store.jobs
        request = ClaimRequest(_WORKER, ("default",), ("noop",), _BATCH, _HOUR_US)
        for _ in range(count // _BATCH):
            claimed = await run(jobs.claim(request))
            assert len(claimed.jobs) == _BATCH, len(claimed.jobs)
            ends = [settle(job, Succeeded("1"), JobRules(), roll=0.5) for job in claimed.jobs]
            await run(jobs.settle(ends))

    def fill(self, count: int) -> None:
        for first in range(0, count, 1000):
            numbers = range(first, min(count, first + 1000))
            self._store.run(self._store.jobs.submit([_job(number) for number in numbers]))


def _measured(url: str, jobs: int, runner: asyncio.Runner) -> Iterator[str]:
    settings = PostgresSettings.from_url(url)
    store, theirs = PostgresStore(settings), _Psycopg(settings)
    ways, stack, in_loop = _Ways(store), ExitStack(), AsyncExitStack()
    theirs.open(stack)
    runner.run(theirs.aopen(in_loop))
    runs: dict[str, Run] = {
        "ours": store.arun,
        "psycopg": theirs.one_by_one,
        "psycopg, pipeline": theirs.in_pipeline,
    }

    def asynchronously(act: Callable[[Run, int], Any]) -> dict[str, Turn]:
        def turn(run: Run) -> Turn:
            return lambda count: runner.run(act(run, count))

        return {who: turn(run) for who, run in runs.items()}

    def synchronously(run: Callable[[Plan[Any]], Any]) -> Turn:
        def turn(count: int) -> None:
            for plan in ways.plans(count):
                run(plan)

        return turn

    sync_turns = {
        "ours": synchronously(store.run),
        "psycopg": synchronously(lambda plan: theirs.submit(plan, pipeline=False)),
        "psycopg, pipeline": synchronously(lambda plan: theirs.submit(plan, pipeline=True)),
    }
    yield "| Way | Client | µs a job | client's processor µs a job |"
    yield "| --- | --- | ---: | ---: |"
    for way, turns, count, before in (
        ("submit one, sync", sync_turns, jobs, _nothing),
        ("submit one, async", asynchronously(ways.submit), jobs, _nothing),
        (f"claim and settle {_BATCH}", asynchronously(ways.work), 5 * jobs, ways.fill),
        ("submit one with a key", asynchronously(ways.submit_keyed), jobs // 2, _nothing),
    ):
        yield from (f"| {way} | {line}" for line in _take_turns(turns, count, before))
    runner.run(in_loop.aclose())
    stack.close()
    store.close()


def _take_turns(turns: dict[str, Turn], count: int, before: Callable[[int], None]) -> Iterator[str]:
    walls: dict[str, list[float]] = {who: [] for who in turns}
    clients: dict[str, list[float]] = {who: [] for who in turns}
    for number in range(_TURNS + 1):
        for who in sorted(turns, reverse=bool(number % 2)):
            before(count)
            wall, client = time.perf_counter(), time.process_time()
            turns[who](count)
            if number:  # the first one warms up
                walls[who].append((time.perf_counter() - wall) / count * 1e6)
                clients[who].append((time.process_time() - client) / count * 1e6)
    for who in turns:
        yield f"{who} | {median(walls[who]):.1f} | {median(clients[who]):.1f} |"


def _nothing(_count: int) -> None:
    pass


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.postgres_client", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--jobs", type=int, default=500, help="of a turn")
    options = parser.parse_args(arguments)
    _WORK.mkdir(parents=True, exist_ok=True)
    server = PostgresServer(Path(tempfile.mkdtemp(dir=_WORK)), careful=True)
    try:
        with _runner() as runner:
            for line in _measured(server.url("postgres"), options.jobs, runner):
                print(line, flush=True)
    finally:
        server.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
