# SPDX-License-Identifier: MIT
"""What upkeep forgets of closings and rates, unseen by any reader."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from packhorse.core.clock import SECOND_US
from packhorse.core.job import RateRule
from packhorse.core.policies.retention import DAY_US
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import QueueSettings, TaskSettings
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job, settlement_of
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.sqlite_support import (
    claiming,
    real_connect,
    renewing,
    sqlite_store,
    submitting,
    write_lock,
)

_MINUTE_US: Final = 60 * SECOND_US
#: More than one run of upkeep looks at.
_MANY: Final = 1500


def test_closings_that_are_over_are_forgotten_and_pauses_are_not(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = sqlite_store(tmp_path, clock=clock)
    store.run(submitting(store, "job"))
    store.run(store.leases.renew(renewing()))
    (job,) = store.run(store.jobs.claim(claiming())).jobs
    limited = settlement_of(SettlementKind.LIMITED, job)
    store.run(store.jobs.settle([limited]))
    store.run(store.queues.pause(QUEUE, paused=True, key="k"))

    clock.advance((limited.limit_us - 1) / SECOND_US)
    store.run(store.upkeep.prune(limit=10))
    assert _queues_of_closings(tmp_path) == [None, QUEUE]
    clock.advance(1 / SECOND_US)
    assert store.run(store.upkeep.prune(limit=10)) == 0

    assert _queues_of_closings(tmp_path) == [QUEUE]
    assert [job.id for job in store.run(store.jobs.claim(claiming())).jobs] == ["job"]
    store.close()


def test_logs_of_rates_are_forgotten_however_many(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = sqlite_store(tmp_path, "?synchronous=OFF", clock)
    _grant(store, *(f"{number:04}" for number in range(_MANY)))

    clock.advance((DAY_US - 1) / SECOND_US)
    assert store.run(store.upkeep.prune(limit=0)) == 0
    assert len(_rate_keys(tmp_path)) == _MANY
    clock.advance(_MINUTE_US / SECOND_US)
    assert [store.run(store.upkeep.prune(limit=0)) for _ in range(3)] == [0, 0, 0]

    assert _rows_of_rates(tmp_path) == []
    store.close()


def test_logs_behind_many_that_count_are_forgotten_too_by_processes_that_come_and_go(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    store = sqlite_store(tmp_path, "?synchronous=OFF", clock)
    _grant(store, "first", "second", "z-last")
    clock.advance((DAY_US + _MINUTE_US) / SECOND_US)
    counting = [f"k{number:04}" for number in range(_MANY)]
    _grant(store, "first", *counting)
    store.close()

    for _ in range(2):
        store = sqlite_store(tmp_path, clock=clock)
        store.run(store.upkeep.prune(limit=0))
        store.close()

    assert _rate_keys(tmp_path) == ["first", *counting]
    assert len(_rows_of_rates(tmp_path)) == 1 + _MANY, "nothing is left but what counts"


def test_a_log_is_kept_for_the_longest_window_there_is(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = sqlite_store(tmp_path, clock=clock)
    _grant(store, "key")
    month = RateRule(1, 30 * DAY_US)
    store.run(store.queues.declare([QueueSettings("other", tenant_rate=month)]))

    clock.advance((30 * DAY_US - 1) / SECOND_US)
    store.run(store.upkeep.prune(limit=0))
    assert _rate_keys(tmp_path) == ["key"]
    clock.advance(_MINUTE_US / SECOND_US)
    store.run(store.upkeep.prune(limit=0))

    assert _rows_of_rates(tmp_path) == []
    store.close()


def test_logs_that_count_need_no_lock(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path, "?busy_timeout=1ms")
    _grant(store, "key")

    with write_lock(tmp_path):
        assert store.run(store.upkeep.prune(limit=10)) == 0
    store.close()


def _grant(store: SqliteStore, *keys: str) -> None:
    """Let a job of each rate key start."""
    limits = TaskSettings(TASK, rate=RateRule(1, _MINUTE_US))
    store.run(store.queues.declare_tasks([limits]))
    store.run(store.jobs.submit([new_job(rate_key=key) for key in keys]))
    store.run(store.leases.renew(renewing()))
    assert len(store.run(store.jobs.claim(claiming(limit=len(keys)))).jobs) == len(keys)


def _rate_keys(folder: Path) -> list[str]:
    """Those of which something is logged."""
    return [gate.split("\x1f")[2] for gate in _rows_of_rates(folder) if gate]


def _rows_of_rates(folder: Path) -> list[str]:
    with closing(real_connect(folder / "jobs.db")) as connection:
        return [gate for (gate,) in connection.execute("select gate from packhorse_rates")]


def _queues_of_closings(folder: Path) -> list[str | None]:
    """A pause names its queue, a closing for a time has none."""
    with closing(real_connect(folder / "jobs.db")) as connection:
        rows = connection.execute("select queue from packhorse_shut order by queue")
        return [queue for (queue,) in rows]
