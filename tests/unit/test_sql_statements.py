# SPDX-License-Identifier: MIT
"""The steps that the SQL stores share ask for statements by name; both stores are asked alike."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from packhorse.stores import postgres, sql, sqlite

SQLITE: Final = Path(sqlite.__file__).parent / "sql"
POSTGRES: Final = Path(postgres.__file__).parent / "sql"
SHARED: Final = tuple(sorted(Path(sql.__file__).parent.glob("*.py")))
TEXT: Final = "\n".join(file.read_text("utf-8") for file in SHARED)

STATEMENTS: Final = tuple(
    sorted(set(re.findall(r"(?:\.sql\(|_within\(dialect, )\s*\"(\w+)\"", TEXT)))
)
#: Those that SQLite runs for each job, or each row, and PostgreSQL for all of them at once.
EACH: Final = frozenset(re.findall(r"write_each\(dialect\.sql\(\"(\w+)\"", TEXT))
ROWS: Final = frozenset(re.findall(r"write_rows\(dialect\.sql\(\"(\w+)\"", TEXT))


class Parameters(NamedTuple):
    """Of a statement: the names of those that have one, and how many have none."""

    named: frozenset[str]
    unnamed: int


def of_sqlite(name: str) -> Parameters:
    text = words_of(SQLITE / f"{name}.sql")
    unnamed = len(re.findall(r"\?(?!\d)", text)) + len(set(re.findall(r"\?(\d+)", text)))
    return Parameters(frozenset(re.findall(r":(\w+)", text)), unnamed)


def of_postgres(name: str) -> Parameters:
    text = words_of(POSTGRES / f"{name}.sql")
    return Parameters(frozenset(re.findall(r"%\((\w+)\)s", text)), len(re.findall(r"%s", text)))


def words_of(file: Path) -> str:
    return "\n".join(line.split("--")[0] for line in file.read_text("utf-8").splitlines())


def test_the_shared_steps_ask_for_many_statements() -> None:
    assert len(STATEMENTS) > 90
    assert EACH
    assert ROWS


@pytest.mark.parametrize("name", STATEMENTS)
def test_both_stores_take_the_same_parameters(name: str) -> None:
    ours, theirs = of_sqlite(name), of_postgres(name)

    if name in ROWS:
        assert theirs == Parameters(frozenset(), 1)
        assert ours.unnamed == 0
    elif name in EACH:
        assert ours.named - {"seq"} == theirs.named - {"seqs"}
        assert ours.unnamed == theirs.unnamed
    else:
        assert ours == theirs
