# SPDX-License-Identifier: MIT
"""The fixture `packhorse_app`: an app on an empty store, whose jobs a test runs and looks at."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from packhorse import (
    Context,
    JobDead,
    JobStatus,
    Packhorse,
    QueueFull,
    RetryPolicy,
    Router,
    UsageError,
)
from packhorse.stores.requests import JobFilter
from packhorse.testing import TestApp, VirtualClock, use
from tests.servers.every_store import every_store

__all__ = ["every_store"]  # pytest finds the fixture here

HOURS = RetryPolicy(max_retries=2, initial_delay="1h", max_delay="8h")


@pytest.mark.timeout(60)
def test_jobs_are_run_to_their_end_with_retries_delays_and_snoozes(packhorse_app: TestApp) -> None:
    began = packhorse_app.clock.monotonic()
    ran: dict[str, list[float]] = {}

    @packhorse_app.task(retry=HOURS)
    def work(ctx: Context, how: str) -> str:
        ran.setdefault(how, []).append((packhorse_app.clock.monotonic() - began) / 3600)
        if how == "fails":
            raise ValueError(how)
        if how == "snoozes" and len(ran[how]) == 1:
            ctx.snooze("5h")
        return how

    failing, snoozing, plain = (work.enqueue(how) for how in ("fails", "snoozes", "plain"))
    late = work.using(delay="2d", queue="elsewhere").enqueue("late")

    assert packhorse_app.run_jobs() == 7
    assert [job.status() for job in (plain, snoozing, late)] == [JobStatus.COMPLETED] * 3
    with pytest.raises(JobDead):
        failing.result()
    assert {how: len(times) for how, times in ran.items()} == {
        "fails": 3,
        "snoozes": 2,
        "plain": 1,
        "late": 1,
    }
    assert (round(ran["snoozes"][1]), round(ran["late"][0])) == (5, 48)
    assert packhorse_app.run_jobs() == 0


def test_time_passes_in_order_whatever_is_waited_for(packhorse_app: TestApp) -> None:
    order: list[tuple[str, int]] = []
    began = packhorse_app.clock.monotonic()

    @packhorse_app.task(retry=HOURS)
    def work(name: str) -> None:
        order.append((name, round(packhorse_app.clock.monotonic() - began)))
        if order == [("retried", 0)]:
            raise ValueError(name)

    work.using(delay="3h").enqueue("in three hours")
    work.using(delay="1m").enqueue("in a minute")
    work.enqueue("retried")
    packhorse_app.run_jobs()

    assert order[:2] == [("retried", 0), ("in a minute", 60)]
    assert [name for name, _ in order[2:]] == ["retried", "in three hours"]
    assert order[3][1] == 3 * 3600


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_begins_with_an_empty_app_and_store(packhorse_app: TestApp, turn: int) -> None:
    assert packhorse_app.tasks == {}
    assert packhorse_app.depth("default") == 0

    packhorse_app.task(name="left")(lambda: None).enqueue()


def test_what_was_submitted_is_found_by_task_arguments_and_fields(packhorse_app: TestApp) -> None:
    @packhorse_app.task(queue="mail")
    def send(to: str, day: date, times: int = 1) -> None: ...

    first = send.enqueue("ada", date(2026, 1, 2))
    send.using(priority="high", tags=["x"]).enqueue("bob", date(2026, 1, 3), times=2)
    packhorse_app.run_jobs()

    found = packhorse_app.assert_enqueued
    assert [job.id for job in found(send, {"day": date(2026, 1, 2), "times": 1})] == [first.id]
    assert len(found("send", count=2)) == 2
    assert len(found(send, {"to": "bob"}, priority="high", queue="mail", tags=("x",))) == 1
    assert found(send, {"to": "eve"}, count=0) == []
    with pytest.raises(AssertionError, match=r"expected one of send \{'to': 'eve'\} queue='mail'"):
        found(send, {"to": "eve"}, queue="mail")
    with pytest.raises(AssertionError, match=r"expected 1 of send, and 2 were.*\n.*'ada'"):
        found(send, count=1)
    with pytest.raises(UsageError, match="no field 'quue'"):
        found(send, quue="mail")


def test_eager_jobs_have_run_when_enqueue_returns(packhorse_app: TestApp) -> None:
    seen: list[str] = []
    workers: list[Any] = []
    packhorse_app.on("worker.started")(workers.append)

    @packhorse_app.task(retry=HOURS)
    def parent(how: str) -> str:
        if how == "fails":
            raise ValueError(how)
        child.enqueue("child")
        return how

    @packhorse_app.task
    async def child(name: str) -> None:
        seen.append(name)
        if name == "child":
            await child.aenqueue("grandchild")

    with packhorse_app.eager():
        job = parent.enqueue("works")
        assert job.status() is JobStatus.COMPLETED
        assert (seen, len(workers)) == (["child", "grandchild"], 1)
        failed = parent.enqueue("fails")
        assert failed.info().attempts == 3

    assert child.enqueue("later").status() is JobStatus.QUEUED
    assert seen == ["child", "grandchild"]


async def test_in_an_event_loop_jobs_are_run_by_the_twins(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    async def add(a: int) -> int:
        return a + 1

    job = await add.aenqueue(1)
    with pytest.raises(UsageError, match="arun_jobs"):
        packhorse_app.run_jobs()
    assert await packhorse_app.arun_jobs() == 1
    assert await job.aresult() == 2
    with packhorse_app.eager():
        assert await (await add.aenqueue(2)).aresult() == 3
        with pytest.warns(RuntimeWarning, match="blocks the running event loop"):
            blocking = add.enqueue(3)
        assert await blocking.aresult() == 4


def test_jobs_without_end_are_told(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def again() -> None:
        again.enqueue()

    again.enqueue()

    with pytest.raises(AssertionError, match="more than 20 attempts"):
        packhorse_app.run_jobs(max_attempts=20)


def test_handlers_that_want_a_process_run_in_this_one(packhorse_app: TestApp) -> None:
    @packhorse_app.task(executor="process")
    def where() -> int:
        return os.getpid()

    @packhorse_app.task(executor="process")
    async def awhere() -> int:
        return os.getpid()

    jobs = [where.enqueue(), awhere.enqueue()]
    packhorse_app.run_jobs()

    assert [job.result() for job in jobs] == [os.getpid()] * 2


def test_the_clock_is_set_by_the_test(packhorse_app: TestApp) -> None:
    ran: list[int] = []
    packhorse_app.task(name="note")(lambda: ran.append(1))
    moment = datetime(2031, 5, 1, tzinfo=UTC)
    packhorse_app.tasks["note"].using(scheduled_at=moment).enqueue()

    packhorse_app.clock.set(datetime(2031, 4, 30, tzinfo=UTC))
    packhorse_app.run(burst=True)
    assert ran == []
    packhorse_app.clock.set(moment)
    packhorse_app.run(burst=True)
    assert ran == [1]


# ------------------------------------------------------------------------------ an app of one's own

router = Router(prefix="mail.")


@router.task
def send(to: str) -> str:
    return f"sent to {to}"


def own_app(folder: Path, **options: Any) -> Packhorse:
    app = Packhorse(f"sqlite:///{folder}/production.db", **options)
    app.queue("mail", max_depth=5)
    app.include(router)
    return app


def test_an_app_is_used_on_another_store_and_its_own_is_never_opened(tmp_path: Path) -> None:
    app = own_app(tmp_path)
    with use(app) as tested:
        job, other = send.enqueue("ada"), app.enqueue_many([send.call("bob")])[0]
        assert tested.run_jobs() == 2
        assert (job.result(), other.result()) == ("sent to ada", "sent to bob")
        assert app.job(job.id).status() is JobStatus.COMPLETED
        send.using(queue="mail").enqueue_many([{"to": "eve"}] * 5)
        with pytest.raises(QueueFull):  # the queue is as the app declares it
            send.using(queue="mail").enqueue("eve")
    TestApp(app).release()

    assert not (tmp_path / "production.db").exists()


def test_after_the_test_the_app_is_as_before(tmp_path: Path) -> None:
    app = own_app(tmp_path)
    clock = VirtualClock()
    with use(app, clock=clock) as tested:
        inside = send.enqueue("ada")
        assert tested.clock is clock
        assert tested.include is not None
    outside = send.enqueue("bob")

    assert (tmp_path / "production.db").exists()
    assert {info.id for info in app.insights.jobs(JobFilter()).jobs} == {outside.id}
    assert inside.id != outside.id
    with pytest.raises(UsageError, match="use it inside use"):
        _ = TestApp(app).clock
    TestApp(app).release()
    app.close()


def test_a_spool_is_left_alone(tmp_path: Path) -> None:
    app = own_app(tmp_path, spool=tmp_path / "spool")
    with use(app):
        send.enqueue("ada")
    TestApp(app).release()

    assert not (tmp_path / "spool").exists()
