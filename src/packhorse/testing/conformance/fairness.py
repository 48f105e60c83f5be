# SPDX-License-Identifier: MIT
"""Tenants share a queue by weight, however many jobs one of them has waiting."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Priority
from packhorse.core.settlement import SettlementKind
from packhorse.testing.conformance.samples import new_job, settlement_of
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.conformance.words import given, limit_queue, redrive, submit

#: Jobs of a tenant that has very many, and of one that has few.
_MANY: Final = 2_000
_FEW: Final = 10
#: All jobs of the second tenant must be among this many next starts.
_SOON: Final = 2 * _FEW + 4


class TestFairness:
    """A job gets a pass (virtual time) when it becomes ready; the lowest pass goes first."""

    def test_the_few_jobs_of_one_start_among_the_very_many_of_another(self, trial: Trial) -> None:
        _fill(trial, "big", _MANY)
        trial.claim(limit=100)

        _fill(trial, "small", _FEW)

        assert _shares(trial, _SOON)["small"] == _FEW

    def test_also_when_the_few_came_first(self, trial: Trial) -> None:
        _fill(trial, "small", _FEW)
        _fill(trial, "big", _MANY)

        assert _shares(trial, _SOON)["small"] == _FEW

    @pytest.mark.parametrize("urgent", ["small", "big"])
    def test_a_critical_job_costs_its_tenant_nothing_among_the_others(
        self, trial: Trial, urgent: str
    ) -> None:
        submit(trial, "urgent", tenant=urgent, priority=Priority.CRITICAL)
        assert given(trial) == ["urgent"]
        _fill(trial, "big", _MANY)
        _fill(trial, "small", _FEW)

        assert _shares(trial, _SOON)["small"] == _FEW

    def test_delayed_jobs_share_like_others_when_they_become_due(self, trial: Trial) -> None:
        _fill(trial, "big", _MANY, delay_us=SECOND_US)
        _fill(trial, "small", _FEW, delay_us=2 * SECOND_US)
        trial.advance_us(2 * SECOND_US)
        trial.run(trial.store.upkeep.promote(limit=10 * _MANY))

        assert _shares(trial, _SOON)["small"] == _FEW

    def test_delayed_jobs_do_not_get_before_those_that_came_while_they_waited(
        self, trial: Trial
    ) -> None:
        _fill(trial, "big", _MANY, delay_us=SECOND_US)
        _fill(trial, "small", _FEW)
        trial.advance_us(SECOND_US)

        assert _shares(trial, _SOON)["small"] == _FEW

    def test_redriven_jobs_share_like_others(self, trial: Trial) -> None:
        _fill(trial, "big", _MANY // 10)
        jobs = trial.claim()
        trial.settle(*(settlement_of(SettlementKind.DEAD, job) for job in jobs))
        trial.run(trial.store.jobs.redrive([job.id for job in jobs]))

        _fill(trial, "small", _FEW)

        assert _shares(trial, _SOON)["small"] == _FEW

    def test_retries_share_like_others(self, trial: Trial) -> None:
        _fill(trial, "big", _MANY // 10)
        jobs = trial.claim()
        trial.settle(*(settlement_of(SettlementKind.FAILED, job) for job in jobs))
        trial.advance_us(3600 * SECOND_US)

        _fill(trial, "small", _FEW)

        assert _shares(trial, _SOON)["small"] == _FEW

    def test_a_tenant_that_comes_late_has_no_claim_on_what_it_missed(self, trial: Trial) -> None:
        _fill(trial, "early", 300)
        trial.claim(limit=100)
        _fill(trial, "late", 100)

        shares = _shares(trial, 100)

        assert 49 <= shares["late"] <= 51

    def test_nor_after_the_jobs_claimed_before_it_came_have_ended(self, trial: Trial) -> None:
        _fill(trial, "early", 300)
        jobs = trial.claim(limit=100)
        trial.settle(*(settlement_of(SettlementKind.COMPLETED, job) for job in jobs))
        _fill(trial, "late", 100)

        shares = _shares(trial, 100)

        assert 49 <= shares["late"] <= 51

    def test_nor_when_nothing_of_the_others_waits(self, trial: Trial) -> None:
        _fill(trial, "early", 100)
        jobs = trial.claim(limit=100)
        trial.settle(*(settlement_of(SettlementKind.COMPLETED, job) for job in jobs))
        _fill(trial, "late", 50)
        _fill(trial, "early", 50, "again")

        shares = _shares(trial, 50)

        assert 24 <= shares["late"] <= 26

    def test_tenants_share_by_weight(self, trial: Trial) -> None:
        limit_queue(trial, weights={"gold": 3})
        _fill(trial, "gold", 200)
        _fill(trial, "plain", 200)

        assert _shares(trial, 80) == Counter(gold=60, plain=20)

    def test_jobs_without_a_tenant_share_as_one(self, trial: Trial) -> None:
        _fill(trial, "", 100)
        _fill(trial, "a", 100)
        _fill(trial, "b", 100)

        assert _shares(trial, 90) == {"": 30, "a": 30, "b": 30}

    def test_a_priority_is_not_overtaken_by_a_smaller_share(self, trial: Trial) -> None:
        _fill(trial, "big", 50)
        _fill(trial, "small", 2, priority=Priority.LOW)

        assert _shares(trial, 50) == {"big": 50}

    def test_in_one_tenant_the_first_come_go_first(self, trial: Trial) -> None:
        _fill(trial, "a", 5)
        _fill(trial, "b", 5)

        mine = [name for name in given(trial) if name.startswith("a")]

        assert mine == [f"a-{number}" for number in range(5)]

    @pytest.mark.parametrize("kind", [SettlementKind.RELEASED, SettlementKind.LIMITED])
    def test_a_job_given_back_keeps_its_turn(self, trial: Trial, kind: SettlementKind) -> None:
        _fill(trial, "a", 3)
        (first,) = trial.claim(limit=1)
        _fill(trial, "b", 3)

        trial.end(first, kind)
        trial.advance_us(10 * SECOND_US)

        assert given(trial, limit=1) == [first.id]

    def test_shares_of_queues_are_apart(self, trial: Trial) -> None:
        _fill(trial, "a", 20, queue="elsewhere")
        trial.claim(queues=("elsewhere",))
        _fill(trial, "a", 10, prefix="here")
        _fill(trial, "b", 10)

        assert _shares(trial, 10) == {"a": 5, "b": 5}

    def test_in_a_queue_that_is_not_fair_the_first_come_go_first(self, trial: Trial) -> None:
        limit_queue(trial, fair=False)
        _fill(trial, "big", 100)
        _fill(trial, "small", _FEW)

        assert _shares(trial, 100) == Counter(big=100)

    def test_jobs_that_are_ready_keep_their_rank_when_a_queue_becomes_fair(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, fair=False)
        _fill(trial, "big", 10)
        limit_queue(trial)
        _fill(trial, "big", 5, prefix="later")
        _fill(trial, "small", 5)

        assert _shares(trial, 10)["big"] >= 9
        assert _shares(trial, 4) == {"big": 2, "small": 2}

    def test_changed_weights_rank_those_that_become_ready_from_then_on(self, trial: Trial) -> None:
        _fill(trial, "a", 10)
        _fill(trial, "b", 10)
        limit_queue(trial, weights={"a": 1000})

        assert _shares(trial, 10) == {"a": 5, "b": 5}

    def test_a_hurried_job_shares_like_others(self, trial: Trial) -> None:
        _fill(trial, "big", 100)
        submit(trial, "hurried", tenant="small", delay_us=3600 * SECOND_US)

        redrive(trial, "hurried")

        assert "hurried" in given(trial, limit=4)


def _fill(trial: Trial, tenant: str, count: int, prefix: str | None = None, **changes: Any) -> None:
    """Submit this number of jobs for a tenant."""
    name = tenant if prefix is None else prefix
    trial.submit(*(new_job(f"{name}-{n}", tenant=tenant, **changes) for n in range(count)))


def _shares(trial: Trial, limit: int) -> Counter[str]:
    """Count the next jobs by tenant."""
    return Counter(job.tenant for job in trial.claim(limit=limit))
