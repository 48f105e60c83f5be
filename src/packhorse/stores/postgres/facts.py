# SPDX-License-Identifier: MIT
"""What `packhorse doctor` tells about a PostgreSQL store."""

from __future__ import annotations

from typing import Any, Final

from psycopg import Connection

from packhorse.stores.postgres.migrate import schema_version
from packhorse.stores.postgres.settings import PostgresSettings

#: Requests in the intake that are counted.
_COUNTED_MAX: Final = 1_000
_ASK = """\
select current_setting('server_version'), current_database(), current_user,
       current_setting('synchronous_commit'), current_setting('fsync'),
       current_setting('full_page_writes'),
       pg_is_in_recovery() or current_setting('transaction_read_only')::boolean,
       (select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class
        where relnamespace = to_regnamespace(%s) and relkind in ('r', 'p')),
       current_setting('statement_timeout')
"""


def facts(connection: Connection[Any], settings: PostgresSettings) -> dict[str, str]:
    """What there is to know, as text."""
    row = connection.execute(_ASK, (settings.schema,)).fetchone()
    assert row is not None  # noqa: S101 - it has no condition
    version, database, user, commit, fsync, pages, read_only, size, timeout = row
    return {
        "store": "postgresql",
        "server": version,
        "database": database,
        "user": user,
        "schema name": f"{settings.schema} (prefix {settings.prefix!r})",
        "schema": str(schema_version(connection, settings)),
        "size": f"{size / 1024:.0f} KiB",
        "synchronous_commit": commit,
        "survives a power cut": _durability(commit, fsync, pages),
        "statement timeout": f"{timeout} on the server, {settings.statement_timeout_s:g}s asked",
        "intake": _intake(connection, settings),
        "connections at most": f"{settings.hot_pool} hot, {settings.pool} others, 1 listening",
        "writable": "no" if read_only else "yes",
    }


def _intake(connection: Connection[Any], settings: PostgresSettings) -> str:
    """How much transactions of users have asked for that was not admitted yet."""
    table = f'"{settings.schema}"."{settings.prefix}requests"'
    found = connection.execute("select to_regclass(%s)", (table,)).fetchone()
    if found is None or found[0] is None:
        return "empty"
    text = f"select count(*) from (select 1 from {table} limit {_COUNTED_MAX}) as waiting"  # noqa: S608 - names of the settings
    row = connection.execute(text.encode()).fetchone()
    waiting = 0 if row is None else row[0]
    return f"{waiting}{'+' if waiting == _COUNTED_MAX else ''} waiting" if waiting else "empty"


def _durability(commit: str, fsync: str, pages: str) -> str:
    if fsync == "off":
        return "no: fsync is off on this server, and a power cut can destroy the database"
    if pages == "off":
        return "not surely: full_page_writes is off on this server"
    if commit == "off":
        return "not every commit: synchronous_commit is off, the last ones may be lost"
    return "every commit"
