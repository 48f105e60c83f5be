# SPDX-License-Identifier: MIT
"""What came of mutants: kept from run to run, and the page about it."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from scripts.pytest_runs import ROOT

REPORT: Final = ROOT / "faults" / "results" / "mutants.md"
TRIALS: Final = ROOT / "faults" / "results" / "mutants.json"
BY_HAND: Final = ROOT / "scripts" / "mutants.toml"
NAMED: Final = "named"  #: the area of mutants written by hand
_OUTCOMES: Final = ("killed", "timed out", "equivalent", "survived")


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one mutant."""

    area: str
    path: str
    line: int
    operator: str
    key: str
    before: str  #: the line, and what it was changed to
    after: str
    outcome: str  #: `killed`, `timed out`, `equivalent`, or `survived`
    by: str = ""  #: the test that failed, or did not end; why the change makes no difference

    def __str__(self) -> str:
        return f"{self.outcome}: {self.path}:{self.line} -{self.before} +{self.after} ({self.by})"


@dataclass(frozen=True, slots=True)
class ByHand:
    """What is written by hand: changes to try, and survivors that change nothing that counts."""

    named: tuple[Mapping[str, str], ...] = ()
    equivalent: tuple[Mapping[str, str], ...] = ()


def by_hand(file: Path = BY_HAND) -> ByHand:
    """Read what is written by hand."""
    read: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    return ByHand(tuple(read.get(NAMED, ())), tuple(read.get("equivalent", ())))


def kept(file: Path = TRIALS) -> dict[str, Trial]:
    """The trials of earlier runs, by the key of the mutant."""
    if not file.exists():
        return {}
    return {each["key"]: Trial(**each) for each in json.loads(file.read_text("utf-8"))}


def keep(trials: Iterable[Trial], file: Path = TRIALS) -> None:
    """Write down trials; a line for each, so that changes can be read."""
    lines = [json.dumps(asdict(trial), ensure_ascii=False) for trial in trials]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")


def judged(trials: Iterable[Trial], known: ByHand) -> list[Trial]:
    """The trials, with what is known of those that survived."""
    why = {_change(each): each["why"] for each in known.equivalent}
    return [
        replace(trial, outcome="equivalent", by=why[_change(asdict(trial))])
        if trial.outcome == "survived" and _change(asdict(trial)) in why
        else trial
        for trial in trials
    ]


def is_equivalent(trial: Trial, known: ByHand) -> bool:
    """Whether it is known why no test could notice the change."""
    return any(_change(asdict(trial)) == _change(each) for each in known.equivalent)


def _change(of: Mapping[str, Any]) -> tuple[str, str, str]:
    return of["path"], of["before"], of["after"]


def page(seed: int, drawn: int, possible: Mapping[str, int], trials: Sequence[Trial]) -> str:
    """The report as Markdown."""
    sample = [trial for trial in trials if trial.area != NAMED]
    total = Counter(trial.outcome for trial in sample)
    counted = total.total() - total["equivalent"]
    caught = total["killed"] + total["timed out"]
    share = f"{100 * caught / counted:.1f} %" if counted else "none"
    lines = [
        "# Mutants",
        "",
        f"`make mutants`, seed {seed}: one change at a time to a copy of the code. Tests that run",
        "the changed line are run, quick ones first, as many as `--seconds` allow, until one fails",
        "twice. *Timed out*: the test did not end. *Equivalent*: no test could notice; why is told",
        "below. *Survived*: a change that none of them notices.",
        "",
        f"**{caught} of {counted} caught, {share}** (killed or timed out, of all that are not",
        f"equivalent). {drawn} are drawn, {total.total()} of them tried so far; the next run",
        "goes on.",
        "",
        "| Area | Possible | Tried | Killed | Timed out | Equivalent | Survived |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for area, number in possible.items():
        count = Counter(trial.outcome for trial in sample if trial.area == area)
        lines.append(_row(area, number, count))
    lines.append(_row("**all**", sum(possible.values()), total))
    lines += ["", "Possible: places times operators, before one is drawn per line and kind.", ""]
    lines += _section("Survivors", [each for each in sample if each.outcome == "survived"])
    lines += _section("Equivalent", [each for each in sample if each.outcome == "equivalent"])
    lines += _named([trial for trial in trials if trial.area == NAMED])
    return "\n".join(lines)


def _row(name: str, possible: int, count: Counter[str]) -> str:
    figures = (possible, count.total(), *(count[outcome] for outcome in _OUTCOMES))
    return f"| {name} | " + " | ".join(map(str, figures)) + " |"


def _section(title: str, trials: Sequence[Trial]) -> list[str]:
    lines = [f"## {title}", ""]
    for trial in sorted(trials, key=lambda each: (each.path, each.line)):
        reason = f" {trial.by}" if trial.by else ""
        lines.append(f"- `{trial.path}`, {trial.operator.rpartition('/')[2]}:{reason}")
        lines += ["", "  ```diff", f"  -{trial.before}", f"  +{trial.after}", "  ```", ""]
    return lines if trials else [*lines, "None.", ""]


def _named(trials: Sequence[Trial]) -> list[str]:
    lines = ["## Written by hand", "", "| Change | Outcome | By |", "| --- | --- | --- |"]
    lines += [f"| {each.operator} | {each.outcome} | `{each.by}` |" for each in trials]
    return [*lines, ""] if trials else []
