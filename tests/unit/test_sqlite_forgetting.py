# SPDX-License-Identifier: MIT
"""What upkeep forgets of closings, and nobody else can see."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from packhorse.clock import SECOND_US
from packhorse.settlement import SettlementKind
from packhorse.testing.conformance.samples import QUEUE, settlement_of
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.sqlite_support import claiming, real_connect, renewing, sqlite_store, submitting


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


def _queues_of_closings(folder: Path) -> list[str | None]:
    """A pause names its queue, a closing for a time has none."""
    with closing(real_connect(folder / "jobs.db")) as connection:
        rows = connection.execute("select queue from packhorse_shut order by queue")
        return [queue for (queue,) in rows]
