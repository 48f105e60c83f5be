# SPDX-License-Identifier: MIT
"""What it costs a worker to look after 10,000 schedules: CPU time in a second.

`python -m benchmarks.schedules [--store sqlite] [--schedules 10000] [--seconds 60]` declares them,
each once an hour, a sixtieth of them in each minute, and then looks as a worker does. Counted is
the time of this process alone: a server's is not among it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from packhorse import Packhorse
from packhorse.core.clock import SystemChance, SystemClock
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.services.ticker import Ticker
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

_STORES: Final = ("memory", "sqlite", "postgres", "redis")
_BOUND_MS: Final = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Measure each store asked for, and print what came out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedules")
    parser.add_argument("--store", choices=[*_STORES, "all"], default="sqlite")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args(arguments)
    for store in _STORES if chosen.store == "all" else (chosen.store,):
        with tempfile.TemporaryDirectory(prefix="packhorse-schedules-") as folder:
            with store_url(store, Path(folder)) as url:
                told = asyncio.run(_measured(url, chosen.schedules, chosen.seconds))
            sys.stdout.write(f"{store}: {told}\n")
    return 0


@contextmanager
def store_url(store: str, folder: Path) -> Iterator[str]:
    """The URL of a new store, whose server runs meanwhile."""
    if store == "postgres":
        postgres = PostgresServer()
        try:
            yield postgres.url()
        finally:
            postgres.remove()
    elif store == "redis":
        redis = RedisServer(folder)
        try:
            yield redis.url
        finally:
            redis.stop()
    else:
        yield "memory://" if store == "memory" else f"sqlite:///{folder}/jobs.db"


async def _measured(url: str, schedules: int, seconds: float) -> str:
    app = Packhorse(url)

    @app.task
    def report(number: int) -> None:
        """Is not run: what is measured is the firing."""

    for number in range(schedules):
        app.schedule(f"report {number}", report.call(number), cron=f"{number % 60} * * * *")
    ticker = Ticker(
        ServiceContext(app.store, SystemClock(), SystemChance(), app.bus, "benchmark"),
        schedules=app._declared_schedules(),  # noqa: SLF001 - as its workers are given them
    )
    began = time.process_time()
    await ticker.run_once()
    declared_s = time.process_time() - began
    looks, began, until = 0, time.process_time(), time.monotonic() + seconds
    while time.monotonic() < until:
        rest_s = await ticker.run_once()
        looks += 1
        await asyncio.sleep(min(rest_s, max(0.0, until - time.monotonic())))
    spent_ms = (time.process_time() - began) * 1_000 / seconds
    fired = sum(len(each.fires) for each in app.schedules.all())
    app.close()
    met = "met" if spent_ms <= _BOUND_MS else "not met in this run"
    return (
        f"{schedules:,} schedules declared with {declared_s:.1f} s of CPU; then {spent_ms:.1f} ms "
        f"of CPU in a second, {looks / seconds:.1f} looks and {fired / seconds:.1f} fires; bound "
        f"{_BOUND_MS:g} ms: {met}"
    )


if __name__ == "__main__":
    sys.exit(main())
