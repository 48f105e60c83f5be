# SPDX-License-Identifier: MIT
"""Sleeps and waits in steps: the attempt ends and comes back, on every store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from packhorse import (
    Context,
    JobConflict,
    JobNotFound,
    JobStatus,
    RetryPolicy,
    StoreUnavailable,
    WaitTimeout,
)
from packhorse.core.steps import StepState
from packhorse.runtime.worker.claim_policy import StoreTime
from packhorse.testing import TestApp
from tests.servers.every_store import every_store
from tests.worker.support import Trouble

__all__ = ["every_store"]  # pytest finds the fixture here


def test_a_sleep_ends_the_attempt_and_is_not_slept_again(packhorse_app: TestApp) -> None:
    began: list[int] = []

    @packhorse_app.task(max_snoozes=0, retry=RetryPolicy(max_retries=1))
    def nap(ctx: Context) -> str:
        began.append(packhorse_app.clock.now_us())
        ctx.sleep("nap", "1h")
        if len(began) == 2:
            raise Trouble
        return "rested"

    job = nap.enqueue()
    packhorse_app.run_jobs()

    assert job.result() == "rested"
    first, second, third = began
    assert 3600 <= (second - first) / 1_000_000 < 3601
    assert (third - second) / 1_000_000 < 60
    assert job.info().snoozes == 0


def test_an_attempt_that_comes_early_sleeps_what_is_left(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def nap(ctx: Context) -> str:
        ctx.sleep("nap", "1h")
        return "rested"

    job = nap.enqueue()
    packhorse_app.run(burst=True, lease="36500d")
    due_at = job.info().due_at
    packhorse_app.clock.advance(600)
    job.retry()
    packhorse_app.run(burst=True, lease="36500d")

    assert job.status() is JobStatus.PENDING
    assert job.info().attempts == 2
    assert abs(job.info().due_at - due_at) < timedelta(seconds=1)
    packhorse_app.run_jobs()
    assert job.result() == "rested"


@pytest.mark.parametrize("how", ["sleep", "wait"])
def test_a_step_that_is_due_is_over_however_well_the_worker_knows_the_time(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    read, slack_us = StoreTime.read, [200_000]

    def read_vaguely(self: StoreTime, now_us: int, asked_at: float, answered_at: float) -> None:
        read(self, now_us, asked_at, answered_at)
        self.most_us = self.least_us + slack_us[0]

    monkeypatch.setattr(StoreTime, "read", read_vaguely)

    @packhorse_app.task
    def nap(ctx: Context) -> str:
        if how == "sleep":
            ctx.sleep("nap", "100ms")
            return "rested"
        try:
            return str(ctx.wait_for("paid", timeout="100ms"))
        except WaitTimeout:
            return "rested"

    job = nap.enqueue()
    packhorse_app.run(burst=True, lease="36500d")
    assert job.status() is JobStatus.PENDING
    slack_us[:] = [0]
    packhorse_app.clock.advance((job.info().due_at - job.info().updated_at).total_seconds())
    packhorse_app.run(burst=True, lease="36500d")

    assert (job.status(), job.info().attempts) == (JobStatus.COMPLETED, 2)
    assert job.result() == "rested"


def test_a_signal_ends_a_wait(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    async def ship(ctx: Context) -> list[Any]:
        return [await ctx.await_for("paid"), await ctx.await_for("paid")]

    job = ship.enqueue()
    packhorse_app.run_jobs()
    assert job.status() is JobStatus.PENDING
    reason = job.explain().reasons[0]
    assert (reason.code, reason.at) == ("waits_for_signal", None)
    assert "'paid'" in reason.text

    job.signal("paid", {"by": "ada"})
    job.signal("other", "not for it")
    packhorse_app.run_jobs()
    assert job.status() is JobStatus.PENDING
    assert [step.state for step in job.info().steps] == [StepState.DONE, StepState.OPEN]

    job.signal("paid", 2)
    packhorse_app.run_jobs()
    assert job.result() == [{"by": "ada"}, 2]


def test_a_resent_signal_is_one(packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch) -> None:
    @packhorse_app.task
    def gather(ctx: Context) -> list[Any]:
        return [ctx.wait_for("paid"), ctx.wait_for("paid")]

    job, run = gather.enqueue(), packhorse_app.store.run

    def lost(plan: Any) -> None:
        raise StoreUnavailable(f"{run(plan)} got lost")

    monkeypatch.setattr(packhorse_app.store, "run", lost)
    with pytest.raises(StoreUnavailable):
        job.signal("paid", 1, idempotency_key="event-1")
    monkeypatch.undo()
    job.signal("paid", 1, idempotency_key="event-1")
    job.signal("paid", 2)
    packhorse_app.run_jobs()

    assert job.result(timeout=0) == [1, 2]


def test_a_signal_that_came_first_is_not_lost(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def ship(ctx: Context) -> Any:
        return ctx.wait_for("paid", timeout="1m")

    job = ship.enqueue()
    job.signal("paid", "early")
    packhorse_app.run_jobs()

    assert job.result() == "early"


def test_a_job_that_sleeps_or_waits_for_a_time_says_until_when(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def rest(ctx: Context, signal: str) -> None:
        ctx.wait_for(signal, timeout="1h") if signal else ctx.sleep("nap", "1h")

    jobs = [rest.enqueue(signal) for signal in ("", "paid")]
    packhorse_app.run(burst=True, lease="36500d")

    reasons = [job.explain().reasons[0] for job in jobs]
    assert [reason.code for reason in reasons] == ["sleeps", "waits_for_signal"]
    assert [reason.at for reason in reasons] == [job.info().due_at for job in jobs]
    assert "'nap'" in reasons[0].text
    assert "'paid'" in reasons[1].text


def test_a_wait_times_out_once_and_for_all(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def ship(ctx: Context) -> str:
        try:
            ctx.wait_for("paid", timeout="10m")
        except WaitTimeout:
            ctx.step("told", lambda: "told")
            return str(ctx.wait_for("paid", timeout="10m"))
        return "paid"

    job = ship.enqueue()
    packhorse_app.run_jobs()
    assert job.status() is JobStatus.DEAD

    other = ship.enqueue()
    packhorse_app.clock.advance(0)
    other.signal("paid", 1)
    packhorse_app.run_jobs()
    assert other.result() == "paid"


def test_signals_to_jobs_that_cannot_take_them_are_refused(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def nothing() -> None: ...

    job = nothing.enqueue()
    packhorse_app.run_jobs()

    with pytest.raises(JobConflict, match="finished"):
        job.signal("paid")
    with pytest.raises(JobNotFound):
        packhorse_app.job("unknown").signal("paid")
    with pytest.raises(JobNotFound):
        packhorse_app.tenant("other").job(job.id).signal("paid")
