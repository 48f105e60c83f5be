# SPDX-License-Identifier: MIT
"""Batches on every store: items in jobs of some each, counted exactly, called back once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from packhorse import Context, RetryPolicy
from packhorse.batches.beginning import MapOptions
from packhorse.core.clock import SECOND_US, from_datetime
from packhorse.core.job import JobStatus
from packhorse.group_errors import BatchConflict, BatchItemFailed
from packhorse.runtime.worker.chunks import _TURN
from packhorse.testing import TestApp
from tests.worker.schedule_support import every_store

__all__ = ["every_store"]  # pytest finds the fixture here


class Shop:
    """A task that fails as told, and what ran."""

    def __init__(self, app: TestApp) -> None:
        self.app = app
        self.ran: list[int] = []
        self.fails: dict[int, int] = {}  # by item, how often it fails
        self.called: list[str] = []

        @app.task(retry=RetryPolicy(max_retries=1, initial_delay="1s", jitter=False))
        async def double(number: int) -> int:
            self.ran.append(number)
            if self.fails.get(number, 0):
                self.fails[number] -= 1
                raise ValueError(f"not {number}")
            return 2 * number

        @app.task
        def called(what: str) -> None:
            self.called.append(what)

        self.double = double
        self.on: MapOptions = {
            "id": "import",
            "on_success": called.call("success"),
            "on_complete": called.call("complete"),
            "on_death": called.call("death"),
        }


def test_items_that_never_wait_let_other_code_of_the_loop_have_its_turn(
    packhorse_app: TestApp,
) -> None:
    turns: list[int] = []
    seen: list[int] = []

    def turn() -> None:
        turns.append(len(seen))
        if len(seen) < 100:
            asyncio.get_running_loop().call_soon(turn)

    @packhorse_app.task
    async def note(number: int) -> int:
        if not seen:
            turn()
        seen.append(number)
        return number

    packhorse_app.batch(note, range(100), batch_size=100)
    packhorse_app.run_jobs()

    assert seen == list(range(100))
    assert len(set(turns)) >= 100 // _TURN


@pytest.mark.req("S1-53", "S1-57", "S1-58", "S1-59")
def test_a_batch_runs_every_item_in_jobs_of_some_each(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)

    batch = packhorse_app.batch(shop.double, iter(range(25)), batch_size=10, **shop.on)
    before = batch.progress()
    jobs = packhorse_app.assert_enqueued("double", queue="batch", count=3)
    packhorse_app.run_jobs()

    assert (before.total, before.processed, before.status) == (25, 0, "pending")
    assert len(jobs) == 3
    assert sorted(shop.ran) == list(range(25))
    after = batch.progress()
    assert (after.total, after.processed, after.succeeded, after.failed) == (25, 25, 25, 0)
    assert (after.percentage, after.status) == (100.0, "completed")
    assert list(batch.results()) == [2 * number for number in range(25)]
    assert sorted(shop.called) == ["complete", "success"]


def test_items_that_fail_are_tried_again_alone_and_then_told(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    shop.fails = {3: 1, 7: 9, 12: 9}

    batch = packhorse_app.batch(shop.double, range(20), batch_size=5, **shop.on)
    packhorse_app.run_jobs()

    assert sorted(shop.ran) == sorted([*range(20), 3, 7, 12])
    progress = batch.progress()
    assert (progress.processed, progress.succeeded, progress.failed) == (20, 18, 2)
    assert progress.status == "failed"
    failures = batch.failures()
    assert [(each.index, each.item, each.message) for each in failures] == [
        (7, {"number": 7}, "not 7"),
        (12, {"number": 12}, "not 12"),
    ]
    assert list(batch.results()) == [2 * number for number in range(20) if number not in {7, 12}]
    with pytest.raises(BatchItemFailed):
        list(batch.results(failed="raise"))
    assert sorted(shop.called) == ["complete", "death"]


def test_a_retry_of_what_failed_makes_a_success_of_it_and_counts_stay_exact(
    packhorse_app: TestApp,
) -> None:
    shop = Shop(packhorse_app)
    shop.fails = {7: 2}
    batch = packhorse_app.batch(shop.double, range(20), batch_size=5, **shop.on)
    packhorse_app.run_jobs()
    shop.ran.clear()
    before = batch.progress().completed_at
    packhorse_app.clock.advance(60)

    assert batch.retry_failed() == 1
    packhorse_app.run_jobs()

    assert shop.ran == [7]
    progress = batch.progress()
    assert (progress.succeeded, progress.failed, progress.status) == (20, 0, "completed")
    assert str(progress.completed_at) > str(before)
    assert sorted(shop.called) == ["complete", "death", "success"]


def test_a_map_has_a_job_for_each_item_and_typed_results(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    shop.fails = {4: 9}

    batch = shop.double.map(range(6), **shop.on)
    packhorse_app.assert_enqueued("double", queue="default", count=6)
    packhorse_app.run_jobs()

    assert list(batch.results()) == [0, 2, 4, 6, 10]
    assert sorted(batch.results(ordered=False)) == [0, 2, 4, 6, 10]
    assert [each.index for each in batch.failures()] == [4]
    assert batch.progress().failed == 1
    assert sorted(shop.called) == ["complete", "death"]


def test_a_cancelled_batch_starts_nothing_more_and_ends(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    batch = packhorse_app.batch(shop.double, range(30), batch_size=10, **shop.on)

    report = batch.cancel()
    packhorse_app.run_jobs()

    assert (report.members, report.told, report.is_done) == (3, 3, True)
    assert shop.ran == []
    progress = batch.progress()
    assert (progress.processed, progress.status) == (0, "cancelled")
    assert shop.called == ["complete"]


@pytest.mark.req("S1-57")
def test_an_empty_batch_completes_at_once(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)

    batch = packhorse_app.batch(shop.double, [], **shop.on)

    progress = batch.progress()
    assert (progress.total, progress.percentage, progress.status) == (0, 100.0, "completed")
    packhorse_app.run_jobs()
    assert sorted(shop.called) == ["complete", "success"]
    assert list(batch.results()) == []


def test_a_producer_that_dies_half_way_is_followed_by_one_that_goes_on(
    packhorse_app: TestApp,
) -> None:
    shop = Shop(packhorse_app)

    def dying() -> Iterator[int]:
        yield from range(7_777)
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="gone") as raised:
        packhorse_app.batch(shop.double, dying(), **shop.on)
    batch = packhorse_app.batches.get("import")
    packhorse_app.run_jobs()
    taken = len(shop.ran)
    assert 0 < taken < 7_777
    assert batch.progress().status == "running"
    batch.resume(range(8_000))
    packhorse_app.run_jobs()

    assert "resume" in raised.value.__notes__[0]
    assert sorted(shop.ran) == list(range(8_000))
    assert batch.progress().succeeded == 8_000
    assert sorted(shop.called) == ["complete", "success"]
    with pytest.raises(BatchConflict):
        batch.resume(range(8_000))


def test_members_may_add_members_and_another_attempt_adds_none_again(
    packhorse_app: TestApp,
) -> None:
    walked: list[int] = []

    @packhorse_app.task(retry=RetryPolicy(max_retries=1, initial_delay="1s"))
    def walk(ctx: Context, depth: int) -> None:
        if depth < 3:
            ctx.batch.add([depth + 1, {"depth": depth + 2}])
        if depth == 0 and ctx.job.attempt == 1:
            raise OSError("after it has added")
        walked.append(depth)

    in_chunks = packhorse_app.batch(walk, [0], batch_size=2)
    packhorse_app.run_jobs()
    first, walked[:] = sorted(walked), []
    alone = walk.map([0])
    packhorse_app.run_jobs()

    assert first == [0, 1, 2, 2, 3, 3, 3, 4, 4]
    assert sorted(walked) == first
    assert in_chunks.progress().succeeded == alone.progress().succeeded == 9
    assert alone.progress().status == "completed"


@pytest.mark.parametrize("pause_s", [0, 0.001], ids=["at_the_end", "meanwhile"])
def test_items_whose_results_cannot_be_kept_end_their_chunk_and_do_not_count_as_done(
    packhorse_app: TestApp, pause_s: float
) -> None:
    """Where each item takes a moment, the first are kept while the others run."""
    ran: list[int] = []

    @packhorse_app.task
    async def long(number: int) -> str | None:
        ran.append(number)
        await asyncio.sleep(pause_s)
        return "x" * 32_000

    batch = packhorse_app.batch(long, range(300), batch_size=300)
    (job,) = packhorse_app.assert_enqueued("long", queue="batch", count=1)
    packhorse_app.run_jobs()

    progress, kept = batch.progress(), len(list(batch.results()))
    assert (progress.succeeded, progress.failed, progress.status) == (kept, 300 - kept, "failed")
    assert kept < len(ran) <= 300
    dead = job.info()
    assert (dead.status, dead.dead_reason, dead.attempts) == (JobStatus.DEAD, "rejected", 1)


def test_a_batch_began_when_its_first_member_did(packhorse_app: TestApp) -> None:
    clock = packhorse_app.clock

    @packhorse_app.task
    async def slow(number: int) -> int:
        clock.advance(2)
        return number

    batch = packhorse_app.batch(slow, range(3), batch_size=3)
    began_us = clock.now_us()
    packhorse_app.run_jobs()

    progress = batch.progress()
    started_us, completed_us = (
        from_datetime(datetime.fromisoformat(str(moment)))
        for moment in (progress.started_at, progress.completed_at)
    )
    assert abs(started_us - began_us) < SECOND_US
    assert completed_us - started_us >= 6 * SECOND_US


@pytest.mark.parametrize("plain", [True, False])
def test_a_member_that_told_how_far_it_is_ends_with_all_its_items(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch, *, plain: bool
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.chunks._WRITE_AFTER_S", 0.001)

    @packhorse_app.task(name="plain")
    def in_a_thread(number: int) -> int:
        time.sleep(0.01)
        return number

    @packhorse_app.task(name="coroutine")
    async def on_the_loop(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    task = in_a_thread if plain else on_the_loop
    packhorse_app.batch(task, range(10), batch_size=10)
    packhorse_app.run_jobs()

    [job] = packhorse_app.assert_enqueued(task, count=1)
    told = job.info().progress
    assert told is not None
    assert (told.done, told.total) == (10, 10)
