# SPDX-License-Identifier: MIT
"""The results of each contestant, and the table of docs/comparison.md that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.processes import ROOT
from comparison.catalogue import CONTESTANTS, Contestant
from comparison.judge import Verdict
from comparison.result import Result, Settings, Trial

RESULTS: Final = Path(__file__).resolve().parent / "results"
PAGE: Final = ROOT / "docs" / "comparison.md"
_BEGIN: Final = "<!-- begin: written by `python -m comparison.report` -->"
_END: Final = "<!-- end -->"
_STORES: Final = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis"}
_HEAD: Final = (
    "| | Store | Recovery | Submitted | Completed | Not completed | Of these held | Lost "
    "| Started twice or more | Completed twice or more | At the same time "
    "| Interrupted by a kill | Again: median | Again: longest | Not again | Workers that left |"
)
_RULE: Final = "| --- | --- | --- " + "| ---: " * 13 + "|"


def write(
    contestant: Contestant,
    trial: Trial,
    schedule: Settings,
    facts: Mapping[str, str],
    folder: Path,
) -> None:
    """Keep what came out."""
    result = Result(
        name=contestant.name,
        label=contestant.label,
        store=contestant.store,
        recovery=contestant.recovery,
        settings=contestant.settings,
        command=" ".join(contestant.command),
        versions=contestant.versions() if contestant.peer else facts["packages"],
        schedule=schedule,
        trial=trial,
        facts=facts,
    )
    folder.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(result), indent=2)
    (folder / f"{contestant.name}.json").write_bytes(text + b"\n")


def load(folder: Path) -> list[Result]:
    """All results, in the order of the catalogue."""
    files = [folder / f"{one.name}.json" for one in CONTESTANTS]
    found = [file.read_bytes() for file in files if file.exists()]
    return [msgspec.json.decode(text, type=Result) for text in found]


def publish(page: Path = PAGE, folder: Path = RESULTS) -> None:
    """Put the table of the results into the page."""
    page.write_text(with_block(page.read_text(encoding="utf-8"), load(folder)), encoding="utf-8")


def with_block(page: str, results: Sequence[Result]) -> str:
    """The page, with new text between its two marks."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page has no block from {_BEGIN} to {_END}")
    return "\n".join([before + begin, "", *lines(results), "", end + after])


def lines(results: Sequence[Result]) -> list[str]:
    """The counts, the settings of every system, and the machine."""
    return [
        *(_HEAD, _RULE, *map(_row, results), ""),
        *("### Settings", "", "| | Store | Version | Set, and why | Worker |"),
        "| --- | --- | --- | --- | --- |",
        *(_setting(one) for one in results),
        *("", "### Machine", ""),
        *(f"- {fact}" for fact in dict.fromkeys(fact for one in results for fact in _facts(one))),
    ]


def _row(result: Result) -> str:
    found = result.trial.verdict
    bound = result.schedule.seconds + result.schedule.drain
    cells = [
        *(result.label, _STORES[result.store], result.recovery),
        *(found.accepted, found.completed, found.missing, min(found.held, found.missing)),
        *(found.lost, found.started_again, found.completed_again, found.overlapping),
        *(found.interrupted, *_again(found, bound), result.trial.exits),
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _again(found: Verdict, bound: int) -> tuple[str, str, str]:
    """The time it took, and how many never came: not before the run was over."""
    never = found.interrupted - found.resumed
    told = f"{never}, not within {bound} s" if never else "0"
    return _seconds(found.resume_median), _seconds(found.resume_longest), told


def _seconds(span: float | None) -> str:
    return "–" if span is None else f"{span:.1f} s"


def _setting(result: Result) -> str:
    reasons = "; ".join(result.settings)
    store = f"{_STORES[result.store]}"
    return (
        f"| {result.label}, {result.recovery} | {store} | {result.versions} | {reasons} "
        f"| `{result.command}` |"
    )


def _facts(result: Result) -> list[str]:
    schedule, facts = result.schedule, result.facts
    names = ("machine", "load when started", "file system", "Python")
    return [
        *(f"{name}: {facts[name]}" for name in names),
        f"server: {result.trial.server}",
        f"schedule: {schedule.seconds} s, then at most {schedule.drain} s; seed {schedule.seed}",
        f"at a time: {schedule.together} contestants",
    ]


if __name__ == "__main__":
    publish()
