# SPDX-License-Identifier: MIT
"""What goes in one statement, and what follows when that was not all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import psycopg
import pytest

from packhorse import PayloadError, QueueFull
from packhorse.core.job import JobStatus, NewJob
from packhorse.core.sizes import THE_STORE
from packhorse.stores.plan import Plan
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.samples import QUEUE, new_job
from tests.stores.postgres.support import (
    PATIENCE_S,
    ask,
    claiming,
    names_in,
    postgres_store,
    renewing,
    submitting,
    until,
)

_WAITING: Final = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
Run = Callable[[PostgresStore, Plan[Any]], Any]


def test_a_known_id_is_met_and_the_new_ones_are_stored(
    store: PostgresStore, url: str, run: Run
) -> None:
    run(store, submitting(store, "old"))

    answers = run(store, submitting(store, "new", "old", "newer", "new"))

    assert [one.deduplicated for one in answers] == [False, True, False, True]
    assert names_in(url) == ["old", "new", "newer"]


def test_a_plan_that_is_run_twice_stores_once(store: PostgresStore, url: str, run: Run) -> None:
    plan = submitting(store, "one", "two")

    first, second = run(store, plan), run(store, plan)

    assert [one.deduplicated for one in (*first, *second)] == [False, False, True, True]
    assert names_in(url) == ["one", "two"]


def test_a_queue_that_another_app_has_limited_is_full_for_us_too(
    store: PostgresStore, url: str, run: Run
) -> None:
    run(store, submitting(store, "first"))
    other = postgres_store(url)
    other.run(other.queues.override(QUEUE, QueueSettings(QUEUE, max_depth=1)))
    other.close()

    with pytest.raises(QueueFull):
        run(store, submitting(store, "second"))

    assert names_in(url) == ["first"]


def test_a_store_that_another_app_has_bounded_is_full_for_us_too(
    store: PostgresStore, url: str, run: Run
) -> None:
    run(store, submitting(store, "first"))
    other = postgres_store(url)
    other.run(other.queues.override(THE_STORE, QueueSettings(THE_STORE, max_bytes=1)))
    other.close()

    with pytest.raises(QueueFull):
        run(store, submitting(store, "second"))

    assert names_in(url) == ["first"]


async def test_neighbours_of_a_refused_submit_are_stored(store: PostgresStore, url: str) -> None:
    await store.arun(submitting(store, "first"))
    names = ["a", "b", "first", "c", "d", "e", "first", "f"]

    answers = await asyncio.gather(*(store.arun(submitting(store, name)) for name in names))

    assert [one.deduplicated for (one,) in answers] == [name == "first" for name in names]
    assert sorted(names_in(url)) == ["a", "b", "c", "d", "e", "f", "first"]


def test_a_payload_that_is_no_text_is_named_among_many(store: PostgresStore, url: str) -> None:
    broken = msgspec.structs.replace(new_job("broken"), payload=b"\xff")

    with pytest.raises(PayloadError, match="job broken is not UTF-8"):
        store.run(store.jobs.submit([new_job("whole"), broken]))

    assert names_in(url) == []


def test_traces_and_times_go_in_one_as_well(store: PostgresStore, run: Run) -> None:
    traced = [
        msgspec.structs.replace(new_job(name), trace_id=f"trace of {name}") for name in ("a", "b")
    ]
    later = [msgspec.structs.replace(new_job(name), delay_us=60_000_000) for name in ("c", "d")]

    ready, waiting = (run(store, store.jobs.submit(jobs)) for jobs in (traced, later))

    assert {one.status for one in ready} == {JobStatus.QUEUED}
    assert {one.status for one in waiting} == {JobStatus.PENDING}
    run(store, store.leases.renew(renewing()))
    claimed = run(store, store.jobs.claim(claiming()))
    assert [job.trace_id for job in claimed.jobs] == ["trace of a", "trace of b"]


def test_a_claim_of_none_tells_how_the_queues_stand(store: PostgresStore, run: Run) -> None:
    run(store, submitting(store, "ready"))
    run(store, store.leases.renew(renewing()))

    claimed = run(store, store.jobs.claim(claiming(limit=0)))

    assert (claimed.jobs, claimed.lease_lost, claimed.suspects) == ((), False, False)


def usual_job(name: str, **fields: Any) -> NewJob:
    """A job whose trace is made from its id, as that of a call without one is."""
    return msgspec.structs.replace(new_job(name), trace_id=name, **fields)


def assert_kept(store: PostgresStore, jobs: Sequence[NewJob], run: Run) -> None:
    """All that these jobs came with is there."""
    for job in jobs:
        record = run(store, store.inspection.job(job.id))
        assert (record.id, record.payload, record.queue) == (job.id, job.payload, job.queue)
        assert (record.task, record.trace_id) == (job.task, job.trace_id)
        assert (record.timeout_us, record.priority) == (job.timeout_us, job.priority)
        assert (record.created_by, record.status) == (job.created_by, JobStatus.QUEUED)


def test_one_after_the_other_each_keeps_what_is_its_own(store: PostgresStore, run: Run) -> None:
    jobs = [
        usual_job("plain"),
        usual_job("like it", payload=b'{"number":2}'),
        usual_job("umlaut", payload='{"name":"K\u00e4te"}'.encode()),
        usual_job("bounded", timeout_us=5_000_000),
        usual_job("bounded too", timeout_us=5_000_000, payload=b"{}"),
        usual_job("pressing", priority=0, created_by="Anna"),
        usual_job("parted\x1eid"),
        msgspec.structs.replace(usual_job("traced"), trace_id="of another"),
        usual_job("elsewhere", queue="other"),
        usual_job("plain again"),
    ]

    for job in jobs:
        run(store, store.jobs.submit([job]))

    assert_kept(store, jobs, run)


def test_usual_jobs_keep_what_is_their_own(store: PostgresStore, run: Run) -> None:
    jobs = [
        usual_job("plain"),
        usual_job("like it", payload=b'{"number":2}'),
        usual_job("umlaut", payload='{"name":"K\u00e4te"}'.encode()),
        usual_job("bounded", timeout_us=5_000_000),
        usual_job("elsewhere", queue="other"),
        usual_job("another", task="other"),
        usual_job("plain again"),
    ]

    for job in jobs:
        run(store, store.jobs.submit((job,), ids_are_new=True))

    assert_kept(store, jobs, run)


@pytest.mark.parametrize("new", [False, True])
def test_what_became_special_while_a_submit_waited_is_seen(
    store: PostgresStore, url: str, *, new: bool
) -> None:
    """Its statement began before the other committed, so that its own snapshot is too old."""
    store.run(store.jobs.submit([usual_job("first")], ids_are_new=new))
    other, schema = postgres_store(url), store._settings.schema
    lock = f"""select pg_advisory_xact_lock("{schema}".lock_key('all'))"""
    with psycopg.connect(PostgresSettings.from_url(url).conninfo) as holder:
        holder.execute(lock.encode())
        with ThreadPoolExecutor(2) as threads:
            # Advisory locks are given in the order of asking.
            limiting = other.queues.override(QUEUE, QueueSettings(QUEUE, max_depth=1))
            overriding = threads.submit(other.run, limiting)
            until(lambda: ask(url, _WAITING) == [(1,)])
            submitting = threads.submit(
                store.run, store.jobs.submit([usual_job("late")], ids_are_new=new)
            )
            until(lambda: ask(url, _WAITING) == [(2,)])
            holder.commit()
            overriding.result(PATIENCE_S)
            with pytest.raises(QueueFull):
                submitting.result(PATIENCE_S)
    other.close()

    assert names_in(url) == ["first"]


def test_a_nul_is_refused_where_the_last_job_was_plain(store: PostgresStore, run: Run) -> None:
    run(store, store.jobs.submit([usual_job("plain")]))

    with pytest.raises(PayloadError, match="NUL"):
        run(store, store.jobs.submit([usual_job("a", payload=b'"\0"')]))
