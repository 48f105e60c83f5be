# SPDX-License-Identifier: MIT
"""Submitting while the store is away: nothing is lost, doubled or overtaken."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from packhorse import JobNotFound, JobStatus, Packhorse, StoreUnavailable
from packhorse.client.spool import SpoolFile
from packhorse.client.spool import file as spool_file
from packhorse.client.spool.connection import SpoolDelivery, _timed
from packhorse.core.job import NewJob
from packhorse.events import JobsSpooled, SpoolDelivered, SpoolRefused
from packhorse.stores import open_store
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store

T = TypeVar("T")
_PATIENCE_S = 30.0


class Unsteady:
    """A real SQLite store that can be away, or take a write and lose the answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False
        self.lose_answers = 0
        self.submits = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def run(self, plan: Plan[T]) -> T:
        self._check()
        answer = self._store.run(plan)
        self._count(plan)
        return answer

    async def arun(self, plan: Plan[T]) -> T:
        self._check()
        answer = await self._store.arun(plan)
        self._count(plan)
        return answer

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailable("the store is away")

    def _count(self, plan: Plan[T]) -> None:
        if plan.verb != "submit":
            return
        self.submits += 1
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreUnavailable("the answer was lost", maybe_stored=True)


def test_a_relative_spool_is_fixed_when_the_app_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    store = Unsteady(open_store("sqlite:///jobs.db"))
    store.away = True
    app = Packhorse(store=store, spool="spool.db")  # type: ignore[arg-type] # it passes everything on
    work = app.task(name="work")(len)

    monkeypatch.chdir(elsewhere)
    work.enqueue("a")
    app.close()

    assert (here / "spool.db").exists()
    assert list(elsewhere.iterdir()) == []


