# SPDX-License-Identifier: MIT
"""Steps of a job whose process is killed: those that were kept are not run again."""

from __future__ import annotations

from typing import Final

import pytest

from packhorse import JobStatus
from tests.end_to_end.support import World, here_and_in_process, until

OPTIONS: Final = ("--lease", "0.5s", "--concurrency", "1")


@pytest.mark.parametrize(("task", "store"), here_and_in_process("pay", "postgres"))
def test_a_kept_step_is_run_once_whenever_its_process_is_killed(world: World, task: str) -> None:
    with world.app() as app:
        job = app.tasks[task].enqueue()
        worker = world.worker(*OPTIONS)

        def ended() -> bool:
            nonlocal worker
            if worker.poll() is not None:  # as a service manager would
                worker = world.worker(*OPTIONS)
            return job.status().is_final

        until("the job", ended)

        assert job.status() is JobStatus.COMPLETED
        assert job.result() == ["reserve", "charge", "mail"]
        # The one that was interrupted runs again, and says so twice.
        steps = [line.note for line in world.lines("step", job.id)]
        assert steps == ["reserve", "charge", "mail", "mail"]
        assert [step.name for step in job.info().steps] == ["reserve", "charge", "mail"]
