# SPDX-License-Identifier: MIT
"""Lay out the nodes of a workflow in columns, each to the right of the nodes it waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

#: Nodes that are drawn; a larger picture would not be readable.
DRAWN_MAX: Final = 200
_WIDTH: Final = 180
_HEIGHT: Final = 46
_ACROSS: Final = 56  #: between columns
_DOWN: Final = 14  #: between rows
_EDGE: Final = 4
_NAME_MAX: Final = 22


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A node in the picture."""

    x: int
    y: int
    name: str
    label: str  #: the name, as far as it fits
    state: str
    task: str
    job_id: str | None


class Drawing(msgspec.Struct, frozen=True, kw_only=True):
    """A picture: boxes, and lines between them as SVG paths."""

    width: int
    height: int
    box_width: int
    box_height: int
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]


def drawn(nodes: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw the first nodes of a workflow."""
    shown = list(nodes[:DRAWN_MAX])
    names = [node["name"] for node in shown]
    before = {node["name"]: _before(node, frozenset(names)) for node in shown}
    columns = _columns(before)
    rows: dict[int, int] = {}
    boxes: dict[str, Box] = {}
    for node in shown:
        name, column = node["name"], columns[node["name"]]
        row = rows.get(column, 0)
        rows[column] = row + 1
        boxes[name] = Box(
            x=_EDGE + column * (_WIDTH + _ACROSS),
            y=_EDGE + row * (_HEIGHT + _DOWN),
            name=name,
            label=name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…",
            state=node["state"],
            task=node["task"],
            job_id=node["jobId"],
        )
    lines = [_line(boxes[one], boxes[name]) for name, found in before.items() for one in found]
    return Drawing(
        width=max((box.x for box in boxes.values()), default=0) + _WIDTH + _EDGE,
        height=max((box.y for box in boxes.values()), default=0) + _HEIGHT + _EDGE,
        box_width=_WIDTH,
        box_height=_HEIGHT,
        boxes=tuple(boxes.values()),
        lines=tuple(lines),
    )


def _before(node: Mapping[str, Any], names: frozenset[str]) -> list[str]:
    """Return what a node waits for, or else the running node that added it."""
    found = [name for name in node["parents"] if name in names]
    owner = node["name"].rpartition("/")[0]
    return [owner] if not found and owner in names else found


def _columns(before: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the column of each node: the length of the longest path to it."""
    columns = dict.fromkeys(before, 0)
    for _ in before:  # no path is longer
        moved = False
        for name, found in before.items():
            column = max((columns[one] + 1 for one in found), default=0)
            moved, columns[name] = moved or column != columns[name], column
        if not moved:
            break
    return columns


def _line(one: Box, other: Box) -> str:
    """Draw a line from the right side of a box to the left side of another."""
    x, y = one.x + _WIDTH, one.y + _HEIGHT // 2
    end_x, end_y = other.x, other.y + _HEIGHT // 2
    middle = (x + end_x) // 2
    return f"M{x} {y}C{middle} {y} {middle} {end_y} {end_x} {end_y}"
