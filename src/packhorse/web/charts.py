# SPDX-License-Identifier: MIT
"""Lay out curves of the history as SVG, each with a table of the same figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from packhorse.client.history import History
from packhorse.core.durations import span_text

_WIDTH: Final = 720
_HEIGHT: Final = 200
_LEFT: Final = 64
_TOP: Final = 10
_BOTTOM: Final = 24
_RIGHT: Final = 8
_LINES_Y: Final = 4  #: parts of the vertical scale
_LABELS_X: Final = 6
#: Draw only the largest queues: more colours could not be distinguished.
_DRAWN_MAX: Final = 5
_HOURS_S: Final = 24 * 3_600
#: The shortest span of a rate: workers write their counts this late.
_RATED_MS_MIN: Final = 10_000

_Values = Sequence[float | None]
_Told = Callable[[float], str]


class Tick(msgspec.Struct, frozen=True):
    """A place on a scale, and its label."""

    at: float
    label: str


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A line or an area, and the class that gives it its colour."""

    label: str
    kind: str
    path: str


class _Caption(NamedTuple):
    name: str
    title: str
    told: str


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A picture with its scales, and the same figures as rows."""

    name: str
    title: str
    told: str  #: a sentence that says what it shows
    filled: bool
    curves: tuple[Curve, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT


def throughput_chart(history: History) -> Chart:
    """Draw attempts per minute, by outcome."""
    if history.points[-1].span_ms < history.step_ms / 2:  # the newest point has just begun
        history = msgspec.structs.replace(history, points=history.points[:-1])
    points = history.points
    bands: dict[str, _Values] = {
        "succeeded": [_rate(point.succeeded, point.span_ms) for point in points],
        "retried": [_rate(point.retried, point.span_ms) for point in points],
        "dead": [_rate(point.dead, point.span_ms) for point in points],
    }
    total = sum(point.succeeded + point.retried + point.dead for point in points)
    told = f"{total:,} attempts in {history.range}, as a rate for each minute."
    kinds = ("good", "accent", "danger")
    caption = _Caption("throughput", "Throughput, attempts a minute", told)
    return _stacked(history, caption, bands, kinds)


def flow_chart(history: History) -> Chart:
    """Stack the jobs that have ended in the range, those that run, and those that wait."""
    ended, known = 0, (0.0, 0.0)
    bands: dict[str, list[float | None]] = {"ended": [], "running": [], "waiting": []}
    for point in history.points:
        ended += point.succeeded + point.dead + point.cancelled
        if point.waiting is not None and point.running is not None:
            known = (point.running, point.waiting)
        for band, value in zip(bands.values(), (float(ended), *known), strict=True):
            band.append(value)
    told = f"{ended:,} jobs have ended; a band that widens is work that comes faster than it goes."
    caption = _Caption("flow", "Cumulative flow, jobs", told)
    return _stacked(history, caption, bands, ("good", "accent", "quiet"))


def age_chart(history: History) -> Chart:
    """Draw how long the oldest ready job of each queue had waited."""
    most = sorted(history.queues, key=lambda each: -each.oldest_ready_ms_max)
    lines = {each.queue: each.oldest_ready_ms for each in most[:_DRAWN_MAX]}
    worst = most[0].oldest_ready_ms_max if most else 0
    told = f"At most {_span(worst)}{_which(len(most), 'age')}."
    return _lines(history, _Caption("age", "Age of the oldest waiting job", told), lines, _span)


def depth_chart(history: History) -> Chart:
    """Draw how many jobs waited in each queue."""
    most = sorted(history.queues, key=lambda each: -each.waiting_max)
    lines = {each.queue: each.waiting for each in most[:_DRAWN_MAX]}
    worst = most[0].waiting_max if most else 0
    told = f"At most {worst:,} jobs waited in one queue{_which(len(most), 'depth')}."
    return _lines(history, _Caption("depth", "Jobs waiting", told), lines, _number)


def _which(number: int, what: str) -> str:
    return f"; the {_DRAWN_MAX} queues with the largest {what}" if number > _DRAWN_MAX else ""


# ------------------------------------------------------------------------------------------ drawing


def _stacked(
    history: History, caption: _Caption, bands: Mapping[str, _Values], kinds: Sequence[str]
) -> Chart:
    floor = [0.0] * len(history.points)
    edges: list[list[float]] = []
    for values in bands.values():
        edges.append([low + (value or 0.0) for low, value in zip(floor, values, strict=True)])
        floor = edges[-1]
    top = _nice(max([*floor, 0.0]))
    curves, below = [], [0.0] * len(floor)
    for label, kind, edge in zip(bands, kinds, edges, strict=True):
        there = _path(edge, top)
        back = _path(below[::-1], top, backwards=True).replace("M", "L", 1)
        curves.append(Curve(label=label, kind=kind, path=f"{there}{back}Z" if edge else ""))
        below = edge
    return _chart(history, caption, curves, bands, top=top, say=_number, filled=True)


def _lines(history: History, caption: _Caption, lines: Mapping[str, _Values], say: _Told) -> Chart:
    top = _nice(max([0.0, *(value or 0.0 for values in lines.values() for value in values)]))
    curves = [
        Curve(label=label, kind=f"line{at}", path=_path(values, top))
        for at, (label, values) in enumerate(lines.items())
    ]
    return _chart(history, caption, curves, lines, top=top, say=say, filled=False)


def _chart(
    history: History,
    caption: _Caption,
    curves: Sequence[Curve],
    values: Mapping[str, _Values],
    *,
    top: float,
    say: _Told,
    filled: bool,
) -> Chart:
    starts = [point.at for point in history.points]
    every = max(1, len(starts) // _LABELS_X)
    days = history.step_ms * len(starts) > _HOURS_S * 1_000
    columns = zip(*values.values(), strict=True) if values else [() for _ in starts]
    rows = [
        (_instant(at, days=True), *("-" if value is None else say(value) for value in row))
        for at, row in zip(starts, columns, strict=True)
    ]
    return Chart(
        **caption._asdict(),
        filled=filled,
        curves=tuple(curves),
        across=tuple(
            Tick(_x(index, len(starts)), _instant(starts[index], days=days))
            for index in range(every // 2, len(starts), every)
        ),
        up=tuple(
            Tick(_y(top * part / _LINES_Y, top), say(top * part / _LINES_Y))
            for part in range(_LINES_Y + 1)
        ),
        head=("From (UTC)", *values),
        rows=tuple(rows[::-1]),
    )


def _path(values: _Values, top: float, *, backwards: bool = False) -> str:
    """Return the SVG path through values, with a gap where one is missing."""
    parts, pen = [], "M"
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        place = len(values) - 1 - index if backwards else index
        parts.append(f"{pen}{_x(place, len(values)):g} {_y(value, top):g}")
        pen = "L"
    return "".join(parts)


def _x(index: int, count: int) -> float:
    return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * index / max(1, count - 1), 1)


def _y(value: float, top: float) -> float:
    return round(_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / top, 1)


def _nice(value: float) -> float:
    """Return the end of a scale: the next of 1, 2, 4, 6, 8 times a power of ten, at least 4."""
    size = 1.0
    while size * 10 < value:
        size *= 10
    return max(4.0, next(step * size for step in (1, 2, 4, 6, 8, 10) if step * size >= value))


def _rate(count: int, span_ms: int) -> float:
    return round(count * 60_000 / max(span_ms, _RATED_MS_MIN), 2)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _span(milliseconds: float) -> str:
    return span_text(milliseconds * 1_000) if milliseconds else "0s"


def _instant(at: datetime, *, days: bool) -> str:
    return f"{at:%m-%d %H:%M}" if days else f"{at:%H:%M}"
