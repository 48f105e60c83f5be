# SPDX-License-Identifier: MIT
"""Workers under faults keep every promise: a short version for each store, and the long one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from faults import report
from faults.collecting import Findings
from faults.plan import Plan
from faults.records import RECORDS_VARIABLE
from faults.rig import run_rig

STORES: Final = ("sqlite", "postgres", "redis")
SHORT_FAULTS: Final = 12
LONG_FAULTS: Final = 200
#: No lost job, fenced, no limit or order broken; see the rules in `faults/checking`.
REQUIREMENTS: Final = (
    *("S0-15", "S0-18", "S0-24", "S1-21", "S1-22", "S1-42", "S1-44", "S1-45", "S1-46"),
    *("S2-3", "S2-4", "S2-15", "S2-24", "S3-26", "S3-28"),
)
#: They judge only rates that were used up.
RATE_RULES: Final = frozenset({"too many granted", "too many begun"})

Run = Callable[[Plan], Findings]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv(RECORDS_VARIABLE, str(tmp_path / "records"))
    return lambda plan: run_rig(tmp_path, plan)


@pytest.mark.req(*REQUIREMENTS)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", STORES)
def test_a_dozen_faults_break_no_promise(run: Run, store: str) -> None:
    found = run(Plan(store, SHORT_FAULTS, seed=7, layout="sp", peace_s=0.4))

    assert_clean(found)


@pytest.mark.slow
@pytest.mark.req(*REQUIREMENTS)
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("store", STORES)
def test_two_hundred_faults_break_no_promise(run: Run, store: str) -> None:
    found = run(Plan(store, LONG_FAULTS, seed=7))

    assert_clean(found)
    went_on = found.facts["handlers that went on after their job was taken"]
    assert went_on + found.facts["stale writes refused"] > 0, told(found)
    assert found.facts["runs cut off"] > 0, told(found)
    assert "left behind" not in found.verdict.unjudged, told(found)


def assert_clean(found: Findings) -> None:
    # How soon is for the long runs to say: here everything may take its time.
    broken = {name: number for name, number in found.verdict.counts.items() if number}
    assert set(broken) <= {"taken back late", "run again late"}, told(found)
    # Else nothing was disturbed, and nothing was shown.
    assert len(found.faults) == found.plan.faults
    assert found.facts["jobs"] > found.plan.faults, told(found)
    assert found.facts["submits deduplicated"] > 0, told(found)
    assert found.facts["submits refused as full"] > 0, told(found)
    assert not RATE_RULES & set(found.verdict.unjudged), told(found)


def told(found: Findings) -> str:
    return "\n".join(report.lines(found))
