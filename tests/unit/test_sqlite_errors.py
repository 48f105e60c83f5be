# SPDX-License-Identifier: MIT
"""Trouble with the file, in Packhorse's words: what happened, and what to do."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from packhorse.errors import StoreError, StoreUnavailable
from packhorse.stores.sqlite.connection import SqliteSettings, connect, translated
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import new_job
from tests.support.children import fork, python, reap
from tests.unit.sqlite_support import (
    Traced,
    names_in,
    real_connect,
    sqlite_store,
    submitting,
    until,
    write_lock,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = sqlite_store(tmp_path, "?busy_timeout=50ms")
    yield store
    store.close()


def test_a_file_locked_for_too_long_is_unavailable_and_says_what_to_do(
    store: SqliteStore, tmp_path: Path
) -> None:
    store.run(submitting(store, "before"))

    with write_lock(tmp_path), pytest.raises(StoreUnavailable) as raised:
        store.run(submitting(store, "meanwhile"))

    advice = (
        "this process has had a transaction of its own open on the file for too long: commit it"
    )
    assert advice in str(raised.value)
    assert "using(tx=connection), or raise busy_timeout" in str(raised.value)
    assert str(tmp_path / "jobs.db") in str(raised.value)
    assert not raised.value.maybe_stored
    store.run(submitting(store, "after"))
    assert names_in(tmp_path) == {"before", "after"}


def test_the_process_that_locked_the_file_is_named(store: SqliteStore, tmp_path: Path) -> None:
    store.run(submitting(store, "before"))

    with lock_holder(tmp_path) as pid, pytest.raises(StoreUnavailable) as raised:
        store.run(submitting(store, "meanwhile"))

    assert f"process {pid} has held its write lock for too long; see whether" in str(raised.value)


@contextmanager
def lock_holder(folder: Path) -> Iterator[int]:
    """The id of another process that has the write lock meanwhile."""
    code = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "db.execute('begin immediate'); print(flush=True); sys.stdin.read()"
    )
    asked = [sys.executable, "-c", code, str(folder / "jobs.db")]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        yield other.pid
        other.stdin.close()


def test_async_callers_are_told_of_a_lock_in_the_same_words(
    store: SqliteStore, tmp_path: Path
) -> None:
    store.migrate()

    with write_lock(tmp_path), pytest.raises(StoreUnavailable, match="raise busy_timeout"):
        asyncio.run(store.arun(submitting(store, "job")))


async def test_a_lock_that_is_let_go_in_time_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced = Traced()
    monkeypatch.setattr(sqlite3, "connect", traced.connect)
    store = sqlite_store(tmp_path, "?busy_timeout=20s")
    store.run(submitting(store, "before"))
    traced.statements.clear()

    with write_lock(tmp_path) as other:
        waits = asyncio.create_task(store.arun(submitting(store, "job", "another")))
        await until(lambda: traced.count("begin immediate") >= 1)
        assert not waits.done()
        other.execute("rollback")
        await waits

    store.close()
    assert names_in(tmp_path) == {"before", "job", "another"}


def test_who_waits_for_the_lock_tries_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own waiting would try a few times, further and further apart, and starve."""
    traced = Traced()
    monkeypatch.setattr(sqlite3, "connect", traced.connect)
    store = sqlite_store(tmp_path, "?busy_timeout=500ms")
    store.run(submitting(store, "before"))
    traced.statements.clear()

    with write_lock(tmp_path), pytest.raises(StoreUnavailable, match="locked"):
        store.run(submitting(store, "job", "another"))

    store.close()
    assert traced.count("begin immediate") >= 20


def test_a_missing_folder_is_unavailable_and_says_so(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "nowhere")

    for attempt in (
        lambda: store.run(submitting(store, "job")),
        lambda: asyncio.run(store.arun(submitting(store, "job"))),
        store.migrate,
    ):
        with pytest.raises(StoreUnavailable, match="check that the folder exists"):
            attempt()
    store.close()


def test_a_folder_that_appears_later_is_used_without_opening_the_store_again(
    tmp_path: Path,
) -> None:
    store = sqlite_store(tmp_path / "late")
    with pytest.raises(StoreUnavailable):
        store.run(submitting(store, "too early"))
    with pytest.raises(StoreUnavailable):
        asyncio.run(store.arun(submitting(store, "too early")))

    (tmp_path / "late").mkdir()
    store.run(submitting(store, "sync"))
    asyncio.run(store.arun(submitting(store, "async")))

    store.close()
    assert names_in(tmp_path / "late") == {"sync", "async"}


def test_a_file_that_is_no_database_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"Dear diary, today I wrote some text. " * 100)
    store = sqlite_store(tmp_path)

    with pytest.raises(StoreError, match="file is not a database") as raised:
        store.run(submitting(store, "job"))

    store.close()
    assert not isinstance(raised.value, StoreUnavailable)
    assert (tmp_path / "jobs.db").read_bytes().startswith(b"Dear diary")


