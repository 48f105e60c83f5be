# SPDX-License-Identifier: MIT
"""The size of the house, as far as a machine can hold it, and the map that names its rooms."""

from __future__ import annotations

import re

import pytest

from scripts.house import PACKAGE, Measure, measures
from tests.tidy import budgets

#: Lines of the core today. The bound that `scripts.house` prints is where they are to go; a change
#: that needs more says in an ADR what it added, and why that was the least.
CORE_LINES = 86_900


@pytest.fixture(scope="module")
def house() -> dict[str, Measure]:
    return {measure.name: measure for measure in measures(PACKAGE)}


def test_the_house_keeps_its_size(house: dict[str, Measure]) -> None:
    too_much = [each for name, each in house.items() if name != "core lines" and not each.is_met]

    assert too_much == []


def test_the_core_does_not_grow(house: dict[str, Measure]) -> None:
    assert house["core lines"].value <= CORE_LINES


def test_the_map_of_the_house_names_files_that_are_there() -> None:
    page = (budgets.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", page.split("## The picture")[0])

    missing = [name for name in named if "/" in name and not (PACKAGE / name).exists()]

    assert len(named) > len(missing)
    assert [name for name in missing if not name.startswith("docs/")] == []
