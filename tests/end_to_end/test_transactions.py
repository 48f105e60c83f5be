# SPDX-License-Identifier: MIT
"""A handler's row and the completion of its job, whenever its process is killed."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any, Final

import psycopg
import pytest

from packhorse import JobStatus
from packhorse.core.clock import new_id
from packhorse.stores.postgres.settings import PostgresSettings
from tests.end_to_end.support import World, until

OPTIONS: Final = ("--lease", "0.5s", "--concurrency", "1")
#: Where the first attempt is killed, and how many attempts end.
PLACES: Final = {"row": 2, "completion": 2, "commit": 2, "after": 1}


def asked(world: World, statement: str) -> list[Any]:
    """Ask the database that the store lies in."""
    if world.url.startswith("sqlite"):
        with closing(sqlite3.connect(world.file, isolation_level=None, timeout=10)) as file:
            return file.execute(statement).fetchall()
    conninfo = PostgresSettings.from_url(world.url).conninfo
    with psycopg.connect(conninfo, autocommit=True) as server:
        cursor = server.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.req("S3-25")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("place", PLACES)
def test_row_and_completion_are_both_there_or_neither_is(world: World, place: str) -> None:
    table = f"effects_{new_id().replace('-', '')}"
    asked(world, f"create table {table} (job text)")
    with world.app() as app:
        job = app.tasks["transact"].enqueue(table, place)
        worker = world.worker(*OPTIONS)
        seen: Counter[tuple[bool, int]] = Counter()

        def ended() -> bool:
            nonlocal worker
            dead = worker.poll() is not None
            status = job.status()
            rows = asked(world, f"select job from {table}")
            if dead:  # nothing is under way
                seen[status is JobStatus.COMPLETED, len(rows)] += 1
                worker = world.worker(*OPTIONS)
            return status.is_final

        until("the job", ended)
        until("its worker to be killed", lambda: worker.poll() is not None or seen)

        assert job.result() == place
        assert asked(world, f"select job from {table}") == [(job.id,)]
        assert job.info().attempts == PLACES[place]
        assert set(seen) <= {(False, 0), (True, 1)}
    asked(world, f"drop table {table}")
