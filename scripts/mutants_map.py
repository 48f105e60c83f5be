# SPDX-License-Identifier: MIT
"""Which test runs which line of the product, and how long each test takes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import coverage

from scripts.mutations import is_in_function, statement
from scripts.pytest_runs import ROOT

FOLDER: Final = ROOT / ".cache" / "mutants"
_MAP: Final = FOLDER / "map.json"
_AT_ONCE: Final = 2
#: In seconds, what a test takes that was not measured, since it starts processes.
_UNMEASURED_S: Final = 8.0
_SETTINGS: Final = """[run]
source_pkgs = packhorse.runtime, packhorse.client
parallel = true
data_file = {folder}/coverage
disable_warnings = no-data-collected,module-not-measured,module-not-imported
"""


@dataclass(frozen=True, slots=True)
class TestMap:
    """What the tests run, and the seconds they take."""

    __test__ = False  # for pytest, which would take it for a test by its name

    seconds: dict[str, float]
    lines: dict[str, dict[int, frozenset[str]]]

    def tests_of(self, path: str, line: int, text: str) -> list[str]:
        """The tests that run a line, quick ones first; of one that imports run, of its module."""
        lines = self.lines.get(path, {})
        found = frozenset[str]()
        if is_in_function(text, line):
            whole = (lines.get(number, ()) for number in statement(text, line))
            found = lines.get(line) or found.union(*whole)
        else:
            found = found.union(*lines.values())
        return sorted(found, key=lambda name: (self.seconds.get(name, 0.0), name))

    def seconds_of(self, test: str) -> float:
        """How long a test takes; those that were not measured start processes."""
        return self.seconds.get(test, _UNMEASURED_S)


def made_map(tests: Sequence[str], *, again: bool = False) -> TestMap:
    """Read the map, or make it by running the tests once."""
    if again or not _MAP.exists():
        _make(tests)
    read = json.loads(_MAP.read_text("utf-8"))
    names: list[str] = read["tests"]
    lines = {
        path: {int(line): frozenset(names[each] for each in of) for line, of in found.items()}
        for path, found in read["lines"].items()
    }
    return TestMap(read["seconds"], lines)


def _make(tests: Sequence[str]) -> None:
    folder = FOLDER / "raw"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = FOLDER / "coveragerc"
    settings.write_text(_SETTINGS.format(folder=folder), "utf-8")
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest"]
    command += ["-q", "-p", "scripts.mutants_plugin", "-p", "no:cacheprovider", "-m", "not slow"]
    variables = {**os.environ, "MUTANTS_MAP": str(folder)}
    runs = [
        subprocess.Popen([*command, *tests[number::_AT_ONCE]], cwd=ROOT, env=variables)  # noqa: S603
        for number in range(_AT_ONCE)
    ]
    for run in runs:
        run.wait()
    read_raw(folder, settings)


def read_raw(folder: Path, settings: Path) -> None:
    """Write the map from what coverage has noted."""
    seconds: dict[str, float] = {}
    for file in folder.glob("durations-*"):
        for line in file.read_text("utf-8").splitlines():
            took, _, name = line.partition(" ")
            seconds[name] = max(float(took), seconds.get(name, 0.0))
    numbers = {name: number for number, name in enumerate(sorted(seconds))}
    combined = coverage.Coverage(config_file=str(settings), data_file=str(folder / "all"))
    combined.combine([str(each) for each in folder.glob("coverage.*")], keep=True)
    data = combined.get_data()
    lines: dict[str, dict[int, list[int]]] = defaultdict(dict)
    for file_name in data.measured_files():
        path = Path(file_name)
        if path.is_relative_to(ROOT):
            for number, names in data.contexts_by_lineno(file_name).items():
                of = sorted({numbers[name] for name in names if name in numbers})
                if of:
                    lines[str(path.relative_to(ROOT))][number] = of
    made = {"tests": sorted(seconds), "seconds": seconds, "lines": lines}
    _MAP.write_text(json.dumps(made), "utf-8")
