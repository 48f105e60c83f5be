# SPDX-License-Identifier: MIT
"""Put an app's connection together: its store, the keys of its values, a spool if it has one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from packhorse.client.registry import Registry
from packhorse.client.store_access import Connection
from packhorse.core.clock import Clock
from packhorse.events import EventBus
from packhorse.stores.protocol import Store

if TYPE_CHECKING:
    from packhorse.client.encryption import Encryption

#: Of `client.encryption`, which is imported only for them.
_KEYS: Final = ("PACKHORSE_KEYS", "PACKHORSE_KEYS_FILE")


def connected(
    opener: Callable[[], Store],
    *,
    registry: Registry,
    bus: EventBus,
    clock: Clock,
    spool: tuple[str, str | os.PathLike[str]] | None,
    encryption: Encryption | None,
) -> Connection:
    """Return the connection; nothing is opened yet. A spool is named by a folder and a path."""
    sealer = None
    if encryption is not None or any(name in os.environ for name in _KEYS):
        # Few have keys, and the others do not pay for it.
        from packhorse.client.encryption import Sealer, chosen_encryption  # noqa: PLC0415
        from packhorse.client.sealed_store import SealedStore  # noqa: PLC0415

        keys = chosen_encryption(encryption)
        if keys is not None:
            sealer, plain = Sealer(keys), opener
            opener = lambda: SealedStore(plain(), keys)  # noqa: E731 - as the app gives one
    if spool is None:
        connection = Connection(opener, registry=registry, bus=bus, clock=clock)
    else:
        from pathlib import Path  # noqa: PLC0415 - slow to import, and few have a spool

        from packhorse.client.spool import SpoolingConnection  # noqa: PLC0415 - as above

        connection = SpoolingConnection(
            opener, registry=registry, bus=bus, clock=clock, path=Path(*spool), sealer=sealer
        )
    connection.places.sealed = sealer is not None
    return connection
