# SPDX-License-Identifier: MIT
"""Schedules on every store: each fire is submitted once, whatever happens."""

from __future__ import annotations

import asyncio
import logging
import zoneinfo
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import pytest

from packhorse.core.schedules import Fired, ScheduleDocument, fired
from packhorse.events import ScheduleLate, ScheduleMissed, ScheduleRefused, ScheduleStuck
from packhorse.logs import attach
from packhorse.runtime.services import ticker as ticker_module
from packhorse.runtime.services.service import Duty
from packhorse.runtime.services.ticker import _RUNS_YET
from packhorse.testing import TestApp
from tests.worker.schedule_support import MIDNIGHT, Ran, every_store, hours

__all__ = ["every_store"]  # pytest finds the fixture here


def test_a_cron_schedule_runs_its_call_with_the_time_it_was_due(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule(
        "nightly", ran.report.call("all"), cron="0 3 * * *", timezone="Europe/Berlin"
    )

    assert packhorse_app.run_for("3d") == 3

    assert ran.due == hours(1, 25, 49)


@pytest.mark.req("S2-21", "S4-5", "S4-8")
def test_an_interval_fires_first_after_one_interval_and_does_not_drift(
    packhorse_app: TestApp,
) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("often", ran.report.call(), every="2h")

    packhorse_app.run_for("7h")

    assert ran.due == hours(2, 4, 6)


def test_an_interval_may_begin_at_once(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("often", ran.report.call(), every="2h", at_start=True)

    packhorse_app.run_for("3h")

    assert ran.due == hours(0, 2)


def test_a_one_shot_fires_once_and_is_over(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("launch", ran.report.call(), at=hours(5)[0])

    packhorse_app.run_for("1d")

    assert ran.due == hours(5)
    assert packhorse_app.schedules.get("launch").state == "over"


def test_a_one_shot_whose_time_has_passed_when_it_is_declared_does_not_fire(
    packhorse_app: TestApp,
) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("launch", ran.report.call(), at=MIDNIGHT - timedelta(days=1))

    packhorse_app.run_for("1d")

    assert ran.due == []


def test_jobs_start_within_the_jitter(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("spread", ran.report.call(), every="1h", jitter="30m")

    packhorse_app.run_for("4h")

    jobs = packhorse_app.assert_enqueued(ran.report, count=4)
    delays = [job.info().due_at for job in jobs]
    assert sorted(due for due in ran.due if due) == hours(1, 2, 3)
    assert all(
        timedelta(0) <= due - fire <= timedelta(minutes=30)
        for due, fire in zip(sorted(delays), hours(1, 2, 3, 4), strict=True)
    )
    assert len({due.minute for due in delays}) > 1


def test_the_call_keeps_its_options(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    call = ran.report.using(queue="slow", tenant="acme", priority="low", tags=["x"]).call("one")
    packhorse_app.schedule("hourly", call, every="1h")

    packhorse_app.run_for("1h")

    [job] = packhorse_app.assert_enqueued(ran.report, {"what": "one"})
    info = job.info()
    assert (info.queue, info.tenant, info.tags) == ("slow", "acme", ("x",))
    assert info.trace_id == info.id.replace("-", "")


# ------------------------------------------------------------------------------- once, and no less


async def test_however_many_workers_look_each_fire_is_submitted_once(
    packhorse_app: TestApp,
) -> None:
    ran = Ran(packhorse_app)
    for number in range(7):
        packhorse_app.schedule(f"s{number}", ran.report.call(), every="1h", catch_up="all")
    tickers = [ran.ticker(f"worker {number}") for number in range(4)]
    await asyncio.gather(*(ticker.run_once() for ticker in tickers))
    for _ in range(5):
        packhorse_app.clock.advance(3_600)
        await asyncio.gather(*(ticker.run_once() for ticker in tickers))

    jobs = await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report)

    assert len(jobs) == 7 * 5


async def test_versions_decide_between_two_who_believe_to_be_on_duty(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def yes(_: Duty) -> bool:
        return True

    monkeypatch.setattr(Duty, "is_mine", yes)
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    tickers = [ran.ticker(f"worker {number}") for number in range(6)]
    await tickers[0].run_once()
    packhorse_app.clock.advance(3_600)
    await asyncio.gather(*(ticker.run_once() for ticker in tickers))

    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=1)


async def test_what_an_operator_did_meanwhile_is_not_overwritten_by_a_fire(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pausing(_: Duty) -> bool:  # between the look and the fire
        await packhorse_app.schedules.apause("hourly")
        return True

    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    ticker = ran.ticker("worker")
    await ticker.run_once()
    packhorse_app.clock.advance(3_600)
    monkeypatch.setattr(Duty, "is_mine", pausing)
    await ticker.run_once()

    assert (await packhorse_app.schedules.aget("hourly")).state == "paused"
    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=0)


async def test_another_worker_takes_over_when_the_one_on_duty_is_gone(
    packhorse_app: TestApp,
) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    first, second = ran.ticker("first"), ran.ticker("second")
    await first.run_once()
    packhorse_app.clock.advance(3_600)
    await first.run_once()
    packhorse_app.clock.advance(3_600)

    await second.run_once()

    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=2)


async def test_while_another_one_is_on_duty_a_worker_waits(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("a", ran.report.call(), every="2s")
    first, second = ran.ticker("first"), ran.ticker("second")
    await first.run_once()
    packhorse_app.clock.advance(2)
    await first.run_once()
    packhorse_app.clock.advance(2)

    wait_s = await second.run_once()

    assert 0.5 <= wait_s <= 1.5
    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=1)


@pytest.mark.parametrize("reason", ["a queue is full", "unknown"])
async def test_a_fire_that_was_refused_is_told_of_unless_the_run_before_was_the_reason(
    packhorse_app: TestApp, reason: str
) -> None:
    ran = Ran(packhorse_app)
    told: list[str] = []
    packhorse_app.on(ScheduleRefused)(lambda event: told.append(event.reason))
    schedule: Any = SimpleNamespace(name="a")

    await ran.ticker("one")._note_refused(schedule, {"1": _RUNS_YET})
    assert told == []

    await ran.ticker("one")._note_refused(schedule, {"1": _RUNS_YET, "2": reason})
    assert told == [reason]


async def test_a_worker_that_has_fired_looks_again_at_once(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("a", ran.report.call(), every="2s")
    ticker = ran.ticker("one")
    await ticker.run_once()
    packhorse_app.clock.advance(2)

    assert await ticker.run_once() == 0.0
    assert await ticker.run_once() > 0.0


async def test_no_worker_looks_far_more_often_than_it_has_to(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    idle = ran.ticker("idle")
    assert 3.5 <= await idle.run_once() <= 6.5
    packhorse_app.schedule("soon", ran.report.call(), every="2s")
    ticker = ran.ticker("busy")

    assert await ticker.run_once() == pytest.approx(2, abs=0.5)


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("skip", [6]), ("latest", [5, 6]), ("all", [1, 2, 3, 4, 5, 6])],
)
def test_what_was_missed_while_no_worker_ran_is_caught_up_as_asked(
    packhorse_app: TestApp, catch_up: str, expected: list[int]
) -> None:
    missed: list[ScheduleMissed] = []
    packhorse_app.on(ScheduleMissed)(missed.append)
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h", catch_up=catch_up)  # type: ignore[arg-type]
    packhorse_app.run_for("0s")
    packhorse_app.clock.advance(5 * 3_600 + 120)

    packhorse_app.run_for("1h")

    assert ran.due == hours(*expected)
    left_out = 6 - len(expected)
    assert [(event.schedule, event.missed) for event in missed] == (
        [("hourly", left_out)] if left_out else []
    )


def test_what_a_tick_missed_is_no_warning(
    packhorse_app: TestApp, caplog: pytest.LogCaptureFixture
) -> None:
    @packhorse_app.every("5s")
    def refresh() -> None: ...

    packhorse_app.run_for("10s")
    packhorse_app.clock.advance(60)
    with caplog.at_level(logging.INFO, "packhorse"):
        detach = attach(packhorse_app.bus)
        packhorse_app.run_for("0s")
        detach()

    [told] = [record for record in caplog.records if "missed" in vars(record)]
    assert told.levelno == logging.INFO
    assert told.getMessage() == (
        "runs of refresh left out, since no worker looked when they were due: 11"
    )


def test_a_fire_that_comes_late_is_reported(packhorse_app: TestApp) -> None:
    late: list[ScheduleLate] = []
    packhorse_app.on(ScheduleLate)(late.append)
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    packhorse_app.run_for("1h")
    packhorse_app.clock.advance(3_600 + 45)
    packhorse_app.run_for("0s")

    [event] = late
    assert event.schedule == "hourly"
    assert event.late_s == pytest.approx(45)


def test_of_fires_that_are_caught_up_together_the_latest_is_reported(
    packhorse_app: TestApp,
) -> None:
    late: list[ScheduleLate] = []
    packhorse_app.on(ScheduleLate)(late.append)
    ran = Ran(packhorse_app)
    packhorse_app.schedule("often", ran.report.call(), every="10s", catch_up="all")
    packhorse_app.run_for("10s")
    packhorse_app.clock.advance(45)
    packhorse_app.run_for("0s")

    assert [event.late_s for event in late] == [pytest.approx(35)]


def test_a_clock_that_is_set_back_repeats_no_fire(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h", catch_up="all")
    packhorse_app.run_for("3h")
    packhorse_app.clock.set(MIDNIGHT)
    packhorse_app.run_for("5h")

    assert ran.due == hours(1, 2, 3, 4, 5)


def test_a_full_or_closed_queue_does_not_stop_a_schedule(packhorse_app: TestApp) -> None:
    packhorse_app.queue("small", max_depth=1)
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.using(queue="small").call(), every="1h")
    packhorse_app.close_queue("small")

    packhorse_app.run_for("3h")

    assert ran.due == hours(1, 2, 3)


def test_a_job_that_is_refused_is_told_and_the_schedule_goes_on(packhorse_app: TestApp) -> None:
    refused: list[ScheduleRefused] = []
    packhorse_app.on(ScheduleRefused)(refused.append)
    packhorse_app.queue("mail", dead_letter="shelf")
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.using(queue="shelf").call(), every="1h")

    packhorse_app.run_for("2h")

    assert [event.schedule for event in refused] == ["hourly", "hourly"]
    fires = packhorse_app.schedules.get("hourly").fires
    assert len(fires) == 2
    assert all("shelf" in fire.refused for fire in fires)


# ------------------------------------------------------------- one schedule does not stop the rest


async def _assert_submitted(ran: Ran, arguments: dict[str, str], count: int) -> None:
    await asyncio.to_thread(ran.app.assert_enqueued, ran.report, arguments, count=count)


def _fires(app: TestApp, name: str) -> int:
    return len(app.schedules.get(name).fires)


def test_a_large_schedule_forgets_old_fires_and_stops_none(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("big", ran.report.call("a" * 48_500), every="1h")
    packhorse_app.schedule("small", ran.report.call(), every="1h")

    packhorse_app.run_for("40h")

    assert len(ran.due) == 80
    assert 0 < _fires(packhorse_app, "big") < _fires(packhorse_app, "small") == 40


@pytest.mark.parametrize(("count", "size"), [(20, 40_000), (60, 22_000)])
def test_many_large_schedules_are_declared_and_fired_in_parts(
    packhorse_app: TestApp, count: int, size: int
) -> None:
    ran = Ran(packhorse_app)
    for number in range(count):
        packhorse_app.schedule(f"big{number}", ran.report.call("a" * size), every="1h")

    packhorse_app.run_for("2h")

    assert len(ran.due) == 2 * count


async def test_a_schedule_that_cannot_be_moved_rests_and_is_told_once(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck: list[ScheduleStuck] = []
    packhorse_app.on(ScheduleStuck)(stuck.append)
    ran = Ran(packhorse_app)
    far, near = ran.report.call("far"), ran.report.call("near")
    packhorse_app.schedule("far", far, cron="*/9 * * * *", timezone="Europe/Berlin", catch_up="all")
    packhorse_app.schedule("near", near, every="9m")
    ticker = ran.ticker("worker")
    await ticker.run_once()

    def unknown(name: str) -> None:
        raise ZoneInfoNotFoundError(name)

    with monkeypatch.context() as without:  # a worker on a system that lacks the time zone
        without.setattr(zoneinfo, "ZoneInfo", unknown)
        for _ in range(3):
            packhorse_app.clock.advance(9 * 60)
            await ticker.run_once()
            assert await ticker.run_once() > 0  # it rests, and is not looked at all the time
    await _assert_submitted(ran, {"what": "near"}, 3)
    await _assert_submitted(ran, {"what": "far"}, 0)
    assert (await packhorse_app.schedules.aget("far")).overdue_s > 1_000
    assert [event.schedule for event in stuck] == ["far"]
    assert "Europe/Berlin" in stuck[0].reason
    packhorse_app.clock.advance(90)
    await ticker.run_once()

    await _assert_submitted(ran, {"what": "far"}, 3)


async def test_a_page_of_schedules_that_rest_hides_no_other(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker_module, "_PAGE", 2)
    ran = Ran(packhorse_app)
    packhorse_app.schedule("z", ran.report.call(), every="10m")
    for name in ("a", "b", "c", "d"):
        packhorse_app.schedule(name, ran.report.call(), every="5m")
    ticker = ran.ticker("worker")
    await ticker.run_once()

    def stuck(schedule: ScheduleDocument, now_us: int) -> Fired | None:
        if schedule.name != "z":
            raise ValueError(schedule.name)
        return fired(schedule, now_us)

    monkeypatch.setattr(ticker_module, "fired", stuck)
    packhorse_app.clock.advance(600)
    for _ in range(4):
        await ticker.run_once()

    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=1)


def test_a_schedule_that_is_too_large_to_declare_stops_no_other(packhorse_app: TestApp) -> None:
    stuck: list[ScheduleStuck] = []
    packhorse_app.on(ScheduleStuck)(stuck.append)
    ran = Ran(packhorse_app)
    packhorse_app.schedule("huge", ran.report.call("a" * 70_000), every="1h")
    packhorse_app.schedule("small", ran.report.call(), every="1h")

    packhorse_app.run_for("2h")

    assert ran.due == hours(1, 2)
    assert [event.schedule for event in stuck] == ["huge"]
    assert "reference" in stuck[0].reason
