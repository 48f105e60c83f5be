# SPDX-License-Identifier: MIT
"""How long the pages of the dashboard take over a store that holds many jobs.

`python -m benchmarks.pages [--store sqlite] [--jobs 100000] [--asks 40] [--profile]` fills a store:
nine of ten jobs completed, one of a hundred dead, the others waiting, in ten queues. At most
`--run` of them are submitted and run; in SQL stores the others are copies of their rows. Then it
asks for each page in this process, one at a time; before one that shows counts it waits until
those that are kept are too old, or, with `--warm`, does not; with `--first`, every ask is one of
a new web application that has kept nothing. `--profile` says which verbs of the store took how
long.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.schedules import store_url
from packhorse import Packhorse, RetryPolicy
from packhorse.client.tokens import Tokens
from packhorse.stores.plan import Plan
from packhorse.web import web_app
from tests.web.support import Web

__all__ = ["main"]

_STORES: Final = ("sqlite", "postgres", "redis")
#: Stores whose rows can be copied.
_COPIED: Final = ("sqlite", "postgres")
_PAGES: Final = (
    *("/", "/jobs", "/jobs?status=completed", "/failures", "/dead", "/queues", "/workers"),
    *("/batches", "/workflows", "/schedules", "/tasks", "/audit", "/operations"),
    *("/jobs?task=fail", "/jobs?status=queued", "/dead?task=fail"),
)
#: Those that show counts, which are kept for a second.
_COUNTING: Final = ("/", "/queues")
_QUEUES: Final = 10
_PART: Final = 5_000
#: Longer than the dashboard keeps what it has counted.
_PAUSE_S: Final = 1.1


def main(arguments: list[str] | None = None) -> int:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages")
    parser.add_argument("--store", choices=_STORES, default="sqlite")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--asks", type=int, default=40)
    parser.add_argument("--url", help="of a store that was filled before")
    parser.add_argument("--run", type=int, default=40_000)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if chosen.url:
        asyncio.run(_measured(chosen.url, chosen))
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="packhorse-pages-") as folder,
        store_url(chosen.store, Path(folder)) as url,
    ):
        asyncio.run(_measured(url, chosen))
    return 0


async def _measured(url: str, chosen: argparse.Namespace) -> None:
    app = Packhorse(url)
    if not chosen.url:
        run = min(chosen.run, chosen.jobs) if chosen.store in _COPIED else chosen.jobs
        await _filled(app, run)
        if run < chosen.jobs:
            await app.aclose()
            _multiplied(chosen.store, url, chosen.jobs // run)
            app = Packhorse(url)
    web = Web(app, token=Tokens(app.store).create("pages", scopes=("admin",)).text)
    web.served = web_app(app)
    spent = _watched(app) if chosen.profile else {}
    load = os.getloadavg()[0]
    sys.stdout.write(f"{chosen.store}, {chosen.jobs:,} jobs, load {load:.1f}, in milliseconds\n")
    for path in _PAGES:
        spent.clear()
        times_ms = []
        for _ in range(chosen.asks):
            if chosen.first:
                web.served = web_app(app)
            times_ms.append(await _asked(web, path, warm=chosen.warm or chosen.first))
        first, *rest = times_ms
        p95 = statistics.quantiles(rest, n=20, method="inclusive")[-1]
        told = (
            f"{path:23} first {first:7.1f}  median {statistics.median(rest):6.1f}  p95 {p95:6.1f}"
        )
        sys.stdout.write(f"{told}{_parts(spent, chosen.asks)}\n")
        sys.stdout.flush()
    await app.aclose()


async def _asked(web: Web, path: str, *, warm: bool) -> float:
    if path in _COUNTING and not warm:
        await asyncio.sleep(_PAUSE_S)
    began = time.perf_counter()
    got = await web.ask("GET", path)
    took_ms = (time.perf_counter() - began) * 1_000
    if got.status != 200:
        raise RuntimeError(f"{path} answered {got.status}")
    return took_ms


def _watched(app: Packhorse) -> dict[str, float]:
    """Milliseconds in each verb of the store, from now on."""
    spent: dict[str, float] = defaultdict(float)
    store: Any = app.store
    run, run_here = store.arun, store.run

    async def arun(plan: Plan[Any]) -> Any:
        began = time.perf_counter()
        try:
            return await run(plan)
        finally:
            spent[plan.verb] += (time.perf_counter() - began) * 1_000

    def run_watched(plan: Plan[Any]) -> Any:
        began = time.perf_counter()
        try:
            return run_here(plan)
        finally:
            spent[plan.verb] += (time.perf_counter() - began) * 1_000

    store.arun, store.run = arun, run_watched
    return spent


def _parts(spent: dict[str, float], asks: int) -> str:
    largest = sorted(spent.items(), key=lambda one: -one[1])[:4]
    return "".join(f"  {name} {total / asks:.1f}" for name, total in largest)


async def _filled(app: Packhorse, jobs: int) -> None:
    """Jobs that have completed or died of one of two errors, then some that wait."""
    for number in range(_QUEUES):
        app.queue(f"queue-{number}")

    @app.task
    async def work(number: int) -> int:
        return number

    @app.task(retry=RetryPolicy(max_retries=0))
    async def fail(number: int) -> None:
        raise ValueError(number) if number % 2 else KeyError(number)

    waiting = jobs * 9 // 100
    for begin in range(0, jobs, _PART):
        end = min(begin + _PART, jobs)
        calls = []
        for number in range(begin, end):
            task = fail if number % 100 == 0 else work
            calls.append(task.using(queue=f"queue-{number % _QUEUES}").call(number))
        await app.aenqueue_many(calls)
        if end <= jobs - waiting:
            await app.arun(concurrency=64, burst=True)


def _multiplied(store: str, url: str, times: int) -> None:
    """Copy every row of a store's jobs so often, each with a number and an id of its own."""
    if store == "sqlite":
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            names = [row[1] for row in connection.execute("pragma table_info(packhorse_jobs)")]
            for number in range(1, times):
                connection.execute(_copy("packhorse_jobs", names, number))
                connection.commit()
            connection.execute("update packhorse_sequence set value = 10000000000")
            connection.execute("analyze")
            connection.commit()
        return
    with psycopg.connect(url.partition("?")[0], autocommit=True) as server:
        where = "table_schema || '.' || table_name"
        text = f"select {where}, column_name from information_schema.columns where table_name = %s"
        rows = server.execute(text + " order by ordinal_position", ("jobs",)).fetchall()
        for number in range(1, times):
            server.execute(_copy(rows[0][0], [name for _, name in rows], number))
        server.execute("vacuum analyze")


def _copy(table: str, names: list[str], number: int) -> str:
    changed = {"seq": f"seq + {number * 100_000_000}", "id": f"id || '-{number}'"}
    chosen = ", ".join(changed.get(name, name) for name in names)
    return (
        f"insert into {table} ({', '.join(names)}) "
        f"select {chosen} from {table} where seq < 100000000"
    )


if __name__ == "__main__":
    raise SystemExit(main())
