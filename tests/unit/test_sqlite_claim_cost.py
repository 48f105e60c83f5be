# SPDX-License-Identifier: MIT
"""The work of the hot verbs, in steps of SQLite's machine, does not grow with the backlog."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.policies.records import Put, RecordId
from packhorse.core.settlement import SettlementKind
from packhorse.stores.plan import Plan
from packhorse.stores.requests import QueueSettings
from packhorse.stores.sqlite.connection import connect
from packhorse.stores.sqlite.runner import PlanRunner, RunnerParts
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import QUEUE, new_job, settlement_of
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.sqlite_support import claiming, renewing, sqlite_store

FEW: Final = 1_000
MANY: Final = 50_000
GROWTH_MAX: Final = 1.3
BATCH: Final = 10


def ready(store: SqliteStore) -> None:
    store.run(store.jobs.submit([new_job("model")]))


def foreign(store: SqliteStore) -> None:
    store.run(store.jobs.submit([new_job("model", task="of another worker")]))


def scheduled(store: SqliteStore) -> None:
    store.run(store.jobs.submit([new_job("model", delay_us=1000 * SECOND_US)]))


def finished(store: SqliteStore) -> None:
    ended(store, SettlementKind.COMPLETED)


def dead(store: SqliteStore) -> None:
    ended(store, SettlementKind.DEAD)


def ended(store: SqliteStore, kind: SettlementKind) -> None:
    store.run(store.jobs.submit([new_job("model")]))
    (job,) = store.run(store.jobs.claim(claiming())).jobs
    store.run(store.jobs.settle([settlement_of(kind, job)]))


def crowd(folder: Path, model: Callable[[SqliteStore], None], count: int) -> SqliteStore:
    """A store with so many jobs like the model, and a batch behind them that is ready."""
    folder.mkdir()
    store = sqlite_store(folder, "?synchronous=OFF", VirtualClock())
    store.run(store.queues.declare([QueueSettings(QUEUE)]))
    store.run(store.leases.renew(renewing()))
    model(store)
    with closing(connect(store._settings)) as connection:
        columns = [row[1] for row in connection.execute("pragma table_info(packhorse_jobs)")]
        alike = ", ".join(name for name in columns if name not in ("seq", "id", "place"))
        connection.execute(
            "with recursive number(value) as "
            "(select 2 union all select value + 1 from number where value < ?) "
            f"insert into packhorse_jobs (seq, id, place, {alike}) "
            f"select value, 'like-' || value, value, {alike} "
            "from number, packhorse_jobs where id = 'model'",
            (count,),
        )
    store.run(store.jobs.submit([new_job(f"ready-{number}") for number in range(BATCH)]))
    return store


class Counted:
    """Runs plans and counts the steps SQLite's machine takes."""

    def __init__(self, store: SqliteStore) -> None:
        self._steps = 0
        self._store = store

        def counted_connection() -> Any:
            connection = connect(store._settings)
            connection.set_progress_handler(self._step, 1)
            return connection

        silent = lambda _: None  # noqa: E731 - a test needs no more
        parts = RunnerParts(store._settings, store._clock, silent, silent, counted_connection)
        self._runner = PlanRunner(parts)
        self._runner.run(store.queues.depth("none"))  # reads the schema, once

    def run(self, plan: Plan[Any]) -> tuple[int, Any]:
        self._steps = 0
        answer = self._runner.run(plan)
        return self._steps, answer

    def close(self) -> None:
        self._runner.disconnect()
        self._store.close()

    def _step(self) -> int:
        self._steps += 1
        return 0


def work(store: SqliteStore) -> dict[str, int]:
    """The steps of a worker's and a producer's daily work."""
    counted = Counted(store)
    claim, claimed = counted.run(store.jobs.claim(claiming(limit=BATCH)))
    assert len(claimed.jobs) == BATCH
    good, bad = claimed.jobs[:5], claimed.jobs[5:]
    completed = [settlement_of(SettlementKind.COMPLETED, job) for job in good]
    failed = [settlement_of(SettlementKind.FAILED, job) for job in bad]
    plans: dict[str, Plan[Any]] = {
        "settle": store.jobs.settle(completed),
        "settle failures": store.jobs.settle(failed),
        "submit": store.jobs.submit([new_job()]),
        "renew": store.leases.renew(renewing()),
        "expired leases": store.leases.expired(),
        "expire": store.upkeep.expire(limit=10),
        "prune": store.upkeep.prune(limit=10),
    }
    steps = {name: counted.run(plan)[0] for name, plan in plans.items()}
    counted.close()
    return {"claim": claim, **steps}


@pytest.mark.parametrize("model", [ready, scheduled, finished, dead])
def test_daily_work_does_not_grow_with_the_number_of_jobs(
    model: Callable[[SqliteStore], None], tmp_path: Path
) -> None:
    few = work(crowd(tmp_path / "few", model, FEW))
    many = work(crowd(tmp_path / "many", model, MANY))

    grown = {name: (few[name], many[name]) for name in few if many[name] > GROWTH_MAX * few[name]}
    assert grown == {}


@pytest.mark.parametrize("limited", [False, True], ids=["unlimited", "limited"])
def test_a_claim_does_not_walk_past_jobs_of_tasks_its_worker_does_not_know(
    tmp_path: Path, *, limited: bool
) -> None:
    steps = []
    for count in (FEW, 30 * FEW):
        store = crowd(tmp_path / str(count), foreign, count)
        if limited:
            store.run(store.queues.declare([QueueSettings(QUEUE, concurrency=1000)]))
        counted = Counted(store)
        taken, claimed = counted.run(store.jobs.claim(claiming(limit=BATCH)))
        assert len(claimed.jobs) == BATCH
        missed, nothing = counted.run(store.jobs.claim(claiming(limit=BATCH)))
        assert nothing.jobs == ()
        steps.append((taken, missed))
        counted.close()

    (few, few_missed), (many, many_missed) = steps
    assert many <= GROWTH_MAX * few
    assert many_missed <= GROWTH_MAX * few_missed


def test_a_page_of_records_does_not_walk_past_those_before_it(tmp_path: Path) -> None:
    store = crowd(tmp_path / "records", ready, 2)
    store.run(store.records.change([Put(_named(number), b"{}") for number in range(1_000)]))
    counted = Counted(store)

    def page(number: int) -> int:
        after = _named(number).text
        plan = store.records.records("k", tenant="", after=after, limit=5)
        return counted.run(plan)[0]

    first, last = page(0), page(990)
    counted.close()
    assert last <= GROWTH_MAX * first


def _named(number: int) -> RecordId:
    return RecordId("k", "", f"{number:04}")


def test_work_that_grows_would_be_noticed(tmp_path: Path) -> None:
    steps = []
    for count in (10, 1000):
        store = crowd(tmp_path / str(count), ready, count)
        counted = Counted(store)
        steps.append(counted.run(store.inspection.counts())[0])
        counted.close()

    assert steps[1] > GROWTH_MAX * steps[0]
