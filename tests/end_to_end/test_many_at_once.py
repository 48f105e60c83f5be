# SPDX-License-Identifier: MIT
"""One worker process holds thousands of jobs that wait."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from packhorse import JobStatus, Packhorse
from tests.end_to_end.support import World
from tests.support.twins import STORES

JOBS: Final = 5_000


@pytest.mark.req("S2-29")
@pytest.mark.parametrize("store", STORES)
async def test_one_worker_holds_five_thousand_jobs_that_wait_at_once(world: World) -> None:
    app = Packhorse(world.url)
    go_on, running = asyncio.Event(), 0

    @app.task
    async def wait() -> None:
        nonlocal running
        running += 1
        if running == JOBS:  # only if all of them run at the same time
            go_on.set()
        await go_on.wait()

    handles = await app.aenqueue_many([wait.call() for _ in range(JOBS)])
    await app.arun(burst=True, concurrency=JOBS)

    assert running == JOBS
    assert await handles[-1].astatus() is JobStatus.COMPLETED
    await app.aclose()
