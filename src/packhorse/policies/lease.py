# SPDX-License-Identifier: MIT
"""When a worker renews its lease, how long it may trust it, and when it counts as gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from packhorse.clock import SECOND_US

__all__ = [
    "LEASE_US_DEFAULT",
    "Sighting",
    "confirmed",
    "renew_interval_us",
    "sight",
    "suspicion_us",
    "trusted_for_us",
]

LEASE_US_DEFAULT: Final = 30 * SECOND_US
_SUSPICION_US_MAX: Final = 3 * SECOND_US


def renew_interval_us(lease_us: int) -> int:
    """Renew every third of a lease, so that two renewals may fail before it is gone."""
    return lease_us // 3


def trusted_for_us(lease_us: int) -> int:
    """How long after *asking* for a renewal its holder may rely on it.

    Counted from the asking, so that a slow answer cannot stretch it; a tenth is left as margin
    for a worker to stop its side effects before the store gives its jobs away.
    """
    return lease_us - lease_us // 10


def suspicion_us(lease_us: int) -> int:
    """How far apart two looks must be before an expired lease counts as gone."""
    return min(_SUSPICION_US_MAX, lease_us // 3)


class Sighting(msgspec.Struct, frozen=True):
    """An expired lease, and when one rescuer first saw it so."""

    worker: str
    expires_us: int
    lease_us: int
    first_seen: float  #: seconds on the rescuer's own monotonic clock


def sight(
    known: Mapping[str, Sighting], expired: Mapping[str, tuple[int, int]], now: float
) -> dict[str, Sighting]:
    """Carry on the sightings of leases still expired at the same instant; forget the others.

    `expired` maps a worker to (expiry, lease length). A lease renewed in between has another
    expiry, so its clock starts anew.
    """
    seen: dict[str, Sighting] = {}
    for worker, (expires_us, lease_us) in expired.items():
        before = known.get(worker)
        same = before is not None and before.expires_us == expires_us
        first_seen = before.first_seen if same and before is not None else now
        seen[worker] = Sighting(worker, expires_us, lease_us, first_seen)
    return seen


def confirmed(known: Mapping[str, Sighting], now: float) -> tuple[str, ...]:
    """The workers whose lease has been seen expired twice, far enough apart."""
    return tuple(
        sighting.worker
        for sighting in known.values()
        if (now - sighting.first_seen) * SECOND_US >= suspicion_us(sighting.lease_us)
    )
