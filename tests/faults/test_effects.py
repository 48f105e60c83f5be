# SPDX-License-Identifier: MIT
"""The checker of effects finds each violation, and a short run of the rig finds none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from faults.checking.effects import RULES, Done, judge
from faults.effects import page, run
from tests.support.twins import ordinarily_on

INNOCENT: Final = Done(
    jobs=frozenset({"one", "two"}),
    completed=frozenset({"one", "two"}),
    rows=("one", "two"),
    outside=("two", "one"),
    steps=(
        ("ran", "one", "charge", "a"),
        ("ran", "one", "charge", "b"),  # the first was interrupted
        ("kept", "one", "charge", "b"),
        ("kept", "one", "charge", "b"),  # by a later attempt
        ("ran", "two", "charge", "c"),
        ("kept", "two", "charge", "c"),
    ),
)
PLANTED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "a job that did not end": ("not completed", {"jobs": frozenset({"one", "two", "three"})}),
    "a row that is gone": ("row of a transaction not once", {"rows": ("one",)}),
    "a row that is there twice": ("row of a transaction not once", {"rows": ("one", "two", "two")}),
    "a row without its completion": (
        "row of a transaction not once",
        {"completed": frozenset({"one"})},
    ),
    "two keys of one job": ("keyed effect not once", {"outside": ("one", "one", "two")}),
    "a step that ran again": (
        "kept step run again",
        {"steps": (*INNOCENT.steps, ("ran", "two", "charge", "d"))},
    ),
    "a step with two values": (
        "kept step run again",
        {"steps": (*INNOCENT.steps, ("kept", "two", "charge", "d"))},
    ),
}


def test_innocent_effects_are_found_innocent() -> None:
    verdict = judge(INNOCENT)

    assert verdict.clean
    assert verdict.unjudged == []


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_effect_is_found_by_its_rule(planted: str) -> None:
    rule, changes = PLANTED[planted]

    verdict = judge(msgspec.structs.replace(INNOCENT, **changes))

    assert rule in RULES
    assert verdict.findings[rule]


@pytest.mark.parametrize("store", ordinarily_on("sqlite", "postgres"))
def test_a_short_run_finds_nothing(store: str, tmp_path: Path) -> None:
    found = run(store, tmp_path / "run", kills=3, seed=1)

    assert found.verdict.clean, found.verdict.findings
    assert found.interrupted > 0
    assert "| kills | 3 |" in page([found])
