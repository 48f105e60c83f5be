# SPDX-License-Identifier: MIT
"""The floor under wake-ups: what no datagram told is noticed soon, and idling costs little."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.stores.listener import TopicListener
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.stores.sqlite.wakeups import POLL_S, SqliteWakeups
from packhorse.testing.conformance.samples import QUEUE, new_job
from tests.unit.sqlite_support import (
    PATIENCE_S,
    Traced,
    real_connect,
    sqlite_store,
    submitting,
    until,
)

TOPICS = frozenset({f"queue:{QUEUE}"})
LOOK = "pragma data_version"


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Traced:
    traced = Traced()
    monkeypatch.setattr(sqlite3, "connect", traced.connect)
    return traced


@pytest.fixture
def store(traced: Traced, tmp_path: Path) -> Iterator[SqliteStore]:
    store = sqlite_store(tmp_path)
    store.run(submitting(store, "first"))
    yield store
    store.close()


@pytest.fixture
def all_datagrams_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteWakeups, "_send", lambda self, topics, names: None)


async def looking(traced: Traced, listener: TopicListener) -> asyncio.Task[frozenset[str]]:
    """A wait under way that has seen all there was."""
    while await listener.wait(2 * POLL_S):
        continue
    traced.statements.clear()
    wait = asyncio.create_task(listener.wait(PATIENCE_S))
    await until(lambda: traced.count(LOOK) > 0)
    return wait


def test_the_floor_is_a_tenth_of_a_second() -> None:
    assert POLL_S == 0.1  # with one look to come and one to be late: a fifth


@pytest.mark.usefixtures("all_datagrams_lost")
async def test_a_lost_datagram_is_made_up_for_within_two_looks(
    tmp_path: Path, traced: Traced
) -> None:
    store = sqlite_store(tmp_path)
    store.run(submitting(store, "first"))
    listener = store.wakeups.listen(TOPICS)
    wait = await looking(traced, listener)

    store.run(submitting(store, "job"))
    traced.statements.clear()

    assert await wait == {"*"}
    assert traced.count(LOOK) <= 2
    listener.close()
    store.close()


def no_such_sockets(patch: pytest.MonkeyPatch) -> None:
    patch.delattr("socket.AF_UNIX")


def no_more_sockets(patch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(24, "Too many open files")

    patch.setattr("socket.socket", refuse)


def no_folder(patch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    patch.setattr(Path, "mkdir", refuse)


@pytest.mark.parametrize("without", [no_such_sockets, no_more_sockets, no_folder])
async def test_without_sockets_everything_still_works_by_the_floor(
    without: Callable[[pytest.MonkeyPatch], None],
    store: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        without(patch)
        listener = store.wakeups.listen(TOPICS)
        store.run(submitting(store, "sync"))
        assert await listener.wait(PATIENCE_S) == {"*"}
        await asyncio.to_thread(store.run, submitting(store, "thread"))
        assert await listener.wait(PATIENCE_S) == {"*"}
        listener.close()


async def test_commits_of_any_connection_are_noticed(store: SqliteStore, tmp_path: Path) -> None:
    listener = store.wakeups.listen(TOPICS)
    stranger = real_connect(tmp_path / "jobs.db", isolation_level=None)

    stranger.execute("create table strangers (name)")

    assert await listener.wait(PATIENCE_S) == {"*"}
    stranger.close()
    listener.close()


@pytest.mark.usefixtures("all_datagrams_lost")
async def test_what_happened_between_two_waits_is_noticed_by_the_second(
    tmp_path: Path,
) -> None:
    store = sqlite_store(tmp_path)
    store.migrate()
    listener = store.wakeups.listen(TOPICS)
    assert await listener.wait(POLL_S / 2) == frozenset()

    store.run(submitting(store, "in between"))

    assert await listener.wait(PATIENCE_S) == {"*"}
    listener.close()
    store.close()


async def test_a_topic_too_long_to_be_sent_is_left_to_the_floor(store: SqliteStore) -> None:
    queue = "q" * 2000
    listener = store.wakeups.listen(frozenset({f"queue:{queue}"}))

    store.run(store.jobs.submit([new_job("job", queue=queue)]))

    assert await listener.wait(PATIENCE_S) == {"*"}
    listener.close()


# --------------------------------------------------------------------------------------- cost


async def test_an_idle_listener_wakes_its_loop_once_per_look_and_no_more(
    store: SqliteStore, traced: Traced
) -> None:
    listener = store.wakeups.listen(TOPICS)
    while await listener.wait(2 * POLL_S):
        continue
    loop, wakes = asyncio.get_running_loop(), 0
    selector = loop._selector  # type: ignore[attr-defined]
    select = selector.select

    def counted(timeout: float | None = None) -> Any:
        nonlocal wakes
        wakes += 1
        return select(timeout)

    selector.select = counted
    traced.statements.clear()

    assert await listener.wait(5 * POLL_S) == frozenset()

    selector.select = select
    assert traced.count(LOOK) <= 6
    assert len(traced.statements) == traced.count(LOOK)
    assert wakes <= 2 * 6 + 4  # the timer of a look may take a second round, and so may the ends
    listener.close()


async def test_no_waiter_costs_nothing(store: SqliteStore, traced: Traced) -> None:
    listener = store.wakeups.listen(TOPICS)
    while await listener.wait(2 * POLL_S):
        continue
    traced.statements.clear()

    await asyncio.sleep(3 * POLL_S)

    assert traced.statements == []
    listener.close()


async def test_a_hundred_listeners_look_no_more_often_than_one(
    store: SqliteStore, traced: Traced
) -> None:
    listeners = [store.wakeups.listen(TOPICS) for _ in range(100)]
    traced.statements.clear()

    await asyncio.gather(*(listener.wait(3 * POLL_S) for listener in listeners))

    assert traced.count(LOOK) <= 5
    for listener in listeners:
        listener.close()


async def test_commits_that_concern_others_wake_a_listener_once_per_look_at_most(
    store: SqliteStore, traced: Traced
) -> None:
    """Who goes and looks whenever something changed must not spin because others are busy."""
    loop, stop = asyncio.get_running_loop(), threading.Event()
    listener = store.wakeups.listen(frozenset({"queue:quiet"}))
    answers: list[frozenset[str]] = []

    def be_busy() -> None:
        number = 0
        while not stop.is_set():
            store.run(submitting(store, f"busy-{number}"))
            number += 1

    busy = threading.Thread(target=be_busy)
    busy.start()
    traced.statements.clear()
    begun = loop.time()
    while len(answers) < 5:
        answers.append(await listener.wait(PATIENCE_S))
        await store.arun(store.queues.depth("quiet"))
    took_s = loop.time() - begun
    stop.set()
    busy.join()

    assert set(answers) == {frozenset({"*"})}
    assert took_s > 3.5 * POLL_S  # the first look is at once
    assert traced.count("-- submit_alike\n") > 5, "there was nothing to be woken by"
    listener.close()
