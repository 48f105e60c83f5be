# SPDX-License-Identifier: MIT
"""Rate limits of queues, tenants, tasks and keys."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

import pytest
from hypothesis import given as over
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus, RateRule
from packhorse.core.policies.rate_limit import ALLOWANCE_US_MAX, RateLog, granted, next_free_us
from packhorse.core.policies.retention import DAY_US
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import ClaimRequest
from packhorse.testing.conformance.contention import at_once
from packhorse.testing.conformance.properties import a_few_examples
from packhorse.testing.conformance.samples import QUEUE, TASK, TIMEOUT_US, new_job
from packhorse.testing.conformance.trial import Trial, Trials
from packhorse.testing.conformance.words import (
    everywhere,
    given,
    limit_queue,
    limit_rate,
    limit_task,
    pass_until,
    submit,
)

_WINDOW_US: Final = 64 * SECOND_US
#: One slot of such a window: a grant may count this much longer.
_SLOT_US: Final = SECOND_US
_ONE: Final = RateRule(1, _WINDOW_US)
_TWO: Final = RateRule(2, _WINDOW_US)
#: More than any batch in which a store reads blocked jobs.
_MANY: Final = 150


class TestRates:
    """Rates are charged at the claim, by the store's clock; claims say when to ask again."""

    @everywhere
    @pytest.mark.req("S0-15", "S1-22", "X-12")
    def test_a_job_over_the_limit_is_not_given_and_burns_nothing(
        self, trial: Trial, where: str
    ) -> None:
        limit_rate(trial, where, _ONE)
        submit(trial, "a", "b")
        before = trial.picture("b")

        assert given(trial) == ["a"]

        assert given(trial) == []
        assert trial.picture("b") == before

    @everywhere
    def test_the_next_is_given_at_the_instant_told_and_not_before(
        self, trial: Trial, where: str
    ) -> None:
        limit_rate(trial, where, _TWO)
        submit(trial, "a", "b")
        trial.claim()
        trial.advance_us(10 * SECOND_US)
        submit(trial, "c")
        trial.renew(lease_us=10 * _WINDOW_US)

        told = trial.ask().next_due_us

        assert told == _oracle_us(trial.record("a").started_us, _TWO)
        pass_until(trial, told - 1)
        assert trial.ask().jobs == ()
        pass_until(trial, told)
        assert [job.id for job in trial.ask().jobs] == ["c"]

    @everywhere
    @a_few_examples
    @over(
        steps=st.lists(
            st.tuples(st.integers(0, 80_000_000), st.integers(1, 3), st.integers(1, 3)),
            min_size=1,
            max_size=8,
        ),
        most=st.integers(3, 5),
    )
    @pytest.mark.req("S1-22")
    def test_whenever_claims_come_no_window_holds_more_than_it_may(
        self, trials: Trials, where: str, steps: list[tuple[int, int, int]], most: int
    ) -> None:
        rule = RateRule(most, _WINDOW_US)
        with trials.fresh() as trial:
            limit_rate(trial, where, rule)
            expected: RateLog = ()
            starts: list[tuple[int, int]] = []
            for number, (span_us, weight, limit) in enumerate(steps):
                trial.advance_us(span_us)
                submit(trial, f"job-{number}", weight=weight)
                for job in trial.claim(limit=limit):
                    charged, now_us = trial.record(job.id).weight, trial.now_us()
                    assert next_free_us(expected, rule, charged, now_us) == now_us
                    expected = granted(expected, rule, charged, now_us)
                    starts.append((now_us, charged))
            _check_windows(starts, rule)

    @everywhere
    @pytest.mark.req("S1-66")
    def test_the_time_a_claim_allows_for_starting_is_counted_in(
        self, trial: Trial, where: str
    ) -> None:
        limit_rate(trial, where, _ONE)
        submit(trial, "a", "b")
        trial.renew(lease_us=10 * _WINDOW_US)
        claimed = trial.ask(limit=1, allowance_us=ALLOWANCE_US_MAX)
        started_us = trial.record("a").started_us

        told = trial.ask().next_due_us

        assert claimed.rated == {"a"}
        assert told == _oracle_us(started_us, _ONE, ALLOWANCE_US_MAX)
        pass_until(trial, told - 1)
        assert trial.ask().jobs == ()
        pass_until(trial, told)
        assert trial.ask().rated == {"b"}

    @everywhere
    @pytest.mark.req("S1-66")
    def test_claims_that_allow_more_and_less_are_counted_side_by_side(
        self, trial: Trial, where: str
    ) -> None:
        limit_rate(trial, where, _TWO)
        submit(trial, "a", "b", "c")
        trial.renew(lease_us=10 * _WINDOW_US)
        trial.ask(limit=1, allowance_us=ALLOWANCE_US_MAX)
        trial.ask(limit=1)

        told = trial.ask().next_due_us

        assert told == _oracle_us(trial.record("b").started_us, _ONE)
        pass_until(trial, told)
        assert [job.id for job in trial.ask().jobs] == ["c"]

    def test_a_job_that_no_rate_let_go_is_not_told_as_one(self, trial: Trial) -> None:
        limit_queue(trial, concurrency=1)
        limit_queue(trial, "rated", rate=_ONE)
        submit(trial, "a")
        submit(trial, "b", queue="rated")
        trial.renew()

        claimed = trial.ask(queues=(QUEUE, "rated"))

        assert [job.id for job in claimed.jobs] == ["a", "b"]
        assert claimed.rated == {"b"}

    @everywhere
    @a_few_examples
    @over(spans=st.lists(st.integers(0, 80_000_000), min_size=1, max_size=4))
    def test_a_worker_that_comes_when_told_is_given_a_job_and_none_before(
        self, trials: Trials, where: str, spans: list[int]
    ) -> None:
        with trials.fresh() as trial:
            limit_rate(trial, where, _TWO)
            submit(trial, *(str(number) for number in range(4 * len(spans))))
            for span_us in spans:
                trial.advance_us(span_us)
                trial.renew(lease_us=10 * _WINDOW_US)
                told = trial.ask().next_due_us
                assert told is not None
                pass_until(trial, told - 1)
                assert trial.ask().jobs == ()
                pass_until(trial, told)
                assert len(trial.ask(limit=1).jobs) == 1

    def test_a_grant_is_not_refunded_by_a_release(self, trial: Trial) -> None:
        limit_queue(trial, rate=_ONE)
        submit(trial, "a")
        (a,) = trial.claim()

        trial.end(a, SettlementKind.RELEASED)

        assert given(trial) == []

    def test_a_grant_is_not_refunded_by_a_rescue(self, trial: Trial) -> None:
        limit_queue(trial, rate=_ONE)
        submit(trial, "a", "b")
        trial.claim("lost")
        trial.let_lease_expire()

        trial.rescue("lost")

        assert given(trial) == []

    def test_a_limit_is_charged_by_the_claim_and_not_by_the_end(self, trial: Trial) -> None:
        limit_queue(trial, rate=_ONE)
        submit(trial, "a", "b")
        (a,) = trial.claim()
        trial.advance_us(_WINDOW_US + _SLOT_US)

        trial.end(a)

        assert given(trial) == ["b"]

    def test_a_full_claim_says_nothing_of_limits_that_others_would_meet(self, trial: Trial) -> None:
        limit_queue(trial, rate=_ONE)
        submit(trial, "a", "b")
        trial.renew()

        assert trial.ask(limit=1).next_due_us is None

    # ---------------------------------------------------------------------------- whose limit

    @pytest.mark.req("S0-16")
    def test_a_tenant_at_its_limit_does_not_delay_another(self, trial: Trial) -> None:
        limit_queue(trial, tenant_rate=_ONE, rate=RateRule(3, _WINDOW_US), fair=False)
        submit(trial, *(f"a{number}" for number in range(_MANY)), tenant="a")
        submit(trial, "b1", tenant="b")
        submit(trial, "nobodys")

        assert given(trial) == ["a0", "b1", "nobodys"]

    def test_a_tenant_has_a_limit_in_each_queue(self, trial: Trial) -> None:
        limit_queue(trial, "mail", tenant_rate=_ONE)
        limit_queue(trial, "reports", tenant_rate=_ONE)
        submit(trial, "m1", "m2", queue="mail", tenant="a")
        submit(trial, "r1", queue="reports", tenant="a")

        assert given(trial, queues=("mail", "reports")) == ["m1", "r1"]

    def test_each_rate_key_has_a_limit_of_its_own_and_so_have_those_without(
        self, trial: Trial
    ) -> None:
        limit_task(trial, rate=_ONE)
        submit(trial, "k1", "k2", rate_key="k")
        submit(trial, "l1", rate_key="l")
        submit(trial, "none1", "none2")

        assert given(trial) == ["k1", "l1", "none1"]

    def test_a_task_is_limited_over_all_queues(self, trial: Trial) -> None:
        limit_task(trial, rate=_ONE)
        submit(trial, "here", rate_key="k")
        submit(trial, "there", rate_key="k", queue="elsewhere")

        assert given(trial, queues=(QUEUE, "elsewhere")) == ["here"]
        assert given(trial, queues=("elsewhere",)) == []

    def test_claimers_at_once_never_exceed_a_limit(self, trials: Trials) -> None:
        with trials.fresh() as trial:
            limit_queue(trial, rate=RateRule(7, _WINDOW_US), tenant_rate=_TWO)
            limit_task(trial, rate=RateRule(3, _WINDOW_US))
            trial.submit(*(new_job(tenant=str(n % 5), rate_key=str(n % 3)) for n in range(60)))
            workers = [f"worker-{number}" for number in range(4)]
            for worker in workers:
                trial.renew(worker)
            stores = [trial.elsewhere() for _ in workers]

            answers = at_once(
                *(
                    partial(store.run, store.jobs.claim(_asking(worker)))
                    for store, worker in zip(stores, workers, strict=True)
                )
            )

            jobs = [job for answer in answers for job in answer.jobs]
            assert len(jobs) == 7
            assert max(Counter(job.tenant for job in jobs).values()) <= 2
            assert max(Counter(job.rate_key for job in jobs).values()) <= 3

    # ------------------------------------------------------------------------------- crowds

    @everywhere
    def test_after_the_window_as_many_go_as_may(self, trial: Trial, where: str) -> None:
        limit_rate(trial, where, RateRule(2 * _MANY, _WINDOW_US))
        submit(trial, *(str(number) for number in range(5 * _MANY)))
        assert len(trial.claim()) == 2 * _MANY
        trial.advance_us(_WINDOW_US + _SLOT_US)

        assert len(trial.claim(limit=_MANY)) == _MANY
        assert len(trial.claim()) == _MANY
        assert given(trial) == []

    def test_jobs_a_worker_does_not_know_do_not_keep_its_own_held_back(self, trial: Trial) -> None:
        limit_queue(trial, tenant_rate=_ONE)
        both = (TASK, "resize")
        submit(trial, "first")
        submit(trial, *(str(number) for number in range(_MANY)), task="resize")
        submit(trial, "mine")
        assert given(trial, tasks=both) == ["first"]
        assert given(trial, tasks=both) == []
        trial.advance_us(_WINDOW_US + _SLOT_US)

        assert given(trial, tasks=(TASK,)) == ["mine"]

    # ------------------------------------------------------------------------------- changes

    @everywhere
    def test_a_raised_limit_lets_more_go_at_once(self, trial: Trial, where: str) -> None:
        limit_rate(trial, where, _ONE)
        submit(trial, "a", "b")
        assert given(trial) == ["a"]
        assert given(trial) == []

        limit_rate(trial, where, _TWO)

        assert given(trial) == ["b"]

    @everywhere
    def test_after_the_clock_was_set_back_a_limit_frees_within_a_window(
        self, trial: Trial, where: str
    ) -> None:
        limit_rate(trial, where, _ONE)
        submit(trial, "a", "b")
        assert given(trial) == ["a"]

        trial.clock.step(-3600)
        assert given(trial) == []
        trial.advance_us(_WINDOW_US + _SLOT_US + ALLOWANCE_US_MAX)

        assert given(trial) == ["b"]

    def test_a_suspect_that_a_limit_holds_back_is_not_offered_yet(self, trial: Trial) -> None:
        limit_queue(trial, rate=RateRule(1, 3600 * SECOND_US))
        trial.make_suspect(new_job("suspect"))
        trial.renew(lease_us=2 * 3600 * SECOND_US)

        held_back = trial.ask()

        assert not held_back.suspects
        assert trial.ask(quarantine=True).jobs == ()
        assert held_back.next_due_us is not None
        pass_until(trial, held_back.next_due_us)
        assert trial.ask().suspects
        assert [job.id for job in trial.ask(quarantine=True).jobs] == ["suspect"]

    @pytest.mark.parametrize("window_us", [_WINDOW_US, 3 * DAY_US], ids=["short", "long"])
    @everywhere
    def test_upkeep_does_not_forget_what_still_counts(
        self, trial: Trial, where: str, window_us: int
    ) -> None:
        limit_rate(trial, where, RateRule(1, window_us))
        submit(trial, "a", "b")
        trial.claim()
        trial.advance_us(window_us - 1)

        trial.run(trial.store.upkeep.prune(limit=10))
        trial.run(trial.store.upkeep.promote(limit=10))

        assert given(trial) == []
        assert trial.status("b") is JobStatus.QUEUED

    @everywhere
    def test_what_upkeep_forgets_had_stopped_to_count(self, trial: Trial, where: str) -> None:
        limit_rate(trial, where, _ONE)
        submit(trial, "a", "b", "c")
        trial.claim()
        trial.advance_us(2 * DAY_US)
        trial.renew()

        trial.run(trial.store.upkeep.prune(limit=10))

        assert given(trial) == ["b"]
        assert given(trial) == []


def _asking(worker: str) -> ClaimRequest:
    return ClaimRequest(worker, (QUEUE,), (TASK,), 3, TIMEOUT_US)


def _oracle_us(started_us: int | None, rule: RateRule, allowance_us: int = 0) -> int:
    """Return when the older of two grants made at one instant no longer counts."""
    assert started_us is not None
    log = granted((), rule, rule.max, started_us, allowance_us=allowance_us)
    free_us = next_free_us(log, rule, 1, started_us)
    assert free_us is not None
    return free_us


def _check_windows(starts: list[tuple[int, int]], rule: RateRule) -> None:
    for begin_us, _ in starts:
        inside = [weight for at_us, weight in starts if 0 <= at_us - begin_us < rule.window_us]
        assert sum(inside) <= rule.max
