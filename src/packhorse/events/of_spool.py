# SPDX-License-Identifier: MIT
"""What happens to submissions that were made while the store was away."""

from __future__ import annotations

from packhorse.events.event import Event

__all__ = ["JobsSpooled", "SpoolDelivered", "SpoolRefused"]


class JobsSpooled(Event, frozen=True, kw_only=True):
    """Jobs were kept in the spool, because the store is away or others wait there already."""

    name = "jobs.spooled"

    jobs: int
    path: str


class SpoolDelivered(Event, frozen=True, kw_only=True):
    """The store has taken jobs from the spool."""

    name = "spool.delivered"

    jobs: int


class SpoolRefused(Event, frozen=True, kw_only=True):
    """The store refused a spooled submission for good; it is set aside in the spool's file."""

    name = "spool.refused"

    job_ids: tuple[str, ...]
    reason: str
    path: str
