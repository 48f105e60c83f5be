# SPDX-License-Identifier: MIT
"""`ctx.transaction()` on SQLite holds the write lock: for how long, and what ends it."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packhorse import Context, JobStatus, Packhorse, RetryPolicy, UsageError


@pytest.fixture
def app(tmp_path: Path) -> Packhorse:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as file:
        file.execute("create table rows (number integer)")
    return Packhorse(f"sqlite:///{tmp_path}/jobs.db")


def rows(folder: Path) -> list[Any]:
    with closing(sqlite3.connect(folder / "jobs.db")) as file:
        return file.execute("select number from rows").fetchall()


def _statements(connection: sqlite3.Connection) -> None:
    while True:
        connection.execute("insert into rows values (1)")


def _one_statement(connection: sqlite3.Connection) -> None:
    connection.execute(
        "with recursive n (i) as (select 1 union all select i + 1 from n) "
        "insert into rows select i from n"
    )


def _many(connection: sqlite3.Connection) -> None:
    connection.executemany("insert into rows values (?)", ((n,) for n in itertools.count()))


@pytest.mark.parametrize("write", [_statements, _one_statement, _many])
def test_a_block_that_is_open_for_too_long_is_undone(
    app: Packhorse, tmp_path: Path, write: Callable[[sqlite3.Connection], None]
) -> None:
    """Whatever it does then, nothing of it is committed, and the next block has the lock."""
    after: list[str] = []

    @app.task(retry=RetryPolicy(max_retries=0))
    def book(ctx: Context) -> None:
        with ctx.transaction() as tx:
            try:
                write(tx.connection)
            finally:
                try:
                    tx.connection.execute("insert into rows values (2)")
                except sqlite3.OperationalError as error:
                    after.append(str(error))

    job = book.enqueue()
    app.run(burst=True, handle_signals=False, lease="1s")

    assert job.status() is JobStatus.DEAD
    assert "was open for more than" in after[0]
    assert rows(tmp_path) == []
    app.close()


def test_statements_that_would_commit_are_refused(app: Packhorse, tmp_path: Path) -> None:
    refused: list[str] = []

    @app.task
    def book(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.connection.execute("insert into rows values (1)")
            for act in (
                tx.connection.commit,
                lambda: tx.connection.execute("commit"),
                lambda: tx.connection.executescript("select 1"),
                lambda: tx.connection.__enter__().__exit__(None, None, None),
            ):
                with pytest.raises(UsageError) as caught:
                    act()
                refused.append(str(caught.value))
            tx.connection.execute("savepoint part")
            tx.connection.execute("insert into rows values (2)")
            tx.connection.execute("rollback to part")
            tx.connection.row_factory = sqlite3.Row  # of no concern to the store's own steps
            tx.complete()

    job = book.enqueue()
    app.run(burst=True, handle_signals=False)

    assert all("commits when its block ends" in told for told in refused)
    assert len(refused) == 4
    assert job.status() is JobStatus.COMPLETED, job.info().error
    assert rows(tmp_path) == [(1,)]
    app.close()
