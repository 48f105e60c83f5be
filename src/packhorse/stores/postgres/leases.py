# SPDX-License-Identifier: MIT
"""Leases on PostgreSQL: how one is renewed, in one statement unless jobs were lost."""

from __future__ import annotations

from typing import Any

from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres.dialect import POSTGRES
from packhorse.stores.postgres.floors import Floors
from packhorse.stores.postgres.statements import Once, Send, sql
from packhorse.stores.requests import Renewal, Renewed
from packhorse.stores.sql.leases import SqlLeases, release_unknown
from packhorse.stores.sql.steps import Rows

__all__ = ["PostgresLeases"]


class PostgresLeases(SqlLeases):
    """See `LeaseStore`."""

    def __init__(self, floors: Floors) -> None:
        super().__init__(POSTGRES, floors.give_up)
        self._floors = floors

    def renew(self, renewal: Renewal) -> Plan[Renewed]:
        return Plan(
            "renew", lambda: _renew(renewal, self._floors), look=lambda: _renew_in_one(renewal)
        )


def _renewed(renewal: Renewal, *, anyway: bool) -> dict[str, Any]:
    held = renewal.held
    return {
        "worker": renewal.worker,
        "anyway": anyway,
        "lease_us": renewal.lease_us,
        "host": renewal.host,
        "pid": renewal.pid,
        "version": renewal.version,
        "concurrency": renewal.concurrency,
        "running": renewal.running,
        "queues": list(renewal.queues),
        "tasks": list(renewal.tasks),
        "ids": None if held is None else [job_id for job_id, _ in held],
        "fences": None if held is None else [fence for _, fence in held],
    }


def _renew_in_one(renewal: Renewal) -> Steps[Renewed | None]:
    """Nothing more to do, unless the store holds jobs for this worker that it does not know of."""
    if renewal.step_us > 0:
        return None
    [(now_us, before_us, lost)] = yield Once(sql("lease_renew"), _renewed(renewal, anyway=False))
    if lost:
        return None
    return Renewed(now_us + renewal.lease_us, now_us, before_us is None or before_us <= now_us)


def _renew(renewal: Renewal, floors: Floors) -> Steps[Renewed]:
    yield from POSTGRES.lock_all()
    [(now_us, before_us, _)] = yield Rows(sql("lease_renew"), _renewed(renewal, anyway=True))
    if renewal.step_us > 0:
        moved = {"worker": renewal.worker, "step_us": renewal.step_us, "now": now_us}
        yield Send(sql("holds_move"), moved)
    yield from floors.give_up()
    released = 0
    if renewal.held is not None:
        released = yield from release_unknown(POSTGRES, renewal.worker, set(renewal.held), now_us)
    lapsed = before_us is None or before_us <= now_us
    return Renewed(now_us + renewal.lease_us, now_us, lapsed, released)
