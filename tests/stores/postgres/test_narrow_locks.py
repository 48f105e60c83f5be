# SPDX-License-Identifier: MIT
"""Which verbs wait for the lock on a queue, and how many round trips constrained queues cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, NewJob, RateRule
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.plan import Plan
from packhorse.stores.postgres import plan_transaction
from packhorse.stores.postgres.pipeline import Command, Exchange, PipelinedConnection, exchange
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import Claimed, QueueSettings, TaskSettings
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job, settlement_of
from tests.stores.postgres.support import (
    PATIENCE_S,
    claiming,
    postgres_store,
    renewing,
    until,
    waiting_for_locks,
)

_RATED: Final = QueueSettings(QUEUE, rate=RateRule(1_000_000, SECOND_US))
_NARROW: Final = QueueSettings(QUEUE, concurrency=1_000)
_PARALLEL: Final = QueueSettings(QUEUE, ageing_us=SECOND_US)


def _ordered(name: str) -> NewJob:
    return new_job(name, ordering_key=name)


def _tenanted(name: str) -> NewJob:
    return new_job(name, tenant="ann")


@contextmanager
def _queue_locked(store: PostgresStore, url: str) -> Iterator[psycopg.Connection[Any]]:
    """Hold the lock on the queue, as a verb that has it for itself does."""
    lock = f"""select pg_advisory_xact_lock("{store._settings.schema}".lock_key('queue:{QUEUE}'))"""
    with psycopg.connect(PostgresSettings.from_url(url).conninfo) as holder:
        holder.execute(lock.encode())
        yield holder


def _run_beside(store: PostgresStore, url: str, plan: Plan[Any], *, waits: bool) -> Any:
    """Run a plan while the queue is locked; say so if it does not wait, or does."""
    with ThreadPoolExecutor(1) as threads:
        with _queue_locked(store, url):
            running: Future[Any] = threads.submit(store.run, plan)
            if waits:
                until(lambda: waiting_for_locks(url, store._settings.schema))
                assert not running.done()
            else:
                running.result(PATIENCE_S)
        return running.result(PATIENCE_S)


def _claimed(store: PostgresStore, make: Callable[[str], NewJob], count: int = 2) -> list[Job]:
    """Submit some jobs, and claim the first one."""
    store.run(store.leases.renew(renewing()))
    store.run(store.jobs.submit([make(f"job {number}") for number in range(count)]))
    return list(store.run(store.jobs.claim(claiming(limit=1))).jobs)


def _completing(jobs: Sequence[Job]) -> list[Settlement]:
    return [settlement_of(SettlementKind.COMPLETED, job) for job in jobs]


@pytest.mark.parametrize(
    ("settings", "make", "waits"),
    [
        (QueueSettings(QUEUE), new_job, False),
        (_RATED, new_job, False),
        (_PARALLEL, new_job, False),
        (QueueSettings(QUEUE), _tenanted, False),
        (_NARROW, new_job, True),
        (QueueSettings(QUEUE, max_bytes=1_000_000), new_job, True),
        (_RATED, _ordered, True),
        (QueueSettings(QUEUE), _ordered, True),
    ],
    ids=["no limit", "rate", "age", "tenant", "concurrency", "bytes", "rate and order", "order"],
)
def test_a_completion_waits_for_its_queue_only_where_an_end_may_release_a_job(
    store: PostgresStore,
    url: str,
    settings: QueueSettings,
    make: Callable[[str], NewJob],
    *,
    waits: bool,
) -> None:
    store.run(store.queues.declare([settings]))
    jobs = _claimed(store, make)

    verdicts = _run_beside(store, url, store.jobs.settle(_completing(jobs)), waits=waits)

    assert verdicts == (Verdict.APPLIED,)


@pytest.mark.parametrize(
    ("settings", "make", "waits"),
    [
        (QueueSettings(QUEUE), new_job, False),
        (QueueSettings(QUEUE), _ordered, False),
        (QueueSettings(QUEUE), _tenanted, False),
        (_PARALLEL, new_job, False),
        (_RATED, new_job, True),
        (_RATED, _ordered, True),
        (_NARROW, new_job, True),
        (QueueSettings(QUEUE, tenant_rate=RateRule(1_000, SECOND_US)), _tenanted, True),
        (QueueSettings(QUEUE, max_depth=1_000), new_job, True),
    ],
    ids=[
        *("no limit", "order", "tenant", "age", "rate", "rate and order", "concurrency"),
        *("rate of tenants", "depth"),
    ],
)
def test_a_claim_waits_for_its_queue_only_where_a_gate_may_block_a_job(
    store: PostgresStore,
    url: str,
    settings: QueueSettings,
    make: Callable[[str], NewJob],
    *,
    waits: bool,
) -> None:
    store.run(store.queues.declare([settings]))
    _claimed(store, make)

    claimed: Claimed = _run_beside(store, url, store.jobs.claim(claiming()), waits=waits)

    assert [job.id for job in claimed.jobs] == ["job 1"]


@pytest.mark.parametrize("paused", ["tenant", "key"])
def test_a_claim_waits_for_its_queue_while_a_tenant_or_a_key_is_paused(
    store: PostgresStore, url: str, paused: str
) -> None:
    _claimed(store, lambda name: new_job(name, tenant="ann", ordering_key=name))
    chosen = {"tenant": "ann"} if paused == "tenant" else {"key": "job 1"}
    store.run(store.queues.pause(QUEUE, paused=True, **chosen))

    claimed: Claimed = _run_beside(store, url, store.jobs.claim(claiming()), waits=True)

    assert claimed.jobs == ()


def test_a_claim_that_finds_a_job_due_in_a_line_waits_for_its_queue(
    store: PostgresStore, url: str
) -> None:
    """To become ready, the job must see which others stand in its line."""
    _claimed(store, _ordered, count=1)
    later = new_job("later", ordering_key="job 0", delay_us=1)
    store.run(store.jobs.submit([later]))

    claimed: Claimed = _run_beside(store, url, store.jobs.claim(claiming()), waits=True)

    assert claimed.jobs == ()  # the first of its line still runs


@pytest.mark.parametrize("limit", ["declared", "of its task"])
def test_what_is_limited_from_now_on_is_claimed_and_completed_under_its_lock(
    store: PostgresStore, url: str, limit: str
) -> None:
    """The client that claims last heard that the queue had no limits."""
    jobs = _claimed(store, _tenanted, count=3)
    other = postgres_store(url)
    if limit == "declared":
        other.run(other.queues.declare([_NARROW]))
    else:
        other.run(other.queues.declare_tasks([TaskSettings(TASK, concurrency=1_000)]))
    other.close()

    claimed: Claimed = _run_beside(store, url, store.jobs.claim(claiming()), waits=True)
    verdicts = _run_beside(store, url, store.jobs.settle(_completing(jobs)), waits=True)

    assert [job.id for job in claimed.jobs] == ["job 1", "job 2"]
    assert verdicts == (Verdict.APPLIED,)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commands of each round trip."""
    counted: list[int] = []

    def counting(
        connection: PipelinedConnection, groups: Sequence[Sequence[Command]]
    ) -> Exchange[list[Any]]:
        counted.append(sum(map(len, groups)))
        return exchange(connection, groups)

    monkeypatch.setattr(plan_transaction, "exchange", counting)
    return counted


@pytest.mark.parametrize(
    ("settings", "make", "expected"),
    [
        (QueueSettings(QUEUE), new_job, (1, 1)),
        (_RATED, new_job, (4, 1)),
        (_NARROW, new_job, (4, 3)),
        (QueueSettings(QUEUE), _ordered, (3, 2)),
        (QueueSettings(QUEUE), lambda name: new_job(name, ordering_key="one"), (3, 3)),
    ],
    ids=["no limit", "rate", "concurrency", "order", "one line"],
)
def test_constrained_queues_cost_few_round_trips(
    store: PostgresStore,
    settings: QueueSettings,
    make: Callable[[str], NewJob],
    trips: list[int],
    expected: tuple[int, int],
) -> None:
    """What a plan may send along, it does not wait for."""
    store.run(store.queues.declare([settings]))
    jobs = _claimed(store, make, count=20)
    store.run(store.jobs.settle(_completing(jobs)))

    trips.clear()
    claimed = store.run(store.jobs.claim(claiming(limit=1)))
    claim = len(trips)
    store.run(store.jobs.settle(_completing(claimed.jobs)))

    assert (claim, len(trips) - claim) == expected
