# SPDX-License-Identifier: MIT
"""Upkeep on Redis: promoting, expiring, setting aside, forgetting."""

from __future__ import annotations

from functools import partial

from packhorse.core.policies.journal import KEPT_US, MEMBER_LIFE_US_MAX
from packhorse.core.policies.retention import GHOST_US
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.scripts import Script
from packhorse.stores.requests import Parked


class RedisUpkeep:
    """See `UpkeepStore`."""

    def promote(self, *, limit: int) -> Plan[int]:
        return Plan("promote", partial(_counted, "promote", limit))

    def expire(self, *, limit: int) -> Plan[tuple[str, ...]]:
        return Plan("expire", partial(_expire, limit))

    def park(self, *, after_us: int, limit: int) -> Plan[Parked]:
        return Plan("park", partial(_park, after_us, limit))

    def prune(self, *, limit: int) -> Plan[int]:
        spans = (GHOST_US, MEMBER_LIFE_US_MAX, KEPT_US)
        return Plan("prune", partial(_counted, "prune", limit, *spans))


def _counted(script: str, limit: int, *more: int) -> Steps[int]:
    reply = yield Script(script, [max(0, limit), *more])
    return int(reply)


def _expire(limit: int) -> Steps[tuple[str, ...]]:
    reply = yield Script("expire", [max(0, limit)])
    return tuple(job_id.decode() for job_id in reply)


def _park(after_us: int, limit: int) -> Steps[Parked]:
    tasks, dead = yield Script("park", [after_us, max(0, limit)])
    return Parked(tuple(name.decode() for name in tasks), tuple(job_id.decode() for job_id in dead))
