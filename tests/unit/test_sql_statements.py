# SPDX-License-Identifier: MIT
"""The named queries: each is used and exists, and both SQL stores are asked alike."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import pytest

from packhorse.core.job import JobStatus
from packhorse.stores import postgres, sql, sqlite
from packhorse.stores.postgres.statements import queries as postgres_sql
from packhorse.stores.sql.rows import CODE, Lane
from packhorse.stores.sql.statements import Queries
from packhorse.stores.sqlite.statements import queries as sqlite_sql

FOLDERS: Final[dict[ModuleType, Path]] = {
    module: Path(str(module.__file__)).parent for module in (sql, sqlite, postgres)
}
STORES: Final[dict[ModuleType, Queries]] = {sqlite: sqlite_sql, postgres: postgres_sql}
CALL: Final = re.compile(r"(?:\bsql\(|(?:_within|scoped)\(dialect, )\s*\"(\w+)\"")
CODE_OF: Final = {
    module: "\n".join(file.read_text("utf-8") for file in sorted(folder.glob("*.py")))
    for module, folder in FOLDERS.items()
}
SHARED: Final = tuple(sorted(set(CALL.findall(CODE_OF[sql]))))
#: Those that SQLite runs for each row, and PostgreSQL for all of them at once.
ROWS: Final = frozenset(re.findall(r"write_rows\(dialect\.sql\(\"(\w+)\"", CODE_OF[sql]))


class Parameters(NamedTuple):
    """Of a statement: the names of those that have one, and how many have none."""

    named: frozenset[str]
    unnamed: int


def parameters_of(queries: Queries, name: str) -> Parameters:
    text = rendered(queries, name)
    if queries is postgres_sql:
        named = frozenset(re.findall(r"%\((\w+)\)s", text))
        return Parameters(named, len(re.findall(r"%s", text)))
    unnamed = len(re.findall(r"\?(?!\d)", text)) + len(set(re.findall(r"\?(\d+)", text)))
    return Parameters(frozenset(re.findall(r"(?<!:):(\w+)", text)), unnamed)


def rendered(queries: Queries, name: str) -> str:
    """The text, with empty parts."""
    parts = re.findall(r"<(\w+)>", queries.templates[name])
    return queries.text(name, **dict.fromkeys(parts, "part"))


@pytest.mark.parametrize("module", STORES)
def test_every_query_is_used_and_every_used_one_exists(module: ModuleType) -> None:
    used = {name for one in (sql, module) for name in CALL.findall(CODE_OF[one])}

    code = CODE_OF[sql] + CODE_OF[module]
    named = {name for name in STORES[module].templates if f'"{name}"' in code}

    assert used | named == STORES[module].templates.keys()


def test_no_store_writes_a_shared_query_again() -> None:
    names = [
        name
        for folder in FOLDERS.values()
        for file in (folder / "queries").glob("*.sql")
        for name in re.findall(r"^-- name: (\w+)$", file.read_text("utf-8"), re.MULTILINE)
    ]

    own = sqlite_sql.templates.keys() & postgres_sql.templates.keys()

    assert all(names.count(name) == (1 if shared(name) else 2) for name in own)


def shared(name: str) -> bool:
    return sqlite_sql.templates[name] == postgres_sql.templates[name]


@pytest.mark.parametrize("module", STORES)
def test_every_query_renders(module: ModuleType) -> None:
    queries = STORES[module]

    for name in queries.templates:
        text = rendered(queries, name)

        assert text.startswith(f"-- {name}\n")
        assert not re.search(r"\{[a-z_]+[ .]", text)
        assert "<" not in text.replace("<=", "").replace("<>", "").replace(" < ", "")


def test_lanes_and_statuses_are_named() -> None:
    for folder in FOLDERS.values():
        for file in (folder / "queries").glob("*.sql"):
            literal = re.search(r"\b(?:lane|status) (?:=|<>|in) \(?\d", file.read_text("utf-8"))
            assert literal is None, f"{file.name}: {literal}"


def test_a_code_is_that_of_its_enum() -> None:
    assert f"lane = {Lane.HELD:d}" in sqlite_sql.text("cancelled_of")
    assert f"status = {CODE[JobStatus.QUEUED]}" in postgres_sql.text("redrive")


def test_the_shared_steps_ask_for_many_statements() -> None:
    assert len(SHARED) > 90
    assert ROWS


@pytest.mark.parametrize("name", SHARED)
def test_both_stores_take_the_same_parameters(name: str) -> None:
    ours, theirs = parameters_of(sqlite_sql, name), parameters_of(postgres_sql, name)

    if name in ROWS:
        assert theirs == Parameters(frozenset(), 1)
        assert ours.unnamed == 0
    else:
        assert ours == theirs
