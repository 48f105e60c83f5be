# SPDX-License-Identifier: MIT
"""A day of the example shop, for the pages of the dashboard: every status, and some of each kind.

What is past was done by a clock of its own, up to now; what runs is run by a real worker.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from examples.shop import jobs as shop
from packhorse import Packhorse, RetryPolicy, gather
from packhorse.client.operations import OperationAction, Operations
from packhorse.core.clock import SystemChance, SystemClock, to_datetime
from packhorse.core.policies.series import BOUNDS_S, OUTCOMES, Series
from packhorse.runtime.services.history_keeper import HistoryKeeper
from packhorse.runtime.services.service import ServiceContext
from packhorse.stores.requests import JobFilter
from packhorse.testing import TestApp, use
from packhorse.testing.virtual_clock import VirtualClock
from tests.supervisor.yard import until

APP: Final = "examples.shop.jobs:app"
_STEP_S: Final = 300
_STEPS: Final = 24 * 12
#: From the last of them until now: jobs run in between.
_AFTER_S: Final = 240
#: Of every 40 steps, those after this: payments fail.
_BANK_DOWN: Final = 30
_SLOWLY: Final = RetryPolicy(max_retries=5, initial_delay="6h", max_delay="6h", jitter=False)
#: Task, queue, seconds that it runs, and attempts in five minutes at the busiest.
_WORK: Final = (
    *(("send_mail", "mail", 0.12, 90), ("take_payment", "payments", 0.4, 60)),
    *(("make_thumbnail", "default", 0.03, 140), ("make_report", "reports", 4.0, 6)),
)


def filled(url: str) -> dict[str, str]:
    """Fill a store; the ids of a job that died, and of others to look at."""
    clock = VirtualClock(SystemClock().now_us() - (_STEP_S * _STEPS + _AFTER_S) * 1_000_000)
    with use(shop.app, url, clock=clock) as app:
        return asyncio.run(_both(app))


async def _both(app: TestApp) -> dict[str, str]:
    ids = await _passed(app)
    app.clock.set(to_datetime(SystemClock().now_us()))
    return {**ids, **await _present(app)}


async def _passed(app: TestApp) -> dict[str, str]:
    """A day: history that rises and falls, and jobs that have ended."""
    totals: dict[str, Series] = {}
    keeper = HistoryKeeper(
        ServiceContext(app.store, app.clock, SystemChance(1), app.bus, "past"),
        totals=lambda: tuple(totals.values()),
    )
    for step in range(_STEPS):
        busy = 0.35 + 0.65 * (1 - abs(step - _STEPS / 2) / (_STEPS / 2))
        for place, (task, queue, run_s, most) in enumerate(_WORK):
            done = round(most * busy * (0.8 + 0.05 * ((step * 7 + place * 3) % 9)))
            failed = done // 12 if queue == "payments" and step % 40 > _BANK_DOWN else done // 60
            outcomes = (done - failed, failed, failed // 4)
            totals[task] = _more(totals.get(task), (queue, task, run_s), outcomes)
        await keeper.run_once()
        app.clock.advance(_STEP_S)
    for number in range(30):
        await shop.take_payment.using(tags=["web"]).aenqueue(
            number, 900 + number, int(number % 3 == 0)
        )
        await shop.send_mail.aenqueue(number, "nowhere" if number % 10 == 0 else f"{number}@a.test")
        await (shop.print_label if number % 15 == 0 else shop.send_message).aenqueue(number)
    await app.abatch(shop.check_price, list(range(1_280, 1_330)), id="prices", batch_size=10)
    picks = gather(*(shop.pick.call(product) for product in ("tea", "honey", "rope")))
    await picks.then(shop.pack).then(shop.ship).astart("order-17")
    label = await shop.print_label.aenqueue(17)
    await app.arun_jobs()
    return {"jobs": label.id}


def _more(before: Series | None, named: tuple[str, str, float], outcomes: Sequence[int]) -> Series:
    queue, task, run_s = named
    counts = [0] * len(OUTCOMES) if before is None else list(before.outcomes)
    for at, number in enumerate(outcomes):
        counts[at] += number
    number = sum(counts)
    return Series(
        *(queue, task, tuple(counts)),
        run=_at(run_s, number),
        run_s=run_s * number,
        wait=_at(run_s * 2, number),
    )


def _at(seconds: float, number: int) -> tuple[int, ...]:
    bucket = sum(bound < seconds for bound in BOUNDS_S)
    return tuple(number if each == bucket else 0 for each in range(len(BOUNDS_S) + 1))


async def _present(app: TestApp) -> dict[str, str]:
    """Jobs that wait, run, failed and took too long, once a worker has begun."""
    await app.apause("news")
    for number in range(40):
        await shop.send_news.using(tenant="small" if number % 8 == 0 else "large").aenqueue(number)
    await shop.send_reminder.using(delay="1h").aenqueue(17)
    slowly = shop.make_report.using(timeout="200ms", retry=_SLOWLY)
    kept = {
        "processing": await shop.make_report.aenqueue("year", 100_000),
        "timeout": await slowly.aenqueue("month", 100_000),
        "failed": await shop.print_label.using(retry=_SLOWLY).aenqueue(18),
        "cancelled": await shop.restock.aenqueue("rope"),
    }
    await kept["cancelled"].acancel()
    products = [shop.pick.call(each) for each in ("salt", "tar")]
    waits = shop.pack.using(queue="news")
    begun = await gather(*products).then(waits).then(shop.ship).astart("order-18")
    done = JobFilter(task="send_message")
    operation = await Operations(app.store).abegin(OperationAction.RETRY, done, by="ada")
    ids = {word: handle.id for word, handle in kept.items()}
    return {**ids, "batches": "prices", "workflows": begun.name, "operations": operation.id}


@contextmanager
def process(*words: str, url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command of Packhorse in a process of its own, for a block."""
    with log.open("wb") as told:
        started = subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-m", "packhorse", *words],
            env={**os.environ, "PACKHORSE_URL": url},
            stdout=told,
            stderr=told,
        )
        try:
            yield started
        finally:
            started.terminate()
            started.wait(timeout=60)


@contextmanager
def served(app: str, *words: str, url: str, folder: Path) -> Iterator[str]:
    """The dashboard of an app in a process of its own, for a block: where it is."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    address = f"http://127.0.0.1:{port}"
    with process(
        "dashboard", app, "--port", port, *words, url=url, log=folder / "web.log"
    ) as started:
        until("the dashboard", lambda: started.poll() is not None or _answers(address))
        if started.poll() is not None:
            raise SystemExit((folder / "web.log").read_text(encoding="utf-8"))
        yield address


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/login", timeout=5).close()  # noqa: S310 - our own
    except OSError:
        return False
    return True


@contextmanager
def begun(url: str, ids: dict[str, str]) -> Iterator[str]:
    """Wait until the worker has begun what it is to begin; its id."""
    with closing(Packhorse(url)) as app:
        for word in ("processing", "timeout", "failed"):
            until(word, lambda word=word: app.job(ids[word]).status() == word)  # type: ignore[misc]
        yield next(worker.id for worker in app.insights.workers() if worker.live)
