# SPDX-License-Identifier: MIT
"""Wake-ups by datagram: who hears, where sockets lie, what becomes of dead ones."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.stores.sqlite import wakeups
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.stores.sqlite.wakeups import SqliteWakeups
from packhorse.testing.conformance.samples import QUEUE, new_job
from tests.support.children import in_threads, python
from tests.support.folders import short_folder
from tests.unit.sqlite_support import PATIENCE_S, heard_by, names_in, sqlite_store, submitting

TOPIC = f"queue:{QUEUE}"
TOPICS = frozenset({TOPIC})
LONG_AGO_S = 1_000_000_000


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name, so that sockets fit beside the file."""
    with short_folder() as made:
        yield made


@pytest.fixture
def store(folder: Path) -> Iterator[SqliteStore]:
    store = sqlite_store(folder)
    store.migrate()
    yield store
    store.close()


@pytest.fixture
def no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is sent is heard."""
    monkeypatch.setattr(wakeups.ListenerSocket, "_has_changed", lambda _: False)


SUBMIT = """
import sys
from packhorse.stores import open_store
from packhorse.testing.conformance.samples import new_job

store = open_store(sys.argv[1])
store.run(store.jobs.submit([new_job("from afar")]))
store.close()
"""


@pytest.mark.usefixtures("no_floor")
async def test_another_process_wakes_this_one(store: SqliteStore, folder: Path) -> None:
    listener = store.wakeups.listen(TOPICS)

    done = await asyncio.to_thread(python, SUBMIT, f"sqlite:///{folder}/jobs.db")

    assert done.stderr == ""
    assert await listener.wait(PATIENCE_S) == TOPICS
    listener.close()


# -------------------------------------------------------------------------------------- places


async def test_sockets_lie_beside_the_file_and_go_with_their_listeners(
    store: SqliteStore, folder: Path
) -> None:
    listener = store.wakeups.listen(TOPICS)
    beside = folder / "jobs.db-wake"

    assert [entry.is_socket() for entry in beside.iterdir()] == [True]
    assert beside.stat().st_mode & 0o777 == 0o700
    listener.close()
    assert not beside.exists()


@pytest.mark.usefixtures("no_floor")
@pytest.mark.parametrize("depth", [1, 70, 100, 200])
async def test_a_long_path_falls_back_to_the_temporary_folder_and_both_sides_agree(
    depth: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    deep = folder / ("d" * depth)
    deep.mkdir()
    hears, speaks = sqlite_store(deep), sqlite_store(deep)
    hears.migrate()
    listener = hears.wakeups.listen(TOPICS)

    speaks.run(submitting(speaks, "job"))

    assert await listener.wait(PATIENCE_S) == TOPICS
    beside = deep / "jobs.db-wake"
    assert beside.exists() == (len(os.fsencode(beside)) <= 80)
    listener.close()
    hears.close()
    speaks.close()


@pytest.mark.usefixtures("no_floor")
async def test_one_file_under_several_names_has_one_place_for_sockets(
    store: SqliteStore, folder: Path
) -> None:
    (folder / "alias").mkdir()
    (folder / "alias" / "jobs.db").symlink_to(folder / "jobs.db")
    (folder / "other").symlink_to(folder)
    listener = store.wakeups.listen(TOPICS)

    for alias in ("alias", "other"):
        speaks = sqlite_store(folder / alias)
        speaks.run(submitting(speaks, f"by {alias}"))
        speaks.close()
        assert await listener.wait(PATIENCE_S) == TOPICS

    listener.close()


async def test_a_folder_of_another_user_is_not_used(
    store: SqliteStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = folder.stat()
    theirs = os.stat_result([*ours[:4], ours.st_uid + 1, *ours[5:]])
    assert wakeups.is_trusted(ours, folder / "jobs.db")
    assert not wakeups.is_trusted(theirs, folder / "jobs.db")

    monkeypatch.setattr(wakeups, "is_trusted", lambda found, path: False)
    listener = store.wakeups.listen(TOPICS)
    store.run(submitting(store, "job"))

    assert list((folder / "jobs.db-wake").iterdir()) == []
    assert await listener.wait(PATIENCE_S) == {"*"}
    listener.close()


# -------------------------------------------------------------------------------- dead sockets

LISTEN_AND_DIE = """
import asyncio, os, sys
from packhorse.stores import open_store

async def main():
    open_store(sys.argv[1]).wakeups.listen(frozenset({"queue:default"}))
    os._exit(0)

