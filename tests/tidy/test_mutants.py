# SPDX-License-Identifier: MIT
"""`make mutants` changes code that is there, and judges it by tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.mutants import AREAS, Mutant, Trial, left_out_calls, page
from tests.tidy.budgets import ROOT


@pytest.mark.parametrize("area", AREAS)
def test_each_area_has_modules_and_tests(area: str) -> None:
    for pattern in AREAS[area].modules + AREAS[area].tests:
        assert list(ROOT.glob(pattern)), f"nothing is found by {pattern}"


def test_a_call_whose_answer_is_not_used_can_be_left_out() -> None:
    text = '"""Doc."""\nx = f()\nawait_me()\nasync def g():\n    await f()\n    return f()\n'

    assert [call.lineno for call in left_out_calls(text)] == [3, 5]


def test_the_report_counts_every_area_and_shows_what_survived() -> None:
    mutant = Mutant(Path("a.py"), "core/AddNot", 0, 7)
    trials = [
        Trial("one", mutant, "survived", "if x:", "if not x:"),
        Trial("one", mutant, "killed", "", ""),
    ]

    text = page(3, {"one": 9, "two": 4}, trials)

    assert "| one | 9 | 2 | 1 | 0 | 1 |" in text
    assert "| two | 4 | 0 | 0 | 0 | 0 |" in text
    assert "`a.py:7`, AddNot:" in text
    assert "None." in page(3, {"two": 4}, [])
