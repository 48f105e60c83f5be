# SPDX-License-Identifier: MIT
"""Sync callers in many threads, closing in the middle, interrupts, and the interpreter's end."""

from __future__ import annotations

import _thread
import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from packhorse.errors import StoreError, StoreUnavailable
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.requests import QueueSettings
from packhorse.stores.sql.statements import NOW
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import QUEUE
from tests.support.children import in_threads, python
from tests.unit.sqlite_support import (
    PATIENCE_S,
    Pause,
    Traced,
    can_write,
    claiming,
    names_in,
    renewing,
    sqlite_store,
    submitting,
    until,
    waiting,
    write_lock,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = sqlite_store(tmp_path)
    yield store
    store.close()


def test_what_a_fork_holds_can_be_collected_in_any_thread(store: SqliteStore) -> None:
    store.run(submitting(store, "job"))
    runners = [store._local._make()]
    runners[0].before_fork()  # as in a forked child, where it is never let go

    collecting = threading.Thread(target=runners.clear, daemon=True)
    collecting.start()
    collecting.join(PATIENCE_S)

    assert not collecting.is_alive()


def open_files() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 - counted, not looked at


# ------------------------------------------------------------------------------- many threads


def test_fifty_threads_write_at_once_and_all_is_kept(store: SqliteStore, tmp_path: Path) -> None:
    names = [str(number) for number in range(50)]

    in_threads(*(lambda name=name: store.run(submitting(store, name)) for name in names))

    assert names_in(tmp_path) == set(names)


def test_writers_of_one_process_take_turns_instead_of_sleeping_and_starving(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = Traced()
    monkeypatch.setattr(sqlite3, "connect", traced.connect)

    def write() -> None:
        for number in range(20):
            store.run(store.queues.pause(QUEUE, paused=bool(number % 2)))

    store.run(submitting(store, "first"))
    traced.statements.clear()
    in_threads(*[write] * 6)

    turns = [text for text in traced.statements if text in ("begin immediate", "commit")]
    assert turns == ["begin immediate", "commit"] * 120


def test_a_turn_that_does_not_come_in_time_is_told_like_a_locked_file(tmp_path: Path) -> None:
    store, pause = sqlite_store(tmp_path, "?busy_timeout=50ms"), Pause()
    holder = threading.Thread(target=lambda: store.run(pause.plan()))
    holder.start()
    assert pause.begun.wait(PATIENCE_S)

    with pytest.raises(StoreUnavailable, match="raise busy_timeout"):
        store.run(submitting(store, "impatient"))

    pause.go_on.set()
    holder.join()
    store.run(submitting(store, "patient"))
    store.close()
    assert names_in(tmp_path) == {"patient"}


def test_connections_of_threads_that_ended_are_closed(store: SqliteStore) -> None:
    def in_short_lived_thread() -> int:
        in_threads(lambda: store.run(store.queues.depth(QUEUE)))
        return open_files()

    first = in_short_lived_thread()
    counts = {in_short_lived_thread() for _ in range(20)}

    assert max(counts) <= first


def test_so_are_those_of_threads_that_threading_does_not_know(store: SqliteStore) -> None:
    def in_foreign_thread() -> int:
        done = threading.Event()

        def look() -> None:
            store.run(store.queues.depth(QUEUE))
            done.set()

        _thread.start_new_thread(look, ())
        assert done.wait(PATIENCE_S)
        return open_files()

    first = max(in_foreign_thread() for _ in range(5))
    counts = {in_foreign_thread() for _ in range(20)}

    # One that has just ended may not have gone yet; what stays adds up.
    assert max(counts) <= first + 10


@pytest.mark.parametrize("busy", ["claim", "declare", "promote", "expire", "park", "prune"])
def test_a_look_that_finds_nothing_to_do_does_not_wait_for_the_write_lock(
    busy: str, tmp_path: Path
) -> None:
    store = sqlite_store(tmp_path, "?busy_timeout=0")
    declared = [QueueSettings(QUEUE, priority=3)]
    store.run(store.queues.declare(declared))
    store.run(store.leases.renew(renewing()))
    plans: dict[str, Plan[Any]] = {
        "claim": store.jobs.claim(claiming()),
        "declare": store.queues.declare(declared),
        "promote": store.upkeep.promote(limit=10),
        "expire": store.upkeep.expire(limit=10),
        "park": store.upkeep.park(after_us=1, limit=10),
        "prune": store.upkeep.prune(limit=10),
    }

    with write_lock(tmp_path):
        here = store.run(plans[busy])
        there = asyncio.run(store.arun(plans[busy]))
        with pytest.raises(StoreUnavailable):
            store.run(submitting(store, "refused"))

    store.close()
    if busy != "claim":  # which tells the time
        assert here == there


# ------------------------------------------------------------------------------------- closing


def test_closing_waits_for_the_plan_another_thread_runs(store: SqliteStore) -> None:
    pause, answers = Pause(), []
    runs = threading.Thread(target=lambda: answers.append(store.run(pause.plan())))
    runs.start()
    assert pause.begun.wait(PATIENCE_S)

    closes = threading.Thread(target=store.close)
    closes.start()
    closes.join(0.05)
    still_closing = closes.is_alive()
    pause.go_on.set()
    closes.join(PATIENCE_S)
    runs.join(PATIENCE_S)

    assert still_closing
    assert answers == ["went on"]


async def test_closing_finishes_the_plans_that_wait(store: SqliteStore, tmp_path: Path) -> None:
    pause = Pause()
    busy = await pause.begin(store)
    names = [str(number) for number in range(30)]
    tasks = await waiting(store, [submitting(store, name) for name in names])

    closing = asyncio.create_task(asyncio.to_thread(store.close))
    await asyncio.sleep(0)
    pause.go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*tasks)
        await asyncio.gather(busy, closing)

    assert [answer[0].job_id for answer in answers] == names
    assert names_in(tmp_path) == set(names)


def test_closing_from_the_event_loop_itself_does_not_deadlock(
    store: SqliteStore, tmp_path: Path
) -> None:
    async def submit_and_close() -> None:
        tasks = await waiting(store, [submitting(store, str(number)) for number in range(10)])
        store.close()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(submit_and_close(), PATIENCE_S))

    assert len(names_in(tmp_path)) == 10


