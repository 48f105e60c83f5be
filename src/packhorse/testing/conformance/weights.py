# SPDX-License-Identifier: MIT
"""Weights of jobs under a rate: heavy jobs use more, and light ones do not overtake them."""

from __future__ import annotations

from typing import Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import RateRule
from packhorse.errors import ConfigError
from packhorse.testing.conformance.samples import TASK, new_job
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.conformance.words import (
    everywhere,
    given,
    limit_queue,
    limit_rate,
    limit_task,
    submit,
)

_WINDOW_US: Final = 64 * SECOND_US
_SLOT_US: Final = SECOND_US
_ONE: Final = RateRule(1, _WINDOW_US)
_TWO: Final = RateRule(2, _WINDOW_US)


class TestWeights:
    """A rate limits the sum of weights; the default weight is 1."""

    def test_a_job_uses_up_its_weight(self, trial: Trial) -> None:
        limit_queue(trial, rate=RateRule(3, _WINDOW_US))
        submit(trial, "heavy", weight=2)
        submit(trial, "light", "too_much")

        assert given(trial) == ["heavy", "light"]

    @everywhere
    def test_a_heavy_job_is_not_overtaken_by_light_ones(self, trial: Trial, where: str) -> None:
        limit_rate(trial, where, _TWO)
        submit(trial, "first")
        submit(trial, "heavy", weight=2)
        submit(trial, "light")
        assert given(trial) == ["first"]
        assert given(trial) == []

        trial.advance_us(_WINDOW_US + _SLOT_US)

        assert given(trial) == ["heavy"]

    def test_a_heavy_job_of_another_task_is_not_overtaken_either(self, trial: Trial) -> None:
        limit_queue(trial, tenant_rate=_TWO)
        both = (TASK, "resize")
        submit(trial, "first")
        submit(trial, "heavy", weight=2, task="resize")
        assert given(trial, tasks=both) == ["first"]
        submit(trial, "light")

        assert given(trial, tasks=both) == []

    def test_who_does_not_know_the_heavy_job_is_given_the_light_one(self, trial: Trial) -> None:
        limit_queue(trial, tenant_rate=_TWO)
        submit(trial, "first")
        submit(trial, "heavy", weight=2, task="resize")
        submit(trial, "light")
        assert given(trial, tasks=(TASK, "resize")) == ["first"]

        assert given(trial, tasks=(TASK,)) == ["light"]

    @everywhere
    def test_a_weight_that_never_fits_is_refused_and_nothing_is_stored(
        self, trial: Trial, where: str
    ) -> None:
        limit_rate(trial, where, _TWO)

        with pytest.raises(ConfigError, match="weight"):
            trial.submit(new_job("fine"), new_job("heavy", weight=3))

        assert trial.search() == []

    @pytest.mark.parametrize("weight", [0, -1])
    def test_a_weight_that_means_nothing_is_refused(self, trial: Trial, weight: int) -> None:
        with pytest.raises(ConfigError, match="weight"):
            trial.submit(new_job(weight=weight))

    def test_the_weight_of_a_known_job_is_not_looked_at(self, trial: Trial) -> None:
        limit_queue(trial, rate=_TWO)
        submit(trial, "known")

        (answer,) = trial.submit(new_job("known", weight=3))

        assert answer.deduplicated

    @everywhere
    def test_a_job_that_a_lowered_limit_can_never_let_in_blocks_no_other(
        self, trial: Trial, where: str
    ) -> None:
        limit_rate(trial, where, _TWO)
        submit(trial, "heavy", weight=2)
        submit(trial, "light")

        limit_rate(trial, where, _ONE)

        assert given(trial) == ["light"]
        limit_rate(trial, where, RateRule(9, _WINDOW_US))
        assert given(trial) == ["heavy"]

    @pytest.mark.req("S0-16")
    def test_a_heavy_job_of_a_tenant_at_its_limit_does_not_close_its_tasks_limit(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, tenant_rate=_TWO)
        limit_task(trial, rate=RateRule(4, _WINDOW_US))
        submit(trial, "a1", tenant="a", weight=2)
        submit(trial, "b1", tenant="b")
        assert given(trial) == ["a1", "b1"]
        submit(trial, "a2", tenant="a", weight=2)
        submit(trial, "b2", tenant="b")

        assert given(trial) == ["b2"]

    def test_who_has_used_up_a_limit_of_his_own_does_not_close_the_whole_queue(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, rate=RateRule(3, _WINDOW_US), tenant_rate=_TWO)
        submit(trial, "a1", tenant="a")
        submit(trial, "a2", tenant="a", weight=2)
        submit(trial, "b1", tenant="b", weight=2)

        assert given(trial) == ["a1", "b1"]
