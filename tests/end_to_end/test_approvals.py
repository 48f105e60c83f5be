# SPDX-License-Identifier: MIT
"""What a job has spent, and who approved it, over processes that are killed."""

from __future__ import annotations

from typing import Final

import pytest

from packhorse import JobStatus
from tests.end_to_end.support import World, here_and_in_process, until

OPTIONS: Final = ("--lease", "0.5s", "--concurrency", "1")


@pytest.mark.req("S0-14")
@pytest.mark.parametrize(("task", "store"), here_and_in_process("think", "redis"))
def test_what_was_spent_is_known_after_a_kill_and_stops_the_job_at_its_limit(
    world: World, task: str
) -> None:
    with world.app() as app:
        job = app.tasks[task].enqueue()
        worker = world.worker(*OPTIONS)

        def asks() -> bool:
            nonlocal worker
            if worker.poll() is not None:  # as a service manager would
                worker = world.worker(*OPTIONS)
            return job.explain().codes[0] == "needs_human"

        until("the question", asks)
        assert job.info().tokens_spent == 80  # 40 of them in the attempt that was killed
        assert job.approve(by="ada")
        until("the end", lambda: job.status().is_final)

        info = job.info()
        assert (info.status, info.tokens_spent) == (JobStatus.DEAD, 120)
        assert info.error is not None
        assert info.error.code == "BUDGET_EXCEEDED"
        assert [line.note for line in world.lines("start", job.id)] == ["0", "40", "80"]
