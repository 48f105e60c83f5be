# SPDX-License-Identifier: MIT
"""Leases on SQLite: who lives, who holds what, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from packhorse.job import JobStatus
from packhorse.lifecycle import Orphan
from packhorse.settlement import Settlement, SettlementKind
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.requests import ExpiredLease, Renewal, Renewed, WorkerRecord
from packhorse.stores.sqlite.finishing import aftermath, wake_waiters
from packhorse.stores.sqlite.rows import json_text, read_retention
from packhorse.stores.sqlite.settling import settle_each
from packhorse.stores.sqlite.statements import NOW, Change, Rows, sql

__all__ = ["SqliteLeases"]


class SqliteLeases:
    """See `LeaseStore`."""

    def renew(self, renewal: Renewal) -> Plan[Renewed]:
        return Plan("renew", lambda: _renew(renewal))

    def leave(self, worker: str) -> Plan[int]:
        return Plan("leave", lambda: _leave(worker))

    def cancelled(self, worker: str) -> Plan[tuple[str, ...]]:
        def steps() -> Steps[tuple[str, ...]]:
            rows = yield Rows(sql("cancelled_of"), (worker,))
            return tuple(job_id for (job_id,) in rows)

        return Plan("cancelled", steps, writes=False)

    def expired(self) -> Plan[tuple[ExpiredLease, ...]]:
        def steps() -> Steps[tuple[ExpiredLease, ...]]:
            now_us = yield NOW
            rows = yield Rows(sql("leases_expired"), {"now": now_us})
            return tuple(ExpiredLease(*row) for row in rows)

        return Plan("expired", steps, writes=False)

    def orphans(self, workers: Sequence[str], *, limit: int) -> Plan[tuple[Orphan, ...]]:
        def steps() -> Steps[tuple[Orphan, ...]]:
            now_us = yield NOW
            chosen = {"now": now_us, "workers": json_text(list(workers)), "limit": limit}
            rows = yield Rows(sql("orphans"), chosen)
            return tuple(_orphan(row, now_us) for row in rows)

        return Plan("orphans", steps, writes=False)

    def workers(self) -> Plan[tuple[WorkerRecord, ...]]:
        def steps() -> Steps[tuple[WorkerRecord, ...]]:
            now_us = yield NOW
            rows = yield Rows(sql("workers"))
            return tuple(_worker(row, now_us) for row in rows)

        return Plan("workers", steps, writes=False)


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
    released = 0
    if renewal.held is not None:
        released = yield from _release_unknown(renewal.worker, set(renewal.held), now_us)
    lapsed = bool(before) and before[0][0] <= now_us
    return Renewed(expires_us, now_us, lapsed, released)


def _leave(worker: str) -> Steps[int]:
    now_us: int = yield NOW
    released: int = yield from _release_unknown(worker, set(), now_us)
    yield Change(sql("lease_leave"), (worker,))
    return released


def _release_unknown(worker: str, known: set[tuple[str, int]], now_us: int) -> Steps[int]:
    """Give back what the store thinks this worker holds and the worker does not."""
    rows = yield Rows(sql("held_rows"), (worker,))
    lost = [_release(*row) for row in rows if (row[0], row[1]) not in known]
    if lost:
        yield from settle_each(lost, now_us, by_owner=False)
        yield from aftermath("id", [one.job_id for one in lost])
        yield from wake_waiters()
    return len(lost)


def _release(job_id: str, fence: int, retention_json: str | None) -> Settlement:
    """A release of a job that nobody began: it costs nothing."""
    retention = read_retention(retention_json)
    return Settlement(
        job_id=job_id,
        fence=fence,
        kind=SettlementKind.RELEASED,
        status=JobStatus.QUEUED,
        keep_place=True,
        ended=False,
        releases=1,
        keep_us=retention.finished_us,
        dead_keep_us=retention.dead_us,
    )


def _orphan(row: Sequence[Any], now_us: int) -> Orphan:
    job_id, fence, crashes, lone_crashes, alone, worker, lost_us, max_crashes = row
    return Orphan(
        job_id, fence, crashes, lone_crashes, bool(alone), worker, lost_us, now_us, max_crashes
    )


def _worker(row: Sequence[Any], now_us: int) -> WorkerRecord:
    names = ("worker", "host", "pid", "version", "queues", "tasks", "concurrency", "running")
    values: dict[str, Any] = dict(zip(names, row, strict=False))
    values["queues"] = msgspec.json.decode(values["queues"], type=tuple[str, ...])
    values["tasks"] = msgspec.json.decode(values["tasks"], type=tuple[str, ...])
    started_us, renewed_us, expires_us = row[len(names) :]
    return WorkerRecord(
        **values,
        started_us=started_us,
        renewed_us=renewed_us,
        expires_us=expires_us,
        live=expires_us > now_us,
    )
