# SPDX-License-Identifier: MIT
"""Where a worker meets others: bounded buffers, producers that wait, and broken neighbours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from packhorse import Packhorse, RateLimited
from packhorse.core.job import JobStatus
from packhorse.errors import StoreUnavailable
from packhorse.runtime.worker.settler import BACKLOG_MAX
from packhorse.runtime.worker.slots import CLAIM_BATCH_MAX, LOOK_AHEAD_MAX
from tests.worker.support import Yard, until

#: Jobs that are there when the store begins to refuse what became of them.
MANY: Final = BACKLOG_MAX + 2 * CLAIM_BATCH_MAX
SLOTS: Final = 5
DEPTH: Final = 3
PRODUCED: Final = 30


@pytest.mark.req("S3-21")
async def test_what_a_worker_keeps_for_a_store_that_takes_nothing_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("packhorse.runtime.worker.store_health._FIRST_S", 0.002)
    refusing = True

    def weather(verb: str, moment: str) -> None:
        if refusing and verb == "settle" and moment == "before":
            raise StoreUnavailable("no settle today")

    yard = Yard(weather)
    ran = 0

    async def note() -> None:
        nonlocal ran
        ran += 1

    yard.task(note)
    jobs = [yard.submit("note") for _ in range(MANY)]
    async with yard.running(concurrency=SLOTS):
        await until(lambda: ran >= BACKLOG_MAX)
        before = -1
        while before < ran:  # it stands still once nothing more is claimed
            before = ran
            await asyncio.sleep(0.1)
        kept = ran
        refusing = False
        await until(lambda: ran == MANY)
        await until(lambda: yard.status(jobs[-1]) is JobStatus.COMPLETED)

    assert BACKLOG_MAX <= kept <= BACKLOG_MAX + SLOTS + LOOK_AHEAD_MAX
    assert {yard.status(job_id) for job_id in jobs} == {JobStatus.COMPLETED}
    assert ran == MANY  # and nothing was run again


@pytest.mark.req("S3-22")
def test_a_full_queue_makes_its_producer_wait_and_nothing_is_dropped_or_reordered() -> None:
    app = Packhorse("memory://")
    app.queue("narrow", max_depth=DEPTH, on_full="wait")
    ran: list[int] = []
    depths: list[int] = []
    waits: list[float] = []

    @app.task(queue="narrow")
    async def note(number: int) -> None:
        depths.append(app.depth("narrow"))
        ran.append(number)

    def produce() -> None:
        for number in range(PRODUCED):
            began = time.monotonic()
            note.using(wait="20s").enqueue(number)
            waits.append(time.monotonic() - began)

    with ThreadPoolExecutor(1) as pool:
        produced = pool.submit(produce)
        with pytest.raises(TimeoutError):
            produced.result(0.2)
        stood_at = len(waits)  # nobody has made room yet
        while not produced.done() or len(ran) < PRODUCED:
            app.run(["narrow"], concurrency=1, burst=True)
        produced.result()

    app.close()
    assert stood_at == DEPTH
    assert max(waits) > 0.1
    assert max(depths) <= DEPTH
    assert ran == list(range(PRODUCED))


class Breaker:
    """A circuit breaker as any library has one: open after some failures in a row, for a while."""

    def __init__(self, failures: int, open_s: float) -> None:
        self._failures_max = failures
        self._open_s = open_s
        self._failures = 0
        self._open_until = 0.0

    async def call(self, outside: Callable[[], Awaitable[str]]) -> str:
        left_s = self._open_until - time.monotonic()
        if left_s > 0:
            raise RateLimited(retry_after=left_s)
        try:
            answer = await outside()
        except ConnectionError:
            self._failures += 1
            if self._failures >= self._failures_max:
                self._open_until = time.monotonic() + self._open_s
                raise RateLimited(retry_after=self._open_s) from None
            raise
        self._failures = 0
        return answer


@pytest.mark.req("S3-31")
async def test_a_circuit_breaker_at_a_boundary_holds_its_jobs_back_and_burns_nothing() -> None:
    yard = Yard()
    breakers = {host: Breaker(failures=2, open_s=0.3) for host in ("sick", "well")}
    asked: list[tuple[str, float]] = []
    healed_at = time.monotonic() + 0.2

    async def fetch(host: str) -> str:
        async def outside() -> str:
            asked.append((host, time.monotonic()))
            if host == "sick" and time.monotonic() < healed_at:
                raise ConnectionError("nobody there")
            return "answer"

        return await breakers[host].call(outside)

    yard.task(fetch)
    sick = [yard.submit("fetch", {"host": "sick"}, rate_key="sick") for _ in range(20)]
    well = [yard.submit("fetch", {"host": "well"}, rate_key="well") for _ in range(5)]

    await yard.burst(concurrency=1)

    assert {yard.status(job_id) for job_id in [*sick, *well]} == {JobStatus.COMPLETED}
    while_sick = [at for host, at in asked if host == "sick" and at < healed_at]
    assert len(while_sick) == 2  # then nobody asked there until it was closed again
    assert sum(yard.job(job_id).counters.failures for job_id in sick) == 1  # the first of the two
    assert {yard.job(job_id).counters.attempts for job_id in well} == {1}
