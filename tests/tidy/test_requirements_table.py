# SPDX-License-Identifier: MIT
"""The requirements table reads marks wherever a test may carry them, and knows every number."""

from __future__ import annotations

import textwrap

import pytest

from scripts import requirements_table
from scripts.requirements_table import Mark, Requirement, marks_of_source


def marks(source: str) -> set[tuple[str, str]]:
    found = marks_of_source(textwrap.dedent(source), "t.py")
    return {(mark.number, mark.test) for mark in found}


def test_every_number_a_test_carries_is_a_requirement() -> None:
    page = requirements_table.REQUIREMENTS.read_text(encoding="utf-8")
    requirements = requirements_table.read_requirements(page)
    found = requirements_table.read_marks(requirements_table.TEST_FOLDERS, requirements_table.ROOT)

    assert len(requirements) == len({requirement.number for requirement in requirements})
    assert requirements_table.unknown_marks(requirements, found) == []


def test_sentences_and_settled_points_are_requirements() -> None:
    page = "- S1-42 A task waits. [src]\n\nS1-43 is not one.\n\n| X-7 | Lease | both | renew |\n"

    assert requirements_table.read_requirements(page) == [
        Requirement("S1-42", "A task waits. [src]"),
        Requirement("X-7", "Lease"),
    ]


def test_marks_of_functions_classes_and_modules_add_up() -> None:
    source = """
        pytestmark = [pytest.mark.slow, pytest.mark.req("S0-1")]

        @pytest.mark.req("S0-2")
        class TestClaiming:
            @pytest.mark.req("S0-3", "S0-4")
            async def test_one(self): ...
    """

    test = "t.py::TestClaiming::test_one"
    assert marks(source) == {(f"S0-{n}", test) for n in (1, 2, 3, 4)}


def test_marks_of_parameters_and_constants_are_read() -> None:
    source = """
        NUMBERS = ("S0-1", "S0-2")
        CASES = [pytest.param(1, marks=pytest.mark.req("S0-3"))]

        @pytest.mark.req(*NUMBERS)
        def test_one(): ...

        @pytest.mark.parametrize("n", CASES)
        def test_two(n): ...
    """

    assert marks(source) == {
        ("S0-1", "t.py::test_one"),
        ("S0-2", "t.py::test_one"),
        ("S0-3", "t.py::test_two"),
    }


def test_a_marked_machine_without_tests_carries_its_numbers_itself() -> None:
    source = """
        @pytest.mark.req("S0-1")
        class Machine:
            @rule()
            def step(self): ...
    """

    assert marks(source) == {("S0-1", "t.py::Machine")}


@pytest.mark.parametrize("mark", ["pytest.mark.req(number)", "pytest.mark.req()"])
def test_a_mark_that_cannot_be_read_is_unknown(mark: str) -> None:
    found = marks_of_source(f"@{mark}\ndef test_one(): ...\n", "t.py")

    assert len(requirements_table.unknown_marks([Requirement("S0-1", "")], found)) == 1


def test_the_table_counts_and_can_show_only_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    requirements = [Requirement("S0-1", "One."), Requirement("S0-2", "Two.")]

    requirements_table.print_table(requirements, [Mark("S0-1", "t::a")], only_missing=True)

    shown = capsys.readouterr().out
    assert "Two." in shown
    assert "One." not in shown
    assert "1 have tests, 1 have none" in shown
