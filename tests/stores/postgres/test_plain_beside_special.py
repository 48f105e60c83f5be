# SPDX-License-Identifier: MIT
"""Plain queues claimed together with special ones: nobody locks them, so their rows are locked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import psycopg
import pytest

from packhorse.core.job import JobStatus
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import ClaimRequest, QueueSettings, Renewal, TaskSettings
from packhorse.stores.sql.rows import CODE
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job
from tests.stores.postgres.support import PATIENCE_S, ask, until

_WORKER: Final = "w"
_LEASE_US: Final = 600_000_000
_WAITING: Final = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"


@pytest.mark.req("S1-45", "S1-46")
def test_a_job_that_somebody_is_ending_is_not_claimed_as_well(
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