def test_closing_lets_go_of_every_file_and_thread(tmp_path: Path) -> None:
    files, threads = open_files(), threading.active_count()
    store = sqlite_store(tmp_path)

    async def use() -> None:
        listener = store.wakeups.listen(frozenset({"queue:default"}))
        await store.arun(submitting(store, "async"))
        await store.arun(store.inspection.job("async"))
        assert await listener.wait(PATIENCE_S)
        listener.close()
        store.close()

    store.run(submitting(store, "sync"))
    asyncio.run(use())
    store.close()

    assert open_files() <= files
    assert threading.active_count() <= threads


def test_a_closed_store_opens_again_when_it_is_used(store: SqliteStore, tmp_path: Path) -> None:
    async def twice(prefix: str) -> None:
        await store.arun(submitting(store, f"{prefix}-1"))
        store.close()
        await store.arun(submitting(store, f"{prefix}-2"))

    store.run(submitting(store, "sync-1"))
    store.close()
    store.run(submitting(store, "sync-2"))
    asyncio.run(twice("async"))

    assert names_in(tmp_path) == {"sync-1", "sync-2", "async-1", "async-2"}


def test_closing_again_and_again_loses_no_plan_on_its_way(
    store: SqliteStore, tmp_path: Path
) -> None:
    done = threading.Event()

    async def submit() -> None:
        try:
            for number in range(150):
                plan = submitting(store, f"async-{number}")
                await asyncio.wait_for(store.arun(plan), PATIENCE_S)
        finally:
            done.set()

    def close() -> None:
        while not done.is_set():
            store.close()

    def run() -> None:
        for number in range(50):
            store.run(submitting(store, f"sync-{number}"))

    in_threads(lambda: asyncio.run(submit()), close, run)

    assert len(names_in(tmp_path)) == 200


# ---------------------------------------------------------------------------------- interrupts


class Interrupted(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


def test_an_interrupt_while_waiting_for_the_lock_does_not_leave_it_taken(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = Traced()
    monkeypatch.setattr(sqlite3, "connect", traced.connect)
    store.run(submitting(store, "before"))
    traced.statements.clear()

    def interrupt_then_unlock(other: sqlite3.Connection) -> None:
        asyncio.run(until(lambda: traced.count("begin immediate") >= 1))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        other.execute("rollback")

    with write_lock(tmp_path) as other, interruptible():
        helper = threading.Thread(target=interrupt_then_unlock, args=(other,))
        helper.start()
        with pytest.raises(Interrupted):
            store.run(submitting(store, "interrupted", "as well"))  # more than one statement
        helper.join()

    assert can_write(tmp_path)
    store.run(submitting(store, "after"))
    assert names_in(tmp_path) == {"before", "after"}


@contextmanager
def interruptible() -> Iterator[None]:
    def handler(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_plan_run_in_the_middle_of_another_is_refused_and_harms_nothing(
    store: SqliteStore, tmp_path: Path
) -> None:
    refusals = []

    def steps() -> Steps[Any]:
        yield NOW
        try:  # as a signal handler might that submits a job
            store.run(submitting(store, "inner"))
        except StoreError as error:
            refusals.append(error)
        answer: Any = yield from submitting(store, "outer").steps()
        return answer

    store.run(Plan("outer", steps))

    assert [str(error) for error in refusals] == [
        "a plan was run inside another one of the same thread; run it after"
    ]
    assert names_in(tmp_path) == {"outer"}


def test_what_a_plan_raises_is_undone_and_the_lock_is_free(
    store: SqliteStore, tmp_path: Path
) -> None:
    def steps() -> Steps[None]:
        yield from submitting(store, "undone").steps()
        raise Interrupted

    with pytest.raises(Interrupted):
        store.run(Plan("interrupted", steps))

    assert can_write(tmp_path)
    assert names_in(tmp_path) == set()


# --------------------------------------------------------------------------- the process's end

LEAVING = """
import asyncio, atexit, sys
from packhorse.stores import open_store
from packhorse.testing.conformance.samples import new_job

store = open_store(sys.argv[1])
atexit.register(lambda: store.run(store.jobs.submit([new_job("at exit")])))

async def main():
    listener = store.wakeups.listen(frozenset({"queue:default"}))
    await store.arun(store.jobs.submit([new_job("async")]))
    asyncio.ensure_future(listener.wait(None))
    for number in range(50):
        asyncio.ensure_future(store.arun(store.jobs.submit([new_job()])))
    await asyncio.sleep(0)

store.run(store.jobs.submit([new_job("sync")]))
asyncio.run(main())
"""


def test_a_process_may_end_without_closing_its_store(tmp_path: Path) -> None:
    done = python(LEAVING, f"sqlite:///{tmp_path}/jobs.db")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert names_in(tmp_path) >= {"sync", "async", "at exit"}
