# SPDX-License-Identifier: MIT
"""Print every requirement with the tests that prove it, and how many have none.

A test proves a requirement by carrying its number: `@pytest.mark.req("S1-42")`, on itself, on its
class, in the module's `pytestmark`, or on one of its parameters. The tests are read, not run.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "docs" / "requirements.md"
TEST_FOLDERS = (ROOT / "tests", ROOT / "src" / "packhorse" / "testing" / "conformance")

#: A numbered sentence (`- S1-42 …`) or a row of the table of settled disagreements (`| X-7 | …`).
REQUIREMENT = re.compile(r"^(?:- (S\d+-\d+) |\| (X-\d+) \| )(.+?)(?: \|.*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One checkable sentence."""

    number: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Mark:
    """One test that says it proves one requirement."""

    number: str
    test: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a test names a number that does not exist."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--missing", action="store_true", help="only those without a test")
    options = parser.parse_args(arguments)
    requirements = read_requirements(REQUIREMENTS.read_text(encoding="utf-8"))
    marks = read_marks(TEST_FOLDERS, ROOT)
    print_table(requirements, marks, only_missing=options.missing)
    unknown = unknown_marks(requirements, marks)
    for mark in unknown:
        print(f"unknown requirement {mark.number} in {mark.test}", file=sys.stderr)
    return 1 if unknown else 0


def read_requirements(page: str) -> list[Requirement]:
    """Every numbered requirement of the page, in its order."""
    return [
        Requirement(sentence_number or point_number, text)
        for sentence_number, point_number, text in REQUIREMENT.findall(page)
    ]


def read_marks(folders: Iterable[Path], root: Path) -> list[Mark]:
    """Every mark in the Python files of these folders."""
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return [
        mark
        for path in paths
        for mark in marks_of_source(
            path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
        )
    ]


def marks_of_source(source: str, label: str) -> list[Mark]:
    """Every mark in one Python file; `label` is what the file is called in the table."""
    module = ast.parse(source)
    constants = dict(_assignments(module))
    return [
        Mark(number, test)
        for test, numbers in _carriers(module, label, (), constants)
        for number in dict.fromkeys(numbers)
    ]


def unknown_marks(requirements: Iterable[Requirement], marks: Iterable[Mark]) -> list[Mark]:
    """Marks whose number no requirement has."""
    known = {requirement.number for requirement in requirements}
    return [mark for mark in marks if mark.number not in known]


def print_table(
    requirements: Sequence[Requirement], marks: Iterable[Mark], *, only_missing: bool
) -> None:
    """Print one paragraph per requirement, then the counts."""
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for mark in marks:
        tests[mark.number].append(mark.test)
    missing = [requirement for requirement in requirements if requirement.number not in tests]
    for requirement in missing if only_missing else requirements:
        print(f"{requirement.number:<6} {requirement.sentence}")
        if not only_missing:
            print("".join(f"         {test}\n" for test in tests.get(requirement.number, ["-"])))
    print_counts(requirements, {requirement.number for requirement in missing})


def print_counts(requirements: Sequence[Requirement], missing: set[str]) -> None:
    """Print how many have tests and how many have none, per document and in all."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for requirement in requirements:
        groups[requirement.number.partition("-")[0]].append(requirement.number)
    groups["all"] = [requirement.number for requirement in requirements]
    for name, numbers in groups.items():
        bare = len(missing.intersection(numbers))
        print(f"{name:<6} {len(numbers):>3}: {len(numbers) - bare} have tests, {bare} have none")


def _carriers(
    scope: ast.Module | ast.ClassDef,
    label: str,
    inherited: tuple[str, ...],
    constants: Mapping[str, ast.expr],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each test below `scope` with its own and its inherited numbers."""
    marks = [value for name, value in _assignments(scope) if name == "pytestmark"]
    if isinstance(scope, ast.ClassDef):
        marks += scope.decorator_list
    own = tuple(_numbers(marks, constants))
    found = False
    for child in scope.body:
        name = f"{label}::{getattr(child, 'name', '')}"
        if isinstance(child, ast.ClassDef):
            for carrier in _carriers(child, name, inherited + own, constants):
                found = True
                yield carrier
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            numbers = tuple(_numbers(child.decorator_list, constants))
            if numbers or child.name.startswith("test"):
                found = True
                yield name, inherited + own + numbers
    # A marked state machine has rules instead of tests: the class itself is the test.
    if own and not found:
        yield label, inherited + own


def _assignments(scope: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Names bound directly in `scope`, with what they are bound to."""
    for statement in scope.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value


def _numbers(nodes: Iterable[ast.expr], constants: Mapping[str, ast.expr]) -> Iterator[str]:
    """The arguments of every `pytest.mark.req(…)` in these expressions."""
    for node in nodes:
        for part in _parts(node, constants):
            match part:
                case ast.Call(func=ast.Attribute(attr="req"), args=[_, *_] as values):
                    for value in values:
                        yield from _strings(value, constants)
                case ast.Call(func=ast.Attribute(attr="req")):
                    yield "(no number)"


def _strings(node: ast.expr, constants: Mapping[str, ast.expr]) -> list[str]:
    """The literal strings in one argument; its source text, as an unknown number, if none."""
    literals = [
        part.value
        for part in _parts(node, constants)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    ]
    return literals or [ast.unparse(node)]


def _parts(node: ast.expr, constants: Mapping[str, ast.expr]) -> Iterator[ast.AST]:
    """Every node below `node`, looking through the names of module constants once."""
    for part in ast.walk(node):
        yield part
        if isinstance(part, ast.Name) and part.id in constants:
            yield from ast.walk(constants[part.id])


if __name__ == "__main__":
    sys.exit(main())
