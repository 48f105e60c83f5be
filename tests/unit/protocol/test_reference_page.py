# SPDX-License-Identifier: MIT
"""The tables of docs/reference/protocol.md hold exactly what the code has."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import pytest

from packhorse import protocol
from packhorse.protocol import TASK_PRIORITY_VALUES, Shape, TaskPriority, TaskStatus, to_wire
from packhorse.protocol.reading import struct_kind
from tests.unit.protocol.examples import MINIMAL, minimal

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "protocol.md"


def rows(section: str) -> list[list[str]]:
    """Return the cells of the first table below the heading `section`."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\| (`.*) \|$", text, re.MULTILINE)
    return [[cell.strip().strip("`") for cell in line.split("|")] for line in lines]


@pytest.mark.parametrize("shape", MINIMAL)
def test_a_table_has_the_fields_of_its_shape_in_order(shape: type[Shape]) -> None:
    assert [row[0] for row in rows(shape.__name__)] == [
        field.encode_name for field in struct_kind(shape).fields
    ]


@pytest.mark.parametrize("shape", MINIMAL)
def test_a_table_gives_the_defaults_of_its_shape(shape: type[Shape]) -> None:
    filled = to_wire(shape.parse(minimal(shape)))
    for name, *_, default in rows(shape.__name__):
        if name in MINIMAL[shape]:
            assert default == "required" or name == "duration"
        elif name in filled:
            assert default == str(filled[name]).lower()
        else:
            assert default == "optional" or name == "durationMs"


@pytest.mark.parametrize("words", [TaskPriority, TaskStatus])
def test_a_table_has_the_words_of_its_enum_in_order(words: type[StrEnum]) -> None:
    assert [row[0] for row in rows(words.__name__)] == list(words)


def test_the_table_of_priorities_gives_their_values() -> None:
    assert {row[0]: int(row[1]) for row in rows("TaskPriority")} == TASK_PRIORITY_VALUES


def test_the_page_names_every_public_function() -> None:
    text = PAGE.read_text(encoding="utf-8")
    functions = [name for name in protocol.__all__ if name.islower()]
    assert [name for name in functions if f"{name}(" not in text] == []
