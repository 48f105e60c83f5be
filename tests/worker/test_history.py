# SPDX-License-Identifier: MIT
"""The history: what workers did adds up, is counted once, outlives them, and has a bounded size."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from packhorse import ConfigError, JobStatus, Packhorse, RetryPolicy
from packhorse.client.history import History, read_history
from packhorse.core.clock import SystemChance
from packhorse.core.generators import adrive
from packhorse.core.policies.history import PART_KIND, RANGES, TIERS, key_of_span
from packhorse.core.policies.series import BOUNDS_S, OUTCOMES, Series
from packhorse.errors import StoreUnavailable
from packhorse.insights import Insights
from packhorse.runtime.services.history_keeper import HistoryKeeper, _queue_totals, keep_lost
from packhorse.runtime.services.service import ServiceContext
from packhorse.stores.plan import Plan
from packhorse.stores.requests import Counts
from packhorse.testing import TestApp, use
from packhorse.testing.virtual_clock import VirtualClock
from tests.worker.schedule_support import MIDNIGHT, every_store

__all__ = ["every_store"]  # pytest finds the fixture here

_HOUR_S = 3_600


class Hand:
    """A worker that is said to have done something."""

    def __init__(self, app: TestApp, name: str) -> None:
        self.done: dict[str, list[int]] = {}
        self.keeper = HistoryKeeper(
            ServiceContext(app.store, app.clock, SystemChance(1), app.bus, name),
            totals=self._totals,
        )

    def does(
        self, task: str = "work", *, success: int = 0, retried: int = 0, dead: int = 0
    ) -> None:
        counts = self.done.setdefault(task, [0] * len(OUTCOMES))
        for at, number in enumerate((success, retried, dead)):
            counts[at] += number

    def _totals(self) -> tuple[Series, ...]:
        return tuple(
            Series(
                *("default", task, tuple(counts)),
                run=_at(0.04, sum(counts)),
                run_s=0.04 * sum(counts),
                wait=_at(0.3, sum(counts)),
            )
            for task, counts in self.done.items()
        )


def _at(seconds: float, number: int) -> tuple[int, ...]:
    bucket = sum(bound < seconds for bound in BOUNDS_S)
    return tuple(number if each == bucket else 0 for each in range(len(BOUNDS_S) + 1))


async def passed(app: TestApp, hand: Hand, minutes: int = 3) -> None:
    """Time passes, and a worker sees to each minute."""
    for _ in range(minutes):
        app.clock.advance(60)
        await hand.keeper.run_once()


def counted(history: History) -> tuple[int, int, int]:
    points = history.points
    return (
        sum(point.succeeded for point in points),
        sum(point.retried for point in points),
        sum(point.dead for point in points),
    )


async def told(app: TestApp) -> dict[str, Any]:
    """Curves and tasks of every range."""
    found = {name: await app.insights.ahistory(name) for name in RANGES}
    return {
        name: (counted(each), [(one.task, one.succeeded, one.retried, one.dead) for one in tasks])
        for name, each in found.items()
        for tasks in [each.tasks]
    }


def records(app: TestApp, kind: str) -> Mapping[str, bytes]:
    page = app.store.run(app.store.records.records(kind, limit=1_000))
    return {record.id.key: record.document for record in page.records}


async def test_what_two_workers_did_adds_up_in_every_range_before_and_after_it_is_folded(
    packhorse_app: TestApp,
) -> None:
    app = packhorse_app
    first, second = Hand(app, "first"), Hand(app, "second")
    first.does(success=5, retried=1)
    await first.keeper.run_once()
    second.does(success=7, dead=2)
    second.does("mail", success=1)
    await second.keeper.run_once()
    first.does(success=1)  # the second part of the same minute
    await first.keeper.run_once()

    whole = ((14, 1, 2), [("work", 13, 1, 2), ("mail", 1, 0, 0)])
    assert await told(app) == dict.fromkeys(RANGES, whole)

    await asyncio.gather(passed(app, first), passed(app, second))  # both may believe to be on duty
    assert not [key for key in records(app, PART_KIND) if "first" in key or "second" in key]
    assert await told(app) == dict.fromkeys(RANGES, whole)


async def test_a_real_worker_writes_what_its_attempts_came_to_and_how_queues_stood(
    packhorse_app: TestApp,
) -> None:
    app = packhorse_app

    @app.task
    def add(a: int) -> int:
        return a

    @app.task(retry=RetryPolicy(max_retries=1, initial_delay="1s"))
    def fail() -> None:
        raise ValueError("as asked")

    for number in range(3):
        await add.aenqueue(number)
    await fail.aenqueue()
    app.clock.advance(20)
    await Hand(app, "looks").keeper.run_once()
    await app.arun_jobs()

    found = await app.insights.ahistory("15m")
    assert counted(found) == (3, 1, 1)
    tasks = {one.task: one for one in found.tasks}
    assert (tasks["fail"].failed, tasks["fail"].failure_share) == (2, 1.0)
    assert tasks["add"].wait_p50_ms == pytest.approx(20_000, rel=0.25)
    assert tasks["add"].run_p99_ms is not None
    (queue,) = found.queues
    assert (queue.waiting_max, queue.oldest_ready_ms_max) == (4, 20_000)
    [point] = [one for one in found.points if one.waiting is not None]
    assert (point.waiting, point.running, point.oldest_ready_ms) == (4, 0, 20_000)


async def test_a_part_whose_answer_was_lost_is_counted_once(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = packhorse_app
    hand = Hand(app, "first")
    hand.does(success=3)
    run = app.store.arun

    async def lossy(plan: Plan[Any]) -> Any:
        answer = await run(plan)
        if plan.verb == "change":
            raise StoreUnavailable("the answer was lost")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(app.store, "arun", lossy)
        with pytest.raises(StoreUnavailable):
            await hand.keeper.run_once()
    hand.does(success=2)
    await hand.keeper.run_once()
    await hand.keeper.run_once()

    assert counted(await app.insights.ahistory()) == (5, 0, 0)


@pytest.mark.parametrize("step_s", [-2 * _HOUR_S, 2 * _HOUR_S])
async def test_a_clock_that_is_set_loses_nothing(packhorse_app: TestApp, step_s: int) -> None:
    app = packhorse_app
    hand = Hand(app, "first")
    hand.does(success=3)
    await hand.keeper.run_once()
    app.clock.step(step_s)
    hand.does(success=4)
    await hand.keeper.run_once()
    await passed(app, hand)
    app.clock.step(-step_s)
    hand.does(success=5)
    await passed(app, hand, 2)
    app.clock.advance(3 * _HOUR_S)
    await passed(app, hand)

    assert counted(await app.insights.ahistory("24h")) == (12, 0, 0)
    assert [key for key in records(app, PART_KIND) if "first" in key] == []


async def test_history_is_kept_by_minute_hour_and_day_for_bounded_times(
    packhorse_app: TestApp,
) -> None:
    app = packhorse_app
    hand = Hand(app, "first")
    hand.does(success=3)
    await hand.keeper.run_once()
    await passed(app, hand)
    kinds = {kind for tier in TIERS for kind in (tier.kind, tier.tasks_kind)}
    gone: list[set[str]] = []

    for more in (0, 4, 3 * 24, 36 * 24, 401 * 24):
        app.clock.advance(more * _HOUR_S)
        gone.append({kind for kind in kinds if not records(app, kind)})

    minutes = {"history_minute", "history_minute_tasks"}
    hours = {"history_hour", "history_hour_tasks"}
    assert gone == [set(), {"history_minute_tasks"}, minutes, minutes | hours, kinds]


async def test_a_minute_is_folded_two_minutes_after_it_began(packhorse_app: TestApp) -> None:
    packhorse_app.clock.set(MIDNIGHT + timedelta(seconds=1))
    hand = Hand(packhorse_app, "anna")
    hand.does(success=3)
    await hand.keeper.run_once()

    async def parts() -> int:
        read = packhorse_app.store.records.records(PART_KIND, limit=100)
        page = await packhorse_app.store.arun(read)
        return sum("/anna/" in each.id.key for each in page.records)

    packhorse_app.clock.advance(99)
    await hand.keeper.run_once()
    assert await parts() == 1

    packhorse_app.clock.advance(30)
    await hand.keeper.run_once()
    assert await parts() == 0


async def test_what_ended_with_its_worker_is_counted_in_the_minute_that_it_is(
    packhorse_app: TestApp,
) -> None:
    packhorse_app.clock.set(MIDNIGHT + timedelta(seconds=90))
    lost = Hand(packhorse_app, "gone")
    lost.does(dead=2)

    await asyncio.to_thread(keep_lost, packhorse_app.store, "gone", lost._totals())

    read = packhorse_app.store.records.records(PART_KIND, limit=100)
    [part] = (await packhorse_app.store.arun(read)).records
    assert part.id.key == f"{key_of_span(int(MIDNIGHT.timestamp()) + 60)}/gone/lost"


@pytest.mark.parametrize(("since_us", "oldest_ms"), [(None, 0), (1_500_000, 3_500), (9_000_000, 0)])
def test_of_a_queue_it_is_told_how_many_wait_and_since_when(
    since_us: int | None, oldest_ms: int
) -> None:
    ready = {} if since_us is None else {0: since_us, 1: 9_500_000}
    counts = Counts("q", {JobStatus.PENDING: 2, JobStatus.PROCESSING: 1}, ready)

    stood = _queue_totals(counts, 5_000_000)

    assert (stood.waiting, stood.waiting_max, stood.running) == (2, 2, 1)
    assert stood.oldest_ms == oldest_ms


async def test_one_look_a_minute_is_enough_for_a_fleet(packhorse_app: TestApp) -> None:
    app = packhorse_app
    fleet = [Hand(app, f"worker-{number}") for number in range(5)]

    for hand in fleet * 3:
        await hand.keeper.run_once()

    assert len(records(app, PART_KIND)) == 1


async def test_a_worker_that_leaves_writes_and_folds_and_does_nothing_if_it_did_nothing(
    packhorse_app: TestApp,
) -> None:
    app = packhorse_app
    idle, first, last = Hand(app, "idle"), Hand(app, "first"), Hand(app, "last")
    await idle.keeper.close()
    assert records(app, PART_KIND) == {}

    first.does(success=1)
    await first.keeper.close()
    app.clock.advance(300)
    last.does(success=2)
    await last.keeper.close()

    assert list(records(app, "history_hour"))  # that of the first
    assert [key.split("/")[1] for key in records(app, PART_KIND)] == ["last"]
    assert counted(await app.insights.ahistory()) == (3, 0, 0)


async def test_a_page_that_is_read_while_parts_are_folded_counts_them_once(
    packhorse_app: TestApp,
) -> None:
    app = packhorse_app
    hand = Hand(app, "first")
    hand.does(success=3)
    await hand.keeper.run_once()
    app.clock.advance(180)
    ran: list[str] = []

    async def run(plan: Plan[Any]) -> Any:
        answer = await app.store.arun(plan)
        ran.append(plan.verb)
        if len(ran) == 1:  # the parts have been read
            await hand.keeper.run_once()
        return answer

    found = await adrive(read_history(app.store, "1h"), run)

    assert counted(found) == (3, 0, 0)
    assert len(ran) > 4  # it was read again


async def test_a_store_that_is_closed_and_opened_again_has_forgotten_nothing(
    tmp_path: Path,
) -> None:
    clock, url = VirtualClock(), f"sqlite:///{tmp_path}/jobs.db"
    found = []
    for number in range(3):
        with use(Packhorse(), url, clock=clock) as app:
            hand = Hand(app, f"worker-{number}")
            hand.does(success=number + 1)
            await hand.keeper.run_once()  # it is killed after that
            clock.advance(90)
            found.append(counted(await app.insights.ahistory()))

    assert found == [(1, 0, 0), (3, 0, 0), (6, 0, 0)]


async def test_the_history_of_all_tenants_is_not_for_one_of_them(packhorse_app: TestApp) -> None:
    with pytest.raises(ConfigError, match="all tenants"):
        await Insights(packhorse_app.store, tenant="mine").ahistory()
    with pytest.raises(ConfigError, match="one of 15m, 1h, 6h, 24h, 7d, 30d"):
        await packhorse_app.insights.ahistory("2h")
