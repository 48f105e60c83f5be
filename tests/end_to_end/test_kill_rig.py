# SPDX-License-Identifier: MIT
"""Workers killed again and again lose nothing: a short version, and the long one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.end_to_end.kill_rig import Plan, Report, run_rig, table

STORES: Final = ("sqlite", "postgres", "redis")
SHORT: Final = Plan(kills=12, jobs=400, lease_s=2.0, seed=7)
LONG: Final = Plan(kills=200, jobs=5_000, lease_s=2.0, seed=7)


@pytest.mark.req("S2-3", "S2-4", "S3-26", "S1-42", "S1-44")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", STORES)
def test_a_dozen_kills_lose_nothing(tmp_path: Path, store: str) -> None:
    report = run_rig(tmp_path, SHORT, store)

    assert_clean(report)


@pytest.mark.slow
@pytest.mark.req("S2-3", "S2-4", "S3-26", "S1-42", "S1-44")
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("store", STORES)
def test_two_hundred_kills_lose_nothing(tmp_path: Path, store: str) -> None:
    report = run_rig(tmp_path, LONG, store)

    assert_clean(report)


def assert_clean(report: Report) -> None:
    assert report.verdict.clean, table(report)
    assert report.facts["jobs submitted"] == report.plan.jobs
    # Else the kills hit nobody, and nothing was shown.
    assert report.facts["runs cut off"] >= report.plan.kills // 2, table(report)
