# SPDX-License-Identifier: MIT
"""The checker of batches and workflows finds each violation, and a short run finds none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from faults.checking.structure import RULES, Counted, Graph, Happened, judge
from faults.structure import Rig, page, run
from packhorse.core.batches import batch_group
from packhorse.core.job import JobOptions, NewJob

_BATCH: Final = Counted(2, 2, 2, 2, 100.0, "completed", members=1, ended=1)
_GRAPH: Final = Graph({"a": (), "b": ("a",)}, {"a": "completed", "b": "completed"}, 2, "completed")
INNOCENT: Final = Happened(
    graphs={"g": _GRAPH},
    batches={"i": _BATCH},
    ran=(("start", "g/a"), ("end", "g/a"), ("start", "g/b"), ("end", "g/b")),
    completions=("g/a", "g/b"),
    callbacks=(("i", "complete"), ("i", "success")),
    items=(("i", 0), ("i", 1), ("i", 1)),
)
PLANTED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "a node without a job": ("node not once completed", {"completions": ("g/a",)}),
    "a node with two": ("node not once completed", {"completions": ("g/a", "g/b", "g/b")}),
    "a child that was early": (
        "child before its parent",
        {"ran": (("start", "g/a"), ("start", "g/b"), ("end", "g/a"), ("end", "g/b"))},
    ),
    "an item that was left out": ("item not once counted", {"items": (("i", 0),)}),
    "an item that is counted twice": (
        "item not once counted",
        {"batches": {"i": msgspec.structs.replace(_BATCH, processed=3)}},
    ),
    "a callback that did not come": ("callback not once", {"callbacks": (("i", "complete"),)}),
    "a callback that came twice": (
        "callback not once",
        {"callbacks": (*INNOCENT.callbacks, ("i", "success"))},
    ),
    "a batch that does not end": (
        "progress not exact",
        {"batches": {"i": msgspec.structs.replace(_BATCH, status="running")}},
    ),
    "a workflow that does not end": (
        "progress not exact",
        {"graphs": {"g": msgspec.structs.replace(_GRAPH, state="running")}},
    ),
    "an end of which no line told": (
        "line of the journal not once",
        {"batches": {"i": msgspec.structs.replace(_BATCH, ended=0)}},
    ),
    "an end that was told twice": (
        "line of the journal not once",
        {"batches": {"i": msgspec.structs.replace(_BATCH, ended=2)}},
    ),
    "a node whose end was counted twice": (
        "line of the journal not once",
        {"graphs": {"g": msgspec.structs.replace(_GRAPH, completed=3)}},
    ),
    "a line that was left": ("line of the journal not once", {"lines": ("one",)}),
    "a job that did not end": ("job left open", {"open": ("one",)}),
}


def test_innocent_groups_are_found_innocent() -> None:
    verdict = judge(INNOCENT)

    assert verdict.clean
    assert verdict.unjudged == []


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_violation_is_found_by_its_rule(planted: str) -> None:
    rule, changes = PLANTED[planted]

    verdict = judge(msgspec.structs.replace(INNOCENT, **changes))

    assert rule in RULES
    assert verdict.findings[rule]


def test_a_run_is_not_over_before_the_ends_of_all_jobs_are_folded(tmp_path: Path) -> None:
    rig = Rig(f"sqlite:///{tmp_path}/jobs.db", tmp_path, random.Random(1), nodes=1, items=1)
    callback = JobOptions(member=batch_group("batch", "").member("oncomplete"))
    with rig.app() as app:
        app.store.migrate()
        app.store.run(app.store.jobs.submit([NewJob("one", "called", b"{}", options=callback)]))
        app.job("one").cancel()
        before = rig.is_quiet(app)

        (line,) = app.store.run(app.store.journal.journal(batch_group("batch", ""), limit=9))
        app.store.run(app.store.journal.fold(line.group, (line.id,), ()))

        assert (before, rig.is_quiet(app)) == (False, True)


@pytest.mark.timeout(300)  # longer than a run waits for its end: then it says what is missing
def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    found = run("sqlite", tmp_path / "run", kills=1, seed=1, nodes=20, items=20)

    assert found.verdict.clean, found.verdict.findings
    assert "| kills | 1 |" in page([found])
