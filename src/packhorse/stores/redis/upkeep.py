# SPDX-License-Identifier: MIT
"""Upkeep on Redis: promoting, expiring, setting aside, forgetting."""

from __future__ import annotations

from packhorse.core.policies.journal import KEPT_US, MEMBER_LIFE_US_MAX
from packhorse.core.policies.retention import GHOST_US
from packhorse.stores.plan import Steps, planned
from packhorse.stores.redis.scripts import Script
from packhorse.stores.requests import Parked


class RedisUpkeep:
    """See `UpkeepStore`."""

    @planned()
    def promote(self, *, limit: int) -> Steps[int]:
        return int((yield Script("promote", [max(0, limit)])))

    @planned()
    def expire(self, *, limit: int) -> Steps[tuple[str, ...]]:
        reply = yield Script("expire", [max(0, limit)])
        return tuple(job_id.decode() for job_id in reply)

    @planned()
    def park(self, *, after_us: int, limit: int) -> Steps[Parked]:
        tasks, dead = yield Script("park", [after_us, max(0, limit)])
        return Parked(
            tuple(name.decode() for name in tasks), tuple(job_id.decode() for job_id in dead)
        )

    @planned()
    def prune(self, *, limit: int) -> Steps[int]:
        spans = (GHOST_US, MEMBER_LIFE_US_MAX, KEPT_US)
        return int((yield Script("prune", [max(0, limit), *spans])))
