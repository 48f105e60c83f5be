# SPDX-License-Identifier: MIT
"""Schedules as releases declare and operators change them, and ticks."""

from __future__ import annotations

import asyncio
import zoneinfo
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import pytest

from packhorse import Packhorse, ScheduleNotFound
from packhorse.core.clock import SECOND_US, to_datetime
from packhorse.core.job import JobStatus
from packhorse.core.policies.records import Put
from packhorse.core.schedules import read_schedule, schedule_id
from packhorse.errors import ConfigError
from packhorse.events import ScheduleRefused
from packhorse.runtime.services import service
from packhorse.runtime.services.ticker import Ticker
from packhorse.testing import TestApp
from packhorse.testing.virtual_clock import VirtualClock
from tests.worker.schedule_support import MIDNIGHT, Ran, context, every_store, hours

__all__ = ["every_store"]  # pytest finds the fixture here


async def test_an_operators_changes_survive_a_deploy(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    await ran.ticker("old", release="1").run_once()
    info = await packhorse_app.schedules.aedit("hourly", every="2h")
    assert (info.words, info.changed) == ("every 2h", ("every", "cron", "at"))
    packhorse_app.clock.advance(600)
    ran.next_release()
    packhorse_app.schedule("hourly", ran.report.call("more"), every="30m", catch_up="all")

    await ran.ticker("new", release="2").run_once()

    info = await packhorse_app.schedules.aget("hourly")
    assert info.words == "every 2h"
    assert info.timing.catch_up == "all"  # which the operator did not change
    info = await packhorse_app.schedules.aedit("hourly")
    assert (info.words, info.changed) == ("every 30m", ())


async def test_the_newest_release_holds_until_its_workers_are_gone(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    old = ran.ticker("old", release="1")
    await old.run_once()
    packhorse_app.clock.advance(60)
    ran.next_release()
    packhorse_app.schedule("hourly", ran.report.call(), every="2h")
    await ran.ticker("new", release="2").run_once()
    packhorse_app.clock.advance(60)
    ran.next_release()
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    await ran.ticker("another old one", release="1").run_once()
    assert (await packhorse_app.schedules.aget("hourly")).words == "every 2h"
    await old.run_once()
    packhorse_app.clock.advance(170)
    await old.run_once()  # release 1 lives, and release 2 was not heard of for long
    packhorse_app.clock.advance(60)

    await ran.ticker("rolled back", release="1").run_once()

    assert (await packhorse_app.schedules.aget("hourly")).words == "every 1h"


async def test_what_no_worker_declares_any_more_is_retired_and_comes_back(
    packhorse_app: TestApp,
) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("old", ran.report.call(), every="40m")
    await ran.ticker("first").run_once()
    other = Ticker(context(packhorse_app, "other"))
    for _ in range(4):
        packhorse_app.clock.advance(20 * 60)
        await other.run_once()
    info = await packhorse_app.schedules.aget("old")
    assert (info.state, info.next_at) == ("retired", None)
    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=1)

    await ran.ticker("second").run_once()

    info = await packhorse_app.schedules.aget("old")
    assert info.state == "active"


async def test_many_schedules_that_are_due_at_once_are_fired_in_parts(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_PART_RECORDS", 2)
    ran = Ran(packhorse_app)
    for number in range(5):
        packhorse_app.schedule(f"each {number}", ran.report.call(str(number)), every="40m")
    one = ran.ticker("one")
    await one.run_once()
    packhorse_app.clock.advance(40 * 60)

    await one.run_once()

    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=5)


async def test_what_is_declared_by_a_live_worker_is_not_retired(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("kept", ran.report.call(), every="40m")
    ticker = ran.ticker("first")
    for _ in range(20):
        await ticker.run_once()
        packhorse_app.clock.advance(10 * 60)

    assert (await packhorse_app.schedules.aget("kept")).state == "active"


def test_another_time_table_misses_nothing_in_the_past(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("a", ran.report.call(), cron="0 0 * * *", catch_up="all")
    packhorse_app.run_for("10h")
    ran.next_release()
    packhorse_app.schedule("a", ran.report.call(), cron="0 * * * *", catch_up="all")
    packhorse_app.clock.advance(60 * 30)

    packhorse_app.run_for("1h")

    assert ran.due == hours(11)


# ------------------------------------------------------------------------------------- by operators


def test_a_paused_schedule_does_not_fire_and_catches_nothing_up(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h", catch_up="all")
    packhorse_app.run_for("1h")
    assert packhorse_app.schedules.pause("hourly").state == "paused"
    packhorse_app.run_for("3h")
    assert packhorse_app.schedules.resume("hourly").state == "active"
    packhorse_app.run_for("1h")

    assert ran.due == hours(1, 5)


def test_run_now_leaves_the_time_table_alone(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("daily", ran.report.call("now"), cron="0 12 * * *")
    packhorse_app.run_for("1h")
    job = packhorse_app.schedules.run("daily")
    packhorse_app.run_for("12h")

    assert job.result(timeout=5) == "now"
    assert ran.due == hours(1, 12)
    fires = packhorse_app.schedules.get("daily").fires
    assert [fire.by_hand for fire in fires] == [True, False]


def test_the_next_fires_are_shown(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("daily", ran.report.call(), cron="0 12 * * *")
    packhorse_app.run_for("0s")

    assert packhorse_app.schedules.fires("daily", 3) == hours(12, 36, 60)


def test_an_edit_that_cannot_work_changes_nothing(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("daily", ran.report.call(), cron="0 12 * * *")
    packhorse_app.run_for("0s")

    with pytest.raises(ConfigError, match="five fields"):
        packhorse_app.schedules.edit("daily", cron="noon")

    assert packhorse_app.schedules.get("daily").changed == ()


def test_a_schedule_that_the_store_does_not_hold_is_said_to_be_missing(
    packhorse_app: TestApp,
) -> None:
    with pytest.raises(ScheduleNotFound, match="'nothing'"):
        packhorse_app.schedules.pause("nothing")


# ----------------------------------------------------------------------------------------- ticks


@pytest.mark.req("S4-5", "S4-6")
def test_a_tick_that_raises_does_not_stop_later_ticks(packhorse_app: TestApp) -> None:
    ticks: list[str] = []
    packhorse_app.clock.set(MIDNIGHT)

    @packhorse_app.every("30s")
    def look() -> None:
        ticks.append("tick")
        raise RuntimeError("nothing to see")

    packhorse_app.run_for("2m")

    assert len(ticks) == 4  # none was tried again
    jobs = packhorse_app.assert_enqueued(look, count=4)
    assert {job.info().status for job in jobs} == {JobStatus.DEAD}
    packhorse_app.clock.advance(25 * 3_600)
    while packhorse_app.store.run(packhorse_app.store.upkeep.prune(limit=100)):
        pass
    assert packhorse_app.insights.jobs().jobs == ()  # dead ticks are kept for a day


@pytest.mark.req("S4-7")
async def test_ticks_do_not_overlap_and_what_was_left_out_is_said(
    packhorse_app: TestApp,
) -> None:
    refused: list[ScheduleRefused] = []
    packhorse_app.on(ScheduleRefused)(refused.append)
    packhorse_app.clock.set(MIDNIGHT)

    @packhorse_app.every("30s")
    def look() -> None:
        pass

    ticker = Ticker(
        context(packhorse_app, "w"),
        schedules=packhorse_app._declared_schedules(),
    )
    for _ in range(5):
        await ticker.run_once()
        packhorse_app.clock.advance(30)

    await asyncio.to_thread(packhorse_app.assert_enqueued, look, count=1)
    fires = (await packhorse_app.schedules.aget("look")).fires
    assert [fire.refused for fire in fires] == ["", *["the run before had not ended"] * 3]
    assert refused == []  # that is no trouble


# ----------------------------------------------------------------------------------- at declaring


def test_what_a_schedule_cannot_carry_is_refused_where_it_is_declared() -> None:
    app = Packhorse("memory://")

    @app.task
    def report() -> None: ...

    with pytest.raises(ConfigError, match=r"'x'.*delay="):
        app.schedule("x", report.using(delay="5s").call(), every="1h")
    with pytest.raises(ConfigError, match=r"task\.call"):
        app.schedule("x", report, every="1h")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"catch_up.*'some'.*skip, latest, all"):
        app.schedule("x", report.call(), every="1h", catch_up="some")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'every'"):
        app.schedule("x", report.call(), evry="1h")  # type: ignore[call-arg]


async def test_a_schedule_of_a_newer_release_is_left_alone(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("known", ran.report.call(), every="1h")
    store, now_us = packhorse_app.store, packhorse_app.clock.now_us()
    foreign = Put(schedule_id("foreign"), b'{"another": "shape"}', 0, order=now_us)
    await store.arun(store.records.change((foreign,)))
    ticker = ran.ticker("w")
    await ticker.run_once()
    packhorse_app.clock.advance(3_600)

    await ticker.run_once()

    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=1)
    kept = await store.arun(store.records.record(schedule_id("foreign")))
    assert kept is not None
    assert kept.document == foreign.document


async def test_a_schedule_that_cannot_be_read_here_hides_no_other(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = Ran(packhorse_app)
    far: dict[str, Any] = {"cron": "*/9 * * * *", "timezone": "Europe/Berlin"}
    packhorse_app.schedule("far", ran.report.call(), **far)
    packhorse_app.schedule("near", ran.report.call(), every="1h")
    store, now_us = packhorse_app.store, packhorse_app.clock.now_us()
    foreign = Put(schedule_id("foreign"), b'{"another": "shape"}', 0, order=now_us)
    await ran.ticker("w").run_once()
    await store.arun(store.records.change((foreign,)))
    before = await packhorse_app.schedules.aall()

    def unknown(name: str) -> None:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(zoneinfo, "ZoneInfo", unknown)  # this system lacks the time zone
    found = await packhorse_app.schedules.aall()

    assert found == before
    assert [(each.name, each.state) for each in found] == [
        *(("far", "active"), ("foreign", "unreadable"), ("near", "active"))
    ]
    assert found[0].next_at == MIDNIGHT + timedelta(minutes=9)
    assert "Europe/Berlin" in found[0].words
    assert found[1].next_at == to_datetime(now_us)
    assert (await packhorse_app.schedules.aget("far")) == found[0]
    with pytest.raises(ConfigError, match="'foreign' cannot be read here"):
        await packhorse_app.schedules.apause("foreign")
    with pytest.raises(ConfigError, match="no time zone 'Europe/Berlin'"):
        await packhorse_app.schedules.afires("far")


def test_a_document_reads_back_as_it_was(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call("ü"), every="1h")
    packhorse_app.run_for("1h")
    record = packhorse_app.store.run(packhorse_app.store.records.record(schedule_id("hourly")))
    assert record is not None

    schedule = read_schedule(record.document)

    assert schedule.job.payload == ran.report.call("ü").payload
    assert record.order == schedule.next_us == int(hours(2)[0].timestamp()) * SECOND_US


def test_virtual_time_ends_where_it_was_asked_to(packhorse_app: TestApp) -> None:
    Ran(packhorse_app)
    clock: VirtualClock = packhorse_app.clock

    packhorse_app.run_for("90m")

    assert clock.now_us() == int((MIDNIGHT + timedelta(minutes=90)).timestamp()) * SECOND_US


def test_a_schedule_that_no_worker_looks_at_is_overdue(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    packhorse_app.run_for("30m")
    assert packhorse_app.schedules.get("hourly").overdue_s == 0

    packhorse_app.clock.advance(31 * 60)

    assert packhorse_app.schedules.get("hourly").overdue_s == 60


async def test_the_next_look_is_when_the_first_of_all_schedules_is_due(
    packhorse_app: TestApp,
) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("a later one", ran.report.call(), every="2h")
    packhorse_app.schedule("the first", ran.report.call(), every="1h")
    one = ran.ticker("one")
    await one.run_once()
    packhorse_app.clock.advance(3600 - 1)

    assert await one.run_once() == pytest.approx(1.0)
