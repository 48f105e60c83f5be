# SPDX-License-Identifier: MIT
"""The schema: made by the first process, upgraded in place, never half."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packhorse.errors import SchemaOutOfDate, StoreError, StoreUnavailable
from packhorse.stores.sqlite import migrate as migrations
from tests.support.children import in_threads, python
from tests.unit.sqlite_support import names_in, real_connect, sqlite_store, submitting

KNOWN = migrations.known_version()

CROWD = """
import os, sys, traceback
from packhorse.stores import open_store
from packhorse.testing.conformance.samples import new_job

ready, go = os.pipe()
children = []
for number in range(10):
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(ready, 1)  # ends for all of them at once
        try:
            store = open_store(sys.argv[1])
            store.run(store.jobs.submit([new_job(str(number))]))
            store.close()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(child)
os.close(ready)
os.close(go)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def schema_of(folder: Path) -> tuple[list[str], list[int]]:
    """The names of all tables, and every schema version written down."""
    with closing(real_connect(folder / "jobs.db")) as connection:
        tables = connection.execute("select name from sqlite_schema where type = 'table'")
        versions = connection.execute("select version from packhorse_schema")
        return sorted(name for (name,) in tables), [version for (version,) in versions]


def test_ten_processes_may_start_on_a_new_file_at_once(tmp_path: Path) -> None:
    done = python(CROWD, f"sqlite:///{tmp_path}/jobs.db")

    assert (done.returncode, done.stderr) == (0, "")
    assert names_in(tmp_path) == {str(number) for number in range(10)}
    assert schema_of(tmp_path)[1] == [KNOWN]


def test_ten_stores_in_threads_may_start_on_a_new_file_at_once(tmp_path: Path) -> None:
    stores = [sqlite_store(tmp_path) for _ in range(10)]

    in_threads(
        *(lambda one=store: one.run(submitting(one, str(id(one)))) for store in stores[:5]),
        *(
            lambda one=store: asyncio.run(one.arun(submitting(one, str(id(one)))))
            for store in stores[5:]
        ),
    )

    for store in stores:
        store.close()
    assert names_in(tmp_path) == {str(id(store)) for store in stores}
    assert schema_of(tmp_path)[1] == [KNOWN]


def test_a_newer_schema_is_refused_with_both_versions_and_left_alone(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    store.run(submitting(store, "job"))
    store.close()
    newer = sqlite_store(tmp_path)
    with closing(real_connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        connection.execute("update packhorse_schema set version = 99")
    before = (tmp_path / "jobs.db").read_bytes()

    for attempt in (
        newer.migrate,
        lambda: newer.run(submitting(newer, "refused")),
        lambda: newer.run(newer.inspection.job("job")),
        lambda: asyncio.run(newer.arun(submitting(newer, "refused"))),
        newer.facts,
    ):
        with pytest.raises(SchemaOutOfDate, match=rf"version 99\b.*\bup to {KNOWN}: upgrade"):
            attempt()
    newer.close()

    assert (tmp_path / "jobs.db").read_bytes() == before


def added(monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
    """A release that knows more migrations than this one."""
    known = migrations._migrations()
    monkeypatch.setattr(migrations, "_migrations", lambda: [*known, *texts])


def test_a_file_of_an_older_release_is_upgraded_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = sqlite_store(tmp_path)
    old.run(submitting(old, "job"))
    old.close()

    added(monkeypatch, "create table packhorse_news (a);\n", "drop table packhorse_news;\n")
    new = sqlite_store(tmp_path)
    version = new.migrate()
    new.run(submitting(new, "another"))
    new.close()

    assert version == KNOWN + 2
    assert names_in(tmp_path) == {"job", "another"}
    assert schema_of(tmp_path)[1] == [KNOWN + 2]


def test_a_file_of_version_2_keeps_its_jobs_and_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations._migrations()
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "_migrations", lambda: known[:2])
        old = sqlite_store(tmp_path)
        assert old.migrate() == 2
        old.close()
    with closing(real_connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        connection.execute(
            "insert into packhorse_intake (id, task, queue, priority, due_us, created_us, payload) "
            "values ('job', 't', 'q', 2, 1, 1, '{}')"
        )
        connection.execute(
            "insert into packhorse_workers values ('w', 1, 2, 3, 4, 'h', 5, 'v', 6, 7, '[]', '[]')"
        )

    new = sqlite_store(tmp_path)
    (worker,) = new.run(new.leases.workers())
    new.close()

    assert (worker.worker, worker.concurrency, worker.running, worker.quiet) == ("w", 6, 0, False)
    assert names_in(tmp_path) == {"job"}
    assert schema_of(tmp_path)[1] == [KNOWN]


@pytest.mark.parametrize(
    "given_up",
    ["", "rollback;\n"],
    ids=["by us", "by SQLite itself, as on a bad disk"],
)
def test_a_migration_that_fails_leaves_nothing_behind(
    given_up: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_store(tmp_path)
    store.run(submitting(store, "job"))
    store.close()
    before = schema_of(tmp_path)

    with monkeypatch.context() as patch:
        failing = f"{given_up}drop table packhorse_typo;\n"
        added(patch, "create table packhorse_news (a);\n", failing)
        broken = sqlite_store(tmp_path)
        for attempt in (broken.migrate, lambda: broken.run(submitting(broken, "refused"))):
            with pytest.raises(StoreError, match="no such table: packhorse_typo"):
                attempt()
        broken.close()

    assert schema_of(tmp_path) == before
    assert names_in(tmp_path) == {"job"}
    store.run(submitting(store, "goes on"))
    store.close()


def test_a_first_migration_that_fails_leaves_an_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sqlite_store(tmp_path)
    with monkeypatch.context() as patch:
        added(patch, "drop table packhorse_typo;\n")
        with pytest.raises(StoreError):
            store.run(submitting(store, "refused"))

    store.run(submitting(store, "accepted"))
    store.close()

    assert names_in(tmp_path) == {"accepted"}
    assert schema_of(tmp_path)[1] == [KNOWN]


def test_a_disk_too_full_for_the_schema_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tiny_disk(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real_connect(*arguments, **options)
        connection.execute("pragma max_page_count = 4")
        return connection

    store = sqlite_store(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", tiny_disk)
        with pytest.raises(StoreUnavailable, match="disk is full; free some space"):
            store.migrate()

    assert store.migrate() == KNOWN
    store.close()


def test_a_schema_that_is_up_to_date_is_not_written_to(tmp_path: Path) -> None:
    sqlite_store(tmp_path).migrate()
    before = (tmp_path / "jobs.db").stat().st_mtime_ns

    sqlite_store(tmp_path).migrate()

    assert (tmp_path / "jobs.db").stat().st_mtime_ns == before


def test_migrations_are_numbered_without_a_gap_and_read_to_their_last_statement() -> None:
    folder = Path(migrations.__file__).with_name("migrations")
    files = sorted(folder.glob("*.sql"))

    assert [file.name[:5] for file in files] == [f"{n:04}_" for n in range(1, KNOWN + 1)]
    for file in files:
        text = file.read_text()
        rest = text.removeprefix("".join(migrations._statements(text)))
        assert re.sub(r"--.*", "", rest).strip() == "", f"{file.name}: not run: {rest!r}"
