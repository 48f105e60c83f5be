# SPDX-License-Identifier: MIT
"""One worker process holds thousands of jobs that wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from packhorse import JobStatus, Packhorse

JOBS: Final = 5_000


@pytest.mark.req("S2-29")
async def test_one_worker_holds_five_thousand_jobs_that_wait_at_once(tmp_path: Path) -> None:
    app = Packhorse(f"sqlite:///{tmp_path}/jobs.db")
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
