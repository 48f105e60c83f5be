# SPDX-License-Identifier: MIT
"""Plain queues, claimed in one statement: what changes while it waits for its turn.

Claimed together with special queues, they have no queue lock, so their rows are locked.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn

import msgspec
import psycopg
import pytest

from packhorse.core.job import JobStatus
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import ClaimRequest, QueueSettings, Renewal, TaskSettings
from packhorse.stores.sql.rows import CODE
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job
from tests.stores.postgres.support import (
    BARRIER,
    PATIENCE_S,
    ask,
    held_up,
    until,
    waiting_for_locks,
)

_WORKER: Final = "w"
_LEASE_US: Final = 600_000_000
_WAITING: Final = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"


@pytest.mark.req("S1-45", "S1-46")
def test_a_job_that_another_worker_is_ending_is_not_claimed_as_well(
    url: str, store: PostgresStore
) -> None:
    # Limits on a queue and on a task, both of them others than those of the job.
    store.run(store.queues.declare([QueueSettings("limited", concurrency=1)]))
    store.run(store.queues.declare_tasks([TaskSettings("slow", concurrency=1)]))
    queues, tasks = ("limited", QUEUE), (TASK, "slow")
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, queues, tasks)))
    store.run(store.jobs.submit([new_job("job")]))
    request = ClaimRequest(_WORKER, queues, tasks, 1, 60_000_000)
    jobs = f'"{store._settings.schema}".jobs'

    settings = PostgresSettings.from_url(url)
    with psycopg.connect(settings.conninfo) as other, ThreadPoolExecutor(1) as threads:
        other.execute(f"select 1 from {jobs} for update".encode())
        claiming = threads.submit(lambda: store.run(store.jobs.claim(request)))
        until(lambda: claiming.done() or ask(url, _WAITING))
        cancelled = CODE[JobStatus.CANCELLED]
        text = f"update {jobs} set status = {cancelled}, lane = null, finished_us = 1"
        other.execute(text.encode())
        other.commit()
        claimed = claiming.result(PATIENCE_S)

    assert [job.id for job in claimed.jobs] == []
    record = store.run(store.inspection.job("job"))
    assert record is not None
    assert record.status is JobStatus.CANCELLED


#: A claim waits before it takes its lock, and has its snapshot by then.
_ENTER_LATE: Final = """
alter function {schema}.enter rename to enter_at_last;
create function {schema}.enter(out queues text[], out tasks text[], out tasked text[])
language plpgsql as $body$
begin
    perform pg_advisory_xact_lock_shared({barrier});
    select * into queues, tasks, tasked from {schema}.enter_at_last();
end
$body$
"""
_ENTER_AT_ONCE: Final = """
drop function {schema}.enter;
alter function {schema}.enter_at_last rename to enter
"""


def test_a_claim_that_gets_its_lock_after_a_pause_hands_out_nothing_however_early_it_began(
    url: str, store: PostgresStore
) -> None:
    schema = f'"{store._settings.schema}"'
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, (QUEUE,), (TASK,))))
    store.run(store.jobs.submit([new_job("job")]))
    claim = store.jobs.claim(ClaimRequest(_WORKER, (QUEUE,), (TASK,), 1, 60_000_000))
    ask(url, _ENTER_LATE.format(schema=schema, barrier=BARRIER))

    conninfo = PostgresSettings.from_url(url).conninfo
    with psycopg.connect(conninfo) as barrier, ThreadPoolExecutor(1) as threads:
        barrier.execute("select pg_advisory_xact_lock(%s)", (BARRIER,))
        claiming = threads.submit(store.run, claim)
        until(lambda: waiting_for_locks(url, store._settings.schema))
        assert store.run(store.queues.pause(QUEUE, paused=True))
        barrier.rollback()
        claimed = claiming.result(PATIENCE_S)
    ask(url, _ENTER_AT_ONCE.format(schema=schema))

    assert [job.id for job in claimed.jobs] == []


def test_when_a_worker_has_left_no_claim_of_its_own_gives_it_jobs(
    url: str, store: PostgresStore
) -> None:
    """The claim began before, and hands a job out after it."""
    schema = store._settings.schema
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, (QUEUE,), (TASK,))))
    store.run(store.jobs.submit([new_job("job")]))
    claim = store.jobs.claim(ClaimRequest(_WORKER, (QUEUE,), (TASK,), 1, 60_000_000))
    with (
        held_up(url, schema, "before update of worker") as go_on,
        psycopg.connect(PostgresSettings.from_url(url).conninfo) as first,
        ThreadPoolExecutor(2) as threads,
    ):
        first.execute(f"select pg_advisory_xact_lock(\"{schema}\".lock_key('all'))".encode())
        leaving = threads.submit(store.run, store.leases.leave(_WORKER))
        until(lambda: waiting_for_locks(url, schema) == 1)
        claiming = threads.submit(store.run, claim)
        until(lambda: waiting_for_locks(url, schema) == 2)
        first.commit()
        # The claim waits for us now, and the worker that leaves for the claim.
        until(lambda: leaving.done() or waiting_for_locks(url, schema) == 2)
        assert not leaving.done()
        go_on()

    assert [job.id for job in claiming.result(PATIENCE_S).jobs] == ["job"]
    assert leaving.result(PATIENCE_S) == 1
    record = store.run(store.inspection.job("job"))
    assert record is not None
    assert record.status is JobStatus.QUEUED


def test_a_paused_queue_keeps_no_claim_of_others_from_its_one_statement(
    store: PostgresStore,
) -> None:
    queues = (QUEUE, "paused")
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, queues, (TASK,))))
    assert store.run(store.queues.pause("paused", paused=True))
    store.run(store.jobs.submit([new_job("job")]))
    claim = store.jobs.claim(ClaimRequest(_WORKER, queues, (TASK,), 1, 60_000_000))

    claimed = store.run(msgspec.structs.replace(claim, steps=_no_step))

    assert [job.id for job in claimed.jobs] == ["job"]


def test_a_queue_with_the_name_that_notes_a_pause_serves_its_jobs(store: PostgresStore) -> None:
    noted = f"paused {QUEUE}"
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, (QUEUE, noted), (TASK,))))
    assert store.run(store.queues.pause(QUEUE, paused=True))
    store.run(store.jobs.submit([new_job("paused"), new_job("job", queue=noted)]))

    claim = store.jobs.claim(ClaimRequest(_WORKER, (QUEUE, noted), (TASK,), 2, 60_000_000))

    assert [job.id for job in store.run(claim).jobs] == ["job"]
    assert store.run(store.queues.pause(QUEUE, paused=False))
    assert [job.id for job in store.run(claim).jobs] == ["paused"]


def _no_step() -> NoReturn:
    raise AssertionError("one statement did not do")
