# SPDX-License-Identifier: MIT
"""The changes that `make mutants` can make to a module, in the order in which a seed draws them."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

LEFT_OUT: Final = "LeaveOutCall"
#: Mutants that change nothing: annotations are not evaluated, and `is` compares only singletons.
_WITHOUT_EFFECT: Final = ("_BitOr_", "_Is_Eq", "_Eq_Is", "_IsNot_NotEq", "_NotEq_IsNot", "NoOp")
#: A number is made one more or less. For sizes and delays that makes no difference, so
#: that only small ones, which count something, are changed.
_NUMBERS: Final = "NumberReplacer"
_COUNTS: Final = re.compile(r"[012](?![\d._])")
#: What is no operator, though it reads as one: the star before parameters that must be named.
_BARE_STAR: Final = re.compile(r"\*\s*,")
#: Choices that no caller can notice while the code is right: a layout, and a check of lengths.
_UNSEEN: Final = re.compile(r"(slots|strict)=$")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: which operator, and at which of the places it fits."""

    path: Path
    operator: str
    occurrence: int
    line: int
    key: str = ""  #: the same while the line is the same, wherever in its module it is


def mutants(root: Path, path: Path) -> list[Mutant]:
    """Every change to a module that can be drawn."""
    from cosmic_ray.ast import ast_nodes, get_ast  # noqa: PLC0415 - not in every environment

    text = (root / path).read_text("utf-8")
    of = f"{path} {text} {Path(__file__).read_text('utf-8')}"
    cached = root / ".cache" / "mutants" / hashlib.sha256(of.encode()).hexdigest()
    if cached.exists():
        return [Mutant(path, *each) for each in json.loads(cached.read_text("utf-8"))]
    lines = text.splitlines()
    nodes = list(ast_nodes(get_ast(text)))
    same: Counter[str] = Counter()
    found: list[Mutant] = []

    def add(operator: str, occurrence: int, line: int, column: int) -> None:
        key = f"{path} {operator} {column} {lines[line - 1].strip()}"
        same[key] += 1
        found.append(Mutant(path, operator, occurrence, line, f"{key} {same[key]}"))

    for name, operator in _operators().items():
        places = [place[0] for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, (line, column) in enumerate(places):
            if _can_be_noticed(name, lines[line - 1], column):
                add(name, occurrence, line, column)
    for occurrence, call in enumerate(left_out_calls(text)):
        add(LEFT_OUT, occurrence, call.lineno, call.col_offset)
    cached.parent.mkdir(parents=True, exist_ok=True)
    rows = [(each.operator, each.occurrence, each.line, each.key) for each in found]
    cached.write_text(json.dumps(rows), "utf-8")
    return found


def _can_be_noticed(operator: str, line: str, column: int) -> bool:
    """Whether it changes what the program does, rather than how it is written or laid out."""
    if _NUMBERS in operator:
        return _COUNTS.match(line, column) is not None
    if "BinaryOperator" in operator:
        return _BARE_STAR.match(line, column) is None
    return _UNSEEN.search(line, 0, column) is None


def drawn(found: Sequence[Mutant], seed: int) -> list[Mutant]:
    """In an order drawn by the seed; of one kind of change to one line, one mutant only.

    The place of a mutant follows from the seed and its key, so that changes elsewhere move few.
    """

    def roll(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()

    kinds: dict[tuple[Path, int, str], Mutant] = {}
    for mutant in sorted(found, key=roll):
        kind = mutant.operator.rpartition("/")[2].partition("_")[0]
        kinds.setdefault((mutant.path, mutant.line, kind), mutant)
    return list(kinds.values())


def mutated(text: str, mutant: Mutant) -> str | None:
    """The module with the change; None if what comes of it is no program."""
    from cosmic_ray.mutating import mutate_code  # noqa: PLC0415 - not in every environment

    if mutant.operator != LEFT_OUT:
        try:
            changed: str | None = mutate_code(
                text, _operators()[mutant.operator], mutant.occurrence
            )
        except AttributeError:  # it cannot replace the name of an exception with a dot in it
            return None
        return changed if changed is not None and _is_program(changed) else None
    call = left_out_calls(text)[mutant.occurrence]
    lines = text.splitlines(keepends=True)
    end = call.end_lineno or call.lineno
    indent = " " * call.col_offset
    lines[call.lineno - 1 : end] = [f"{indent}pass\n", *["\n"] * (end - call.lineno)]
    return "".join(lines)


def _is_program(text: str) -> bool:
    """Whether it compiles; `*` and `**` are also operators to those who replace operators."""
    try:
        compile(text, "<changed>", "exec")
    except SyntaxError:
        return False
    return True


@cache
def _operators() -> dict[str, Any]:
    """Operators of cosmic-ray by name, without those that need arguments or change nothing."""
    from cosmic_ray.plugins import get_operator, operator_names  # noqa: PLC0415 - as above

    chosen = {name: get_operator(name) for name in operator_names()}
    return {
        name: operator()
        for name, operator in sorted(chosen.items())
        if not operator.arguments() and not any(part in name for part in _WITHOUT_EFFECT)
    }


def left_out_calls(text: str) -> list[ast.Expr]:
    """The statements of a module that do nothing but call, or await, something."""
    return [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    ]


def is_in_function(text: str, line: int) -> bool:
    """Whether a line is run by calls: one that is run by the import only is in no function."""
    return any(
        node.body[0].lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def statement(text: str, line: int) -> range:
    """The lines of the statement that a line is part of; of a compound one, those of its head."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(text)):  # outer ones first
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            body = getattr(node, "body", None) or getattr(node, "cases", None)
            end = (node.end_lineno or 0) + 1
            if body:
                first = body[0]
                end = first.lineno if isinstance(first, ast.stmt) else first.pattern.lineno
            found = range(node.lineno, max(end, line + 1))
    return found
