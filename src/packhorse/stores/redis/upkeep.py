# SPDX-License-Identifier: MIT
"""Upkeep on Redis: promoting, expiring, setting aside, forgetting."""

from __future__ import annotations

from functools import partial

from packhorse.policies.retention import GHOST_US
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.statements import Script

__all__ = ["RedisUpkeep"]


class RedisUpkeep:
    """See `UpkeepStore`."""

    def promote(self, *, limit: int) -> Plan[int]:
        return Plan("promote", partial(_counted, "promote", limit))

    def expire(self, *, limit: int) -> Plan[int]:
        return Plan("expire", partial(_counted, "expire", limit))

    def park(self, *, after_us: int, limit: int) -> Plan[tuple[str, ...]]:
        return Plan("park", partial(_park, after_us, limit))

    def prune(self, *, limit: int) -> Plan[int]:
        return Plan("prune", partial(_counted, "prune", limit, GHOST_US))


def _counted(script: str, limit: int, *more: int) -> Steps[int]:
    reply = yield Script(script, [max(0, limit), *more])
    return int(reply)


def _park(after_us: int, limit: int) -> Steps[tuple[str, ...]]:
    reply = yield Script("park", [after_us, max(0, limit)])
    return tuple(name.decode() for name in reply)
