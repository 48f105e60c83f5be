# SPDX-License-Identifier: MIT
"""`make mutants` changes code that is there, and judges it by tests that are there."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Final

import pytest

from scripts import mutants_map, mutations
from scripts.mutants import AREAS, TESTS
from scripts.mutants_map import TestMap, made_map
from scripts.mutants_plugin import change, functions
from scripts.mutants_report import NAMED, ByHand, Trial, by_hand, judged, keep, kept, page
from scripts.mutations import Mutant, drawn, is_in_function, left_out_calls, statement
from tests.tidy.budgets import ROOT

#: Folders whose tests run in their own process, without a server.
JUDGING: Final = (
    *("tests/cli", "tests/stores", "tests/telemetry", "tests/transactions"),
    *("tests/unit", "tests/web", "tests/worker"),
)
TEXT = """X = 1


def f(y):
    if (
        y
    ):
        g()
    return X
"""


@pytest.mark.parametrize("pattern", [*TESTS, *(each for area in AREAS.values() for each in area)])
def test_each_area_has_modules_and_there_are_tests(pattern: str) -> None:
    assert list(ROOT.glob(pattern)), f"nothing is found by {pattern}"


def test_a_change_that_is_written_by_hand_fits_in_one_place() -> None:
    for each in by_hand().named:
        assert (ROOT / each["path"]).read_text("utf-8").count(each["before"]) == 1, each["name"]


def test_a_survivor_that_is_explained_is_a_change_to_the_code_as_it_is() -> None:
    for each in by_hand().equivalent:
        lines = (ROOT / each["path"]).read_text("utf-8").splitlines()
        assert each["before"] in map(str.strip, lines), f"{each['path']}: {each['before']}"


def test_a_test_that_imports_a_module_of_an_area_judges_it() -> None:
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for area in AREAS.values()
        for each in area
        for path in ROOT.glob(each)
    }
    judging = {path for each in TESTS for path in ROOT.glob(each)}

    for folder in JUDGING:
        for path in sorted((ROOT / folder).glob("test_*.py")):
            found = sorted(modules.intersection(imported(path.read_text("utf-8"))))
            assert path in judging or not found, f"{path} imports {found}"


def imported(text: str) -> Iterator[str]:
    """The modules that a text imports, and what may be modules in them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_call_whose_answer_is_not_used_can_be_left_out() -> None:
    text = '"""Doc."""\nx = f()\nawait_me()\nasync def g():\n    await f()\n    return f()\n'

    assert [call.lineno for call in left_out_calls(text)] == [3, 5]


def test_the_seed_and_the_line_decide_the_place_of_a_mutant() -> None:
    found = [Mutant(Path("a.py"), "core/AddNot", 0, line, f"key {line}") for line in range(50)]

    order = drawn(found, 1)

    assert drawn(found[::-1], 1) == order
    assert drawn(found[10:], 1) == [mutant for mutant in order if mutant.line >= 10]
    assert drawn(found, 2) != order


def test_a_mutant_is_tried_by_the_tests_that_run_its_line_quick_ones_first() -> None:
    lines = {5: frozenset({"slow", "quick"}), 9: frozenset({"other"})}
    known = TestMap(
        {"slow": 3.0, "quick": 0.1, "other": 1.0}, {"b/a.py": lines, "b/slow.py": lines}
    )

    assert known.tests_of("b/slow.py", 5, TEXT) == ["slow", "quick"]  # it is about that module

    assert known.tests_of("b/a.py", 5, TEXT) == ["quick", "slow"]
    assert known.tests_of("b/a.py", 6, TEXT) == ["quick", "slow"]
    assert known.tests_of("b/a.py", 1, TEXT) == ["quick", "other", "slow"]
    assert known.tests_of("b/c.py", 1, TEXT) == []


def test_lines_that_have_moved_keep_their_tests() -> None:
    lines = {5: frozenset({"head"}), 8: frozenset({"call"}), 9: frozenset({"end"})}
    known = TestMap({}, {"a.py": lines}, {"a.py": TEXT})
    moved = TEXT.replace("X = 1", "X = 1\nY = 2").replace("g()", "h()\n        g()")

    found = {line: known.tests_of("a.py", line, moved) for line in (6, 9, 10, 11)}

    assert found == {6: ["head"], 9: ["call"], 10: ["call"], 11: ["end"]}


