# SPDX-License-Identifier: MIT
"""A process that forks: nothing is lost, no process hangs, and neither side disturbs the other."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import QUEUE
from tests.support.children import fork, in_threads, python, reap
from tests.unit.sqlite_support import (
    PATIENCE_S,
    Pause,
    heard_by,
    names_in,
    sqlite_store,
    submitting,
)

# Python 3.12 and later warn of every fork beside threads, and that is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

TOPIC = f"queue:{QUEUE}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = sqlite_store(tmp_path)
    yield store
    store.close()


def test_a_child_writes_through_the_store_its_parent_used(
    store: SqliteStore, tmp_path: Path
) -> None:
    store.run(submitting(store, "before"))
    asyncio.run(store.arun(submitting(store, "before, async")))

    def work() -> None:
        store.run(submitting(store, "child"))
        asyncio.run(store.arun(submitting(store, "child, async")))
        store.close()

    assert reap(fork(work)) == 0

    store.run(submitting(store, "after"))
    asyncio.run(store.arun(submitting(store, "after, async")))
    assert names_in(tmp_path) == {
        *("before", "before, async", "child", "child, async", "after", "after, async")
    }


def test_a_child_that_lives_on_loses_nothing_when_its_parent_closes(
    store: SqliteStore, tmp_path: Path
) -> None:
    """SQLite removes its log with the last connection; a child must count as one."""
    store.run(submitting(store, "before"))
    told, tell = os.pipe()
    heard, answer = os.pipe()

    def work() -> None:
        store.run(submitting(store, "child, first"))
        os.write(answer, b"!")
        assert os.read(told, 1)
        store.run(submitting(store, "child, then"))

    child = fork(work)
    assert os.read(heard, 1)
    store.close()
    stranger = sqlite_store(tmp_path)  # comes and goes, as a command does
    stranger.run(submitting(stranger, "stranger"))
    stranger.close()
    os.write(tell, b"!")

    assert reap(child) == 0
    for end in (told, tell, heard, answer):
        os.close(end)
    assert names_in(tmp_path) == {"before", "child, first", "child, then", "stranger"}


def test_forks_while_the_owner_thread_and_others_write(store: SqliteStore, tmp_path: Path) -> None:
    done = threading.Event()
    written: list[str] = []

    async def submit_on() -> None:
        while not done.is_set():
            name = f"loop-{len(written)}"
            await store.arun(submitting(store, name))
            written.append(name)

    def submit_in_thread() -> None:
        number = 0
        while not done.is_set():
            store.run(submitting(store, f"thread-{number}"))
            written.append(f"thread-{number}")
            number += 1

    def fork_children() -> None:
        try:
            children = [fork(child_work(str(number))) for number in range(10)]
            assert [reap(child) for child in children] == [0] * 10
        finally:
            done.set()

    def child_work(name: str) -> Callable[[], object]:
        def work() -> None:
            store.run(submitting(store, f"child-{name}"))
            asyncio.run(store.arun(submitting(store, f"child-{name}, async")))

        return work

    in_threads(lambda: asyncio.run(submit_on()), submit_in_thread, fork_children)

    expected = {f"child-{number}{how}" for number in range(10) for how in ("", ", async")}
    assert names_in(tmp_path) == expected | set(written)


def test_a_fork_lets_a_plan_under_way_finish_first(store: SqliteStore, tmp_path: Path) -> None:
    pause, forked = Pause(), threading.Event()
    runs = threading.Thread(target=lambda: store.run(pause.plan()))
    runs.start()
    assert pause.begun.wait(PATIENCE_S)

    def go_on() -> None:
        assert not forked.wait(0.05)  # the fork waits for the plan
        pause.go_on.set()

    helper = threading.Thread(target=go_on)
    helper.start()
    child = fork(lambda: store.run(submitting(store, "child")))
    forked.set()

    assert pause.go_on.is_set()
    assert reap(child) == 0
    helper.join()
    runs.join()
    assert names_in(tmp_path) == {"child"}


def test_children_of_children_write_too(store: SqliteStore, tmp_path: Path) -> None:
    store.run(submitting(store, "parent"))

    def work() -> None:
        store.run(submitting(store, "child"))
        assert reap(fork(lambda: store.run(submitting(store, "grandchild")))) == 0
        store.run(submitting(store, "child again"))

    assert reap(fork(work)) == 0
    assert names_in(tmp_path) == {"parent", "child", "grandchild", "child again"}


async def test_a_child_that_closes_what_it_inherited_leaves_the_parent_hearing(
    store: SqliteStore, tmp_path: Path
) -> None:
    listener = store.wakeups.listen(frozenset({TOPIC}))
    (address,) = store.wakeups._folder.iterdir()

    def work() -> None:
        listener.close()
        store.close()

    assert reap(fork(work)) == 0

    assert address.exists()
    stranger = sqlite_store(tmp_path)
    stranger.run(submitting(stranger, "job"))
    stranger.close()
    assert await heard_by(listener, TOPIC)
    listener.close()


async def test_a_listener_notices_commits_made_around_a_fork_by_the_floor_too(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("socket.AF_UNIX")
    listener = store.wakeups.listen(frozenset({TOPIC}))

    assert reap(fork(lambda: store.run(submitting(store, "child")))) == 0

    assert await listener.wait(PATIENCE_S) == {"*"}
    store.run(submitting(store, "after"))
    assert await listener.wait(PATIENCE_S) == {"*"}
    listener.close()


def test_a_forked_child_may_listen_itself(store: SqliteStore, tmp_path: Path) -> None:
    async def hear() -> None:
        listener = store.wakeups.listen(frozenset({TOPIC}))
        other = sqlite_store(tmp_path)
        other.run(submitting(other, "job"))
        assert await heard_by(listener, TOPIC)
        listener.close()

    async def listen_and_fork() -> None:
        listener = store.wakeups.listen(frozenset({TOPIC}))
        child = fork(lambda: in_threads(lambda: asyncio.run(hear())))
        assert await asyncio.to_thread(reap, child) == 0
        listener.close()

    asyncio.run(listen_and_fork())


DAEMON = """
import os, subprocess, sys
from packhorse.stores import open_store
from packhorse.testing.conformance.samples import new_job

def submit(name):
    store.run(store.jobs.submit([new_job(name)]))

store = open_store(sys.argv[1])
if sys.argv[2] == "stranger":  # who comes and goes
    submit("stranger")
    store.close()
    sys.exit()
submit("parent")
if os.fork():
    os._exit(0)  # the parent leaves, as that of a daemon does
submit("daemon, first")
subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1], "stranger"], check=True)
submit("daemon, then")
os._exit(0)  # as if killed: nothing is put right at the end
"""


def test_a_daemon_keeps_what_it_submits_after_its_parent_has_left(tmp_path: Path) -> None:
    done = python(DAEMON, f"sqlite:///{tmp_path}/jobs.db", DAEMON)  # waits for the daemon's end

    assert (done.stdout, done.stderr) == ("", "")
    assert names_in(tmp_path) == {"parent", "daemon, first", "stranger", "daemon, then"}


def test_a_store_that_is_gone_is_no_trouble_to_a_fork(tmp_path: Path) -> None:
    for _ in range(3):
        sqlite_store(tmp_path).close()

    assert reap(fork(lambda: None)) == 0
