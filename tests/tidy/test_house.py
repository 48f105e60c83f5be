# SPDX-License-Identifier: MIT
"""The size of the house, as far as a machine can hold it, and the map that names its rooms."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter

import pytest

from scripts.house import CAPABILITIES, PACKAGE, Measure, measures, shares
from tests.tidy import budgets

#: Lines of the spine and of all today. The bound that `scripts.house` prints is where the spine is
#: to go; a change that needs more says in an ADR what it added, and why that was the least.
SPINE_LINES = 57_550
LINES = 88_300
#: Functions and files of each walk: what a job goes through, a reader reads.
WALKS = {
    "submit one": (32, 16),
    "claim to settled": (80, 20),
    "rate-limited, held back, let go": (130, 30),
}


@pytest.fixture(scope="module")
def house() -> dict[str, Measure]:
    return {measure.name: measure for measure in measures(PACKAGE)}


def test_the_house_keeps_its_size(house: dict[str, Measure]) -> None:
    too_much = [each for name, each in house.items() if "lines of" not in name and not each.is_met]

    assert too_much == []


def test_the_house_does_not_grow(house: dict[str, Measure]) -> None:
    assert house["lines of the spine"].value <= SPINE_LINES
    assert sum(share.lines for share in shares(PACKAGE)) <= LINES


def test_every_file_of_a_capability_is_there_and_no_other_claims_it() -> None:
    named = tomllib.loads(CAPABILITIES.read_text(encoding="utf-8"))["capability"]
    claims = Counter(file for share in shares(PACKAGE) for file in share.files)

    gone = [one for each in named for one in each["files"] if not any(PACKAGE.glob(one))]

    assert gone == []
    assert [file for file, times in claims.items() if times > 1] == []
    assert [
        each["adr"] for each in named if not any(budgets.ROOT.glob(f"docs/adr/{each['adr']:04}-*"))
    ] == []


def test_no_walk_through_the_house_grows() -> None:
    names = ("submit_one", "claim_to_settled", "rate_limited")
    walked = subprocess.run(  # its worker ends with the process
        [sys.executable, "-m", "scripts.house", *names],
        cwd=budgets.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    found = re.findall(r"^(.+): (\d+) / (\d+) / [\d,]+$", walked.stdout, re.MULTILINE)

    assert {name for name, _, _ in found} == WALKS.keys()
    assert [
        (name, functions, files)
        for name, functions, files in found
        if int(functions) > WALKS[name][0] or int(files) > WALKS[name][1]
    ] == []


def test_the_map_of_the_house_names_files_that_are_there() -> None:
    page = (budgets.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:\.py|/))`", page.split("## The picture")[0])

    missing = [name for name in named if "/" in name and not (PACKAGE / name).exists()]

    assert len(named) > len(missing)
    assert [name for name in missing if not name.startswith("docs/")] == []
