# SPDX-License-Identifier: MIT
"""Rules about what modules offer to each other and to users."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from tests.tidy.code_rules import Source

MODULE_NAME = re.compile(r"packhorse(?:\.\w+)+")
PACKAGE_NAME = re.compile(r"[\w-]+")
#: Packages that are imported under another name.
IMPORTED_AS = {"opentelemetry-api": "opentelemetry", "PyYAML": "yaml"}


def listed_names(source: Source) -> Sequence[str] | None:
    """The strings of `__all__`, or None where there is none."""
    for statement in source.tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return [str(name) for name in ast.literal_eval(value)]
    return None


def unsorted_or_incomplete_all(source: Source) -> Iterator[str]:
    listed = listed_names(source)
    if listed is None:
        return
    if list(listed) != sorted(set(listed), key=_rank):
        yield source.at(1, "__all__ is not sorted: CONSTANTS, then Classes, then functions")
    bound, offered = set(_bound_names(source.tree)), set(_offered_names(source))
    if not _makes_names(source):
        for name in sorted(set(listed) - bound):
            yield source.at(1, f"__all__ lists {name}, which is not here")
    for name in sorted(offered - set(listed)):
        yield source.at(1, f"__all__ lacks {name}")


def needless_all(source: Source) -> Iterator[str]:
    """A list that only repeats what the module defines: an underscore says what is its own."""
    listed = listed_names(source)
    if listed is not None and not _makes_names(source):
        imported = {
            alias.asname or alias.name
            for node in source.tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        if not imported & set(listed):
            yield source.at(1, "__all__ repeats the names defined here: leave it out")


def _makes_names(source: Source) -> bool:
    """Whether names come from a function of the module, which type checkers may not see."""
    return any(
        isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
        for top in source.tree.body
        for node in (top.body if isinstance(top, ast.If) else [top])
    )


def _rank(name: str) -> tuple[int, str]:
    """The order ruff gives `__all__`."""
    if len(name) > 1 and name.isupper():
        return 0, name
    return (1, name) if name[0].isupper() else (2, name)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (name.asname or name.name for name in names)
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def _offered_names(source: Source) -> Iterator[str]:
    """Public classes and functions; in a package, the names it re-exports as well."""
    for statement in source.tree.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names = [name]
            case ast.ClassDef(name=name):
                names = [name]
            case ast.ImportFrom(module=str(module), names=aliases) if source.path.endswith(
                "__init__.py"
            ) and module.startswith("packhorse."):
                names = [alias.asname or alias.name for alias in aliases]
            case _:
                continue
        yield from (name for name in names if not name.startswith("_"))


def many_public_names(source: Source, limit: int) -> Iterator[str]:
    count = len(listed_names(source) or ())
    if count > limit:
        yield source.at(1, f"{count} public names, at most {limit}: give some another home")


def wide_contracts(source: Source, limit: int) -> Iterator[str]:
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef) and any(_is_protocol(base) for base in node.bases):
            functions = [
                child.name
                for child in node.body
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            verbs = [name for name in functions if not name.startswith("_")]
            if len(verbs) > limit:
                message = f"{node.name} has {len(verbs)} verbs, at most {limit}: make it two"
                yield source.at(node.lineno, message)


def _is_protocol(base: ast.expr) -> bool:
    match base:
        case ast.Subscript(value=value):
            return _is_protocol(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "Protocol"
    return False


def dead_modules(sources: Sequence[Source], entry_points: AbstractSet[str]) -> Iterator[str]:
    used = {name for source in sources for name in _used_modules(source)} | entry_points
    for source in sources:
        inside = source.module + "."
        alive = source.module in used or any(name.startswith(inside) for name in used)
        if not alive:
            yield source.at(1, "nothing imports this module: use it, or remove it")


def _used_modules(source: Source) -> Iterator[str]:
    """Names this file imports, or writes as a string to import late; never its own."""
    names = (name for node in ast.walk(source.tree) for name in _module_names(node, source))
    yield from (name for name in names if name != source.module)


def _module_names(node: ast.AST, source: Source) -> Iterable[str]:
    match node:
        case ast.Import(names=names):
            return [name.name for name in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = _absolute(source, module or "", level)
            return [base, *(f"{base}.{name.name}" for name in names)]
        case ast.Constant(value=str(text)) if match := MODULE_NAME.match(text):
            return [match.group()]
    return []


def _absolute(source: Source, module: str, level: int) -> str:
    if level == 0:
        return module
    parts = source.module.split(".")
    kept = len(parts) - level + source.path.endswith("__init__.py")
    return ".".join([*parts[:kept], *filter(None, [module])])


def idle_dependencies(sources: Sequence[Source], project: Mapping[str, Any]) -> Iterator[str]:
    """Declared packages that nothing imports, and extras that `all` leaves out."""
    extras = dict(project.get("optional-dependencies", {}))
    everything = extras.pop("all", [])
    imported = {name.partition(".")[0] for source in sources for name in _used_modules(source)}
    for extra, requirements in {"dependencies": project["dependencies"], **extras}.items():
        for requirement in requirements:
            package = PACKAGE_NAME.match(requirement)
            name = package and IMPORTED_AS.get(package.group(), package.group())
            if name is None or name.replace("-", "_") not in imported:
                yield f"pyproject.toml: {extra}: nothing imports {requirement}"
    if extras and everything != [f"{project['name']}[{','.join(sorted(extras))}]"]:
        yield "pyproject.toml: all: it does not list every extra, sorted"
