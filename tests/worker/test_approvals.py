# SPDX-License-Identifier: MIT
"""Jobs that need a person wait without a slot, and go on or end as that person says."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from packhorse import (
    ConfigError,
    Context,
    Contract,
    JobConflict,
    JobDead,
    JobHandle,
    JobNotFound,
    JobStatus,
    NeedsHuman,
    UsageError,
)
from packhorse.core.approvals import Approval
from packhorse.core.clock import to_datetime
from packhorse.protocol import AnswerError, AnswerStatus, WorkerResponse
from packhorse.testing import TestApp, make_context
from tests.servers.every_store import every_store

__all__ = ["every_store"]  # pytest finds the fixture here


def _asking(app: TestApp, **options: Any) -> tuple[JobHandle[str], list[str]]:
    """A job that asks before it pays, and what its handler did."""
    did: list[str] = []

    @app.task(**options)
    def pay(ctx: Context, cents: int) -> str:
        if ctx.approval is None:
            did.append("asked")
            raise NeedsHuman(f"{cents} cents are much", code="large_sum", outputs={"cents": cents})
        did.append("paid")
        return f"{ctx.approval.by}: {ctx.approval.note}"

    return pay.enqueue(900), did


def test_a_job_waits_for_a_person_and_goes_on_when_approved(packhorse_app: TestApp) -> None:
    job, did = _asking(packhorse_app, retry=None)
    packhorse_app.run_jobs()

    waiting = job.info()
    assert (waiting.status, did) == (JobStatus.PENDING, ["asked"])
    assert (waiting.failures, waiting.snoozes) == (0, 0)
    assert job.approve(by="ada", note="for once")
    packhorse_app.run_jobs()

    assert job.result() == "ada: for once"
    assert did == ["asked", "paid"]
    (approval,) = job.info().approvals
    assert (approval.by, approval.note, approval.approved) == ("ada", "for once", True)
    assert abs(approval.at - job.info().created_at) < timedelta(minutes=1)


def test_the_response_says_needs_human_while_it_waits(packhorse_app: TestApp) -> None:
    job, _ = _asking(packhorse_app)
    packhorse_app.run_jobs()

    answer = job.response()
    assert answer is not None
    assert isinstance(answer.error, AnswerError)
    told = (answer.status, answer.error.code, answer.error.message, answer.outputs)
    assert told == (
        AnswerStatus.NEEDS_HUMAN,
        "large_sum",
        "900 cents are much",
        {"cents": 900},
    )
    job.approve(by="ada")
    packhorse_app.run_jobs()
    after = job.response()
    assert after is not None
    assert after.status is AnswerStatus.OK


def test_a_declined_job_is_dead_and_says_who_and_why(packhorse_app: TestApp) -> None:
    job, did = _asking(packhorse_app)
    packhorse_app.run_jobs()

    assert job.decline(by="bob", note="too much")
    packhorse_app.run_jobs()

    info = job.info()
    assert (info.status, info.dead_reason, did) == (JobStatus.DEAD, "rejected", ["asked"])
    assert info.error is not None
    assert info.error.code == "DECLINED"
    assert info.error.message.startswith("declined by bob at ")
    assert info.error.message.endswith(": too much")
    assert [(each.by, each.approved) for each in info.approvals] == [("bob", False)]
    with pytest.raises(JobDead, match="declined by bob"):
        job.result()


def test_a_declined_job_that_is_run_again_asks_again_without_running(
    packhorse_app: TestApp,
) -> None:
    job, did = _asking(packhorse_app)
    packhorse_app.run_jobs()
    job.decline(by="bob")
    packhorse_app.run_jobs()

    job.retry()
    packhorse_app.run_jobs()

    assert (job.status(), did) == (JobStatus.PENDING, ["asked"])
    assert job.explain().codes[0] == "needs_human"
    assert job.approve(by="ada", note="after all")
    packhorse_app.run_jobs()
    assert job.result() == "ada: after all"


def test_an_approval_that_came_first_is_not_lost(packhorse_app: TestApp) -> None:
    job, did = _asking(packhorse_app)

    assert not job.approve(by="ada", note="early")
    packhorse_app.run_jobs()

    assert (job.result(), did) == ("ada: early", ["paid"])


def test_an_approval_that_comes_while_the_handler_runs_is_not_lost(
    packhorse_app: TestApp,
) -> None:
    seen: list[str | None] = []

    @packhorse_app.task
    async def pay(ctx: Context) -> str:
        seen.append(None if ctx.approval is None else ctx.approval.by)
        if ctx.approval is None:
            assert not await packhorse_app.job(ctx.job.id).aapprove(by="ada")
            raise NeedsHuman("may I?")
        return "paid"

    job = pay.enqueue()
    packhorse_app.run_jobs()

    assert (job.result(), seen) == ("paid", [None, "ada"])


def test_answers_in_the_words_of_the_protocol_wait_too(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def speaks(ctx: Context) -> WorkerResponse:
        if ctx.approval is None:
            return WorkerResponse(status=AnswerStatus.NEEDS_HUMAN)
        return WorkerResponse(status=AnswerStatus.OK, outputs={"by": ctx.approval.by})

    @packhorse_app.task(contract=Contract(worker_id="plain"))
    async def plain(ctx: Context) -> dict[str, Any]:
        if ctx.approval is None:
            return {"status": "needs_human", "error": {"code": "unsure", "message": "is it?"}}
        return {"by": ctx.approval.by}

    jobs = [speaks.enqueue(), plain.enqueue()]
    packhorse_app.run_jobs()
    assert [job.status() for job in jobs] == [JobStatus.PENDING] * 2

    for job in jobs:
        job.approve(by="ada")
    packhorse_app.run_jobs()

    assert [job.result() for job in jobs] == [{"by": "ada"}] * 2


def test_each_question_needs_an_answer_of_its_own(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def pay(ctx: Context) -> str:
        first = ctx.step("first", lambda: ctx.approval and ctx.approval.by)
        if ctx.approval is None or first is None or ctx.approval.by == first:
            raise NeedsHuman("once more")
        return f"{first}, {ctx.approval.by}"

    job = pay.enqueue()
    packhorse_app.run_jobs()
    job.approve(by="ada")
    with pytest.raises(JobConflict, match="approved by ada"):
        job.approve(by="eve")  # the same question; the next one is not hers
    packhorse_app.run_jobs()
    assert job.status() is JobStatus.PENDING

    job.approve(by="bob")
    packhorse_app.run_jobs()

    assert [each.by for each in job.info().approvals] == ["ada", "bob"]


def test_what_does_not_answer_does_not_wake_the_handler(packhorse_app: TestApp) -> None:
    job, did = _asking(packhorse_app)
    packhorse_app.run_jobs()

    job.signal("other", 1)
    packhorse_app.run_jobs()
    job.retry()
    packhorse_app.run_jobs()

    assert (job.status(), did) == (JobStatus.PENDING, ["asked"])
    assert job.explain().codes[0] == "needs_human"
    with pytest.raises(UsageError, match="reserved"):
        job.signal("packhorse:approved", {})


def test_what_is_over_cannot_be_approved(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def done() -> None: ...

    job = done.enqueue()
    packhorse_app.run_jobs()

    with pytest.raises(JobConflict, match="is completed"):
        job.approve(by="ada")
    with pytest.raises(JobConflict, match="is completed"):
        asyncio.run(job.adecline(by="ada"))
    with pytest.raises(JobNotFound):
        packhorse_app.job("unknown").approve(by="ada")
    with pytest.raises(ConfigError, match="say who"):
        job.approve(by=" ")


def test_a_tenant_decides_about_its_own_jobs_only(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def ask(ctx: Context) -> str:
        if ctx.approval is None:
            raise NeedsHuman("may I?")
        return ctx.approval.by

    job = ask.using(tenant="acme").enqueue()
    packhorse_app.run_jobs()

    for verb in ("approve", "decline"):
        with pytest.raises(JobNotFound):
            getattr(packhorse_app.tenant("beta").job(job.id), verb)(by="eve")
    packhorse_app.tenant("acme").job(job.id).approve(by="ada")
    packhorse_app.run_jobs()

    assert job.result() == "ada"


def test_a_deadline_ends_the_wait_and_not_the_asking(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def ask() -> None:
        raise NeedsHuman("may I?")

    deadline = to_datetime(packhorse_app.clock.now_us()) + timedelta(hours=1)
    job = ask.using(deadline=deadline).enqueue()
    packhorse_app.run_jobs()  # which also moves the clock to where something is due

    info = job.info()
    assert (info.status, info.dead_reason) == (JobStatus.DEAD, "expired")
    assert info.finished_at is not None
    assert abs(info.finished_at - deadline) < timedelta(minutes=1)


def test_a_context_of_a_test_may_be_approved() -> None:
    approval = Approval("ada", "", to_datetime(0))

    assert make_context(approval=approval).approval is approval
    assert make_context().approval is None