def test_tests_are_mapped_again_in_place_of_what_was_known_of_their_files() -> None:
    before = TestMap(
        {"a.py::one": 1.0, "b.py::two": 2.0},
        {"m.py": {1: frozenset({"a.py::one", "b.py::two"}), 2: frozenset({"b.py::two"})}},
    )
    again = TestMap({"b.py::new": 3.0}, {"m.py": {2: frozenset({"b.py::new"})}})

    known = before.renewed(["b.py"], again)

    assert known.seconds == {"a.py::one": 1.0, "b.py::new": 3.0}
    assert known.lines == {"m.py": {1: {"a.py::one"}, 2: {"b.py::new"}}}


def test_where_there_is_no_map_one_of_some_files_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[str]] = []

    def make(tests: Sequence[str], _at_once: int) -> None:
        made.append(list(tests))
        empty: dict[str, object] = {"tests": [], "seconds": {}, "lines": {}, "texts": {}}
        (tmp_path / "map.json").write_text(json.dumps(empty), "utf-8")

    monkeypatch.setattr(mutants_map, "_MAP", tmp_path / "map.json")
    monkeypatch.setattr(mutants_map, "_make", make)

    for again in (["b.py"], None, []):
        made_map(["a.py", "b.py"], again, 1)

    assert made == [["b.py"], ["a.py", "b.py"]]


def test_no_more_runs_learn_than_there_are_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def start(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(mutants_map, "FOLDER", tmp_path)
    monkeypatch.setattr(mutants_map, "_MAP", tmp_path / "map.json")
    monkeypatch.setattr(mutants_map, "read_raw", lambda *_: ({}, {}))
    monkeypatch.setattr("subprocess.Popen", start)

    made_map((), ["a.py"], 2)

    assert [command[-1] for command in commands] == ["a.py"]  # without one, pytest takes all


def test_a_change_that_the_tool_cannot_make_is_no_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    def mutate_code(*_: object) -> None:
        raise AttributeError("no value")

    tool = SimpleNamespace(mutate_code=mutate_code)
    monkeypatch.setitem(sys.modules, "cosmic_ray", SimpleNamespace(mutating=tool))
    monkeypatch.setitem(sys.modules, "cosmic_ray.mutating", tool)
    monkeypatch.setattr(mutations, "_operators", lambda: {"core/ExceptionReplacer": None})

    assert mutations.mutated(TEXT, Mutant(Path("a.py"), "core/ExceptionReplacer", 0, 1)) is None


def test_a_line_belongs_to_the_head_of_its_statement() -> None:
    assert statement(TEXT, 6) == range(5, 8)
    assert statement(TEXT, 8) == range(8, 9)
    assert [is_in_function(TEXT, line) for line in (1, 4, 5, 9)] == [False, False, True, True]


def test_functions_get_the_code_of_the_changed_text() -> None:
    space: dict[str, object] = {}
    exec(compile(TEXT, "<changed>", "exec"), space)
    f = space["f"]
    assert isinstance(f, FunctionType)
    assert f in functions()["<changed>"]

    changed = change("<changed>", TEXT, TEXT.replace("return X", "return 2"), {"<changed>": [f]})

    assert changed == 1
    assert f(0) == 2


def trial(outcome: str, *, area: str = "one", after: str = "if not x:") -> Trial:
    return Trial(area, "a.py", 7, "core/AddNot", after, "if x:", after, outcome, "a_test")


def test_the_report_counts_every_area_and_shows_what_survived() -> None:
    trials = [trial("survived"), *[trial("killed")] * 3, trial("timed out"), trial("equivalent")]

    text = page(3, 7, {"one": 9, "two": 4}, [*trials, trial("killed", area=NAMED)])

    assert "| one | 9 | 6 | 3 | 1 | 1 | 1 |" in text
    assert "| two | 4 | 0 | 0 | 0 | 0 | 0 |" in text
    assert "**4 of 5 caught, 80.0 %**" in text
    assert "7 are drawn, 6 of them tried so far" in text
    assert text.count("- `a.py`, AddNot:") == 2
    assert "| core/AddNot | killed | `a_test` |" in text
    assert "None." in page(3, 7, {"two": 4}, [])


def test_a_survivor_of_which_it_is_known_why_is_equivalent() -> None:
    why = {"path": "a.py", "before": "if x:", "after": "if not x:", "why": "x is never false"}
    trials = [trial("survived"), trial("survived", after="if y:"), trial("killed")]

    told = judged(trials, ByHand(equivalent=(why,)))

    assert [(each.outcome, each.by) for each in told] == [
        ("equivalent", "x is never false"),
        ("survived", "a_test"),
        ("killed", "a_test"),
    ]


def test_trials_are_kept_from_run_to_run(tmp_path: Path) -> None:
    file = tmp_path / "trials.json"
    assert kept(file) == {}

    keep([trial("killed")], file)

    assert kept(file) == {"if not x:": trial("killed")}
