# SPDX-License-Identifier: MIT
"""Claims limited to urgent jobs, as for reserved slots."""

from __future__ import annotations

from typing import Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import PRIORITY_BY_NAME, Priority
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.samples import QUEUE, new_job
from packhorse.testing.conformance.trial import Trial

_OF_LEVELS: Final = ("background", "low", "normal", "high", "critical")


class TestLevelsOfClaims:
    """With `levels`, a claim returns only jobs that are urgent enough."""

    @pytest.mark.req("S1-65")
    @pytest.mark.parametrize("concurrency", [None, 50])
    def test_only_jobs_of_a_level_are_given_and_the_others_stay(
        self, trial: Trial, concurrency: int | None
    ) -> None:
        trial.declare(QueueSettings(QUEUE, concurrency=concurrency))
        trial.submit(*(new_job(each, priority=PRIORITY_BY_NAME[each]) for each in _OF_LEVELS))
        trial.submit(new_job("tenant's", priority=0, tenant="acme"))

        urgent = trial.claim(levels={QUEUE: int(Priority.CRITICAL)})
        none = trial.claim(levels={QUEUE: int(Priority.CRITICAL)})
        more = trial.claim(levels={QUEUE: int(Priority.LOW), "other": 0}, limit=2)
        rest = trial.claim(levels={"other": 0})

        assert {job.id for job in urgent} == {"critical", "tenant's"}
        assert none == ()
        assert [job.id for job in more] == ["high", "normal"]
        assert [job.id for job in rest] == ["low", "background"]

    @pytest.mark.req("S1-65")
    def test_jobs_of_other_levels_do_not_use_up_the_limit(self, trial: Trial) -> None:
        trial.submit(*(new_job(f"normal {number}") for number in range(200)))
        trial.submit(new_job("first", priority=0), new_job("second", priority=0))

        assert [job.id for job in trial.claim(levels={QUEUE: 0}, limit=1)] == ["first"]
        assert [job.id for job in trial.claim(levels={QUEUE: 0}, limit=5)] == ["second"]

    @pytest.mark.req("S1-65")
    def test_a_queue_with_ageing_has_no_levels_and_gives_none(self, trial: Trial) -> None:
        trial.declare(QueueSettings(QUEUE, ageing_us=SECOND_US, fair=False))
        trial.submit(new_job("critical", priority=0))

        assert trial.claim(levels={QUEUE: 3}) == ()
        assert [job.id for job in trial.claim()] == ["critical"]

    @pytest.mark.req("S1-65")
    def test_suspects_are_given_whatever_their_level(self, trial: Trial) -> None:
        trial.make_suspect(new_job("job"))
        trial.renew()

        assert trial.ask(levels={QUEUE: 0}).suspects
