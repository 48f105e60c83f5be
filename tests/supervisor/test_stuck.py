# SPDX-License-Identifier: MIT
"""Code that will not stop: it never keeps its slot, it is shown, and its process is replaced."""

from __future__ import annotations

import asyncio

import pytest

from packhorse import DeadReason, JobStatus
from packhorse.runtime.supervisor.probes import status_document
from tests.supervisor.yard import Yard, soon, supervised


@pytest.mark.req("S3-13", "S3-27", "S3-11", "S3-9", "S1-31")
async def test_a_process_stuck_beyond_its_jobs_time_is_killed_and_only_that_job_pays(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "packhorse.runtime.supervisor.liveness.WATCH_S", 1.0
    )  # it has not been away
    bystander = await yard.app.tasks["linger"].aenqueue()
    async with supervised(stop_grace=0.2, lease=2) as supervisor:
        first = await asyncio.to_thread(yard.begun, bystander)
        culprit = await yard.app.tasks["block"].aenqueue()

        paid = await asyncio.to_thread(yard.finished, culprit)
        second = await asyncio.to_thread(yard.begun, bystander, than=first)
        yard.go()
        await soon("the bystander", lambda: bystander.status() is JobStatus.COMPLETED)

        assert supervisor.slots[0].restarts == 1
    assert (paid.dead_reason, paid.failures, paid.crashes) == (DeadReason.POISON_MESSAGE, 1, 0)
    assert (paid.error.code, paid.error.type) == ("TASK_TIMEOUT", "Timeout")
    assert "in block" in paid.error.stack
    assert await bystander.aresult() == second
    counters = yard.record(bystander).counters
    assert (counters.crashes, counters.failures, counters.releases) == (0, 0, 1)
    told = " ".join(caplog.messages)
    assert " was killed: it was stuck; another one takes its place in " in told
    assert f"1 job of process {told.split('1 job of process ')[1].split()[0]} given back: " in told
    assert "ended by itself" not in told


@pytest.mark.req("S3-13", "S3-17")
@pytest.mark.parametrize("task", ["deaf", "swallow"])
async def test_a_handler_that_does_not_stop_is_shown_and_its_process_replaced_after_a_drain(
    yard: Yard, task: str
) -> None:
    async with supervised(stop_grace=0.2, concurrency=2) as supervisor:
        stuck = await yard.app.tasks[task].aenqueue()
        old = await asyncio.to_thread(yard.begun, stuck)
        beside = await yard.app.tasks["linger"].aenqueue()  # its slot is free for others meanwhile
        assert await asyncio.to_thread(yard.begun, beside) == old

        paid = await asyncio.to_thread(yard.finished, stuck)
        await soon("it to be replaced", lambda: supervisor.leaving and supervisor.slots[0].child)
        await soon("the report", lambda: supervisor.leaving[0].report.stuck)
        (shown,) = status_document(supervisor)["processes"][1]["stuck"]
        later = await yard.app.tasks["linger"].aenqueue()
        new = await asyncio.to_thread(yard.begun, later)
        yard.go()
        await soon("the old one to leave", lambda: not supervisor.leaving)

    assert (paid.error.code, paid.failures) == ("TASK_TIMEOUT", 1)
    assert (shown["jobId"], shown["task"]) == (stuck.id, task)
    assert f"in {task}" in shown["stack"]
    assert new != old
    assert await beside.aresult() == old  # it was let finish where it ran
    assert (await later.aresult(), beside.info().releases) == (new, 0)
