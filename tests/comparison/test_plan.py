# SPDX-License-Identifier: MIT
"""The schedule of the comparison: the same for everybody, and within its bounds."""

from __future__ import annotations

import pytest

from comparison import plan
from comparison.result import Settings


def test_a_seed_gives_the_same_jobs_and_faults_every_time() -> None:
    assert plan.jobs(3, 90) == plan.jobs(3, 90)
    assert plan.faults(3, 90) == plan.faults(3, 90)
    assert plan.faults(3, 90) != plan.faults(4, 90)
    assert plan.jobs(3, 90) != plan.jobs(4, 90)


def test_the_published_schedule_has_eight_kills_and_two_pauses() -> None:
    kinds = [fault.kind for fault in plan.faults(1, Settings().seconds)]

    assert (kinds.count("kill"), kinds.count("pause")) == (8, 2)
    assert plan.pause_seconds(Settings().seconds) == 45


@pytest.mark.parametrize("seconds", [60, 90, 180, 600])
@pytest.mark.parametrize("seed", range(20))
def test_a_worker_is_never_hit_while_it_is_away(seed: int, seconds: int) -> None:
    back = [0.0] * plan.WORKERS

    for fault in plan.faults(seed, seconds):
        assert fault.at >= back[fault.worker]
        back[fault.worker] = fault.at + fault.seconds

    assert max(back) <= seconds, "and all are back when the schedule ends"


def test_no_job_takes_longer_than_the_quick_settings_allow() -> None:
    assert max(job.seconds for job in plan.jobs(1, 600)) <= 8
