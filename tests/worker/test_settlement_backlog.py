# SPDX-License-Identifier: MIT
"""What a worker keeps for a store that takes nothing has a bound."""

from __future__ import annotations

from typing import Final

import pytest

from packhorse.core.job import JobStatus
from packhorse.errors import StoreUnavailable
from packhorse.runtime.worker.settler import BACKLOG_MAX
from packhorse.runtime.worker.slots import CLAIM_BATCH_MAX, LOOK_AHEAD_MAX
from tests.worker.support import Yard, turns, until

#: Jobs that are there when the store begins to refuse what became of them.
MANY: Final = BACKLOG_MAX + 2 * CLAIM_BATCH_MAX
SLOTS: Final = 5


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
    async with yard.running(concurrency=SLOTS) as worker:
        await until(lambda: ran >= BACKLOG_MAX)
        runtime = worker._runtime
        assert runtime is not None
        await until(lambda: not (runtime.slots.running or runtime.slots.waiting))
        kept = ran
        await turns()
        assert ran == kept  # nothing more is claimed
        refusing = False
        await until(lambda: ran == MANY)
        await until(lambda: yard.status(jobs[-1]) is JobStatus.COMPLETED)

    assert BACKLOG_MAX <= kept <= BACKLOG_MAX + SLOTS + LOOK_AHEAD_MAX
    assert {yard.status(job_id) for job_id in jobs} == {JobStatus.COMPLETED}
    assert ran == MANY  # and nothing was run again
