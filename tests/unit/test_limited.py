# SPDX-License-Identifier: MIT
"""A handler that met the limit of another system: nothing failed, nothing is used up."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus
from packhorse.core.lifecycle import JobRules, attempt_status, resolve, settle
from packhorse.core.outcome import Limited
from packhorse.core.policies.retention import Retention
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.errors import ConfigError
from packhorse.signals import JobSignal, RateLimited
from tests.unit.test_lifecycle import running


def settled() -> Settlement:
    return settle(running(failures=2), Limited(5 * SECOND_US), JobRules(), roll=0.5)


def test_a_limited_job_is_given_back_in_its_place_and_closes_its_gate() -> None:
    assert settled() == Settlement(
        job_id="job",
        fence=7,
        kind=SettlementKind.LIMITED,
        status=JobStatus.QUEUED,
        keep_place=True,
        releases=1,
        keep_us=Retention().finished_us,
        result_keep_us=Retention().results_us,
        limit_us=5 * SECOND_US,
    )


def test_a_limited_attempt_is_shown_like_a_released_one() -> None:
    resolved = resolve(settled(), cancel_requested=False, deadline_us=None, now_us=1)

    assert (resolved.status, resolved.verdict) == (JobStatus.QUEUED, Verdict.APPLIED)
    assert attempt_status(settled(), resolved) == (JobStatus.QUEUED, True)


def test_a_rate_limited_signal_carries_its_span_in_microseconds() -> None:
    signal = RateLimited(retry_after="1m30s")

    assert isinstance(signal, JobSignal)
    assert signal.retry_after_us == 90 * SECOND_US
    with pytest.raises(ConfigError, match="retry_after"):
        RateLimited(retry_after="soon")
