# SPDX-License-Identifier: MIT
"""Rules about one Python file: each takes a `Source` and says what is wrong with it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.tidy.budgets import Budget

Function = ast.FunctionDef | ast.AsyncFunctionDef

SPDX = "# SPDX-License-Identifier: MIT"
CLOCK = "packhorse.core.clock"
CLOCK_MODULES = frozenset({"random", "secrets"})
CLOCK_CALLS = frozenset(
    {
        *("date.today", "datetime.now", "datetime.today", "datetime.utcnow", "os.urandom"),
        *("time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns"),
        *("time.sleep", "time.time", "time.time_ns", "uuid.uuid1", "uuid.uuid4"),
    }
)
BLOCKS = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith),
    *(ast.Try, ast.TryStar, ast.Match),
)
MUTABLE_LITERALS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
MUTABLE_TYPES = frozenset(
    {
        *("bytearray", "dict", "list", "set", "Counter", "OrderedDict", "defaultdict", "deque"),
        *("WeakKeyDictionary", "WeakSet", "WeakValueDictionary"),
    }
)


@dataclass(frozen=True)
class Source:
    """One Python file, read and parsed; `module` is its dotted name."""

    module: str
    text: str
    path: str = "planted.py"

    @classmethod
    def read(cls, path: Path, base: Path) -> Source:
        parts = path.relative_to(base).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        return cls(".".join(parts), path.read_text(encoding="utf-8"), os.path.relpath(path))

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def functions(self) -> Sequence[tuple[str, Function]]:
        return list(_functions(self.tree, ""))

    def at(self, line: int, message: str) -> str:
        return f"{self.path}:{line}: {message}"


def _functions(scope: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """Every function with its qualified name, those inside functions and classes too."""
    for child in ast.iter_child_nodes(scope):
        named = isinstance(child, Function | ast.ClassDef)
        inner = f"{prefix}{child.name}." if isinstance(child, Function | ast.ClassDef) else prefix
        if isinstance(child, Function):
            yield prefix + child.name, child
        yield from _functions(child, inner if named else prefix)


def long_file(source: Source, budget: Budget) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if lines > budget.file_lines:
        yield source.at(1, f"{lines} lines, at most {budget.file_lines}: split it")


def long_functions(source: Source, budget: Budget) -> Iterator[str]:
    for name, function in source.functions:
        body = function.body[1:] if ast.get_docstring(function) else function.body
        lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
        if lines > budget.function_lines:
            message = f"{name} has {lines} lines, at most {budget.function_lines}"
            yield source.at(function.lineno, message)


def parameter_count(function: Function) -> int:
    names = [argument.arg for argument in _arguments(function)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _arguments(function: Function) -> list[ast.arg]:
    given = function.args
    starred = [argument for argument in (given.vararg, given.kwarg) if argument]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *starred]


def many_parameters(source: Source, budget: Budget) -> Iterator[tuple[str, str]]:
    """The key under which an exception is written down, and the finding."""
    for name, function in source.functions:
        count = parameter_count(function)
        if count > budget.parameters:
            message = f"{name} takes {count} parameters, at most {budget.parameters}"
            yield f"{source.module}:{name}", source.at(function.lineno, message)


def deep_nesting(source: Source, budget: Budget) -> Iterator[str]:
    for name, function in source.functions:
        depth = max((_depth(statement) for statement in function.body), default=0)
        if depth > budget.nesting:
            message = f"{name} nests {depth} blocks, at most {budget.nesting}"
            yield source.at(function.lineno, message)


def _depth(node: ast.AST) -> int:
    """How many blocks lie inside each other; `elif` is no deeper than its `if`."""
    if isinstance(node, Function | ast.ClassDef | ast.Lambda):
        return 0  # a function of its own, counted on its own
    below = max((_depth(child) for child in ast.iter_child_nodes(node)), default=0)
    if isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        chained = _depth(node.orelse[0])
        inside = max(_depth(child) for child in node.body)
        return max(chained, inside + 1)
    return below + isinstance(node, BLOCKS)


def header(source: Source) -> Iterator[str]:
    if not source.text.startswith(SPDX + "\n"):
        yield source.at(1, f"the first line is {SPDX!r}")
    if not ast.get_docstring(source.tree):
        yield source.at(1, "a module docstring says what the module is for")


def clock_readers(source: Source) -> Iterator[str]:
    if source.module == CLOCK:
        return
    for node in ast.walk(source.tree):
        for name in _clock_names(node):
            message = f"{name}: time and chance are arguments, read only in {CLOCK}"
            yield source.at(getattr(node, "lineno", 1), message)


def _clock_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (name.name for name in names if name.name in CLOCK_MODULES)
        case ast.ImportFrom(module=str(module), names=names):
            dotted = (f"{module}.{name.name}" for name in names)
            yield from (name for name in dotted if module in CLOCK_MODULES or name in CLOCK_CALLS)
        case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=attribute):
            if f"{owner}.{attribute}" in CLOCK_CALLS:
                yield f"{owner}.{attribute}"


def mutable_state(source: Source) -> Iterator[tuple[str, str]]:
    """The key under which an exception is written down, and the finding."""
    for statement in source.tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name != "__all__" and _is_mutable(value):
            message = f"{name} is mutable: use a tuple, frozenset or MappingProxyType"
            yield f"{source.module}:{name}", source.at(statement.lineno, message)


def _is_mutable(value: ast.expr) -> bool:
    match value:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in MUTABLE_TYPES
        case ast.Call(func=ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name))):
            return name in MUTABLE_TYPES
    return isinstance(value, MUTABLE_LITERALS)


def missing_annotations(source: Source) -> Iterator[str]:
    for name, function in source.functions:
        bare = [argument.arg for argument in _arguments(function) if argument.annotation is None]
        bare = bare[1:] if bare[:1] in (["self"], ["cls"]) else bare
        missing = [*bare, *(["return"] if function.returns is None else [])]
        if missing:
            yield source.at(function.lineno, f"{name} lacks the types of {', '.join(missing)}")
