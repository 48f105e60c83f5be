# SPDX-License-Identifier: MIT
"""Upgrade a store of schema version 2 in place, with jobs in every lane and a process at work.

`version2.json` was recorded by the last release of version 2, whose key layout on Redis was
version 1: the rows or keys of a store with jobs that are ready, suspect, parked, waiting, running,
dead, held back by a limit and by order, completed, cancelled, stashed behind a unique key, and on
SQLite in the intake.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg
import pytest
import redis
from psycopg.types.json import Jsonb

from packhorse import SchemaOutOfDate
from packhorse.core.clock import new_id
from packhorse.core.job import TERMINAL, JobStatus
from packhorse.core.lifecycle import rescue
from packhorse.core.settlement import SettlementKind
from packhorse.stores import open_store
from packhorse.stores.postgres import migrate as postgres_migrate
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.protocol import Store
from packhorse.stores.redis.layout import CODE, KEYS
from packhorse.stores.requests import ClaimRequest, JobFilter, QueueSettings, Renewal
from packhorse.stores.sql.rows import RANK_PER_PRIORITY
from packhorse.stores.sqlite import migrate as sqlite_migrate
from packhorse.stores.sqlite import runner as runners
from packhorse.stores.sqlite.statements import sql
from packhorse.testing.conformance.samples import (
    ANNA,
    LEASE_US,
    TASK,
    TIMEOUT_US,
    new_job,
    settlement_of,
)
from packhorse.testing.places import clear_namespace, drop_schema
from packhorse.testing.virtual_clock import VirtualClock
from tests.servers.postgres import postgres_url
from tests.servers.redis import redis_url
from tests.servers.schemas import schemas

_RECORDED: Final = json.loads((Path(__file__).parent / "version2.json").read_text("utf-8"))
_SCHEMA: Final = "upgraded_from_2"
#: What the new release says of the store. Redis has no newer layout until something needs one.
_NEWEST: Final = {"sqlite": sqlite_migrate.known_version(), "postgres": 5, "redis": 1}
#: Codes of the statuses of jobs that have ended.
_ENDED: Final = {CODE[status] for status in TERMINAL}
#: Rounds of a worker until all jobs have ended: one lets the next of a line go.
_ROUNDS_MAX: Final = 10


def _unload_jobs(_: object, connection: sqlite3.Connection, __: object) -> None:
    """Unload the intake as a release of version 2 does, without the table of requests."""
    (last,) = connection.execute(sql("intake_last")).fetchone()
    connection.execute(sql("intake_unload"), (last, RANK_PER_PRIORITY, last))
    connection.execute(sql("intake_empty"))


class Version2:
    """A store of tables that a release of version 2 has filled."""

    def __init__(self, kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.kind = kind
        self.clock = VirtualClock(_RECORDED["now_us"])
        self._patch = patch
        self._path = folder / "jobs.db"
        self.url = f"sqlite:///{self._path}" if kind == "sqlite" else schemas().url_of(_SCHEMA)
        if kind == "sqlite":  # it knows of jobs in the intake, not of users' transactions
            jobs = "select 1 from packhorse_intake limit 1"
            patch.setattr(runners, "is_loaded", lambda one: bool(one.execute(jobs).fetchall()))
            patch.setattr(runners.PlanRunner, "_unload", _unload_jobs)
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


class RedisOfVersion2:
    """A namespace of Redis that the same release has filled."""

    kind: Final = "redis"

    def __init__(self, namespace: str) -> None:
        self.clock = VirtualClock(_RECORDED["now_us"])
        self.url = f"{redis_url()}?namespace={namespace}"
        self._tag = f"{{{namespace}}}"
        with self._client() as client:
            for name, (kind, value) in _RECORDED["redis"].items():
                self._put(client, self._tag + name, kind, value)

    def lanes(self) -> dict[str, tuple[Any, ...]]:
        """Every job's own state, the status first, and its payload, read past the store."""
        jobs = f"{self._tag}{KEYS['job']}"
        with self._client() as client:
            rows = {name: client.hgetall(name) for name in client.scan_iter(f"{jobs}*")}
        return {
            name.decode().removeprefix(jobs): (*msgspec.msgpack.decode(row[b"s"]), row[b"p"])
            for name, row in rows.items()
        }

    def _put(self, client: redis.Redis, name: str, kind: str, value: Any) -> None:
        match kind:
            case "string":
                client.set(name, _bytes(value))
            case "hash":
                client.hset(name, mapping={_bytes(one): _bytes(value[one]) for one in value})
            case "set":
                client.sadd(name, *map(_bytes, value))
            case "zset":
                client.zadd(name, {_bytes(member): score for member, score in value})
            case _:
                raise AssertionError(f"no job is kept in a {kind}")

    def _client(self) -> redis.Redis:
        return redis.Redis.from_url(redis_url(), driver_info=None)


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")  # as keys and packed values were written down


@contextmanager
def _filled(kind: str, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Any]:
    match kind:
        case "redis":
            namespace = f"test-{new_id()}"
            yield RedisOfVersion2(namespace)
            clear_namespace(redis_url(), namespace)
        case _:
            yield Version2(kind, folder, patch)
    if kind == "postgres":
        drop_schema(postgres_url(), _SCHEMA)


@pytest.fixture(params=["sqlite", "postgres"])
def version2(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Version2]:
    with _filled(request.param, tmp_path, monkeypatch) as store:
        yield store


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def filled(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Version2 | RedisOfVersion2]:
    with _filled(request.param, tmp_path, monkeypatch) as store:
        yield store


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


def test_the_recorded_stores_have_jobs_in_every_lane(version2: Version2) -> None:
    assert {lane for _, lane, *_ in version2.lanes().values()} == {0, 1, 2, 3, 4, 5, 6, None}
    lanes = ("l:", "sus:", "pk:", "due:", "rt:", "held:", "dead", "o:", "stash")
    kept = "\n".join(_RECORDED["redis"])
    assert [lane for lane in lanes if f":{lane}" not in kept] == []


def test_an_upgrade_leaves_every_job_in_its_lane_and_all_run_to_their_end(
    filled: Version2 | RedisOfVersion2,
) -> None:
    before = filled.lanes()

    store = open_store(filled.url, clock=filled.clock)
    assert store.migrate() == _NEWEST[filled.kind]
    assert filled.lanes() == before

    finished = {name for name, (status, *_) in before.items() if status in _ENDED}
    ended: list[str] = []
    for _ in range(_ROUNDS_MAX):
        filled.clock.advance(1800)
        ended += _work(store)
    after = {name: status for name, (status, *_) in filled.lanes().items()}
    assert len(finished) == 3
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
