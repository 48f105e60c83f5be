# SPDX-License-Identifier: MIT
"""Upgrade a store of schema version 2 in place, with jobs in every lane and a process at work.

`version2.json` was recorded by the last release of version 2: the rows of a store with jobs that
are ready, suspect, parked, waiting, running, dead, held back by a limit and by order, completed,
cancelled, stashed behind a unique key, and on SQLite in the intake.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.types.json import Jsonb

from packhorse import SchemaOutOfDate
from packhorse.core.job import JobStatus
from packhorse.core.lifecycle import rescue
from packhorse.core.settlement import SettlementKind
from packhorse.stores import open_store
from packhorse.stores.postgres import migrate as postgres_migrate
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.protocol import Store
from packhorse.stores.requests import ClaimRequest, JobFilter, QueueSettings, Renewal
from packhorse.stores.sqlite import migrate as sqlite_migrate
from packhorse.stores.sqlite import runner as runners
from packhorse.stores.sqlite.submit import unload_jobs
from packhorse.testing.conformance.samples import (
    ANNA,
    LEASE_US,
    TASK,
    TIMEOUT_US,
    new_job,
    settlement_of,
)
from packhorse.testing.places import drop_schema
from packhorse.testing.virtual_clock import VirtualClock
from tests.servers.postgres import postgres_url
from tests.servers.schemas import schemas

_RECORDED: Final = json.loads((Path(__file__).parent / "version2.json").read_text("utf-8"))
_SCHEMA: Final = "upgraded_from_2"
_NEWEST: Final = {"sqlite": sqlite_migrate.known_version(), "postgres": 5}
#: Rounds of a worker until all jobs have ended: one lets the next of a line go.
_ROUNDS_MAX: Final = 10


class Version2:
    """A store that a release of version 2 has filled."""

    def __init__(self, kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.kind = kind
        self.clock = VirtualClock(_RECORDED["now_us"])
        self._patch = patch
        self._path = folder / "jobs.db"
        self.url = f"sqlite:///{self._path}" if kind == "sqlite" else schemas().url_of(_SCHEMA)
        if kind == "sqlite":  # it knows of jobs in the intake, not of users' transactions
            jobs = "select 1 from packhorse_intake limit 1"
            patch.setattr(runners, "is_loaded", lambda one: bool(one.execute(jobs).fetchall()))
            patch.setattr(runners, "unload", lambda connection, _: unload_jobs(connection))
        self.opened_by_old().close()
        (self._fill_sqlite if kind == "sqlite" else self._fill_postgres)()

    def opened_by_old(self) -> Store:
        """A store that knows version 2 only, and has looked at the schema."""
        with self._patch.context() as patch:
            for module in (sqlite_migrate, postgres_migrate):
                known = tuple(module._migrations()[:2])
                patch.setattr(module, "_migrations", lambda known=known: known)
            store = open_store(self.url, clock=self.clock)
            try:
                assert store.migrate() == 2
                store.run(store.queues.depth("other"))
            except SchemaOutOfDate:
                store.close()
                raise
            return store

    def lanes(self) -> dict[str, tuple[Any, ...]]:
        """Where every job stands, read past the store; those in the intake are ready."""
        columns = "select id, status, lane, fence, payload from"
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self._path)) as connection:
                rows = connection.execute(f"{columns} packhorse_jobs").fetchall()
                taken_in = "select id, 1, 0, 0, payload from packhorse_intake"
                rows += connection.execute(taken_in).fetchall()
        else:
            with self._connection() as connection:
                rows = connection.execute(f'{columns} "{_SCHEMA}".jobs'.encode()).fetchall()
        return {name: tuple(rest) for name, *rest in rows}

    def _fill_sqlite(self) -> None:
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute("delete from packhorse_sequence")
            for table, rows in _RECORDED["sqlite"].items():
                for row in rows:
                    names, marks = ", ".join(row), ", ".join("?" * len(row))
                    text = f"insert into {table} ({names}) values ({marks})"
                    connection.execute(text, tuple(row.values()))
            connection.commit()

    def _fill_postgres(self) -> None:
        with self._connection() as connection:
            connection.execute(f'delete from "{_SCHEMA}".special'.encode())
            for table, rows in _RECORDED["postgres"].items():
                text = (
                    f'insert into "{_SCHEMA}"."{table}" '
                    f'select * from jsonb_populate_recordset(null::"{_SCHEMA}"."{table}", %s)'
                )
                connection.execute(text.encode(), (Jsonb(rows),))
            connection.execute(f"select setval('\"{_SCHEMA}\".numbers', 1000)".encode())

    def _connection(self) -> psycopg.Connection[Any]:
        conninfo = PostgresSettings.from_url(self.url).conninfo
        return psycopg.connect(conninfo, autocommit=True)


@pytest.fixture(params=["sqlite", "postgres"])
def version2(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Version2]:
    yield Version2(request.param, tmp_path, monkeypatch)
    if request.param == "postgres":
        drop_schema(postgres_url(), _SCHEMA)


def _work(store: Store) -> list[str]:
    """One round of a worker: take over what was lost, claim from all queues, complete it."""
    jobs = store.run(store.inspection.search(JobFilter(), limit=100)).jobs
    queues = tuple(dict.fromkeys(job.queue for job in jobs))
    store.run(store.leases.renew(Renewal("new", LEASE_US, queues=queues, tasks=("*",))))
    store.run(store.upkeep.park(after_us=LEASE_US, limit=100))  # a worker knows the task now
    lost = [one.worker for one in store.run(store.leases.expired()).leases]
    for orphan in store.run(store.leases.orphans(lost, limit=100)):
        store.run(store.jobs.settle([rescue(orphan)]))
    ended = []
    for quarantine in (False, True):
        request = ClaimRequest("new", queues, ("*",), 100, TIMEOUT_US, quarantine)
        for job in store.run(store.jobs.claim(request)).jobs:
            store.run(store.jobs.settle([settlement_of(SettlementKind.COMPLETED, job)]))
            ended.append(job.id)
    return ended


def _held(store: Store) -> int:
    states = store.run(store.queues.queues())
    return sum(state.held_bytes or 0 for state in states)


def test_an_upgrade_leaves_every_job_in_its_lane_and_all_run_to_their_end(
    version2: Version2,
) -> None:
    before = version2.lanes()
    assert {lane for _, lane, *_ in before.values()} == {0, 1, 2, 3, 4, 5, 6, None}

    store = open_store(version2.url, clock=version2.clock)
    assert store.migrate() == _NEWEST[version2.kind]
    assert version2.lanes() == before

    finished = {name for name, (_, lane, *_) in before.items() if lane in (5, None)}
    ended: list[str] = []
    for _ in range(_ROUNDS_MAX):
        version2.clock.advance(1800)
        ended += _work(store)
    after = {name: status for name, (status, *_) in version2.lanes().items()}
    assert sorted(ended) == sorted({*before, "unique-2"} - finished)
    assert {name: after[name] for name in finished} == {name: before[name][0] for name in finished}
    store.close()


def test_a_process_of_the_old_release_goes_on_beside_the_new_one_and_no_other_may_start(
    version2: Version2,
) -> None:
    old = version2.opened_by_old()
    store = open_store(version2.url, clock=version2.clock)
    store.migrate()

    old.run(old.jobs.submit([new_job("by-old", queue="other")]))
    old.run(old.leases.renew(Renewal(ANNA, LEASE_US, queues=("other",), tasks=(TASK,))))
    [job] = old.run(old.jobs.claim(ClaimRequest(ANNA, ("other",), (TASK,), 9, TIMEOUT_US))).jobs
    old.run(old.jobs.settle([settlement_of(SettlementKind.COMPLETED, job)]))
    done = store.run(store.inspection.job("by-old"))
    assert done is not None
    assert done.status is JobStatus.COMPLETED
    assert version2.lanes()["running"][1] == 4
    store.run(store.queues.declare([QueueSettings("other", max_bytes=100_000)]))
    before = _held(store)
    store.run(store.jobs.submit([new_job("bounded", queue="other")]))
    assert _held(store) == before + len(new_job().payload)
    old.run(old.jobs.cancel("bounded"))
    assert _held(store) == before
    with pytest.raises(SchemaOutOfDate, match="upgrade Packhorse here"):
        version2.opened_by_old()
    old.close()
    store.close()
