# SPDX-License-Identifier: MIT
"""What upkeep forgets of workers, closings and rates, unseen by any reader."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg

from packhorse.core.clock import SECOND_US
from packhorse.core.job import RateRule
from packhorse.core.policies.retention import DAY_US, GHOST_US
from packhorse.core.settlement import SettlementKind
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import TaskSettings
from packhorse.testing.conformance.samples import ANNA, QUEUE, TASK, new_job, settlement_of
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
_MINUTE_US: Final = 60 * SECOND_US
#: More than one run of upkeep looks at.
_MANY: Final = 1500


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

    assert _closings(store, url) == [(None,)], "a pause stays until it is ended"
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


def test_logs_of_rates_are_forgotten_however_many(url: str) -> None:
    clock = VirtualClock()
    store = postgres_store(url, clock)
    _grant(store, *(f"{number:04}" for number in range(_MANY)))

    clock.advance((DAY_US - 1) / SECOND_US)
    assert store.run(store.upkeep.prune(limit=0)) == 0
    assert len(_rate_keys(store, url)) == _MANY
    clock.advance(_MINUTE_US / SECOND_US)
    assert [store.run(store.upkeep.prune(limit=0)) for _ in range(3)] == [0, 0, 0]

    assert _rows_of_rates(store, url) == []
    store.close()


def test_logs_behind_many_that_count_are_forgotten_too_by_processes_that_come_and_go(
    url: str,
) -> None:
    clock = VirtualClock()
    store = postgres_store(url, clock)
    _grant(store, "first", "second", "z-last")
    clock.advance((DAY_US + _MINUTE_US) / SECOND_US)
    counting = [f"k{number:04}" for number in range(_MANY)]
    _grant(store, "first", *counting)
    store.close()

    for _ in range(2):
        store = postgres_store(url, clock)
        store.run(store.upkeep.prune(limit=0))
        store.close()

    assert _rate_keys(store, url) == ["first", *counting]
    assert len(_rows_of_rates(store, url)) == 1 + _MANY, "nothing is left but what counts"


def test_logs_that_count_need_no_lock(url: str, store: PostgresStore) -> None:
    _grant(store, "key")
    settings = PostgresSettings.from_url(url)
    lock = f"select pg_advisory_xact_lock(\"{store._settings.schema}\".lock_key('all'))"

    with ThreadPoolExecutor(1) as threads, psycopg.connect(settings.conninfo) as other:
        other.execute(lock.encode())
        pruning = threads.submit(lambda: store.run(store.upkeep.prune(limit=10)))
        assert pruning.result(PATIENCE_S) == 0


def test_what_is_granted_at_the_very_moment_is_not_forgotten(
    url: str, store: PostgresStore
) -> None:
    _grant(store, "key", "other")
    rates = f'"{store._settings.schema}".rates'
    [(log,)] = ask(url, f"select log from {rates} where gate like '%key'")
    ask(url, f"update {rates} set log = '[[1, 1]]'")

    settings = PostgresSettings.from_url(url)
    with psycopg.connect(settings.conninfo) as other, ThreadPoolExecutor(1) as threads:
        other.execute(f"update {rates} set log = '{log}' where gate like '%key'".encode())
        pruning = threads.submit(lambda: store.run(store.upkeep.prune(limit=10)))
        until(lambda: pruning.done() or ask(url, _WAITING))
        assert not pruning.done()
        other.commit()
        assert pruning.result(PATIENCE_S) == 0

    assert _rate_keys(store, url) == ["key"]
    store.run(store.jobs.submit([new_job("late", rate_key="key"), new_job(rate_key="other")]))
    assert [job.rate_key for job in store.run(store.jobs.claim(claiming())).jobs] == ["other"]


def _grant(store: PostgresStore, *keys: str) -> None:
    """Let a job of each rate key start."""
    limits = TaskSettings(TASK, rate=RateRule(1, _MINUTE_US))
    store.run(store.queues.declare_tasks([limits]))
    store.run(store.jobs.submit([new_job(rate_key=key) for key in keys]))
    store.run(store.leases.renew(renewing()))
    assert len(store.run(store.jobs.claim(claiming(limit=len(keys)))).jobs) == len(keys)


def _rate_keys(store: PostgresStore, url: str) -> list[str]:
    """Those of which something is logged."""
    return [gate.split("\x1f")[2] for gate in _rows_of_rates(store, url) if gate]


def _rows_of_rates(store: PostgresStore, url: str) -> list[str]:
    rows = ask(url, f'select gate from "{store._settings.schema}".rates order by gate')
    return [gate for (gate,) in rows]


def _closings(store: PostgresStore, url: str) -> list[tuple[Any, ...]]:
    return ask(url, f'select task from "{store._settings.schema}".shut order by task nulls first')


def _special_tasks(store: PostgresStore, url: str) -> list[str]:
    [(tasks,)] = ask(url, f'select tasks from "{store._settings.schema}".special')
    return list(tasks)
