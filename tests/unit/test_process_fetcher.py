# SPDX-License-Identifier: MIT
"""When jobs are claimed for the processes of a worker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from packhorse.core.clock import SystemClock
from packhorse.runtime.worker.fetcher import Fetcher
from packhorse.runtime.worker.processes.messages import Setup
from packhorse.runtime.worker.processes.pool import ProcessLimits, ProcessPool
from packhorse.runtime.worker.processes.runner import ProcessFetcher, _pool
from packhorse.runtime.worker.shutdown import Shutdown
from packhorse.runtime.worker.slots import Slots
from packhorse.stores.requests import Claimed
from tests.worker.support import PATIENCE_S, worker_options


class Claims:
    """Answers every claim with nothing, and counts them."""

    finished = False
    may_look_ahead = True

    def __init__(self) -> None:
        self.limits: list[int] = []
        self.asked = asyncio.Event()

    async def claim_only(self, _tasks: tuple[str, ...], limit: int) -> Claimed:
        self.limits.append(limit)
        self.asked.set()
        return Claimed((), 0)


async def test_processes_claim_again_when_their_jobs_end_and_not_at_other_turns() -> None:
    claims, shutdown = Claims(), Shutdown()
    slots = Slots(asyncio.get_running_loop(), SystemClock(), 10)
    runtime = SimpleNamespace(
        fetcher=claims,
        slots=slots,
        shutdown=shutdown,
        options=SimpleNamespace(poll_interval_us=60_000_000),
        env=SimpleNamespace(middlewares=()),
    )
    pool = SimpleNamespace(limits=SimpleNamespace(slots=2))
    fetcher = ProcessFetcher(cast("Any", runtime), cast("Any", pool), ("apart",))
    claiming = asyncio.create_task(fetcher.run())
    await claims.asked.wait()

    slots.in_processes = 1
    for _ in range(100):  # turns in which other jobs ended
        fetcher.consider()
        await asyncio.sleep(0)
    assert claims.limits == [2]

    claims.asked.clear()
    slots.in_processes = 0
    fetcher.consider()
    await claims.asked.wait()
    assert claims.limits == [2, 2]

    # Claimed, and not begun before the next turn: they count as well.
    slots.waiting.append(cast("Any", SimpleNamespace(handler=SimpleNamespace(process=True))))
    claims.asked.clear()
    fetcher.wake()
    await claims.asked.wait()
    assert claims.limits == [2, 2, 1]

    claiming.cancel()


def test_wake_ups_and_turns_reach_the_claims_for_processes_too() -> None:
    told: list[str] = []
    fetcher: Any = Fetcher.__new__(Fetcher)
    fetcher.rotation, fetcher.urgency = SimpleNamespace(limited=()), SimpleNamespace(plain=True)
    fetcher._woken, fetcher._resting, fetcher._caps = asyncio.Event(), False, None
    fetcher._slots = SimpleNamespace(freed=False)
    fetcher.beside = SimpleNamespace(
        wake=lambda: told.append("wake"), consider=lambda: told.append("consider")
    )

    fetcher.wake()
    fetcher.consider()

    assert told == ["wake", "consider"]


async def test_waits_for_a_process_that_have_a_limit_end_when_they_are_turned_away() -> None:
    setup = Setup(app="a:app", folder="", path=(), main=None, worker="w", log_level=0)
    limits = ProcessLimits(slots=0, max_jobs=1, max_failures=1, recycle_mib=None)
    pool = ProcessPool(setup, limits, hopeless=lambda _why: None)
    acquiring = asyncio.create_task(pool.acquire(wait_s=600))
    resting = asyncio.create_task(pool.rest(600))
    patient = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0)

    pool.turn_away()

    await asyncio.wait_for(resting, PATIENCE_S)
    with pytest.raises(TimeoutError):
        await acquiring
    assert not patient.done()
    patient.cancel()


@pytest.mark.parametrize(("cpu_us", "cpu_s"), [(None, None), (7_500_000, 7), (10, 1)])
def test_a_process_may_use_the_processor_for_whole_seconds(
    cpu_us: int | None, cpu_s: int | None
) -> None:
    app = SimpleNamespace(folder="", modules=(), url="memory://")
    runtime: Any = SimpleNamespace(
        env=SimpleNamespace(app=app, origin="a:app"),
        options=worker_options(process_cpu_us=cpu_us),
        worker="w",
        leave_with=lambda _why: None,
    )

    assert _pool(runtime)._setup.cpu_s == cpu_s
