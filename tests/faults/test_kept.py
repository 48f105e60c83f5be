# SPDX-License-Identifier: MIT
"""The checker of what is kept beside jobs finds each violation, and none in an innocent history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from faults.checking.kept import RULES, Kept, judge
from packhorse.core.policies.attachments import Attachments

INNOCENT: Final = Kept(
    added=frozenset({"a-1", "a-2", "b-1"}),
    answered=frozenset({"a-1", "a-2"}),
    counted=2,
    attached=(("one", "1"),),
    delivered=(("one", "x"), ("two", "y")),
    there={
        "one": Attachments({"1": b"", "unanswered": b""}, {"s": (b"x",)}),
        "two": Attachments({}, {"s": (b"y", b"unanswered")}),
    },
)
PLANTED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "an answered addition that is not counted": ("record miscounted", {"counted": 1}),
    "an addition that is counted twice": ("record miscounted", {"counted": 4}),
    "a value that is gone": ("attached value lost", {"attached": (("one", "2"),)}),
    "a value whose job is gone": ("attached value lost", {"attached": (("three", "1"),)}),
    "a signal that is gone": ("signal lost or twice", {"delivered": (("one", "z"),)}),
    "a signal that came twice": (
        "signal lost or twice",
        {"there": {**INNOCENT.there, "two": Attachments({}, {"s": (b"y", b"y")})}},
    ),
}


def test_an_innocent_history_is_found_innocent() -> None:
    verdict = judge(INNOCENT)

    assert verdict.clean
    assert verdict.unjudged == []


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_violation_is_found_by_its_rule(planted: str) -> None:
    rule, changes = PLANTED[planted]

    verdict = judge(msgspec.structs.replace(INNOCENT, **changes))

    assert [name for name, found in verdict.findings.items() if found] == [rule]


def test_each_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _ in PLANTED.values()} == RULES.keys()