asyncio.run(main())
"""


@pytest.mark.usefixtures("no_floor")
async def test_sockets_of_dead_processes_are_removed_and_the_living_still_hear(
    store: SqliteStore, folder: Path
) -> None:
    assert python(LISTEN_AND_DIE, f"sqlite:///{folder}/jobs.db").stderr == ""
    (dead,) = (folder / "jobs.db-wake").iterdir()
    os.utime(dead, (LONG_AGO_S, LONG_AGO_S))
    listener = store.wakeups.listen(TOPICS)

    store.run(submitting(store, "job"))

    assert await listener.wait(PATIENCE_S) == TOPICS
    assert not dead.exists()
    assert len(list((folder / "jobs.db-wake").iterdir())) == 1
    listener.close()


@pytest.mark.usefixtures("no_floor")
async def test_a_job_right_after_a_death_was_noticed_is_heard_of(
    store: SqliteStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "_LOOK_AGAIN_S", 3600.0)  # new ones are not looked for meanwhile
    listener = store.wakeups.listen(TOPICS)
    assert python(LISTEN_AND_DIE, f"sqlite:///{folder}/jobs.db").stderr == ""
    store.wakeups._looked_s = -3600.0

    for name in ("a", "b"):
        store.run(store.jobs.submit((new_job(name, trace_id=name),), ids_are_new=True))
        assert await listener.wait(PATIENCE_S) == TOPICS
    listener.close()


async def test_a_socket_just_being_bound_and_files_of_others_are_left_alone(
    store: SqliteStore, folder: Path
) -> None:
    (folder / "jobs.db-wake").mkdir()
    newborn = folder / "jobs.db-wake" / "newborn"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(newborn))
    (folder / "jobs.db-wake" / "notes.txt").write_text("mine")
    os.utime(folder / "jobs.db-wake" / "notes.txt", (LONG_AGO_S, LONG_AGO_S))

    store.run(submitting(store, "job"))

    names = {entry.name for entry in (folder / "jobs.db-wake").iterdir()}
    assert names == {"newborn", "notes.txt"}


@pytest.mark.usefixtures("no_floor")
async def test_a_listener_that_comes_within_a_tick_of_the_folders_clock_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "_LOOK_AGAIN_S", 0.0)  # else the second submit may not look
    first, second, speaks = (sqlite_store(folder) for _ in range(3))
    first.migrate()
    early = first.wakeups.listen(TOPICS)
    speaks.run(submitting(speaks, "one"))
    stamp = (folder / "jobs.db-wake").stat().st_mtime_ns

    late = second.wakeups.listen(TOPICS)
    os.utime(folder / "jobs.db-wake", ns=(stamp, stamp))
    speaks.run(submitting(speaks, "two"))

    assert await late.wait(PATIENCE_S) == TOPICS
    for listener in (early, late):
        listener.close()
    for store in (first, second, speaks):
        store.close()


# ------------------------------------------------------------------------------------- sending


def test_no_listener_costs_no_socket(store: SqliteStore) -> None:
    store.run(submitting(store, "job"))

    assert store.wakeups._socket is None


async def test_a_commit_is_not_called_a_failure_because_no_listener_can_be_told(
    store: SqliteStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = store.wakeups.listen(TOPICS)

    def exhausted(*arguments: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "socket", exhausted)
    store.run(submitting(store, "sync"))
    with monkeypatch.context() as patch:
        patch.delattr(socket, "AF_UNIX")
        store.run(submitting(store, "elsewhere"))

    assert names_in(folder) == {"sync", "elsewhere"}
    assert await listener.wait(PATIENCE_S) == {"*"}
    listener.close()


@pytest.mark.usefixtures("no_floor")
async def test_many_threads_send_through_one_socket_also_while_it_is_closed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, made = store.wakeups.listen(TOPICS), []
    real = socket.socket

    def counted(*arguments: Any) -> socket.socket:
        made.append(threading.get_ident())
        return real(*arguments)

    monkeypatch.setattr(socket, "socket", counted)
    speaks = SqliteWakeups(store._settings)

    def send() -> None:
        for _ in range(200):
            speaks.send([TOPIC])

    await asyncio.to_thread(in_threads, *[send] * 8)
    assert len(made) == 1
    await asyncio.to_thread(in_threads, send, send, *[speaks.close] * 4)

    assert await listener.wait(PATIENCE_S) == TOPICS
    speaks.close()
    listener.close()


# ------------------------------------------------------------------------------------- hearing


@pytest.mark.usefixtures("no_floor")
async def test_hundreds_of_listeners_share_one_socket_and_each_hears_its_own(
    store: SqliteStore,
) -> None:
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208 - counted, not looked at
    topics = [f"job:{number}" for number in range(300)]
    listeners = [store.wakeups.listen(frozenset({topic})) for topic in topics]
    opened = len(os.listdir("/dev/fd")) - before  # noqa: PTH208 - as above
    waits = [asyncio.create_task(listener.wait(PATIENCE_S)) for listener in listeners]
    await asyncio.sleep(0)

    store.wakeups.send([topics[7]])
    assert await waits[7] == {topics[7]}
    await asyncio.sleep(0)
    assert sum(wait.done() for wait in waits) == 1

    for listener in listeners:
        listener.close()
    assert await asyncio.gather(*waits[8:]) == [frozenset()] * 292
    assert opened < 10


@pytest.mark.usefixtures("no_floor")
async def test_rubbish_is_ignored_without_a_word(store: SqliteStore, folder: Path) -> None:
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    listener = store.wakeups.listen(TOPICS)
    (address,) = (folder / "jobs.db-wake").iterdir()

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for rubbish in (b"", b"\xff\xfe", TOPIC.encode() + b"\xff" * 3000, b"queue:other"):
            stranger.sendto(rubbish, str(address))
    store.wakeups.send([TOPIC])

    assert await listener.wait(PATIENCE_S) == TOPICS
    assert complaints == []
    listener.close()


@pytest.mark.usefixtures("no_floor")
async def test_a_flood_of_datagrams_starves_no_listener(store: SqliteStore, folder: Path) -> None:
    listener, quiet = store.wakeups.listen(TOPICS), store.wakeups.listen(frozenset({"job:1"}))
    ended = threading.Event()

    def flood() -> None:
        speaks = SqliteWakeups(store._settings)
        while not ended.is_set():
            speaks.send([TOPIC, "queue:other"] * 50)
        speaks.close()

    flooding = asyncio.create_task(asyncio.to_thread(flood))
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(50):
            assert await listener.wait(PATIENCE_S) == TOPICS
        due = asyncio.Event()
        asyncio.get_running_loop().call_later(0, due.set)
        await due.wait()  # timers have their turn too
    ended.set()
    await flooding

    assert await quiet.wait(0) == frozenset()
    listener.close()
    quiet.close()


@pytest.mark.usefixtures("no_floor")
async def test_a_wait_that_was_cancelled_takes_nothing_from_the_next(store: SqliteStore) -> None:
    listener = store.wakeups.listen(TOPICS)
    given_up = asyncio.create_task(listener.wait(None))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)

    store.run(store.jobs.submit([new_job()]))

    assert await listener.wait(PATIENCE_S) == TOPICS
    listener.close()


async def test_who_listens_goes_on_hearing_when_the_store_is_closed(
    store: SqliteStore, folder: Path
) -> None:
    listener = store.wakeups.listen(TOPICS)
    wait = asyncio.create_task(heard_by(listener, TOPIC))
    await asyncio.sleep(0)

    await asyncio.to_thread(store.close)
    speaks = sqlite_store(folder)
    speaks.run(submitting(speaks, "job"))

    assert await wait
    speaks.close()
    listener.close()


def test_listeners_of_a_closed_event_loop_are_cleared_away_by_the_next(
    store: SqliteStore, folder: Path
) -> None:
    async def listen_and_go() -> None:
        store.wakeups.listen(TOPICS)

    async def listen_and_look() -> int:
        listener = store.wakeups.listen(TOPICS)
        store.run(submitting(store, "job"))
        assert await listener.wait(PATIENCE_S)
        sockets = len(list((folder / "jobs.db-wake").iterdir()))
        listener.close()
        return sockets

    asyncio.run(listen_and_go())

    assert asyncio.run(listen_and_look()) == 1
    assert not (folder / "jobs.db-wake").exists()


def test_listeners_of_a_closed_event_loop_are_cleared_away_with_the_store(
    store: SqliteStore, folder: Path
) -> None:
    async def listen_and_go() -> None:
        store.wakeups.listen(TOPICS)

    before = len(os.listdir("/dev/fd"))  # noqa: PTH208 - counted, not looked at
    asyncio.run(listen_and_go())
    store.close()

    assert not (folder / "jobs.db-wake").exists()
    assert len(os.listdir("/dev/fd")) <= before  # noqa: PTH208 - as above


def test_event_loops_of_several_threads_are_all_woken(store: SqliteStore) -> None:
    listening_now = threading.Barrier(4)

    async def listen() -> None:
        listener = store.wakeups.listen(TOPICS)
        listening_now.wait(PATIENCE_S)
        assert await heard_by(listener, TOPIC)
        listener.close()

    def submit() -> None:
        listening_now.wait(PATIENCE_S)
        store.run(submitting(store, "job"))

    in_threads(*[lambda: asyncio.run(listen())] * 3, submit)
