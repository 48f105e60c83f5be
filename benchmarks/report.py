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
from benchmarks.ledger import Ledger, Series
from benchmarks.settings import Settings
from benchmarks.stage import PeerNote

#: How much of the reason for a failure the page tells.
_REASON_CHARACTERS: Final = 200

_METHOD: Final = """
Every contestant runs once in each of {rounds} rounds, in another order each time. A ratio is taken
inside each round, then the median over the rounds with its bootstrap 95 % interval (seeded). A
bound is met when the whole interval lies inside it. Figures of two runs, or of two machines, do not
compare; ratios inside one run do.

- A drain is measured from the first to the last handler by a counter in shared memory, the worker's
  processor time between the same two. Packhorse's handlers do nothing and return a number, which is
  kept.
- What is measured once says so.
""".strip()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    title: str
    facts: Mapping[str, str]
    settings: Settings
    verdicts: Sequence[Verdict]
    charted: Sequence[str]  #: the measures that the chart shows
    method: str = ""  #: what is said about this store alone, as a list
    peers: Sequence[PeerNote] = ()


def write(report: Report, ledger: Ledger, folder: Path, name: str) -> None:
    """Write the page, the chart and the data."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "facts": report.facts,
        "settings": report.settings,
        "peers": report.peers,
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
        "\n".join(
            text for text in (_METHOD.format(rounds=report.settings.rounds), report.method) if text
        ),
        "",
        *_peer_lines(report.peers),
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


def _peer_lines(peers: Sequence[PeerNote]) -> Iterator[str]:
    if not peers:
        return
    yield from ("## Peers", "", "| Peer | Versions | How it is set |", "| --- | --- | --- |")
    for peer in peers:
        told = f"**not measured: {peer.absent}**" if peer.absent else peer.settings
        yield f"| {peer.label} | {peer.version} | {told} |"
    yield ""


def after_failures(note: PeerNote, failed: Mapping[str, str]) -> PeerNote:
    """What is said about a peer at the end of a run, in which it may have given up."""
    if note.label not in failed:
        return note
    reason = " ".join(failed[note.label].split())[:_REASON_CHARACTERS].replace("|", "¦")
    return msgspec.structs.replace(note, absent=f"it failed: {reason}")


def add_earlier(
    folder: Path, name: str, ledger: Ledger, facts: dict[str, str]
) -> Mapping[str, PeerNote]:
    """Take over the measures of an earlier run that this one did not take; and who was in it."""
    path = folder / f"{name}.json"
    if not path.exists():
        return {}
    earlier = msgspec.json.decode(path.read_bytes(), type=_Earlier)
    measured = {series.measure for series in ledger}
    kept = [series for series in earlier.figures if series.measure not in measured]
    for series in kept:
        for value in series.values:
            ledger.record(series.measure, series.contestant, value, series.unit)
    if kept:
        facts["run"] += f"; the rest from an earlier run: {earlier.facts.get('run', 'unknown')}"
    shown = {series.contestant for series in kept}
    return {note.label: note for note in earlier.peers if note.label in shown}


class _Earlier(msgspec.Struct):
    """What is read again of a run's data."""

    facts: dict[str, str]
    figures: list[Series]
    peers: list[PeerNote] = []


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
