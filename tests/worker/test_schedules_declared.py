# SPDX-License-Identifier: MIT
"""When schedules are declared: at once when a worker starts, each name once, late ones said."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from packhorse import ConfigError, Packhorse
from packhorse.core.clock import to_datetime
from packhorse.core.releases import Release
from packhorse.testing import TestApp
from tests.worker.schedule_support import MIDNIGHT, Ran, every_store

__all__ = ["every_store"]  # pytest finds the fixture here

PATIENCE_S = 20.0


async def test_a_worker_fires_what_is_due_soon_after_its_start() -> None:
    app, ran = Packhorse("memory://"), asyncio.Event()

    @app.task
    async def launch() -> None:
        ran.set()

    app.schedule("launch", launch.call(), at=datetime.now(UTC) + timedelta(seconds=0.2))
    worker = asyncio.create_task(app.arun(handle_signals=False))
    try:
        await asyncio.wait_for(ran.wait(), PATIENCE_S)
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    app.close()


async def test_a_worker_stores_its_schedules_before_anything_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Packhorse("memory://")
    slept = asyncio.Event()

    async def sleep(_self: object, _seconds: float) -> None:
        slept.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("packhorse.runtime.worker.shutdown.Shutdown.sleep", sleep)
    app.schedule("nightly", app.task(name="report")(lambda: None).call(), cron="0 3 * * *")

    worker = asyncio.create_task(app.arun(handle_signals=False))
    async with asyncio.timeout(PATIENCE_S):
        await slept.wait()
        while not await app.schedules.aall():
            assert not worker.done()
            await asyncio.sleep(0.01)
        assert (await app.schedules.apause("nightly")).state == "paused"
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    app.close()


def test_an_instant_that_passes_until_a_worker_has_stored_it_fires(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("launch", ran.report.call(), at=MIDNIGHT + timedelta(seconds=2))

    packhorse_app.clock.advance(4)  # the program loads, or the store is away
    packhorse_app.run_for("1m")

    assert ran.due == [MIDNIGHT + timedelta(seconds=2)]


def test_the_same_holds_for_another_instant_of_a_known_schedule(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("launch", ran.report.call(), at=MIDNIGHT + timedelta(days=9))
    packhorse_app.run_for("1m")

    ran.next_release()
    at = to_datetime(packhorse_app.clock.now_us()) + timedelta(seconds=2)
    packhorse_app.schedule("launch", ran.report.call(), at=at)
    packhorse_app.clock.advance(4)
    packhorse_app.run_for("1m")

    assert ran.due == [at]


async def test_a_worker_that_finds_the_store_emptied_does_not_fire_again(
    packhorse_app: TestApp,
) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("launch", ran.report.call(), at=MIDNIGHT + timedelta(seconds=2))
    ticker = ran.ticker("worker")
    await ticker.run_once()
    packhorse_app.clock.advance(3600)

    [declared] = ticker._declarer._declarations.values()
    now_us = packhorse_app.clock.now_us()
    launch = declared.put(None, Release(), now_us, holder_lives=True)

    assert launch is not None
    assert launch.order is None


async def test_a_schedule_that_will_not_fire_is_said_once(
    packhorse_app: TestApp, caplog: pytest.LogCaptureFixture
) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("launch", ran.report.call(), at=MIDNIGHT - timedelta(seconds=1))
    packhorse_app.schedule("later", ran.report.call(), at=MIDNIGHT + timedelta(seconds=1))
    ticker = ran.ticker("worker")

    with caplog.at_level(logging.WARNING, "packhorse.worker"):
        for _ in range(30):  # it is stored again every ten minutes
            await ticker.run_once()
            packhorse_app.clock.advance(60)

    [said] = caplog.messages
    assert "launch does not fire" in said
    assert "2026-05-31 23:59:59Z" in said


# ---------------------------------------------------------------------------------------- one name


def test_two_schedules_of_one_name_are_refused_with_both_places() -> None:
    app = Packhorse("memory://")
    report = app.task(name="report")(lambda: None)

    app.schedule("nightly", report.call(), cron="0 3 * * *")
    with pytest.raises(ConfigError, match=r"'nightly' is declared twice") as refused:
        app.schedule("nightly", report.call(), cron="0 4 * * *")

    here = f"{__file__}:"
    first, second = (
        int(part.split(";")[0].split()[0]) for part in str(refused.value).split(here)[1:]
    )
    assert second == first + 2


def test_a_tick_and_a_schedule_of_its_name_are_refused() -> None:
    app = Packhorse("memory://")

    @app.every("30s")
    def refresh() -> None: ...

    with pytest.raises(ConfigError, match="'refresh' is declared twice"):
        app.schedule("refresh", refresh.call(), every="1h")


def test_a_loop_that_gives_one_name_to_several_calls_is_refused() -> None:
    app = Packhorse("memory://")

    @app.task
    def report(shop: str) -> None: ...

    def declare(*shops: str) -> None:
        for shop in shops:
            app.schedule("report", report.call(shop), every="1h")

    with pytest.raises(ConfigError, match="declared twice"):
        declare("a", "b")


def test_a_module_that_is_loaded_again_declares_its_schedules_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ph_app.py").write_text(
        "from packhorse import Packhorse\n"
        "app = Packhorse('memory://')\n"
        "report = app.task(name='report')(lambda: None)\n"
    )
    jobs = tmp_path / "ph_jobs.py"
    jobs.write_text(
        "from ph_app import app, report\napp.schedule('nightly', report.call(), cron='0 3 * * *')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        module = importlib.import_module("ph_jobs")
        importlib.reload(module)
        assert len(module.app._declared_schedules()) == 1
    finally:
        for name in ("ph_app", "ph_jobs"):
            sys.modules.pop(name, None)


def test_an_interval_that_no_ticker_can_hold_is_refused() -> None:
    app = Packhorse("memory://")
    report = app.task(name="report")(lambda: None)

    with pytest.raises(ConfigError, match="every is 1ms, and the shortest interval is 100ms"):
        app.schedule("often", report.call(), every="1ms")
    with pytest.raises(ConfigError, match="shortest interval is 100ms"):
        app.every("1ms")
