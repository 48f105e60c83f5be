# SPDX-License-Identifier: MIT
"""A claim does not walk past the waiting jobs of tasks that its worker does not know."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from msgspec.structs import replace

from packhorse.core.job import Job
from packhorse.core.settlement import SettlementKind
from packhorse.stores.postgres.fast_paths import claim_in_one
from packhorse.stores.postgres.floors import Floors
from packhorse.stores.postgres.locking import LockLevel
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job, settlement_of
from packhorse.testing.places import own_place
from tests.servers.postgres import postgres_url
from tests.stores.postgres.support import ask, claiming, entries_read, postgres_store, renewing

_FEW: Final = 1_000
_MANY: Final = 10 * _FEW
_GROWTH_MAX: Final = 1.3
_TRIES: Final = 2
_BATCH: Final = 10
_CLAIMS: Final = 10
#: Tasks in the order of their names before and behind the one that waits, or that one alone.
_TASKS: Final = {"one task": (TASK,), "many": ("aa", TASK, "zz")}


@pytest.fixture
def url() -> Iterator[str]:
    """A schema that no test has used: entries of dead rows, and old statistics, count as well."""
    with own_place(postgres_url(), Path) as place:
        yield place


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    opened = postgres_store(url)
    opened.migrate()
    opened.run(opened.leases.renew(renewing()))
    yield opened
    opened.close()


@pytest.mark.parametrize("tasks", _TASKS.values(), ids=_TASKS)
@pytest.mark.parametrize("way", ["unlimited", "limited", "shared"])
def test_claims_read_no_more_the_more_foreign_jobs_wait(way: str, tasks: Sequence[str]) -> None:
    # A snapshot that another test holds meanwhile has claims read what is dead: the least counts.
    few, many = (
        min(_read_by_claims(count, way, tasks) for _ in range(_TRIES)) for count in (_FEW, _MANY)
    )

    assert many <= _GROWTH_MAX * few


def _read_by_claims(foreign: int, way: str, tasks: Sequence[str]) -> int:
    """How many entries of indexes are read by claims of all known jobs behind so many others."""
    with own_place(postgres_url(), Path) as url, closing(postgres_store(url)) as store:
        store.migrate()
        store.run(store.leases.renew(renewing()))
        if way == "limited":
            store.run(store.queues.declare([QueueSettings(QUEUE, concurrency=1000)]))
        crowd(url, store, foreign)
        tenant = "acme" if way == "shared" else ""
        names = [f"job-{number}" for number in range(_CLAIMS * _BATCH)]
        store.run(store.jobs.submit([new_job(name, tenant=tenant) for name in names]))
        before = entries_read(url, store)
        found = [name for _ in range(_CLAIMS) for name in claimed(store, tasks)]
        assert found == names
        assert claimed(store, tasks) == []
        return entries_read(url, store) - before


def test_jobs_between_foreign_ones_are_handed_out_in_their_order(
    url: str, store: PostgresStore
) -> None:
    names = [f"job-{number}" for number in range(_CLAIMS)]
    for number, name in enumerate(names):
        crowd(url, store, _FEW)
        store.run(store.jobs.submit([new_job(name, task=f"task {number % 3}")]))

    tasks = [f"task {number}" for number in range(3)]
    found = [*claimed(store, tasks, 3), *claimed(store, tasks, 4), *claimed(store, tasks, 10)]

    assert found == names


def test_a_worker_of_more_tasks_than_are_merged_is_given_its_jobs(
    url: str, store: PostgresStore
) -> None:
    crowd(url, store, 2 * _FEW)
    store.run(store.jobs.submit([new_job("known")]))

    assert claimed(store, [TASK, *[f"task {number}" for number in range(100)]]) == ["known"]


def test_jobs_that_another_claim_has_locked_are_passed_by(url: str, store: PostgresStore) -> None:
    crowd(url, store, 2 * _FEW)
    store.run(store.jobs.submit([new_job(f"job-{number}") for number in range(3)]))
    with psycopg.connect(PostgresSettings.from_url(url).conninfo) as other:
        table = f'"{store._settings.schema}".jobs'
        other.execute(f"select id from {table} where id = 'job-0' for update".encode())
        assert claimed(store, [TASK], 1) == ["job-1"]

    assert claimed(store, [TASK], 2) == ["job-0", "job-2"]


@pytest.mark.parametrize("change", ["due", "constrained", "lapsed"])
def test_what_a_first_look_was_given_is_kept_whatever_the_second_one_finds(change: str) -> None:
    steps = claim_in_one(claiming(), LockLevel(), Floors())
    due_us, lease_us = (1 if change == "due" else None), (1 if change == "lapsed" else 100)
    constrained = [[QUEUE], [], []] if change == "constrained" else None
    columns = list(Job.__struct_fields__)

    def answer(**given: Any) -> list[tuple[Any, ...]]:
        return [(*[given.get(name) for name in columns], 0, 0)]

    survey = answer(payload=json.dumps([50, 100, None, False, [QUEUE], None, True]))
    handed = answer(id="handed", queue=QUEUE)
    then = [50, lease_us, due_us, False, [QUEUE], constrained, None]

    next(steps)
    steps.send(survey + handed)
    with pytest.raises(StopIteration) as ended:
        steps.send(answer(payload=json.dumps(then)))

    assert [job.id for job in ended.value.value.jobs] == ["handed"]


def claimed(store: PostgresStore, tasks: Sequence[str], limit: int = _BATCH) -> list[str]:
    request = replace(claiming(limit=limit), tasks=tuple(tasks))
    jobs = store.run(store.jobs.claim(request)).jobs
    store.run(store.jobs.settle([settlement_of(SettlementKind.COMPLETED, job) for job in jobs]))
    return [job.id for job in jobs]


def crowd(url: str, store: PostgresStore, count: int) -> None:
    """So many more jobs of a task of another app."""
    schema = store._settings.schema
    store.run(store.jobs.submit([new_job("model", task="of another worker")]))
    named = (
        "select column_name from information_schema.columns where table_schema = %s "
        "and table_name = 'jobs' and is_generated = 'NEVER'"
    )
    columns = {name: f"job.{name}" for (name,) in ask(url, named, schema)}
    own = {"id": "'like-' || number.value", "seq": "number.value", "place": "number.value"}
    assert own.keys() < columns.keys()
    ask(
        url,
        f'insert into "{schema}".jobs ({", ".join(columns)}) '
        f'select {", ".join((columns | own).values())} from "{schema}".jobs as job, '
        f"lateral (select nextval('\"{schema}\".numbers') as value "
        "from generate_series(1, %s)) as number where id = 'model'",
        count,
    )
    ask(url, f"delete from \"{schema}\".jobs where id = 'model'")
