# SPDX-License-Identifier: MIT
"""What a handler gets."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from packhorse.context import Context
from packhorse.core.job import NOTE_LENGTH_MAX, Job, Progress
from packhorse.errors import PayloadError
from packhorse.signals import Snooze
from packhorse.testing.contexts import RecordingHost

JOB = Job(
    *("job-1", "resize", "images", 7, "{}", 2, "acme", 2, 0, 0, 0, 0),
    *(None, 1_700_000_000_000_000, "trace-1", "request-1", None, 0),
)


@pytest.fixture
def link() -> RecordingHost:
    return RecordingHost()


@pytest.fixture
def context(link: RecordingHost) -> Context:
    return Context(JOB, link, worker="w-1", state={"pool": 3})


def test_a_context_tells_of_its_job(context: Context) -> None:
    job = context.job

    assert (job.id, job.task, job.queue, job.attempt, job.fence) == (
        "job-1",
        "resize",
        "images",
        3,
        7,
    )
    assert (job.tenant, job.trace_id, job.upstream_request_id) == ("acme", "trace-1", "request-1")
    assert job.deadline == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert context.state["pool"] == 3


def test_progress_goes_to_the_runner_of_the_job(context: Context, link: RecordingHost) -> None:
    context.progress(3, 10, note="half-way")
    context.progress(0.5)

    assert link.noted == [Progress(3, 10, "half-way"), Progress(0.5)]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ((float("nan"),), "done"),
        ((float("inf"),), "done"),
        ((-1,), "done"),
        ((10**400,), "done"),
        ((None,), "done"),
        (("half",), "done"),
        ((True,), "done"),
        ((1, float("nan")), "total"),
        ((1, "two"), "total"),
        ((1, 2, None), "note"),
        ((1, 2, b"note"), "note"),
    ],
)
def test_progress_that_is_none_is_refused_at_the_call(
    context: Context, link: RecordingHost, wrong: Any, field: str
) -> None:
    with pytest.raises(PayloadError, match=rf"ctx\.progress\(\): {field} is") as refused:
        context.progress(*wrong)

    assert refused.value.field == field
    assert link.noted == []


def test_a_note_is_a_text_that_every_store_can_keep(context: Context, link: RecordingHost) -> None:
    context.progress(1, note="half \ud800 a character")
    context.progress(1, note="x" * 10_000)

    assert link.noted[0].note == "half ? a character"
    assert len(link.noted[1].note) == NOTE_LENGTH_MAX


def test_snoozing_ends_the_attempt(context: Context) -> None:
    with pytest.raises(Snooze) as caught:
        context.snooze("5m")

    assert caught.value.delay_us == 300_000_000


@pytest.mark.req("S4-30")
def test_a_thread_that_waits_is_woken_when_the_work_is_not_wanted_any_more(
    context: Context,
) -> None:
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(context.wait_cancelled(10)))
    waiting.start()

    context.request_cancel()
    waiting.join(10)

    assert answers == [True]
    assert context.cancel_requested


def test_a_wait_without_a_cancel_ends_with_its_time(context: Context) -> None:
    assert context.wait_cancelled("1ms") is False
    context.request_cancel()
    assert context.wait_cancelled() is True


async def test_a_coroutine_that_waits_is_woken_from_any_thread(context: Context) -> None:
    waiting = asyncio.create_task(context.await_cancelled(10))
    await asyncio.sleep(0)

    await asyncio.to_thread(context.request_cancel)

    assert await waiting is True
    assert await context.await_cancelled() is True


async def test_an_awaited_wait_ends_with_its_time(context: Context) -> None:
    assert await context.await_cancelled("1ms") is False


async def test_the_lease_is_asked_about(context: Context, link: RecordingHost) -> None:
    assert not context.lease_lost
    link.lost = True

    assert context.lease_lost
    assert not context.still_mine()
    assert not await context.astill_mine()


@pytest.mark.req("S3-32", "S4-22")
def test_its_log_lines_carry_the_jobs_fields(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="packhorse.job"):
        context.log.info("resized", extra={"pixels": 9})

    (record,) = caplog.records
    fields = vars(record)
    assert fields["job_id"] == "job-1"
    assert fields["worker"] == "w-1"
    assert fields["tenant"] == "acme"
    assert fields["trace_id"] == "trace-1"
    assert (fields["queue"], fields["task"], fields["attempt"]) == ("images", "resize", 3)
    assert fields["pixels"] == 9


async def test_a_detached_context_works_without_a_job_or_a_store() -> None:
    context = Context.detached("resize", state={"pool": 1})

    context.progress(1, 2)

    assert context.job.task == "resize"
    assert context.job.attempt == 1
    assert context.state["pool"] == 1
    assert not context.cancel_requested
    assert not context.lease_lost
    assert context.still_mine()
    assert await context.astill_mine()
    assert context.log.name == "packhorse.job"
