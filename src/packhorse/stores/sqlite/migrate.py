# SPDX-License-Identifier: MIT
"""The schema of a SQLite store: created and upgraded in place, one numbered file at a time."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from importlib.resources import files
from pathlib import Path

from packhorse.errors import SchemaOutOfDate


def known_version() -> int:
    """The newest schema this release knows."""
    return len(_migrations())


def migrate(connection: sqlite3.Connection, path: Path) -> int:
    """Bring the schema up to date, safely from many processes at once; return its version."""
    version = _version(connection)
    if version == known_version():
        return version
    connection.execute("begin immediate")
    try:
        version = _version(connection)  # another process may have migrated it
        _refuse_newer(version, path)
        for number, text in enumerate(_migrations()[version:], start=version + 1):
            for statement in _statements(text):
                connection.execute(statement)
            connection.execute("update packhorse_schema set version = ?", (number,))
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:  # SQLite may have given it up already, on a full disk
            connection.execute("rollback")
        raise
    return known_version()


def is_migrated(path: Path) -> bool:
    """Whether a file has a schema of Packhorse, or cannot be read, which opening it reports."""
    if not path.exists():
        return False
    try:
        # Not as we open it to work with it: that turns the write-ahead log on, in any file.
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            return _version(connection) > 0
    except sqlite3.Error:
        return True


def _refuse_newer(version: int, path: Path) -> None:
    if version > known_version():
        raise SchemaOutOfDate(
            f"the SQLite file {path} has schema version {version}, this release of Packhorse "
            f"knows up to {known_version()}: upgrade Packhorse here"
        )


def _version(connection: sqlite3.Connection) -> int:
    try:
        row = connection.execute("select version from packhorse_schema").fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        return 0
    version: int = row[0]
    return version


@cache
def _migrations() -> tuple[str, ...]:
    folder = files("packhorse.stores.sqlite") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple((folder / name).read_text("utf-8") for name in names)


@cache
def _statements(text: str) -> tuple[str, ...]:
    """The statements of a migration; `executescript` would commit the transaction around it."""
    statements, current = [], ""
    for line in text.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return tuple(statements)
