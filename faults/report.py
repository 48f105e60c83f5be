# SPDX-License-Identifier: MIT
"""What a run came to, for people and for programs."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec

from faults.checking.rescues import BEYOND_LEASE_US
from faults.collecting import Findings
from packhorse.core.clock import SECOND_US

#: Sentences shown of what one rule has found.
_SHOWN_MAX: Final = 10
_PACKAGES: Final = ("packhorse", "msgspec", "psycopg", "redis")
_TITLES: Final = {
    "sqlite": "Faults on SQLite",
    "postgres": "Faults on PostgreSQL",
    "redis": "Faults on Redis that waits for the disk",
    "redis-everysec": "Faults on Redis that forces to the disk once a second",
}
_EVERYSEC: Final = (
    "With `appendfsync everysec` an answer does not mean that the disk has it. Each restart below "
    "is a power cut: what Redis had not forced to the disk is gone. So jobs *are* lost here; the "
    "table says how many, of how many. Use `appendfsync always` where that may not be."
)

_RESCUES: Final = (
    "Taken back must be within the lease and 5 s ({bound:g} s), without the time in which "
    "no process could do it: the store was away, its clock was set, or the machine stood still, "
    "each with what the rescuers need to look twice again. A job that is lost again "
    "and again waits 2, 4, 8, … seconds on top before it runs, by design, and from its second "
    "loss on it runs alone. After the first loss that the store counts it must have begun again "
    "within the same time, with the same excuses until then, and 2 s more where its own worker or "
    "supervisor told of the loss: so long it waits then. Jobs under a limit or an ordering key are "
    "not judged."
)
_NOT_JUDGED: Final = (
    "A process that is stopped and goes on runs beside its successor (overlap); an effect that has "
    "no key is then had twice. No queue can promise otherwise."
)


def write(found: Findings, folder: Path) -> list[Path]:
    """The page and the document of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    name = found.plan.store
    made = folder / f"{name}.md", folder / f"{name}.json"
    made[0].write_text(page(found), encoding="utf-8")
    text = msgspec.json.format(msgspec.json.encode(_document(found)), indent=1)
    made[1].write_bytes(text + b"\n")
    return list(made)


def lines(found: Findings) -> Iterator[str]:
    """A summary for the terminal."""
    yield f"{found.plan.store}: {len(found.faults)} faults in {found.seconds} s"
    for part in (_kinds(found), found.facts, found.rescues, found.verdict.counts):
        width = max((len(name) for name in part), default=0)
        yield from (f"  {name:<{width}}  {number:>8}" for name, number in part.items())
        yield ""
    for name, sentences in found.verdict.findings.items():
        yield from (f"  {name}: {sentence}" for sentence in sentences[:_SHOWN_MAX])
    if found.verdict.unjudged:
        yield f"nothing to judge in this run: {', '.join(found.verdict.unjudged)}"
    yield "clean" if found.verdict.clean else "NOT CLEAN"


def page(found: Findings) -> str:
    """The report as Markdown."""
    plan = found.plan
    verdict = "Nothing was found." if found.verdict.clean else "**Something was found.**"
    parts = [
        f"# {_TITLES[plan.store]}",
        _how(found),
        *([_EVERYSEC] if plan.store == "redis-everysec" else []),
        _table("", "", {**machine(), **found.store}),
        "## Faults",
        _kind_table(found),
        "## What must be 0",
        f"{verdict} What each rule means is said in `faults/checking/`.",
        _rules(found),
        *_sentences(found),
        "## Until a dead process's jobs went on, in seconds",
        _RESCUES.format(bound=plan.lease_s + BEYOND_LEASE_US / SECOND_US),
        _table("Measure", "", found.rescues),
        "## Counted, and not judged",
        _NOT_JUDGED,
        _table("Measure", "", found.facts),
        "## The most of each limit that was used",
        _table("Limit", "Used", found.limits),
    ]
    return "\n\n".join(parts) + "\n"


def _how(found: Findings) -> str:
    plan = found.plan
    return (
        f"`python -m faults.run --store {plan.store} --faults {plan.faults} --seed {plan.seed}`: "
        f"{len(found.faults)} faults in {found.seconds:.0f} s, lease {plan.lease_s:g} s, workers "
        f"`{plan.layout}` (s: a supervisor and two processes, p: one process without), "
        f"{plan.producers} producers."
    )


def _rules(found: Findings) -> str:
    """What each rule found, of how many cases; a rule without any is not shown to hold."""
    verdict = found.verdict
    rows = ["| Rule | Cases | Found |", "| --- | ---: | --- |"]
    for name, number in verdict.counts.items():
        said = "nothing to judge" if name in verdict.unjudged else number
        rows.append(f"| {name} | {verdict.cases[name]} | {said} |")
    return "\n".join(rows)


def _sentences(found: Findings) -> list[str]:
    shown = [
        f"- {name}: {sentence}"
        for name, sentences in found.verdict.findings.items()
        for sentence in sentences[:_SHOWN_MAX]
    ]
    return ["\n".join(shown)] if shown else []


def _kinds(found: Findings) -> dict[str, int]:
    return dict(sorted(Counter(fault.kind for fault in found.faults).items()))


def _kind_table(found: Findings) -> str:
    kinds = _kinds(found)
    return _table("Kind", "Times", {**kinds, "**all**": sum(kinds.values())})


def _table(left: str, right: str, rows: Mapping[str, Any]) -> str:
    head = [f"| {left} | {right} |", "| --- | --- |"]
    return "\n".join([*head, *(f"| {name} | {value} |" for name, value in rows.items())])


def machine() -> dict[str, str]:
    """Where it ran."""
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    return {
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "load at the end": f"{load} (1, 5, 15 minutes)",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in _PACKAGES),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from the source tree"


def _document(found: Findings) -> dict[str, Any]:
    began_us = min((fault.at_us for fault in found.faults), default=0)
    return {
        "plan": found.plan,
        "seconds": found.seconds,
        "where": {**machine(), **found.store},
        "clean": found.verdict.clean,
        "rules": found.verdict.counts,
        "cases": found.verdict.cases,
        "findings": {name: list(told)[:_SHOWN_MAX] for name, told in _found(found).items()},
        "faults": _kinds(found),
        "rescues": found.rescues,
        "facts": found.facts,
        "limits": found.limits,
        "log": [
            {
                "at_s": round((fault.at_us - began_us) / 1e6, 2),
                "lasted_s": round((fault.until_us - fault.at_us) / 1e6, 2),
                "kind": fault.kind,
                "note": fault.note,
            }
            for fault in found.faults
        ],
    }


def _found(found: Findings) -> dict[str, Any]:
    return {name: told for name, told in found.verdict.findings.items() if told}
