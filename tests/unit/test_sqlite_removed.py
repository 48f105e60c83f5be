# SPDX-License-Identifier: MIT
"""A file that is removed or replaced while it is open: it is told, and the next call goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packhorse import Packhorse, StoreUnavailable
from packhorse.stores.plan import Plan
from packhorse.stores.sqlite import runner as runners
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.stores.sqlite.wakeups import POLL_S
from packhorse.testing.conformance.samples import new_job
from tests.unit.sqlite_support import PATIENCE_S, names_in, real_connect, sqlite_store, submitting


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    """A store that looks at its file each time."""
    monkeypatch.setattr(runners, "_LOOK_AGAIN_S", 0.0)
    with closing(sqlite_store(tmp_path)) as store:
        yield store


def usual(store: SqliteStore, name: str) -> Plan[Any]:
    return store.jobs.submit((new_job(name, trace_id=name),), ids_are_new=True)


def remove(folder: Path) -> None:
    for path in folder.glob("jobs.db*"):
        if path.is_file():
            path.unlink()


def replace(folder: Path) -> None:
    """Put another store's file in its place, as an operator does who restores a backup."""
    (folder / "elsewhere").mkdir()
    with closing(sqlite_store(folder / "elsewhere")) as other:
        other.run(submitting(other, "restored"))
    remove(folder)
    (folder / "elsewhere" / "jobs.db").rename(folder / "jobs.db")


@pytest.mark.parametrize("submit", [submitting, usual])
def test_a_removed_file_is_told_and_the_next_call_makes_a_new_one(
    store: SqliteStore, tmp_path: Path, submit: Callable[..., Plan[Any]]
) -> None:
    store.run(submit(store, "before"))
    remove(tmp_path)

    with pytest.raises(StoreUnavailable, match="was removed or replaced") as caught:
        store.run(submit(store, "lost"))
    store.run(submit(store, "after"))
    store.run(submitting(store, "last"))

    assert caught.value.maybe_stored is False
    assert names_in(tmp_path) == {"after", "last"}


async def test_event_loops_are_told_as_well(store: SqliteStore, tmp_path: Path) -> None:
    await store.arun(submitting(store, "before"))
    replace(tmp_path)

    with pytest.raises(StoreUnavailable, match="was removed or replaced"):
        await store.arun(submitting(store, "lost"))
    await store.arun(submitting(store, "after"))

    assert names_in(tmp_path) == {"restored", "after"}


async def test_who_listens_hears_of_it_and_then_of_the_new_file(
    store: SqliteStore, tmp_path: Path
) -> None:
    await store.arun(submitting(store, "before"))
    listener = store.wakeups.listen(frozenset(("queue:other",)))
    remove(tmp_path)

    assert await listener.wait(PATIENCE_S)
    with pytest.raises(StoreUnavailable):
        await store.arun(submitting(store, "lost"))
    await store.arun(submitting(store, "after"))
    while await listener.wait(3 * POLL_S):  # that there is another file, and who wrote to it
        pass
    with closing(real_connect(tmp_path / "jobs.db")) as stranger:
        stranger.execute("create table strangers (number)")

    assert await listener.wait(PATIENCE_S)
    listener.close()


def test_what_a_caller_is_told_names_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "_LOOK_AGAIN_S", 0.0)
    with closing(Packhorse(f"sqlite:///{tmp_path}/jobs.db")) as app:

        @app.task
        def noop() -> None: ...

        noop.enqueue()
        remove(tmp_path)

        with pytest.raises(StoreUnavailable, match="of task noop was not stored"):
            noop.enqueue()
        assert noop.enqueue().status() == "queued"


class TestLooking:
    """Whether a store is there is found out without leaving a trace."""

    def test_a_file_of_another_program_is_left_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "jobs.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("create table users (name)")
            connection.commit()
        before = path.read_bytes()

        with closing(sqlite_store(tmp_path)) as store:
            assert store.is_there() is False

        assert path.read_bytes() == before
        assert [each.name for each in tmp_path.iterdir()] == ["jobs.db"]

    def test_an_empty_file_is_no_store(self, tmp_path: Path) -> None:
        (tmp_path / "jobs.db").touch()

        with closing(sqlite_store(tmp_path)) as store:
            assert store.is_there() is False

        assert (tmp_path / "jobs.db").stat().st_size == 0

    def test_a_store_is_there_open_or_closed(self, tmp_path: Path) -> None:
        with closing(sqlite_store(tmp_path)) as store:
            assert store.is_there() is False
            store.run(submitting(store, "job"))
            assert store.is_there() is True
        with closing(sqlite_store(tmp_path)) as store:
            assert store.is_there() is True

    def test_what_is_no_database_is_told_by_who_opens_it(self, tmp_path: Path) -> None:
        (tmp_path / "jobs.db").write_text("not a database, and long enough to be looked at" * 50)

        with closing(sqlite_store(tmp_path)) as store:
            assert store.is_there() is True