def test_a_connection_that_cannot_be_set_up_is_not_left_open(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"Dear diary, today I wrote some text. " * 100)
    settings = SqliteSettings.from_url(f"sqlite:///{tmp_path}/jobs.db")
    opened: list[sqlite3.Connection] = []

    class Watched(sqlite3.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            opened.append(self)

    def watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real_connect(*arguments, **options | {"factory": Watched})
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", watched)
        with pytest.raises(StoreError):
            connect(settings)

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("select 1")


def test_a_file_that_may_not_be_written_is_unavailable_and_says_so() -> None:
    # A folder of its own: the one pytest makes cannot be entered by another user.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = sqlite_store(folder)
        store.run(submitting(store, "before"))
        (folder / "jobs.db").chmod(0o444)
        folder.chmod(0o777)

        def write() -> None:
            if os.getuid() == 0:
                os.setuid(65534)  # root may write everything
            with pytest.raises(StoreUnavailable, match="may not be written by this user"):
                store.run(submitting(store, "refused"))

        status = reap(fork(write))
        store.close()
        assert status == 0


def test_a_full_disk_is_unavailable_and_nothing_of_the_write_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_store(tmp_path)
    store.run(submitting(store, "before"))
    store.close()
    monkeypatch.setattr(sqlite3, "connect", _small_disk)
    large = [new_job(f"large-{number}", payload=b'"' + b"x" * 4096 + b'"') for number in range(100)]

    with pytest.raises(StoreUnavailable, match=r"is full; free some space; nothing .* kept"):
        store.run(store.jobs.submit(large))

    store.run(submitting(store, "small"))
    store.close()
    assert names_in(tmp_path) == {"before", "small"}


def _small_disk(*arguments: Any, **options: Any) -> sqlite3.Connection:
    """A connection whose file may grow to some 240 KiB."""
    connection: sqlite3.Connection = real_connect(*arguments, **options)
    connection.execute("pragma max_page_count = 60")
    return connection


LIMITED = """
import resource, signal, sys
from packhorse.errors import StoreUnavailable
from packhorse.stores import open_store
from packhorse.testing.conformance.samples import new_job

store = open_store(sys.argv[1])
store.run(store.jobs.submit([new_job("before")]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, unlimited[1]))
large = [new_job(f"large-{n}", payload=b'"' + b"x" * 4096 + b'"') for n in range(100)]
try:
    store.run(store.jobs.submit(large))
except StoreUnavailable as error:
    print(error.maybe_stored, error)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
store.run(store.jobs.submit([new_job("after")]))
store.close()
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit on file sizes here")
def test_a_disk_that_fails_is_told_as_that_and_leaves_the_store_in_order(tmp_path: Path) -> None:
    done = python(LIMITED, f"sqlite:///{tmp_path}/jobs.db")

    assert done.stderr == ""
    assert done.stdout.startswith("False ")  # nothing of it was stored
    assert "the disk or its file system has a problem" in done.stdout
    assert names_in(tmp_path) == {"before", "after"}


def test_a_commit_that_could_not_be_made_safe_leaves_the_job_in_doubt() -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"

    told = translated(error, Path("jobs.db"))

    assert isinstance(told, StoreUnavailable)
    assert told.maybe_stored


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("database is locked", StoreUnavailable),
        ("database or disk is full", StoreUnavailable),
        ("locking protocol", StoreUnavailable),
        ("database disk image is malformed", StoreError),
        ("no such table: packhorse_jobs", StoreError),
    ],
)
def test_every_error_names_the_file_and_keeps_what_sqlite_said(
    text: str, kind: type[StoreError]
) -> None:
    told = translated(sqlite3.OperationalError(text), Path("/var/lib/jobs.db"))

    assert type(told) is kind
    assert "/var/lib/jobs.db" in str(told)
    assert text in str(told)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("file is not a database", "something else has written it: check the path in the URL"),
        ("database disk image is malformed", "bring back a backup, or save what can be read with"),
        ("malformed database schema (x)", "bring back a backup, or save what can be read with"),
    ],
)
def test_a_file_that_cannot_be_read_comes_with_a_next_step(text: str, advice: str) -> None:
    told = translated(sqlite3.DatabaseError(text), Path("/var/lib/jobs.db"))

    assert type(told) is StoreError
    assert advice in str(told)


def test_a_malformed_value_is_no_damaged_file() -> None:
    told = translated(sqlite3.OperationalError("malformed JSON"), Path("/var/lib/jobs.db"))

    assert str(told) == "SQLite file /var/lib/jobs.db: malformed JSON"


def test_a_folder_given_as_a_file_is_told_as_that(tmp_path: Path) -> None:
    with pytest.raises(
        StoreUnavailable, match="it is a folder; name a file in it, such as"
    ) as told:
        connect(SqliteSettings.from_url(f"sqlite:///{tmp_path}"))

    assert str(tmp_path / "jobs.db") in str(told.value)
