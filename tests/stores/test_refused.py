# SPDX-License-Identifier: MIT
"""What no store is asked to hold: results beyond their bound, and what is cut to one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packhorse import Context, Packhorse, PayloadError, Task
from packhorse.core.codec import PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX
from packhorse.core.job import NOTE_LENGTH_MAX
from tests.stores.refusing import check_that_one_bad_result_is_a_dead_letter

NewApp = Callable[[], Packhorse]


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_a_result_over_its_bound_is_a_dead_letter_at_once(new_app: NewApp, kind: str) -> None:
    app, length = new_app(), RESULT_BYTES_MAX - 2  # two quotes make it whole

    def sized(length: int) -> str:
        return "x" * length

    async def asized(length: int) -> str:
        return "x" * length

    work: Task[..., str] = (
        app.task(name="work")(sized) if kind == "thread" else app.task(name="work")(asized)
    )
    fits, over = work.enqueue_many([{"length": length}, {"length": length + 1}])
    app.run(burst=True)

    assert len(fits.result(timeout=0)) == length
    info = over.info()
    assert (info.dead_reason, info.attempts, info.failures) == ("rejected", 1, 0)
    assert info.error is not None
    assert info.error.code == "RESULT_TOO_LARGE"
    assert "max_result_bytes" in info.error.message
    assert RESULT_BYTES_MAX == PAYLOAD_BYTES_MAX


def test_a_task_may_bound_its_results_otherwise_in_bytes(new_app: NewApp) -> None:
    app = new_app()

    @app.task(max_result_bytes=8)
    async def work(text: str) -> str:
        return text

    jobs = work.enqueue_many([{"text": "a" * 6}, {"text": "ä" * 3}, {"text": "ä" * 4}])
    app.run(burst=True)

    assert [str(job.status()) for job in jobs] == ["completed", "completed", "dead"]


async def test_a_runtime_is_told_of_a_result_over_its_bound(new_app: NewApp) -> None:
    app = new_app()

    @app.task
    def work() -> str:
        raise AssertionError("it is run elsewhere")

    await work.aenqueue()
    async with app.consumer() as consumer:
        job = await consumer.fetch(timeout=10)
        assert job is not None
        with pytest.raises(PayloadError, match=r"1048576 are allowed.*the job is still open"):
            await consumer.mark_complete(job, result="x" * RESULT_BYTES_MAX)
        await consumer.mark_complete(job, result="short")

    assert await app.job(job.id).aresult(timeout=0) == "short"


def test_what_a_job_says_is_cut_to_named_bounds(new_app: NewApp) -> None:
    app = new_app()

    @app.task
    async def note(ctx: Context) -> None:
        ctx.progress(1, note="n" * (NOTE_LENGTH_MAX + 1))

    @app.task(retry=None)
    async def fail() -> None:
        raise type("E" * 5_000, (Exception,), {})("m" * 5_000)

    noted, failed = note.enqueue(), fail.enqueue()
    app.run(burst=True)

    progress, error = noted.info().progress, failed.info().error
    assert progress is not None
    assert len(progress.note) == NOTE_LENGTH_MAX
    assert error is not None
    assert (len(error.type), len(error.message), len(error.reason)) == (200, 2_000, 200)
    assert error.stack is None or len(error.stack) <= 8_000


def test_a_value_sqlite_cannot_hold_is_a_dead_letter_and_holds_no_other_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def limited(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 200_000)
        return connection

    monkeypatch.setattr("packhorse.stores.sqlite.connection.sqlite3.connect", limited)
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db")

    check_that_one_bad_result_is_a_dead_letter(app, "x" * 300_000)

    asyncio.run(app.aclose())
