# SPDX-License-Identifier: MIT
"""When a worker renews its lease, how long it may trust it, and when it counts as gone.

Leases and holds end at an instant of the store's clock, which an operator may set. Only a clock set
forward can wrong live workers, so a worker that rescues jobs watches it against its own monotonic
clock, and after such a step waits until every live worker must have renewed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from packhorse.core.clock import SECOND_US

LEASE_US_DEFAULT: Final = 30 * SECOND_US
_SUSPICION_US_MAX: Final = 3 * SECOND_US
#: The longest between two looks of a rescuer.
RESCUE_LOOK_US_MAX: Final = SECOND_US
#: Clocks that differ by less were not set, they only run a little apart.
_STEP_US_MIN: Final = SECOND_US // 4
#: A moment long before any other: no step was ever seen.
NEVER: Final = float("-inf")


def is_lost(lease_expires_us: int | None, hold_until_us: int | None, now_us: int) -> bool:
    """Whether a running job may be taken from its owner.

    It may when the owner's lease has run out, or is not known (None), or the hold limit has passed.
    """
    lease_gone = lease_expires_us is None or lease_expires_us <= now_us
    return lease_gone or (hold_until_us is not None and hold_until_us <= now_us)


#: When a renewal was asked for that does not say so: no earlier than it is granted.
ASKED_NOW_US: Final = 2**62


def renewed_until_us(now_us: int, lease_us: int, asked_us: int, before_us: int | None) -> int:
    """Count a renewed lease from when it was asked for: its worker may be dead when it arrives."""
    return min(now_us + lease_us, max(asked_us + lease_us, before_us or 0))


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


def taken_back_us(expires_us: int, lease_us: int) -> int:
    """By when the jobs of a worker that is gone are taken from it, while another one lives."""
    return expires_us + suspicion_us(lease_us) + RESCUE_LOOK_US_MAX


def patience_us(lease_us: int) -> int:
    """How long after a step of the store's clock no lease counts as gone.

    A worker renews after a third of its lease, and the supervisor of one that cannot after half;
    a sixth is left for them to be late.
    """
    return lease_us * 2 // 3


class ClockReading(msgspec.Struct, frozen=True):
    """The store's clock, and between which instants of one's own monotonic clock it was read."""

    store_us: int
    asked: float  #: seconds
    answered: float  #: seconds


def read_later_us(reading: ClockReading | None, now: float) -> int:
    """What the store's clock says at most at this later instant, unless it was set meanwhile."""
    if reading is None:
        return ASKED_NOW_US
    return reading.store_us + round((now - reading.asked) * SECOND_US)


def stepped_us(before: ClockReading, after: ClockReading) -> int:
    """By how much the store's clock was set between two readings: forward above zero, or back.

    When exactly it was read is not known, so this is the least that it can have been.
    """
    passed_us = after.store_us - before.store_us
    least_us = round((after.asked - before.answered) * SECOND_US)
    most_us = round((after.answered - before.asked) * SECOND_US)
    beyond_us = max(0, passed_us - most_us) + min(0, passed_us - least_us)
    return beyond_us if abs(beyond_us) >= _STEP_US_MIN else 0


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
    expiry, so its clock starts again.
    """
    seen: dict[str, Sighting] = {}
    for worker, (expires_us, lease_us) in expired.items():
        before = known.get(worker)
        same = before is not None and before.expires_us == expires_us
        first_seen = before.first_seen if same and before is not None else now
        seen[worker] = Sighting(worker, expires_us, lease_us, first_seen)
    return seen


def ripe_at(sighting: Sighting, stepped_at: float = NEVER) -> float:
    """From when on, by the rescuer's own clock, this lease counts as gone if it is still expired.

    `stepped_at` is when the rescuer last saw that the store's clock had been set forward.
    """
    return max(
        sighting.first_seen + suspicion_us(sighting.lease_us) / SECOND_US,
        stepped_at + patience_us(sighting.lease_us) / SECOND_US,
    )


def confirmed(
    known: Mapping[str, Sighting], now: float, stepped_at: float = NEVER
) -> tuple[str, ...]:
    """The workers whose lease has been seen expired twice, far enough apart and from a step."""
    return tuple(each.worker for each in known.values() if now >= ripe_at(each, stepped_at))


#: A job and the fence under which it is held.
Hold = tuple[str, int]


def sight_holds(
    known: Mapping[Hold, float], passed: Iterable[Hold], now: float
) -> dict[Hold, float]:
    """When each hold that has passed its limit was first seen so; the others are forgotten."""
    return {hold: known.get(hold, now) for hold in passed}


def overdue(known: Mapping[Hold, float], now: float, stepped_at: float = NEVER) -> frozenset[Hold]:
    """The holds that may be ended though their holders live.

    As with leases they are seen twice, and not soon after a step: a holder that notices one has
    its holds moved along. Its lease may be of any length; the default is taken for it.
    """
    first_seen_by = now - _SUSPICION_US_MAX / SECOND_US
    if now < stepped_at + patience_us(LEASE_US_DEFAULT) / SECOND_US:
        return frozenset()
    return frozenset(hold for hold, first_seen in known.items() if first_seen <= first_seen_by)
