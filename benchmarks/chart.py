# SPDX-License-Identifier: MIT
"""A small bar chart as SVG, written by hand: a group for a measure, a bar for a contestant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from xml.sax.saxutils import escape

from benchmarks.contestants import BARE, PACKHORSE
from benchmarks.ledger import Ledger, Series

_WIDTH: Final = 860
_LABEL_WIDTH: Final = 250
_VALUE_WIDTH: Final = 190
_BAR_HEIGHT: Final = 18
_ROW: Final = 24
_GROUP_GAP: Final = 34
_BAR_WIDTH_MAX: Final = _WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
_COLOURS: Final[Mapping[str, str]] = MappingProxyType({PACKHORSE: "#2f7d5b", BARE: "#8a94a6"})
#: Of the peers.
_OTHER: Final = "#c98a2b"
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-weight: 600; font-size: 14px; }
.interval { stroke: #24292f; stroke-width: 1.5; opacity: 0.65; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .interval { stroke: #e6edf3; }
}
"""


@dataclass(frozen=True, slots=True)
class _Group:
    title: str
    bars: Sequence[Series]


def bar_chart(ledger: Ledger, measures: Sequence[str]) -> str:
    """Bars as long as the medians, each group to its own scale, with lines for the intervals."""
    groups = [
        _Group(measure, bars)
        for measure in measures
        if (bars := [one for one in ledger if one.measure == measure])
    ]
    parts: list[str] = []
    top = 8
    for group in groups:
        parts.extend(_group(group, top))
        top += _GROUP_GAP + _ROW * len(group.bars)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" '
        f'width="{_WIDTH}" height="{top}" role="img">\n<style>{_STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _group(group: _Group, top: int) -> Iterator[str]:
    unit = group.bars[0].unit
    yield _text(4, top + 16, f"{group.title} ({unit})", "title")
    widest = max(bar.estimate.high for bar in group.bars) or 1.0
    for row, bar in enumerate(group.bars):
        yield from _bar(bar, top + 26 + row * _ROW, widest)


def _bar(bar: Series, top: int, widest: float) -> Iterator[str]:
    found = bar.estimate
    scale = _BAR_WIDTH_MAX / widest
    middle = top + _BAR_HEIGHT / 2
    colour = next(
        (colour for name, colour in _COLOURS.items() if bar.contestant.startswith(name)), _OTHER
    )
    yield _text(14, top + 13, bar.contestant)
    yield (
        f'<rect x="{_LABEL_WIDTH}" y="{top}" width="{max(1.0, found.middle * scale):.1f}" '
        f'height="{_BAR_HEIGHT}" rx="2" fill="{colour}"/>'
    )
    low, high = (_LABEL_WIDTH + end * scale for end in (found.low, found.high))
    yield f'<line class="interval" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
    label = f"{found.middle:,.0f}" if found.middle >= 100 else f"{found.middle:.1f}"
    yield _text(_LABEL_WIDTH + found.high * scale + 8, top + 13, label)


def _text(x: float, y: float, text: str, css_class: str = "label") -> str:
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
