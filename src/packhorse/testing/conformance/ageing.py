# SPDX-License-Identifier: MIT
"""Queues with `ageing`: a job ranks higher the longer it has waited."""

from __future__ import annotations

from typing import Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus, Priority
from packhorse.core.settlement import SettlementKind
from packhorse.testing.conformance.samples import new_job
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.conformance.words import given, limit_queue, submit

_AGEING_US: Final = 10 * SECOND_US
_LEVELS: Final = Priority.BACKGROUND - Priority.CRITICAL


class TestAgeing:
    """Waiting for one `ageing` span counts as one level of priority."""

    @pytest.mark.req("S2-18")
    def test_low_work_finishes_under_endless_high_load(self, trial: Trial) -> None:
        _age(trial)
        submit(trial, "low", priority=Priority.BACKGROUND)

        for seconds in range(_LEVELS * 10 + 5):
            submit(trial, f"high-{seconds}", priority=Priority.CRITICAL)
            if "low" in given(trial, limit=1):
                break
            trial.advance_us(SECOND_US)

        assert trial.status("low") is JobStatus.PROCESSING
        assert _LEVELS * 10 <= seconds <= _LEVELS * 10 + 1

    @pytest.mark.req("S2-18")
    def test_without_it_low_work_waits_as_long_as_there_is_higher(self, trial: Trial) -> None:
        submit(trial, "low", priority=Priority.BACKGROUND)

        for seconds in range(_LEVELS * 10 + 5):
            submit(trial, f"high-{seconds}", priority=Priority.CRITICAL)
            assert given(trial, limit=1) == [f"high-{seconds}"]
            trial.advance_us(SECOND_US)

    @pytest.mark.parametrize("level", [Priority.HIGH, Priority.LOW, Priority.BACKGROUND])
    def test_one_span_is_one_level(self, trial: Trial, level: Priority) -> None:
        _age(trial)
        submit(trial, "waits", priority=level)
        trial.advance_us(_AGEING_US - 1)
        submit(trial, "too soon", priority=level - 1)
        trial.advance_us(2)
        submit(trial, "too late", priority=level - 1)

        assert given(trial) == ["too soon", "waits", "too late"]

    def test_of_one_priority_the_first_come_go_first(self, trial: Trial) -> None:
        _age(trial)
        submit(trial, "a", "b")
        trial.advance_us(1)
        submit(trial, "c")

        assert given(trial) == ["a", "b", "c"]

    def test_age_counts_from_when_a_job_became_ready(self, trial: Trial) -> None:
        _age(trial)
        submit(trial, "delayed", priority=Priority.LOW, delay_us=_AGEING_US)
        trial.advance_us(_AGEING_US)
        submit(trial, "normal")

        assert given(trial) == ["normal", "delayed"]

    def test_a_job_given_back_keeps_its_age(self, trial: Trial) -> None:
        _age(trial)
        submit(trial, "low", priority=Priority.LOW)
        (low,) = trial.claim()
        trial.advance_us(_AGEING_US + 1)
        trial.end(low, SettlementKind.RELEASED)
        submit(trial, "normal")

        assert given(trial) == ["low", "normal"]

    def test_a_job_that_waits_again_begins_to_age_again(self, trial: Trial) -> None:
        _age(trial)
        submit(trial, "low", priority=Priority.LOW)
        (low,) = trial.claim()
        trial.end(low, SettlementKind.FAILED)
        trial.advance_us(60 * SECOND_US)
        submit(trial, "normal")

        assert given(trial) == ["normal", "low"]

    def test_tenants_count_for_nothing_where_jobs_age(self, trial: Trial) -> None:
        _age(trial)
        trial.submit(*(new_job(f"big-{number}", tenant="big") for number in range(5)))
        submit(trial, "small", tenant="small")

        assert given(trial)[-1] == "small"

    def test_jobs_that_are_ready_keep_their_rank_when_a_queue_begins_to_age(
        self, trial: Trial
    ) -> None:
        submit(trial, "background", priority=Priority.BACKGROUND)
        submit(trial, "normal")
        _age(trial)
        submit(trial, "critical", priority=Priority.CRITICAL)

        assert given(trial) == ["normal", "background", "critical"]

    def test_jobs_that_are_ready_keep_their_rank_when_a_queue_ages_no_more(
        self, trial: Trial
    ) -> None:
        _age(trial)
        submit(trial, "critical", priority=Priority.CRITICAL)
        limit_queue(trial)
        submit(trial, "background", priority=Priority.BACKGROUND)

        assert given(trial) == ["background", "critical"]


def _age(trial: Trial) -> None:
    limit_queue(trial, fair=False, ageing_us=_AGEING_US)
