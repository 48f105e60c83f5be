# SPDX-License-Identifier: MIT
"""The checker of schedules finds each violation, and a short run of the rig finds none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from faults.checking.schedules import RULES, Fires, TimeTable, judge
from faults.schedules import page, run

INNOCENT: Final = Fires(
    schedules={"a": TimeTable(10, 100, 125), "b": TimeTable(50, 0, 60)},
    jobs=(("a", 110), ("b", 50), ("a", 120)),
)
PLANTED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "a fire that is gone": ("fire missing", {"jobs": (("a", 110), ("b", 50))}),
    "a fire that is there twice": ("fire doubled", {"jobs": (*INNOCENT.jobs, ("a", 120))}),
    "a fire between two": ("fire that was not due", {"jobs": (*INNOCENT.jobs, ("a", 115))}),
    "a fire of no schedule": ("fire that was not due", {"jobs": (*INNOCENT.jobs, ("c", 1))}),
    "a job that did not end": ("not completed", {"open": ("one",)}),
}


def test_innocent_fires_are_found_innocent() -> None:
    verdict = judge(INNOCENT)

    assert verdict.clean
    assert verdict.unjudged == []


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_fire_is_found_by_its_rule(planted: str) -> None:
    rule, changes = PLANTED[planted]

    verdict = judge(msgspec.structs.replace(INNOCENT, **changes))

    assert rule in RULES
    assert verdict.findings[rule]


def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    found = run("sqlite", tmp_path / "run", kills=3, seed=1)

    assert found.verdict.clean, found.verdict.findings
    assert found.fires > 0
    assert "| kills | 3 |" in page([found])
