# SPDX-License-Identifier: MIT
"""Change one thing in the code at a time, and see whether a test fails.

    python -m scripts.mutants [--areas worker,consumer] [--mutants 20] [--minutes 60] [--seed N]

Each area is some modules and the tests that are about them. A seed draws so many mutants of each
area: those of cosmic-ray's operators, and statements that only call something, left out. Each is
tried in a copy of the repository, until a test fails or all have passed. What came of it is written
to `faults/results/mutants.md`. A mutant that survives is a change that no test notices: either a
test is missing, or the changed code makes no difference.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from packhorse.core.clock import SystemChance, SystemClock
from scripts.pytest_runs import ROOT

__all__ = ["AREAS", "Area", "Mutant", "Trial", "left_out_calls", "main", "page"]


@dataclass(frozen=True, slots=True)
class Area:
    """Modules, and the tests that are about them; both as patterns of paths."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self, root: Path) -> list[Path]:
        """Its modules, by their paths from the root."""
        found = [path for pattern in self.modules for path in root.glob(pattern)]
        return sorted(path.relative_to(root) for path in found)

    def test_paths(self, root: Path) -> list[str]:
        """Its test files and folders, by their paths from the root."""
        found = [path for pattern in self.tests for path in root.glob(pattern)]
        return sorted(str(path.relative_to(root)) for path in found)


AREAS: Final[Mapping[str, Area]] = MappingProxyType(
    {
        "worker": Area(
            ("src/packhorse/runtime/worker/**/*.py",), ("tests/worker", "tests/supervisor")
        ),
        "supervisor": Area(("src/packhorse/runtime/supervisor/*.py",), ("tests/supervisor",)),
        "consumer": Area(
            ("src/packhorse/runtime/consumer/*.py",), ("tests/unit/test_consumer*.py",)
        ),
        "submission": Area(
            ("src/packhorse/client/submission.py",),
            (
                "tests/unit/test_task.py",
                "tests/unit/test_app*.py",
                "tests/unit/test_unique_jobs.py",
                "tests/unit/test_backpressure.py",
                "tests/unit/test_declaring.py",
                "tests/stores/test_bulk.py",
            ),
        ),
        "services": Area(("src/packhorse/runtime/services/*.py",), ("tests/worker",)),
    }
)

