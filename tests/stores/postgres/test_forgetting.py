# SPDX-License-Identifier: MIT
"""What upkeep forgets of workers and closings, and nobody else can see."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg

from packhorse.clock import SECOND_US
from packhorse.policies.retention import GHOST_US
from packhorse.settlement import SettlementKind
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.testing.conformance.samples import ANNA, QUEUE, TASK, settlement_of
from packhorse.testing.virtual_clock import VirtualClock
from tests.stores.postgres.support import (
    PATIENCE_S,
    ask,
    claiming,
    postgres_store,
    renewing,
    submitting,
    until,
)

_WAITING: Final = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"


def test_closings_that_are_over_are_forgotten_and_the_task_is_plain_again(url: str) -> None:
    clock = VirtualClock()
    store = postgres_store(url, clock)
    store.run(submitting(store, "job"))
    store.run(store.leases.renew(renewing()))
    (job,) = store.run(store.jobs.claim(claiming())).jobs
    limited = settlement_of(SettlementKind.LIMITED, job)
    store.run(store.jobs.settle([limited]))
    store.run(store.queues.pause(QUEUE, paused=True, key="k"))

    clock.advance((limited.limit_us - 1) / SECOND_US)
    store.run(store.upkeep.prune(limit=10))
    assert _closings(store, url) == [(None,), (TASK,)]
    assert _special_tasks(store, url) == [TASK]
    clock.advance(1 / SECOND_US)
    assert store.run(store.upkeep.prune(limit=10)) == 0

    assert _closings(store, url) == [(None,)], "a pause stays until somebody ends it"
    assert _special_tasks(store, url) == []
    assert [job.id for job in store.run(store.jobs.claim(claiming())).jobs] == ["job"]
    store.close()


def test_a_ghost_that_renews_at_the_very_moment_is_not_forgotten(
    url: str, store: PostgresStore
) -> None:
    store.run(store.leases.renew(renewing()))
    workers = f'"{store._settings.schema}".workers'
    ask(url, f"update {workers} set expires_us = expires_us - {GHOST_US} - lease_us")

    settings = PostgresSettings.from_url(url)
    with psycopg.connect(settings.conninfo) as other, ThreadPoolExecutor(1) as threads:
        text = f"update {workers} set expires_us = expires_us + {GHOST_US} + lease_us"
        other.execute(text.encode())
        pruning = threads.submit(lambda: store.run(store.upkeep.prune(limit=10)))
        until(lambda: pruning.done() or ask(url, _WAITING))
        other.commit()
        assert pruning.result(PATIENCE_S) == 0

    assert [record.worker for record in store.run(store.leases.workers())] == [ANNA]


def _closings(store: PostgresStore, url: str) -> list[tuple[Any, ...]]:
    return ask(url, f'select task from "{store._settings.schema}".shut order by task nulls first')


def _special_tasks(store: PostgresStore, url: str) -> list[str]:
    [(tasks,)] = ask(url, f'select tasks from "{store._settings.schema}".special')
    return list(tasks)
