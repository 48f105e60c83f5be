# SPDX-License-Identifier: MIT
"""A separate place for one test, in a store that others use as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from packhorse.core.clock import new_id

#: Keys removed at once.
_BATCH: Final = 500


@contextmanager
def own_place(url: str, folder: Callable[[], Path]) -> Iterator[str]:
    """Yield the URL of an empty store: a file in a folder, a schema, or a namespace.

    Leave alone what was there before; remove what the test leaves.
    """
    bare, _, options = url.partition("?")
    name = f"packhorse_test_{new_id().replace('-', '')[-20:]}"
    match urlsplit(url).scheme:
        case "sqlite":
            yield f"sqlite:///{folder()}/jobs.db{'?' * bool(options)}{options}"
        case "postgres" | "postgresql":
            place = f"{bare}?{_others(options, 'schema')}schema={name}"
            try:
                yield place
            finally:
                _drop_place(place)
        case "redis" | "rediss" | "unix":
            try:
                yield f"{bare}?{_others(options, 'namespace')}namespace={name}"
            finally:
                clear_namespace(bare, name)
        case _:
            yield url


def drop_schema(conninfo: str, schema: str) -> None:
    """Remove a schema of PostgreSQL with all that is in it."""
    import psycopg  # noqa: PLC0415 - an extra

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f'drop schema if exists "{schema}" cascade'.encode())


def clear_namespace(url: str, namespace: str) -> None:
    """Remove every key of a namespace of Redis; leave alone other namespaces."""
    import redis  # noqa: PLC0415 - an extra

    with redis.Redis.from_url(url, driver_info=None) as client:
        keys = list(client.scan_iter(f"{{{namespace}}}*", count=_BATCH))
        for begin in range(0, len(keys), _BATCH):
            client.unlink(*keys[begin : begin + _BATCH])


def _others(options: str, replaced: str) -> str:
    kept = [each for each in options.split("&") if each and not each.startswith(f"{replaced}=")]
    return "".join(f"{each}&" for each in kept)


def _drop_place(url: str) -> None:
    from packhorse.stores.postgres.settings import PostgresSettings  # noqa: PLC0415 - an extra

    settings = PostgresSettings.from_url(url)
    drop_schema(settings.conninfo, settings.schema)
