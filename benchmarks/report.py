# SPDX-License-Identifier: MIT
"""What a run leaves behind: a page to read, a chart, and the data of every round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.bounds import Verdict
from benchmarks.chart import bar_chart
from benchmarks.estimates import Estimate
from benchmarks.ledger import Ledger
from benchmarks.settings import Settings

__all__ = ["Report", "bound_lines", "page", "write"]

_METHOD: Final = """
Every contestant runs once in each of {rounds} rounds, in another order each time. A ratio is taken
inside each round, then the median over the rounds with its bootstrap 95 % interval (seeded). A
bound is met when the whole interval lies inside it. Figures of two runs, or of two machines, do not
compare; ratios inside one run do.

- FULL waits for the disk at every commit, NORMAL does not; each is compared with the like.
- Huey runs as it comes: its connections are at FULL, it has one worker thread (its default, and its
  fastest setting on SQLite), results are kept. It has neither async handlers nor a bulk submit.
- The bare loop is the statements alone, on the same event loop, claiming 500 at a time, as a
  Packhorse worker does at most. “With ids” is the same with ids that callers make, kept unique.
- A drain is measured from the first to the last handler by a counter in shared memory, the worker's
  processor time between the same two. Handlers do nothing and return a number, which is kept.
- Submits are made in turns of a fraction of a second, so that the contestants share every mood of
  the disk; a round's rate is the median turn.
- Pick-up, idling, memory and claims are measured once.
""".strip()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    title: str
    facts: Mapping[str, str]
    settings: Settings
    verdicts: Sequence[Verdict]
    charted: Sequence[str]  #: the measures that the chart shows


def write(report: Report, ledger: Ledger, folder: Path, name: str) -> None:
    """Write the page, the chart and the data."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "facts": report.facts,
        "settings": report.settings,
        "bounds": report.verdicts,
        "figures": [{**msgspec.to_builtins(one), "estimate": one.estimate} for one in ledger],
    }
    text = msgspec.json.format(msgspec.json.encode(data), indent=2)
    (folder / f"{name}.json").write_bytes(text + b"\n")
    chart = bar_chart(ledger, report.charted)
    (folder / f"{name}.svg").write_text(chart, encoding="utf-8")
    (folder / f"{name}.md").write_text(page(report, ledger, f"{name}.svg"), encoding="utf-8")


def page(report: Report, ledger: Ledger, chart: str) -> str:
    """The whole page as Markdown."""
    lines = [
        f"# {report.title}",
        "",
        *(f"- **{name}**: {value}" for name, value in report.facts.items()),
        "",
        _METHOD.format(rounds=report.settings.rounds),
        "",
        f"![Rates as bars]({chart})",
        "",
        "## Bounds",
        "",
        *bound_lines(report.verdicts),
        "",
        "## Figures",
        "",
        *_figure_lines(ledger),
        "",
    ]
    return "\n".join(lines)


def bound_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The table of bounds."""
    yield "| What | Bound | Measured | 95 % interval | |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for verdict in verdicts:
        measured, result = verdict.measured, f"**{verdict.result}**"
        if verdict.result == "missed" and verdict.middle_inside:
            result += " (the median is inside, the interval is not)"
        middle = "–" if measured is None else f"{number(measured.middle)} {verdict.bound.unit}"
        interval = "–" if measured is None else _interval(measured)
        cells = (verdict.bound.says, verdict.bound.limit, middle, interval, result)
        yield f"| {' | '.join(cells)} |"


def _figure_lines(ledger: Ledger) -> Iterator[str]:
    yield "| Measure | Contestant | Median | 95 % interval | Unit |"
    yield "| --- | --- | ---: | ---: | --- |"
    last = ""
    for series in sorted(ledger, key=lambda one: _order(ledger, one.measure)):
        found = series.estimate
        shown = "" if series.measure == last else series.measure
        last = series.measure
        cells = (shown, series.contestant, number(found.middle), _interval(found), series.unit)
        yield f"| {' | '.join(cells)} |"


def _order(ledger: Ledger, measure: str) -> int:
    return list(dict.fromkeys(one.measure for one in ledger)).index(measure)


def _interval(found: Estimate) -> str:
    return "once" if found.rounds == 1 else f"{number(found.low)} – {number(found.high)}"


def number(value: float) -> str:
    """Three digits that mean something; thousands in full."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
