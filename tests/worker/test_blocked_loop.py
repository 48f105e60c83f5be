# SPDX-License-Identifier: MIT
"""A handler that blocks the event loop is found out, named with its stack, and keeps its lease."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator

import pytest

from packhorse import logs
from packhorse.core.job import JobStatus
from packhorse.events import LoopBlocked
from tests.worker.support import Yard


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a worker with JSON logs writes."""
    stream = io.StringIO()
    logger = logging.getLogger("packhorse")
    before = (logger.handlers[:], logger.level, logger.propagate)
    logs.configure("warning", "json", stream=stream)
    yield stream
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.mark.req("S1-43")
async def test_the_warning_names_the_task_and_shows_where_it_blocks(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.heartbeat._BLOCKED_S", 0.1)
    monkeypatch.setattr("packhorse.runtime.worker.heartbeat._LOOK_S", 0.05)
    yard, told = Yard(), threading.Event()

    def a_call_that_should_have_been_awaited() -> bool:
        return told.wait(5)

    async def block() -> bool:
        return a_call_that_should_have_been_awaited()

    async def beside() -> None: ...

    yard.task(block)
    yard.task(beside)
    logs.attach(yard.bus)
    yard.record("loop.*")
    yard.bus.subscribe(LoopBlocked, lambda _: told.set())
    jobs = [yard.submit("block"), yard.submit("beside")]

    await yard.burst(lease_us=200_000)

    (event,) = yard.told(LoopBlocked)
    assert event.tasks == ("block",)  # not the one beside it
    assert "in a_call_that_should_have_been_awaited" in event.stack
    assert "a_call_that_should_have_been_awaited" in written.getvalue()
    assert {yard.status(job_id) for job_id in jobs} == {JobStatus.COMPLETED}
    assert {yard.job(job_id).counters.attempts for job_id in jobs} == {1}