class World:
    """An app with a spool beside a store that can be away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Unsteady(open_store(f"sqlite:///{folder / 'jobs.db'}"))
        self.app = self.new_app()

    def new_app(self) -> Packhorse:
        app = Packhorse(store=self.store, spool=self.folder / "spool.db")  # type: ignore[arg-type] # it passes everything on
        self.delivered = threading.Event()
        app.on(SpoolDelivered)(lambda _: self.delivered.set())

        @app.task
        def note(number: int) -> int:
            return number

        self.note = note
        return app

    @property
    def spool(self) -> SpoolFile:
        return SpoolFile(self.folder / "spool.db")

    def in_spool(self, query: str) -> list[tuple[Any, ...]]:
        """What an operator reads in the file."""
        with contextlib.closing(sqlite3.connect(self.spool.path)) as database:
            return database.execute(query).fetchall()

    @property
    def spooled(self) -> int:
        return int(self.in_spool("select count(*) from submissions")[0][0])

    def numbers(self) -> list[int]:
        """What the store holds, in the order of becoming ready, as a worker gets it."""
        ran: list[int] = []
        other = Packhorse(f"sqlite:///{self.folder / 'jobs.db'}")
        other.task(name="note")(_noting(ran))
        other.run(queues=["default"], concurrency=1, burst=True)
        other.close()
        return ran

    def wait_until_empty(self) -> None:
        moment = threading.Event()
        for _ in range(int(_PATIENCE_S / 0.02)):
            if not self.spooled:
                return
            moment.wait(0.02)
        raise AssertionError("the spool was not emptied")


def _noting(ran: list[int]) -> Callable[[int], Coroutine[Any, Any, None]]:
    async def note(number: int) -> None:
        ran.append(number)

    return note


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("packhorse.client.spool.connection._REST_S", 0.1)
    made = World(tmp_path)
    yield made
    made.store.away = False
    made.app.close()
    made.store._store.close()


def test_a_store_that_is_there_never_sees_the_spool(world: World) -> None:
    job = world.note.enqueue(number=1)

    assert job.status() is JobStatus.QUEUED
    assert not world.spool.path.exists()


def test_without_a_spool_the_submit_fails_and_says_so(world: World) -> None:
    app = Packhorse(store=world.store)  # type: ignore[arg-type] # as above
    task = app.task(name="note")(_noting([]))
    world.store.away = True

    with pytest.raises(StoreUnavailable) as caught:
        task.enqueue(1)

    assert caught.value.job_id


def test_submissions_are_kept_and_delivered_once_in_order(world: World) -> None:
    told: list[JobsSpooled] = []
    world.app.on(JobsSpooled)(told.append)
    world.note.enqueue(number=0)
    world.store.away = True
    for number in range(1, 20):
        world.note.enqueue(number=number)
    assert world.spooled == 19
    assert sum(each.jobs for each in told) == 19

    world.store.away = False
    world.wait_until_empty()

    assert world.numbers() == list(range(20))


def test_no_submit_overtakes_what_is_spooled(world: World) -> None:
    world.store.away = True
    world.note.enqueue(number=1)
    world.store.away = False
    # The store is back, but perhaps not everything is delivered yet.
    for number in range(2, 12):
        world.note.enqueue(number=number)

    world.wait_until_empty()

    assert world.numbers() == list(range(1, 12))


def test_a_lost_answer_does_not_double_a_job(world: World) -> None:
    world.store.lose_answers = 3

    handles = [world.note.enqueue(number=number) for number in range(5)]
    world.wait_until_empty()

    assert world.store.submits > 5
    assert len({handle.id for handle in handles}) == 5
    assert sorted(world.numbers()) == list(range(5))


async def test_async_submits_are_spooled_too(world: World) -> None:
    world.store.away = True
    handles = [await world.note.aenqueue(number=number) for number in range(5)]
    assert world.spooled == 5

    world.store.away = False
    world.wait_until_empty()

    assert [handle.status() for handle in handles] == [JobStatus.QUEUED] * 5


def test_what_one_process_spooled_the_next_one_delivers(world: World) -> None:
    world.store.away = True
    world.note.enqueue(number=1)
    world.app.close()
    world.store.away = False

    world.app = world.new_app()
    world.note.enqueue(number=2)
    world.wait_until_empty()

    assert world.numbers() == [1, 2]


def test_a_delay_counts_from_the_submit(world: World) -> None:
    world.store.away = True
    job = world.note.using(delay="1h").enqueue(number=1)
    (kept,) = world.spool.first(10)
    assert kept.jobs[0].delay_us == 0
    spooled_until = kept.jobs[0].scheduled_us

    world.store.away = False
    world.wait_until_empty()

    info = job.info()
    assert info.status is JobStatus.PENDING
    assert spooled_until is not None
    assert info.due_at.timestamp() == pytest.approx(spooled_until / 1e6)


def test_what_the_store_refuses_is_set_aside_and_told(world: World) -> None:
    refused: list[SpoolRefused] = []
    world.app.on(SpoolRefused)(refused.append)
    world.store.away = True
    bad = world.note.using(queue="shut").enqueue(number=1)
    good = world.note.enqueue(number=2)
    world.store._store.run(world.store._store.queues.close_queue("shut", closed=True))

    world.store.away = False
    world.wait_until_empty()

    assert good.status() is JobStatus.QUEUED
    with pytest.raises(JobNotFound):
        bad.status()
    assert [each.job_ids for each in refused] == [(bad.id,)]
    ((jobs, reason),) = world.in_spool("select jobs, reason from refused")
    assert [job.id for job in msgspec.json.decode(jobs, type=tuple[NewJob, ...])] == [bad.id]
    assert "QUEUE_CLOSED" in reason


def test_two_apps_on_one_spool_deliver_everything(world: World) -> None:
    first, other = world.note, world.new_app()
    second = world.note
    world.store.away = True
    for number in range(0, 20, 2):
        first.enqueue(number=number)
        second.enqueue(number=number + 1)

    world.store.away = False
    world.wait_until_empty()
    other.close()

    assert sorted(world.numbers()) == list(range(20))


def test_a_spool_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    app = Packhorse(
        store=Unsteady(open_store("memory://")),  # type: ignore[arg-type] # as above
        spool=tmp_path / "missing" / "spool.db",
    )
    app.store.away = True  # type: ignore[attr-defined] # as above
    task = app.task(name="note")(_noting([]))

    with pytest.raises(StoreUnavailable, match=r"missing/spool\.db cannot be used"):
        task.enqueue(1)


def test_a_full_spool_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_file, "SUBMISSIONS_MAX", 2)
    spool = SpoolFile(tmp_path / "spool.db")
    job = NewJob(id="a", task="note", payload=b"{}")
    spool.append([job], now_us=1)
    spool.append([job], now_us=1)
    spool.append([job], now_us=1)

    with pytest.raises(StoreUnavailable, match="as many as it may"):
        spool.append([job], now_us=1)


def test_a_forked_child_spools_and_delivers_by_itself(world: World) -> None:
    world.store.away = True
    world.note.enqueue(number=1)

    child = os.fork()
    if child == 0:  # pragma: no cover - the parent sees what it did
        world.note.enqueue(number=2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    world.store.away = False
    world.wait_until_empty()

    assert world.numbers() == [1, 2]


def test_a_delay_is_added_to_the_time_of_the_submit() -> None:
    job = _timed(NewJob("a", "work", b"{}", delay_us=3), 5)

    assert (job.scheduled_us, job.delay_us) == (8, 0)


def test_a_delivery_that_was_stopped_may_begin_again_and_keeps_no_program_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[bool, bool]] = []
    nothing: Any = None
    delivery = SpoolDelivery(nothing)
    deliver = lambda: seen.append((delivery._stop.is_set(), threading.current_thread().daemon))  # noqa: E731 - it replaces a method
    monkeypatch.setattr(delivery, "_deliver_all", deliver)
    delivery.stop()

    delivery.start()

    assert delivery._thread is not None
    delivery._thread.join(_PATIENCE_S)
    assert seen == [(False, True)]
