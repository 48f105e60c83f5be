# SPDX-License-Identifier: MIT
"""The version of the key layout: written once, checked by every process that connects."""

from __future__ import annotations

from typing import Any, Final

from packhorse.errors import SchemaOutOfDate
from packhorse.stores.redis.connection import Wire
from packhorse.stores.redis.packing import pack
from packhorse.stores.redis.settings import RedisSettings

__all__ = ["SCHEMA", "check_schema"]

#: The key layout this release reads and writes.
SCHEMA: Final = 1


def check_schema(wire: Wire, settings: RedisSettings) -> int:
    """Write the version where there is none, and refuse one that is not ours. Says it.

    Many processes may do so at once: the first one writes.
    """
    key = f"{settings.tag}:schema"
    _asked(wire, "SET", key, SCHEMA, "NX")
    found = int(_asked(wire, "GET", key))
    if found > SCHEMA:
        raise SchemaOutOfDate(
            f"Redis at {settings.label} has key layout {found}, and this release knows up to "
            f"{SCHEMA}: upgrade packhorse here, or use another namespace"
        )
    return found


def _asked(wire: Wire, *command: Any) -> Any:
    reply = wire.ask(pack(command))
    if isinstance(reply, Exception):
        raise reply
    return reply
