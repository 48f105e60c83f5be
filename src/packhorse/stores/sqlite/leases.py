# SPDX-License-Identifier: MIT
"""Leases on SQLite: how one is renewed."""

from __future__ import annotations

from packhorse.stores.plan import Plan, Steps
from packhorse.stores.requests import Renewal, Renewed
from packhorse.stores.sql.leases import SqlLeases, release_unknown
from packhorse.stores.sql.rows import json_text
from packhorse.stores.sql.steps import NOW, Change, Rows
from packhorse.stores.sqlite.dialect import SQLITE, nothing
from packhorse.stores.sqlite.statements import sql

__all__ = ["SqliteLeases"]


class SqliteLeases(SqlLeases):
    """See `LeaseStore`."""

    def __init__(self) -> None:
        super().__init__(SQLITE, nothing)

    def renew(self, renewal: Renewal) -> Plan[Renewed]:
        return Plan("renew", lambda: _renew(renewal))


def _renew(renewal: Renewal) -> Steps[Renewed]:
    now_us: int = yield NOW
    before = yield Rows(sql("lease_expires"), (renewal.worker,))
    expires_us = now_us + renewal.lease_us
    yield Change(
        sql("lease_renew"),
        {
            "worker": renewal.worker,
            "lease_us": renewal.lease_us,
            "expires_us": expires_us,
            "now": now_us,
            "host": renewal.host,
            "pid": renewal.pid,
            "version": renewal.version,
            "concurrency": renewal.concurrency,
            "running": renewal.running,
            "queues": json_text(renewal.queues),
            "tasks": json_text(renewal.tasks),
        },
    )
    if renewal.step_us > 0:
        moved = {"worker": renewal.worker, "step_us": renewal.step_us, "now": now_us}
        yield Change(sql("holds_move"), moved)
    released = 0
    if renewal.held is not None:
        released = yield from release_unknown(SQLITE, renewal.worker, set(renewal.held), now_us)
    lapsed = not before or before[0][0] <= now_us
    return Renewed(expires_us, now_us, lapsed, released)
