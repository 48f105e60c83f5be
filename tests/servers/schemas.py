# SPDX-License-Identifier: MIT
"""Empty schemas of a PostgreSQL database, one test after another.

To create one takes longer than most tests do. So they are made once, emptied when a test has ended,
and dropped when the process does.
"""

from __future__ import annotations

import atexit
import os
from functools import cache
from typing import Any, Final

import psycopg

from packhorse.stores import open_store
from tests.servers.postgres import postgres_url

#: Emptied so often row by row, which is fast; then at once, which gives the space back.
_ROW_BY_ROW_MAX: Final = 200
_TABLES: Final = (
    "select relname, relkind from pg_class where relnamespace = %s::regnamespace "
    "and relkind in ('r', 'S') and not relispartition order by relname"
)
_VERSION: Final = "schema_version"


class Schemas:
    """Schemas that are ready for use, those in use, and how to empty them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._free: list[str] = []
        self._made = 0
        self._uses: dict[str, int] = {}
        self._scripts: dict[str, tuple[str, str]] = {}
        self._connection: psycopg.Connection[Any] | None = None

    def url_of(self, schema: str, **options: str) -> str:
        """The URL of a store in this schema."""
        sign = "&" if "?" in self.url else "?"
        rest = "".join(f"&{name}={value}" for name, value in options.items())
        return f"{self.url}{sign}schema={schema}{rest}"

    def take(self) -> str:
        """The name of a schema that is up to date, empty, and used by no other test."""
        if self._free:
            return self._free.pop()
        self._made += 1
        name = f"test_{os.getpid()}_{self._made}"
        store = open_store(self.url_of(name))
        store.migrate()
        store.close()
        self._scripts[name] = self._emptying(name)
        self._uses[name] = 0
        return name

    def give(self, schema: str) -> None:
        """Empty a schema for the next one."""
        self._uses[schema] += 1
        thoroughly = self._uses[schema] % _ROW_BY_ROW_MAX == 0
        self._execute(self._scripts[schema][thoroughly])
        self._free.append(schema)

    def drop_all(self) -> None:
        for name in self._scripts:
            self._execute(f'drop schema if exists "{name}" cascade')
        if self._connection is not None:
            self._connection.close()

    def _emptying(self, schema: str) -> tuple[str, str]:
        """Statements that empty a schema: row by row, and at once."""
        found = self._connected().execute(_TABLES, (schema,)).fetchall()
        tables = [f'"{schema}"."{name}"' for name, kind in found if kind in ("r", b"r")]
        tables = [table for table in tables if _VERSION not in table]
        sequences = [f'"{schema}"."{name}"' for name, kind in found if kind in ("S", b"S")]
        restart = "".join(f"select setval('{name}', 1, false);" for name in sequences)
        seeds = "".join(self._seed(table) for table in tables)
        row_by_row = "".join(f"delete from {table};" for table in tables)
        return row_by_row + restart + seeds, f"truncate {','.join(tables)};" + restart + seeds

    def _seed(self, table: str) -> str:
        """What puts back the rows that a table begins with."""
        rows = self._connected().execute(f"table {table} limit 1".encode()).fetchone()
        if rows is None:
            return ""
        kept = table[:-1] + '_seed"'
        self._execute(f"create table {kept} as table {table}")
        return f"insert into {table} table {kept};"

    def _execute(self, script: str) -> None:
        self._connected().execute(script.encode())

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = psycopg.connect(self.url, autocommit=True)
        return self._connection


@cache
def schemas() -> Schemas:
    """Those all tests of this process share."""
    made = Schemas(postgres_url())
    atexit.register(made.drop_all)  # before the server is stopped, which was begun earlier
    return made
