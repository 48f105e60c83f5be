# SPDX-License-Identifier: MIT
"""The intake: one plain job is one row in one place, and no other step meets it there."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus
from packhorse.core.lifecycle import CancelAnswer
from packhorse.errors import StoreUnavailable
from packhorse.stores.plan import Plan
from packhorse.stores.requests import JobFilter, QueueSettings, Submitted
from packhorse.stores.sqlite import migrate as migrations
from packhorse.stores.sqlite import runner as runners
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.stores.sqlite.submit import INTAKE_MAX
from packhorse.testing.conformance.samples import QUEUE, new_job
from tests.unit.sqlite_support import (
    claiming,
    names_in,
    real_connect,
    renewing,
    sqlite_store,
    submitting,
    waiting,
    write_lock,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(sqlite_store(tmp_path, "?busy_timeout=200ms")) as store:
        store.run(store.leases.renew(renewing()))
        yield store


def fresh(store: SqliteStore, name: str, **fields: Any) -> Plan[tuple[Submitted, ...]]:
    return store.jobs.submit((new_job(name, **fields),), ids_are_new=True)


def usual(store: SqliteStore, name: str, **fields: Any) -> Plan[tuple[Submitted, ...]]:
    return store.jobs.submit((new_job(name, trace_id=name, **fields),), ids_are_new=True)


def put_down(folder: Path) -> list[str]:
    """The ids in the intake, read by a stranger."""
    with closing(real_connect(folder / "jobs.db")) as connection:
        rows = connection.execute("select id from packhorse_intake order by number")
        return [name for (name,) in rows]


def found(store: SqliteStore) -> list[str]:
    """The ids of the jobs in the order of submitting."""
    page = store.run(store.inspection.search(JobFilter(), limit=1000))
    return [record.id for record in reversed(page.jobs)]


# ---------------------------------------------------------------------------------- putting down


@pytest.mark.parametrize("submit", [fresh, usual])
def test_a_job_whose_id_is_new_is_one_row_in_the_intake(
    store: SqliteStore, tmp_path: Path, submit: Callable[..., Plan[Any]]
) -> None:
    said: list[str] = []
    store._local.own.runner._connected().set_trace_callback(said.append)

    store.run(submit(store, "job"))

    assert len(said) == 1
    assert (put_down(tmp_path), names_in(tmp_path)) == (["job"], set())


def test_a_job_whose_id_may_be_known_is_not_put_there(store: SqliteStore, tmp_path: Path) -> None:
    store.run(submitting(store, "job"))

    assert (put_down(tmp_path), names_in(tmp_path)) == ([], {"job"})


async def test_jobs_of_event_loops_are_put_there_too(store: SqliteStore, tmp_path: Path) -> None:
    names = [str(number) for number in range(20)]

    await asyncio.gather(*(store.arun(usual(store, name)) for name in names))

    assert sorted(put_down(tmp_path)) == sorted(names)


@pytest.mark.parametrize("submit", [fresh, usual])
def test_a_queue_that_has_a_say_is_asked(
    store: SqliteStore, tmp_path: Path, submit: Callable[..., Plan[Any]]
) -> None:
    store.run(store.queues.declare([QueueSettings(QUEUE, max_depth=10)]))

    store.run(submit(store, "job"))

    assert (put_down(tmp_path), names_in(tmp_path)) == ([], {"job"})


@pytest.mark.parametrize("name", ["it's", "'; drop table packhorse_jobs; --", "a{b}?1"])
def test_names_come_through_as_they_were_given(store: SqliteStore, name: str) -> None:
    told = usual(store, "job", task=name, queue=name, timeout_us=5 * SECOND_US)

    store.run(told)

    [record] = store.run(store.inspection.search(JobFilter(), limit=10)).jobs
    assert (record.task, record.queue, record.timeout_us) == (name, name, 5 * SECOND_US)


def test_a_queue_with_a_quote_in_its_name_is_asked(store: SqliteStore, tmp_path: Path) -> None:
    store.run(store.queues.declare([QueueSettings("it's", max_depth=10)]))

    store.run(usual(store, "job", queue="it's"))

    assert (put_down(tmp_path), names_in(tmp_path)) == ([], {"job"})


# ------------------------------------------------------------------------------------- unloading


def counts_it(store: SqliteStore) -> object:
    return store.run(store.queues.depth(QUEUE))


LOOKS: dict[str, tuple[Callable[[SqliteStore], object], object]] = {
    "search": (found, ["job"]),
    "depth": (counts_it, 1),
    "cancel": (lambda store: store.run(store.jobs.cancel("job")), CancelAnswer.CANCELLED),
    "claim": (
        lambda store: [job.id for job in store.run(store.jobs.claim(claiming())).jobs],
        ["job"],
    ),
    "the same id": (
        lambda store: store.run(submitting(store, "job")),
        (Submitted("job", True, JobStatus.QUEUED),),
    ),
    "waiting for it": (
        lambda store: getattr(store.run(store.jobs.await_finish("job")), "status", None),
        JobStatus.QUEUED,
    ),
}


@pytest.mark.parametrize(("look", "answer"), LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("submit", [fresh, usual])
def test_every_reader_finds_it_in_its_place(
    store: SqliteStore,
    tmp_path: Path,
    submit: Callable[..., Plan[Any]],
    look: Callable[[SqliteStore], object],
    answer: object,
) -> None:
    store.run(submit(store, "job"))

    assert look(store) == answer
    assert (put_down(tmp_path), names_in(tmp_path)) == ([], {"job"})


def test_another_process_finds_it(store: SqliteStore, tmp_path: Path) -> None:
    store.run(usual(store, "job"))

    with closing(sqlite_store(tmp_path)) as other:
        assert other.run(other.queues.depth(QUEUE)) == 1


async def test_a_reading_event_loop_finds_it(store: SqliteStore) -> None:
    await store.arun(usual(store, "job"))

    assert await store.arun(store.queues.depth(QUEUE)) == 1


async def test_who_waits_in_one_group_with_it_finds_it(store: SqliteStore) -> None:
    """All of these may come in one transaction; each sees what came before it."""
    plans: list[Plan[Any]] = [
        usual(store, "a"),
        store.jobs.cancel("a"),
        usual(store, "b"),
        store.jobs.claim(claiming()),
    ]
    async with asyncio.timeout(20):
        _, cancelled, _, claimed = await asyncio.gather(*await waiting(store, plans))

    assert cancelled is CancelAnswer.CANCELLED
    assert [job.id for job in claimed.jobs] == ["b"]


def test_the_order_is_that_of_submitting(store: SqliteStore) -> None:
    """Whichever way each job goes."""
    store.run(usual(store, "a"))
    store.run(fresh(store, "b", delay_us=SECOND_US))
    store.run(submitting(store, "c"))
    store.run(usual(store, "d"))
    store.run(fresh(store, "e", tenant="acme", queue="theirs"))
    store.run(usual(store, "f"))
    store.run(submitting(store, "g", "h"))
    store.run(usual(store, "i"))

    assert found(store) == list("abcdefghi")
    assert [job.id for job in store.run(store.jobs.claim(claiming())).jobs] == list("acdfghi")


def test_an_urgent_job_overtakes_in_the_intake(store: SqliteStore) -> None:
    for number in range(5):
        store.run(usual(store, str(number)))
    store.run(fresh(store, "urgent", priority=0))

    assert store.run(store.jobs.claim(claiming(limit=1))).jobs[0].id == "urgent"


def test_one_id_put_down_twice_is_one_job(store: SqliteStore) -> None:
    """As after a commit in doubt, which was made again and then found after all."""
    store.run(usual(store, "a"))
    store.run(usual(store, "a"))
    store.run(usual(store, "b"))

    assert found(store) == ["a", "b"]


# ----------------------------------------------------------------------------------- its bounds


@pytest.mark.parametrize("submit", [fresh, usual])
def test_it_never_holds_more_than_its_bound(
    store: SqliteStore, tmp_path: Path, submit: Callable[..., Plan[Any]]
) -> None:
    for number in range(INTAKE_MAX - 1):
        store.run(submit(store, str(number)))
    assert len(put_down(tmp_path)) == INTAKE_MAX - 1

    store.run(submit(store, "last"))
    assert (put_down(tmp_path), len(names_in(tmp_path))) == ([], INTAKE_MAX)

    store.run(submit(store, "next"))
    assert put_down(tmp_path) == ["next"]


async def test_a_large_group_keeps_to_the_bound(store: SqliteStore, tmp_path: Path) -> None:
    plans = [usual(store, str(number)) for number in range(INTAKE_MAX + 10)]

    await asyncio.gather(*await waiting(store, plans))

    assert len(put_down(tmp_path)) < INTAKE_MAX
    assert len(found(store)) == INTAKE_MAX + 10


def test_a_submit_is_answered_though_the_intake_cannot_be_unloaded(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "INTAKE_MAX", 3)

    def fails(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    for name in "ab":
        store.run(usual(store, name))
    with monkeypatch.context() as patch:
        patch.setattr(runners.PlanRunner, "_unload", fails)
        assert store.run(usual(store, "c")) == (Submitted("c", False, JobStatus.QUEUED),)
    assert put_down(tmp_path) == ["a", "b", "c"]

    store.run(usual(store, "d"))  # tries it again
    assert (put_down(tmp_path), names_in(tmp_path)) == ([], set("abcd"))


# ------------------------------------------------------------------------------------- neighbours


def test_who_reads_while_another_holds_the_lock_is_told(store: SqliteStore, tmp_path: Path) -> None:
    """Rather than be told that a job is not there."""
    store.run(usual(store, "job"))
    with write_lock(tmp_path), pytest.raises(StoreUnavailable, match="locked"):
        counts_it(store)

    assert counts_it(store) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"timeout_us": 5 * SECOND_US, "priority": 0, "created_by": "Anna"},
        {"delay_us": 60 * SECOND_US, "trace_id": "of another", "payload": b'{"name":"Zo\xc3\xab"}'},
    ],
)
def test_who_asks_for_one_job_does_not_wait_and_is_told_the_same(
    store: SqliteStore, tmp_path: Path, fields: dict[str, Any]
) -> None:
    store.run(submitting(store, "before"))
    store.run(fresh(store, "neighbour"))
    store.run(fresh(store, "job", **fields))

    with write_lock(tmp_path):
        early = store.run(store.inspection.job("job"))
        known = store.run(store.inspection.job("before"))
    assert put_down(tmp_path) == ["neighbour", "job"]
    counts_it(store)
    assert put_down(tmp_path) == []

    assert early is not None
    assert early == store.run(store.inspection.job("job"))
    assert known == store.run(store.inspection.job("before"))


def test_a_job_of_the_intake_is_no_other_tenants(store: SqliteStore) -> None:
    store.run(usual(store, "job"))

    assert store.run(store.inspection.job("job", tenant="ann")) is None
    assert store.run(store.inspection.job("unknown")) is None


def test_who_reads_takes_the_lock_before_it_looks_into_the_intake_again(
    store: SqliteStore, tmp_path: Path
) -> None:
    """A writer that reads first may find that another wrote in between."""
    store.run(usual(store, "job"))
    with closing(real_connect(tmp_path / "jobs.db", timeout=0, isolation_level=None)) as other:

        def interfere(text: str) -> None:
            if "insert into packhorse_jobs" in text:
                with suppress(sqlite3.OperationalError):
                    other.execute("update packhorse_sequence set value = value + 1")

        store._local.own.runner._connected().set_trace_callback(interfere)

        assert counts_it(store) == 1


def test_who_reads_an_empty_intake_takes_no_lock(store: SqliteStore, tmp_path: Path) -> None:
    store.run(usual(store, "job"))
    counts_it(store)

    with write_lock(tmp_path):
        assert counts_it(store) == 1
        assert found(store) == ["job"]


def test_what_is_put_down_survives_its_process(store: SqliteStore, tmp_path: Path) -> None:
    store.run(usual(store, "job"))
    store.close()

    with closing(sqlite_store(tmp_path)) as other:
        assert found(other) == ["job"]


def test_a_file_of_the_first_schema_gets_its_intake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = migrations._migrations()
    with closing(real_connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        with monkeypatch.context() as patch:
            patch.setattr(migrations, "_migrations", lambda: newest[:1])
            assert migrations.migrate(connection, tmp_path / "jobs.db") == 1
        tables = "select count(*) from sqlite_schema where name = 'packhorse_intake'"
        assert connection.execute(tables).fetchone() == (0,)

    with closing(sqlite_store(tmp_path)) as store:
        store.run(usual(store, "job"))
        assert put_down(tmp_path) == ["job"]
        assert found(store) == ["job"]
