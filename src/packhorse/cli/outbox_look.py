# SPDX-License-Identifier: MIT
"""What `packhorse doctor` reads of an outbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packhorse.stores.protocol import Store

if TYPE_CHECKING:
    from packhorse.client.outbox import Outbox


@dataclass(frozen=True, slots=True)
class OutboxLook:
    """One outbox, as it was found."""

    label: str
    exists: bool = True
    waiting: int = 0
    oldest_s: float | None = None
    is_drained: bool = False  #: a worker is on duty
    trouble: str = ""  #: what kept it from being read


def look_at(store: Store, outbox: Outbox) -> OutboxLook:
    """Read what waits in an outbox, and whether a worker drains it."""
    drained = store.run(store.records.record(outbox.duty)) is not None
    try:
        if not outbox.exists():
            return OutboxLook(outbox.label, exists=False, is_drained=drained)
        state = outbox.state()
    except Exception as error:  # noqa: BLE001 - of whichever library that database is used with
        said = f"{type(error).__name__}: {error}"
        return OutboxLook(outbox.label, is_drained=drained, trouble=said)
    return OutboxLook(
        outbox.label, waiting=state.waiting, oldest_s=state.oldest_s, is_drained=drained
    )
