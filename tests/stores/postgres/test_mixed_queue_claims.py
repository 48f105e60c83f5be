# SPDX-License-Identifier: MIT
"""Plain queues, claimed in one statement: what changes while it waits for its turn.

Claimed together with special queues, they have no queue lock, so their rows are locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest

from packhorse.core.job import JobStatus
from packhorse.stores.plan import Plan
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import ClaimRequest, QueueSettings, Renewal, TaskSettings
from packhorse.stores.sql.rows import CODE
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job
from tests.stores.postgres.support import PATIENCE_S, ask, held_up, until, waiting_for_locks

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


@contextmanager
def _overtaken(
    url: str, store: PostgresStore, plan: Plan[Any]
) -> Iterator[tuple[Future[Any], Future[Any]]]:
    """A plan, and a claim that began before it and hands a job out after it; both under way."""
    schema, settings = store._settings.schema, PostgresSettings.from_url(url)
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, (QUEUE,), (TASK,))))
    store.run(store.jobs.submit([new_job("job")]))
    claim = store.jobs.claim(ClaimRequest(_WORKER, (QUEUE,), (TASK,), 1, 60_000_000))
    with (
        held_up(url, schema, "before update of worker") as go_on,
        psycopg.connect(settings.conninfo) as first,
        ThreadPoolExecutor(2) as threads,
    ):
        first.execute(f"select pg_advisory_xact_lock(\"{schema}\".lock_key('all'))".encode())
        planned = threads.submit(store.run, plan)
        until(lambda: waiting_for_locks(url, schema) == 1)
        claiming = threads.submit(store.run, claim)
        until(lambda: waiting_for_locks(url, schema) == 2)
        first.commit()
        # The claim waits for us now, and the plan for the claim.
        until(lambda: planned.done() or waiting_for_locks(url, schema) == 2)
        try:
            yield planned, claiming
        finally:
            go_on()


def test_when_pause_has_answered_no_claim_hands_out_jobs_any_more(
    url: str, store: PostgresStore
) -> None:
    with _overtaken(url, store, store.queues.pause(QUEUE, paused=True)) as (pausing, _):
        assert not pausing.done()

    assert pausing.result(PATIENCE_S) is True


def test_when_a_worker_has_left_no_claim_of_its_own_gives_it_jobs(
    url: str, store: PostgresStore
) -> None:
    with _overtaken(url, store, store.leases.leave(_WORKER)) as (leaving, claiming):
        assert not leaving.done()

    assert [job.id for job in claiming.result(PATIENCE_S).jobs] == ["job"]
    assert leaving.result(PATIENCE_S) == 1
    record = store.run(store.inspection.job("job"))
    assert record is not None
    assert record.status is JobStatus.QUEUED
