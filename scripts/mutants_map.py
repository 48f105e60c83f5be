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
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Final, TypeAlias

import coverage

from scripts.mutations import is_in_function, statement
from scripts.pytest_runs import ROOT

FOLDER: Final = ROOT / ".cache" / "mutants"
_MAP: Final = FOLDER / "map.json"
#: Tests that need a server are left out: each fork would start one, and few changes need them.
CHOICE: Final = ("-m", "not slow", "-k", "not postgres and not redis")
#: In seconds, what a test takes that was not measured, since it starts processes.
_UNMEASURED_S: Final = 8.0
_SETTINGS: Final = """[run]
source_pkgs = packhorse.runtime, packhorse.client
parallel = true
data_file = {folder}/coverage
disable_warnings = no-data-collected,module-not-measured,module-not-imported
"""


#: By module and line, the tests.
Lines: TypeAlias = dict[str, dict[int, frozenset[str]]]


@dataclass(frozen=True, slots=True)
class TestMap:
    """What the tests run, and the seconds they take."""

    __test__ = False  # for pytest, which would take it for a test by its name

    seconds: dict[str, float]
    lines: Lines
    texts: dict[str, str] = field(default_factory=dict)  #: of the modules, as the tests ran them

    def tests_of(self, path: str, line: int, text: str) -> list[str]:
        """The tests that run a line; of one that imports run, those of its module.

        Those that are named for the module come first, and quick ones before slow ones.
        """
        lines = self._lines_of(path, text)
        found = frozenset[str]()
        if is_in_function(text, line):
            whole = (lines.get(number, ()) for number in statement(text, line))
            found = lines.get(line) or found.union(*whole)
        else:
            found = found.union(*lines.values())
        module = Path(path)

        def place(name: str) -> tuple[bool, bool, float, str]:
            file = Path(name.partition("::")[0]).name
            far, strange = module.stem not in file, module.parent.name not in file
            return far, strange, self.seconds.get(name, 0.0), name

        return sorted(found, key=place)

    def seconds_of(self, test: str) -> float:
        """How long a test takes; those that were not measured start processes."""
        return self.seconds.get(test, _UNMEASURED_S)

    def renewed(self, files: Sequence[str], by: TestMap) -> TestMap:
        """With another map in place of what was known of the tests of some files."""
        gone = {name for name in self.seconds if name.partition("::")[0] in files}
        seconds = {name: took for name, took in self.seconds.items() if name not in gone}
        lines: Lines = {}
        none = frozenset[str]()
        for path in sorted({*self.lines, *by.lines}):
            old, new = self._lines_of(path, by.texts.get(path)), by.lines.get(path, {})
            lines[path] = {
                line: (old.get(line, none) - gone) | new.get(line, none)
                for line in sorted({*old, *new})
            }
        return TestMap({**seconds, **by.seconds}, lines, {**self.texts, **by.texts})

    def _lines_of(self, path: str, text: str | None) -> dict[int, frozenset[str]]:
        """The tests of each line of a module as it is now; of a new line, those of the nearest."""
        lines, before = self.lines.get(path, {}), self.texts.get(path)
        if not lines or before is None or text is None or before == text:
            return lines
        moved: dict[int, frozenset[str]] = {}
        compared = SequenceMatcher(None, before.splitlines(), text.splitlines(), autojunk=False)
        for kind, old, old_end, new, new_end in compared.get_opcodes():
            for number in range(new, new_end):
                was = min(old + number - new, old_end) + 1
                if kind != "equal":
                    was = min(lines, key=lambda line: abs(line - was))
                if was in lines:
                    moved[number + 1] = lines[was]
        return moved


def made_map(tests: Sequence[str], again: Sequence[str] | None, at_once: int) -> TestMap:
    """Read the map, or make it by running tests; `again`: of these files, of all if it is empty."""
    if again is not None or not _MAP.exists():
        _make(again or tests, at_once)
    read = json.loads(_MAP.read_text("utf-8"))
    names: list[str] = read["tests"]
    lines = {
        path: {int(line): frozenset(names[each] for each in of) for line, of in found.items()}
        for path, found in read["lines"].items()
    }
    return TestMap(read["seconds"], lines, read["texts"])


def _make(tests: Sequence[str], at_once: int) -> None:
    """Run tests, and add what they have run to the map, instead of what was known of them."""
    folder = FOLDER / "raw"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    settings = FOLDER / "coveragerc"
    settings.write_text(_SETTINGS.format(folder=folder), "utf-8")
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest"]
    command += ["-q", "-p", "scripts.mutants_plugin", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", *CHOICE]
    variables = {**os.environ, "MUTANTS_MAP": str(folder)}
    runs = [
        subprocess.Popen([*command, *tests[number::at_once]], cwd=ROOT, env=variables)  # noqa: S603
        for number in range(min(at_once, len(tests)))  # without a file, pytest would run all
    ]
    for run in runs:
        run.wait()
    seconds, lines = read_raw(folder, settings)
    known = made_map((), None, 1) if _MAP.exists() else TestMap({}, {})
    texts = {path: (ROOT / path).read_text("utf-8") for path in lines}
    _write(known.renewed(tests, TestMap(seconds, lines, texts)))


def read_raw(folder: Path, settings: Path) -> tuple[dict[str, float], Lines]:
    """The seconds and the lines of each test, from what coverage has noted."""
    seconds: dict[str, float] = {}
    for file in folder.glob("durations-*"):
        for line in file.read_text("utf-8").splitlines():
            took, _, name = line.partition(" ")
            seconds[name] = max(float(took), seconds.get(name, 0.0))
    combined = coverage.Coverage(config_file=str(settings), data_file=str(folder / "all"))
    combined.combine([str(each) for each in folder.glob("coverage.*")], keep=True)
    data = combined.get_data()
    lines: Lines = defaultdict(dict)
    for file_name in data.measured_files():
        path = Path(file_name)
        if path.is_relative_to(ROOT):
            for number, names in data.contexts_by_lineno(file_name).items():
                of = frozenset(names) & seconds.keys()
                if of:
                    lines[str(path.relative_to(ROOT))][number] = of
    return seconds, lines


def _write(known: TestMap) -> None:
    names = sorted(known.seconds)
    numbers = {name: number for number, name in enumerate(names)}
    lines = {
        path: {line: sorted(numbers[name] for name in of) for line, of in found.items()}
        for path, found in known.lines.items()
    }
    made = {"tests": names, "seconds": known.seconds, "lines": lines, "texts": known.texts}
    _MAP.write_text(json.dumps(made), "utf-8")
