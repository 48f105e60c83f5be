# SPDX-License-Identifier: MIT
"""How long the pages of the dashboard take over a store that holds many jobs.

`python -m benchmarks.pages [--store sqlite] [--jobs 100000] [--asks 40] [--profile]` fills a store:
one of a hundred jobs dead, some waiting, the others completed, in ten queues. At most `--run` of
them are submitted and run; the others are copies. Then it asks for each page in this process, one
at a time; before one that shows counts it waits until those that are kept are too old, or, with
`--warm`, does not; with `--first`, every ask is one of a new web application that has kept nothing.
It prints times by the clock, and those of the processor: of this process, and of the server of the
store where that runs on this machine. `--profile` says which verbs of the store took how long.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, cast

import psycopg
import redis

from benchmarks.filling import fill, multiply
from benchmarks.schedules import store_url
from packhorse import Packhorse
from packhorse.client.tokens import Tokens
from packhorse.core.job import JobStatus
from packhorse.stores.plan import Plan
from packhorse.stores.requests import JobFilter
from packhorse.web import web_app
from tests.web.support import Web

_STORES: Final = ("sqlite", "postgres", "redis")
_PAGES: Final = (
    *("/", "/jobs", "/jobs?status=completed", "/failures", "/dead", "/queues", "/workers"),
    *("/batches", "/workflows", "/schedules", "/tasks", "/audit", "/operations"),
    *("/jobs?task=fail", "/jobs?status=queued", "/jobs?status=processing", "/dead?task=fail"),
    # What no job fits.
    *("/jobs?task=none", "/jobs?tenant=none", "/jobs?tag=none", "/jobs?createdBy=none"),
    *("/jobs?status=pending", "/jobs?status=cancelled", "/dead?tenant=none"),
    *("/operations/new?action=redrive&error=none", "/operations/new?action=cancel&task=none"),
)
#: Those that show counts, which are kept for a second.
_COUNTING: Final = ("/", "/queues")
#: Longer than the dashboard keeps what it has counted.
_PAUSE_S: Final = 1.1


def main(arguments: list[str] | None = None) -> int:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages")
    parser.add_argument("--store", choices=_STORES, default="sqlite")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--asks", type=int, default=40)
    parser.add_argument("--url", help="of a store that was filled before, or with --fill is now")
    parser.add_argument("--fill", action="store_true")
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
    if chosen.fill or not chosen.url:
        app = await _filled(app, url, chosen)
    web = Web(app, token=Tokens(app.store).create("pages", scopes=("admin",)).text)
    web.served = web_app(app)
    spent = _watched(app) if chosen.profile else {}
    load = os.getloadavg()[0]
    sys.stdout.write(f"{chosen.store}, {chosen.jobs:,} jobs, load {load:.1f}, in milliseconds\n")
    for path in (*_PAGES, *await _job_pages(app)):
        spent.clear()
        asked = []
        begun_ms = _server_ms(url)
        for _ in range(chosen.asks):
            if chosen.first:
                web.served = web_app(app)
            asked.append(await _asked(web, path, warm=chosen.warm or chosen.first))
        server_ms = (_server_ms(url) - begun_ms) / chosen.asks
        clock_ms, own_ms = zip(*asked, strict=True)
        told = f"{path:42} {_figures(clock_ms)}  processor {_figures(own_ms)}"
        told += f"  server {server_ms:5.1f}{_parts(spent, chosen.asks)}"
        sys.stdout.write(f"{told}\n")
        sys.stdout.flush()
    sys.stdout.write(f"load {os.getloadavg()[0]:.1f} at the end\n")
    await app.aclose()


def _figures(times_ms: Sequence[float]) -> str:
    p95 = statistics.quantiles(times_ms, n=20, method="inclusive")[-1]
    return f"median {statistics.median(times_ms):6.1f} p95 {p95:6.1f}"


async def _job_pages(app: Packhorse) -> list[str]:
    """One job of each status there is; a queued one is the last of its queue."""
    found = []
    for status in JobStatus:
        page = await app.insights.ajobs(JobFilter(statuses=(status,)), limit=1, most=10_000)
        found += [f"/jobs/{job.id}" for job in page.jobs]
    return found


def _server_ms(url: str) -> float:
    """What the server of a store has had of the processor; nothing where there is none."""
    pids: list[int] = []
    if url.startswith("redis"):
        with closing(redis.Redis.from_url(url)) as server:
            pids = [cast("dict[str, int]", server.info("server"))["process_id"]]
    elif url.startswith("postgres"):
        text = "select pid from pg_stat_activity where datname = current_database()"
        with psycopg.connect(url.partition("?")[0]) as connection:
            pids = [
                pid for (pid,) in connection.execute(text) if pid != connection.info.backend_pid
            ]
    spans = [Path(f"/proc/{pid}/schedstat").read_text().split()[0] for pid in pids]
    return sum(map(int, spans)) / 1e6


async def _filled(app: Packhorse, url: str, chosen: argparse.Namespace) -> Packhorse:
    run = min(chosen.run, chosen.jobs)
    await fill(app, run)
    if run == chosen.jobs:
        return app
    await app.aclose()
    multiply(chosen.store, url, chosen.jobs // run)
    app = Packhorse(url)
    if chosen.store == "redis":  # where only finished ones are copied
        await fill(app, (chosen.jobs - run) * 9 // 100, run=False)
        await app.aclose()
        app = Packhorse(url)
    return app


async def _asked(web: Web, path: str, *, warm: bool) -> tuple[float, float]:
    if path in _COUNTING and not warm:
        await asyncio.sleep(_PAUSE_S)
    began, used = time.perf_counter(), time.process_time()
    got = await web.ask("GET", path)
    took_ms = (time.perf_counter() - began) * 1_000, (time.process_time() - used) * 1_000
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


if __name__ == "__main__":
    raise SystemExit(main())
