# SPDX-License-Identifier: MIT
"""Every limit holds over four workers that are killed at random: a short version, and the long."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.end_to_end.contested import KILL_EACH_S, Plan, Report, run_contest, table

SHORT: Final = Plan(seconds=10.0, seed=3)
LONG: Final = Plan(seconds=60.0, seed=3)
REQUIREMENTS: Final = ("S0-15", "S0-18", "S0-24", "S1-21", "S1-22", "S2-15", "S2-24")


@pytest.mark.req(*REQUIREMENTS)
@pytest.mark.timeout(240)
def test_every_limit_holds_for_ten_seconds_of_contention(tmp_path: Path) -> None:
    report = run_contest(tmp_path, SHORT)

    assert_clean(report)


@pytest.mark.slow
@pytest.mark.req(*REQUIREMENTS)
@pytest.mark.timeout(600)
def test_every_limit_holds_for_a_minute_of_contention(tmp_path: Path) -> None:
    report = run_contest(tmp_path, LONG)

    assert_clean(report)
    assert report.facts["stale writes refused"] + report.facts["stale attempts"] > 0, table(report)


def assert_clean(report: Report) -> None:
    assert report.verdict.clean, table(report)
    facts = report.facts
    # Else there was no contention, and nothing was shown.
    assert facts["kills"] >= report.plan.seconds // KILL_EACH_S, table(report)
    assert facts["runs cut off"] > 0, table(report)
    assert facts["deduplicated"] > 0, table(report)
    assert facts["refused as full"] > 0, table(report)
    assert facts["met a limit elsewhere"] > 0, table(report)
    assert facts["queue capped"] == "3 of 3", table(report)
