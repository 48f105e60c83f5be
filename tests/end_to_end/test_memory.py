# SPDX-License-Identifier: MIT
"""What a worker needs, and does by the clock, does not depend on how much waits."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any, Final

import pytest

from packhorse import Packhorse
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Renewal
from tests.end_to_end.support import World

FEW: Final = 2_000
MANY: Final = 20_000
#: What the two may differ by. One waiting job kept in memory would cost about 1 KiB, all 18 MiB; by
#: chance, and by what SQLite keeps of its pages, they differ by up to 5 MiB.
DIFFERENCE_KIB_MAX: Final = 8_192
#: Jobs the worker has run when it is looked at: enough to have claimed many times.
RUN: Final = 150
BATCH: Final = 1_000
#: Steps of SQLite's machine between two ticks of the counter, and what may differ by chance.
STEPS: Final = 50
TICKS_MAX: Final = 10


@pytest.mark.req("S2-19")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc, which Linux has")
def test_a_worker_with_ten_times_as_much_waiting_uses_no_more_memory(tmp_path: Path) -> None:
    peaks = {}
    for waiting in (FEW, MANY):
        world = World(tmp_path / str(waiting))
        try:
            with world.app() as app:
                fill(app, waiting)
                worker = world.worker("--concurrency", "4", "--log-level", "error")
                world.heard("end", times=RUN)

                peaks[waiting] = peak_kib(worker.pid)

                assert app.depth("default") > waiting // 2
        finally:
            world.end()

    assert abs(peaks[MANY] - peaks[FEW]) < DIFFERENCE_KIB_MAX, peaks


def test_what_a_worker_does_by_the_clock_costs_the_same_with_more_waiting(world: World) -> None:
    with world.app() as app:
        fill(app, FEW)
        before = ticks_by_verb(app)

        fill(app, MANY - FEW)

        after = ticks_by_verb(app)
        grown = {verb for verb, ticks in after.items() if ticks > before[verb] + TICKS_MAX}
        assert grown == set(), (before, after)


def fill(app: Packhorse, count: int) -> None:
    """Let so many jobs wait, each long enough that the worker does not get far."""
    nap = app.tasks["nap"]
    for _ in range(0, count, BATCH):
        app.enqueue_many([nap.call(0.05) for _ in range(BATCH)])


def peak_kib(pid: int) -> int:
    """The most memory a process has had resident so far."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


def ticks_by_verb(app: Packhorse) -> dict[str, int]:
    """How much SQLite has to do for each verb that workers repeat though nothing has changed."""
    store = app.store
    connection: sqlite3.Connection = store._local.own.runner._connection  # type: ignore[attr-defined]
    return {plan.verb: _ticks(store, plan, connection) for plan in _repeated(store, app)}


def _repeated(store: Store, app: Packhorse) -> list[Plan[Any]]:
    renewal = Renewal(
        worker="one", lease_us=30_000_000, queues=("default",), tasks=tuple(app.tasks), held=()
    )
    return [
        store.leases.renew(renewal),
        store.leases.cancelled("one"),
        store.leases.expired(),
        store.leases.orphans(("one",), limit=200),
        store.upkeep.promote(limit=1_000),
        store.upkeep.expire(limit=500),
        store.upkeep.prune(limit=500),
    ]


def _ticks(store: Store, plan: Plan[Any], connection: sqlite3.Connection) -> int:
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    connection.set_progress_handler(tick, STEPS)
    store.run(plan)
    connection.set_progress_handler(None, STEPS)
    return ticks
