# SPDX-License-Identifier: MIT
"""Schedules on every store: declared by workers, fired once, changed by operators."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from packhorse import Context, Packhorse, ScheduleNotFound
from packhorse.core.clock import SECOND_US, SystemChance
from packhorse.core.job import JobStatus
from packhorse.core.policies.records import Put
from packhorse.core.schedules import read_schedule, schedule_id
from packhorse.errors import ConfigError
from packhorse.events import ScheduleLate, ScheduleMissed, ScheduleRefused
from packhorse.runtime.services.ticker import Ticker
from packhorse.testing import TestApp
from packhorse.testing.virtual_clock import VirtualClock
from tests.servers.postgres import postgres_url
from tests.servers.redis import redis_url

MIDNIGHT = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def packhorse_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every store; this overrides the plugin's own."""
    match request.param:
        case "postgres":
            yield postgres_url()
        case "redis":
            yield redis_url()
        case scheme:
            yield f"{scheme}://"


class Ran:
    """When the fires of a schedule were due, as its jobs say."""

    def __init__(self, app: TestApp, clock_at: datetime = MIDNIGHT) -> None:
        self.due: list[datetime | None] = []
        self.app = app
        app.clock.set(clock_at)

        @app.task
        def report(ctx: Context, what: str = "all") -> str:
            self.due.append(ctx.job.scheduled_for)
            return what

        self.report = report

    def ticker(self, name: str, *, release: str = "") -> Ticker:
        app = self.app
        return Ticker(
            *(app.store, app.clock, SystemChance(), app.bus, name),
            schedules=app._declared_schedules(),
            release=release,
        )


def hours(*numbers: int) -> list[datetime]:
    return [MIDNIGHT + timedelta(hours=number) for number in numbers]


# ------------------------------------------------------------------------------------------ firing


def test_a_cron_schedule_runs_its_call_with_the_time_it_was_due(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule(
        "nightly", ran.report.call("all"), cron="0 3 * * *", timezone="Europe/Berlin"
    )

    assert packhorse_app.run_for("3d") == 3

    assert ran.due == hours(1, 25, 49)


@pytest.mark.req("S4-5", "S4-8")
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
    async def yes(_: Ticker) -> bool:
        return True

    monkeypatch.setattr(Ticker, "_is_on_duty", yes)
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    tickers = [ran.ticker(f"worker {number}") for number in range(6)]
    await tickers[0].run_once()
    packhorse_app.clock.advance(3_600)
    await asyncio.gather(*(ticker.run_once() for ticker in tickers))

    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=1)


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
    packhorse_app.schedule("a", ran.report.call(), every="8s")
    first, second = ran.ticker("first"), ran.ticker("second")
    await first.run_once()
    packhorse_app.clock.advance(8)
    await first.run_once()
    packhorse_app.clock.advance(8)

    wait_s = await second.run_once()

    assert 0.5 <= wait_s <= 1.5
    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=1)


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
    assert [event.schedule for event in missed] == ([] if catch_up == "all" else ["hourly"])


def test_a_fire_that_comes_late_is_reported(packhorse_app: TestApp) -> None:
    late: list[ScheduleLate] = []
    packhorse_app.on(ScheduleLate)(late.append)
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    packhorse_app.run_for("1h")
    packhorse_app.clock.advance(3_600 + 45)
    packhorse_app.run_for("0s")

    assert [(event.schedule, event.late_s) for event in late] == [("hourly", pytest.approx(45))]


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


# -------------------------------------------------------------------------- declarations, releases


async def test_an_operators_changes_survive_a_deploy(packhorse_app: TestApp) -> None:
    ran = Ran(packhorse_app)
    packhorse_app.schedule("hourly", ran.report.call(), every="1h")
    await ran.ticker("old", release="1").run_once()
    info = await packhorse_app.schedules.aedit("hourly", every="2h")
    assert (info.words, info.changed) == ("every 2h", ("every", "cron", "at"))
    packhorse_app.clock.advance(600)
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
    packhorse_app.schedule("hourly", ran.report.call(), every="2h")
    await ran.ticker("new", release="2").run_once()
    packhorse_app.clock.advance(60)
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
    other = Ticker(
        *(packhorse_app.store, packhorse_app.clock, SystemChance(), packhorse_app.bus, "other")
    )
    for _ in range(4):
        packhorse_app.clock.advance(20 * 60)
        await other.run_once()
    info = await packhorse_app.schedules.aget("old")
    assert (info.state, info.next_at) == ("retired", None)
    await asyncio.to_thread(packhorse_app.assert_enqueued, ran.report, count=1)

    await ran.ticker("second").run_once()

    info = await packhorse_app.schedules.aget("old")
    assert info.state == "active"


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
async def test_ticks_do_not_overlap(packhorse_app: TestApp) -> None:
    packhorse_app.clock.set(MIDNIGHT)

    @packhorse_app.every("30s")
    def look() -> None:
        pass

    ticker = Ticker(
        *(packhorse_app.store, packhorse_app.clock, SystemChance(), packhorse_app.bus, "w"),
        schedules=packhorse_app._declared_schedules(),
    )
    for _ in range(5):
        await ticker.run_once()
        packhorse_app.clock.advance(30)

    await asyncio.to_thread(packhorse_app.assert_enqueued, look, count=1)


# -------------------------------------------------------------------------------------- at declaring


def test_what_a_schedule_cannot_carry_is_refused_where_it_is_declared() -> None:
    app = Packhorse("memory://")

    @app.task
    def report() -> None: ...

    with pytest.raises(ConfigError, match="'x'.*delay="):
        app.schedule("x", report.using(delay="5s").call(), every="1h")
    with pytest.raises(ConfigError, match=r"task\.call"):
        app.schedule("x", report, every="1h")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="catch_up.*'some'.*skip, latest, all"):
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
