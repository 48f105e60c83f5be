# SPDX-License-Identifier: MIT
"""The schema of a PostgreSQL store: created and upgraded in place, one numbered file at a time."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final

from psycopg import Connection
from psycopg.errors import InvalidSchemaName, UndefinedTable

from packhorse.errors import SchemaOutOfDate, StoreError
from packhorse.stores.postgres.rendering import Texts
from packhorse.stores.postgres.settings import PostgresSettings

#: The oldest server whose SQL is enough.
SERVER_MIN: Final = 140000
_CREATE_SCHEMA: Final = "create schema if not exists {schema};\n"
_CREATE: Final = """\
create table if not exists {schema_version} (
    version integer not null,
    only_row boolean primary key default true check (only_row)
);
insert into {schema_version} (version) values (0) on conflict do nothing;
"""
_READ: Final = "select version from {schema_version}"
_KEEP: Final = "update {schema_version} set version = "


def known_version() -> int:
    """The newest schema this release knows."""
    return len(_migrations())


def migrate(connection: Connection[Any], settings: PostgresSettings) -> int:
    """Bring the schema up to date; safe from many processes at once. Says its version."""
    _refuse_old_server(connection, settings)
    version = schema_version(connection, settings)
    if version == known_version():
        return version
    texts = Texts(settings.schema, settings.prefix)
    with connection.transaction():
        _take_turn(connection, settings)
        version = schema_version(connection, settings)  # another process may have been faster
        _refuse_newer(version, settings)
        if version < known_version():
            connection.execute("set local statement_timeout = 0")  # an upgrade takes its time
            if not _has_schema(connection, settings):  # which only some users may create
                connection.execute(_plain(texts.rendered(_CREATE_SCHEMA)))
            connection.execute(_plain(texts.rendered(_script(version))))
    return known_version()


def migration_script() -> str:
    """All that makes a store, as SQL; its marks are not replaced yet."""
    return _CREATE_SCHEMA + _script(0)


def _script(version: int) -> str:
    """All that leads from a version to the newest, in a schema that exists."""
    parts = [_CREATE] if version == 0 else []
    for number, text in enumerate(_migrations()[version:], start=version + 1):
        parts.append(f"{text.rstrip()}\n\n{_KEEP}{number};\n")
    return "\n".join(parts)


def schema_version(connection: Connection[Any], settings: PostgresSettings) -> int:
    """The version that is there, 0 where there is none."""
    texts = Texts(settings.schema, settings.prefix)
    try:
        with connection.transaction():
            row = connection.execute(_plain(texts.rendered(_READ))).fetchone()
    except (UndefinedTable, InvalidSchemaName):
        return 0
    return 0 if row is None else int(row[0])


def _has_schema(connection: Connection[Any], settings: PostgresSettings) -> bool:
    found = connection.execute("select to_regnamespace(%s)", (settings.schema,)).fetchone()
    return found is not None and found[0] is not None


def _take_turn(connection: Connection[Any], settings: PostgresSettings) -> None:
    # Else a database may show all the time what was there before the turn came.
    connection.execute("set transaction isolation level read committed")
    name = f"packhorse {settings.schema}.{settings.prefix}"
    connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))


def _refuse_old_server(connection: Connection[Any], settings: PostgresSettings) -> None:
    version = connection.info.server_version
    if version < SERVER_MIN:
        raise StoreError(
            f"PostgreSQL at {settings.label} is version {version // 10000}; Packhorse needs "
            f"{SERVER_MIN // 10000} or newer: upgrade the server"
        )


def _refuse_newer(version: int, settings: PostgresSettings) -> None:
    if version > known_version():
        raise SchemaOutOfDate(
            f"the schema {settings.schema} at {settings.label} has version {version}, this "
            f"release of Packhorse knows up to {known_version()}: upgrade Packhorse here"
        )


def _plain(text: str) -> Any:
    """For psycopg, whose types want literal strings: these come from our own files."""
    return text.encode()


@cache
def _migrations() -> tuple[str, ...]:
    folder = files("packhorse.stores.postgres") / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple((folder / name).read_text("utf-8") for name in names)