REPORT: Final = ROOT / "faults" / "results" / "mutants.md"
LEFT_OUT: Final = "LeaveOutCall"
#: Mutants that change nothing: annotations are not evaluated, and `is` compares only singletons.
_WITHOUT_EFFECT: Final = ("_BitOr_", "_Is_Eq", "_Eq_Is", "_IsNot_NotEq", "_NotEq_IsNot", "NoOp")
_COPIED_NOT: Final = (".venv", ".git", ".cache", ".*_cache", "__pycache__", ".hypothesis")
#: So long may the tests take that are green in one minute: changed code may wait for ever.
_PATIENCE: Final = 3.0
_PATIENCE_MIN_S: Final = 60.0
_BASE_S: Final = 1800.0
_TESTS_FAILED: Final = (1, 2)  #: pytest's exit codes: a test, or an import, has failed


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: which operator, and at which of the places it fits."""

    path: Path
    operator: str
    occurrence: int
    line: int


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one mutant."""

    area: str
    mutant: Mutant
    outcome: str  #: `killed`, `timed out`, or `survived`
    before: str  #: the line, and what it was changed to
    after: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants of each area, and write the report; 1 if the tests fail without any."""
    options = _options(arguments)
    deadline = SystemClock().monotonic() + options.minutes * 60
    trials: list[Trial] = []
    possible: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="packhorse-mutants-") as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_COPIED_NOT), symlinks=True)
        for number, name in enumerate(options.areas):
            found = [mutant for path in AREAS[name].files(copy) for mutant in _mutants(copy, path)]
            possible[name] = len(found)
            drawn = _drawn(found, options.seed)[: options.mutants]
            left_s = deadline - SystemClock().monotonic()
            until = deadline - left_s * (1 - 1 / (len(options.areas) - number))
            try:
                trials += _tried(copy, name, drawn, until)
            except _RedError as red:
                print(f"{name}: its tests fail before anything is changed\n{red}", file=sys.stderr)
                return 1
    REPORT.write_text(page(options.seed, possible, trials), encoding="utf-8")
    print(f"written to {REPORT.relative_to(ROOT)}")
    return 0


def _tried(copy: Path, name: str, mutants: Sequence[Mutant], until: float) -> Iterator[Trial]:
    """Try mutants one by one while there is time."""
    clock = SystemClock()
    tests = AREAS[name].test_paths(copy)
    began = clock.monotonic()
    code, output = _run_tests(copy, tests, _BASE_S)
    if code != 0:
        raise _RedError(output[-2000:])
    patience_s = max(_PATIENCE_MIN_S, _PATIENCE * (clock.monotonic() - began))
    print(f"{name}: {len(mutants)} mutants, the tests take {clock.monotonic() - began:.0f} s")
    for mutant in mutants:
        if clock.monotonic() > until:
            return
        file = copy / mutant.path
        text = file.read_text("utf-8")
        changed = _mutated(text, mutant)
        if changed is None or changed == text:
            continue
        file.write_text(changed, "utf-8")
        try:
            code, output = _run_tests(copy, tests, patience_s)
        finally:
            file.write_text(text, "utf-8")
        if code not in (None, 0, *_TESTS_FAILED):
            raise _RedError(output[-2000:])
        outcome = "timed out" if code is None else "killed" if code else "survived"
        print(f"  {outcome}: {mutant.path}:{mutant.line} {mutant.operator}", flush=True)
        yield Trial(name, mutant, outcome, *_difference(text, changed))


class _RedError(Exception):
    """The tests could not judge."""


def _run_tests(copy: Path, tests: Sequence[str], patience_s: float) -> tuple[int | None, str]:
    """Run tests on the copy, up to the first that fails; None if they did not end in time."""
    command = [sys.executable, "-m", "pytest", *tests, "-x", "-q", "-m", "not slow"]
    command += ["-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    process = subprocess.Popen(  # noqa: S603 - our own tests
        command,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, ""
    return process.returncode, output


# ------------------------------------------------------------------------------------- mutants


def _mutants(root: Path, path: Path) -> list[Mutant]:
    """Every change to a module that can be drawn."""
    from cosmic_ray.ast import ast_nodes, get_ast  # noqa: PLC0415 - not in every environment

    text = (root / path).read_text("utf-8")
    nodes = list(ast_nodes(get_ast(text)))
    found: list[Mutant] = []
    for name, operator in _operators().items():
        places = [place for node in nodes for place in operator.mutation_positions(node)]
        found += [Mutant(path, name, at, place[0][0]) for at, place in enumerate(places)]
    calls = left_out_calls(text)
    return found + [Mutant(path, LEFT_OUT, at, call.lineno) for at, call in enumerate(calls)]


def _drawn(found: Sequence[Mutant], seed: int) -> list[Mutant]:
    """In an order drawn by the seed; of one kind of change to one line, one mutant only."""
    chance = SystemChance(seed)
    kinds: dict[tuple[Path, int, str], Mutant] = {}
    for mutant in sorted(found, key=lambda _: chance.roll()):
        kind = mutant.operator.rpartition("/")[2].partition("_")[0]
        kinds.setdefault((mutant.path, mutant.line, kind), mutant)
    return list(kinds.values())


def _mutated(text: str, mutant: Mutant) -> str | None:
    from cosmic_ray.mutating import mutate_code  # noqa: PLC0415 - not in every environment

    if mutant.operator != LEFT_OUT:
        changed: str | None = mutate_code(text, _operators()[mutant.operator], mutant.occurrence)
        return changed
    call = left_out_calls(text)[mutant.occurrence]
    lines = text.splitlines(keepends=True)
    lines[call.lineno - 1 : call.end_lineno] = [" " * call.col_offset + "pass\n"]
    return "".join(lines)


def _operators() -> dict[str, Any]:
    """Operators of cosmic-ray by name, without those that need arguments or change nothing."""
    from cosmic_ray.plugins import get_operator, operator_names  # noqa: PLC0415 - as above

    chosen = {name: get_operator(name) for name in operator_names()}
    return {
        name: operator()
        for name, operator in chosen.items()
        if not operator.arguments() and not any(part in name for part in _WITHOUT_EFFECT)
    }


def left_out_calls(text: str) -> list[ast.Expr]:
    """The statements of a module that do nothing but call, or await, something."""
    return [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    ]


def _difference(before: str, after: str) -> tuple[str, str]:
    """The first line that differs, as it was and as it is."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    return next(((old.strip(), new.strip()) for old, new in pairs if old != new), ("", ""))


# -------------------------------------------------------------------------------------- report


def page(seed: int, possible: Mapping[str, int], trials: Sequence[Trial]) -> str:
    """The report as Markdown."""
    lines = [
        "# Mutants",
        "",
        f"`python -m scripts.mutants --seed {seed}`: one change at a time to a copy of the code;",
        "the tests of its area run until one fails. What survives is a change no test notices.",
        "",
        "| Area | Possible | Tried | Killed | Timed out | Survived |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for area, number in possible.items():
        count = Counter(trial.outcome for trial in trials if trial.area == area)
        figures = (number, count.total(), *(count[name] for name in _OUTCOMES))
        lines.append(f"| {area} | " + " | ".join(map(str, figures)) + " |")
    lines += ["", "## Survivors", ""]
    for trial in trials:
        if trial.outcome == "survived":
            place = f"`{trial.mutant.path}:{trial.mutant.line}`"
            lines.append(f"- {place}, {trial.mutant.operator.rpartition('/')[2]}:")
            lines += ["", "  ```diff", f"  -{trial.before}", f"  +{trial.after}", "  ```", ""]
    if lines[-2] == "## Survivors":
        lines += ["None.", ""]
    return "\n".join(lines)


_OUTCOMES: Final = ("killed", "timed out", "survived")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--areas", type=_areas, default=tuple(AREAS), help="comma-separated")
    parser.add_argument("--mutants", type=int, default=20, help="of each area, at most")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all of it")
    parser.add_argument("--seed", type=int, default=1, help="draws the mutants")
    return parser.parse_args(arguments)


def _areas(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = sorted(set(names) - set(AREAS))
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(AREAS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
