# SPDX-License-Identifier: MIT
"""Leases on Redis: who lives, and what is given back of what it held."""

from __future__ import annotations

from functools import partial

import msgspec

from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.lease_reading import LeaseReading
from packhorse.stores.redis.statements import Script
from packhorse.stores.requests import Renewal, Renewed

__all__ = ["RedisLeases"]


class RedisLeases(LeaseReading):
    """See `LeaseStore`."""

    def renew(self, renewal: Renewal) -> Plan[Renewed]:
        return Plan("renew", partial(_renew, renewal))

    def leave(self, worker: str) -> Plan[int]:
        return Plan("leave", partial(_leave, worker))


def _renew(renewal: Renewal) -> Steps[Renewed]:
    """One script; more only when a worker has lost sight of very many jobs."""
    text = msgspec.json.encode(msgspec.structs.replace(renewal, held=None, step_us=0))
    args: list[str | bytes | int] = [renewal.worker, renewal.lease_us, text]
    args += (max(0, renewal.step_us), int(renewal.held is not None))
    for job_id, fence in renewal.held or ():
        args += (job_id, fence)
    expires_us, now_us, lapsed, released, more = yield Script("renew", args)
    while more:
        args[3] = 0  # the holds have moved by now
        expires_us, now_us, _, count, more = yield Script("renew", args)
        released += count
    return Renewed(expires_us=expires_us, now_us=now_us, lapsed=bool(lapsed), released=released)


def _leave(worker: str) -> Steps[int]:
    released, more = yield Script("leave", [worker])
    while more:
        count, more = yield Script("leave", [worker])
        released += count
    return int(released)
