# SPDX-License-Identifier: MIT
"""The folder of a SQLite file's wake-ups is there while a listener is there, and not for ever."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.stores.sqlite.connection import SqliteSettings
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import QUEUE, new_job
from tests.support.folders import short_folder

TOPICS = frozenset({f"queue:{QUEUE}"})
PATIENCE_S = 20.0
#: How often two threads come and go at once.
ROUNDS = 300


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name, so that its sockets find room."""
    with short_folder() as made:
        yield made


def opened(path: Path) -> SqliteStore:
    store = SqliteStore(SqliteSettings.from_url(f"sqlite:///{path}"))
    store.migrate()
    return store


async def test_the_last_one_to_leave_removes_the_folder(folder: Path) -> None:
    store, wake = opened(folder / "jobs.db"), folder / "jobs.db-wake"
    first, second = opened(folder / "jobs.db"), store
    hearing = [one.wakeups.listen(TOPICS) for one in (first, second)]
    assert len(list(wake.iterdir())) == 2

    hearing[0].close()
    assert len(list(wake.iterdir())) == 1
    hearing[1].close()
    assert not wake.exists()

    again = first.wakeups.listen(TOPICS)
    await second.arun(second.jobs.submit([new_job()]))
    assert await again.wait(PATIENCE_S)
    again.close()
    first.close()
    second.close()


async def test_no_folder_is_left_in_the_temporary_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    deep = folder / ("d" * 100)  # too long for a socket beside it
    deep.mkdir()
    store = opened(deep / "jobs.db")

    listener = store.wakeups.listen(TOPICS)
    assert len(list(folder.glob("packhorse-*"))) == 1
    listener.close()

    assert list(folder.glob("packhorse-*")) == []
    store.close()


async def test_a_folder_that_is_gone_again_when_it_was_said_to_be_there_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, mkdir, gone = opened(folder / "jobs.db"), Path.mkdir, [1]

    def too_late(path: Path, *args: Any, **kwargs: Any) -> None:
        if gone:
            gone.pop()
            raise FileExistsError(path)
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", too_late)
    listener = store.wakeups.listen(TOPICS)

    assert store.wakeups._sockets[listener.loop]._socket is not None
    listener.close()
    store.close()


def test_who_comes_while_the_last_one_leaves_has_a_socket_all_the_same(folder: Path) -> None:
    path, without = folder / "jobs.db", []
    opened(path).close()

    def come_and_go() -> None:
        store = opened(path)

        async def rounds() -> None:
            for _ in range(ROUNDS):
                listener = store.wakeups.listen(TOPICS)
                if store.wakeups._sockets[listener.loop]._socket is None:
                    without.append(1)
                listener.close()

        asyncio.run(rounds())
        store.close()

    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert without == []
