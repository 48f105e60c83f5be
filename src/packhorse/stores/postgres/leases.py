# SPDX-License-Identifier: MIT
"""Leases on PostgreSQL: who lives, who holds what, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packhorse.job import JobStatus
from packhorse.lifecycle import Orphan
from packhorse.settlement import Settlement, SettlementKind
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.postgres.finishing import aftermath, wake_waiters
from packhorse.stores.postgres.floors import Floors
from packhorse.stores.postgres.locking import ALL
from packhorse.stores.postgres.queue_settings import retention_of
from packhorse.stores.postgres.rows import read_options
from packhorse.stores.postgres.settling import settle_each
from packhorse.stores.postgres.statements import NOW, Lock, Once, Rows, Send, sql
from packhorse.stores.requests import ExpiredLease, Renewal, Renewed, WorkerRecord

__all__ = ["PostgresLeases"]


class PostgresLeases:
    """See `LeaseStore`."""

    def __init__(self, floors: Floors) -> None:
        self._floors = floors

    def renew(self, renewal: Renewal) -> Plan[Renewed]:
        return Plan(
            "renew", lambda: _renew(renewal, self._floors), look=lambda: _renew_in_one(renewal)
        )

    def leave(self, worker: str) -> Plan[int]:
        return Plan("leave", lambda: _leave(worker, self._floors))

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
            chosen = {"now": now_us, "workers": list(workers), "limit": limit}
            rows = yield Rows(sql("orphans"), chosen)
            return tuple(_orphan(row, now_us) for row in rows)

        return Plan("orphans", steps, writes=False)

    def workers(self) -> Plan[tuple[WorkerRecord, ...]]:
        def steps() -> Steps[tuple[WorkerRecord, ...]]:
            now_us = yield NOW
            rows = yield Rows(sql("workers"))
            return tuple(_worker(row, now_us) for row in rows)

        return Plan("workers", steps, writes=False)


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
    [(now_us, before_us, lost)] = yield Once(sql("lease_renew"), _renewed(renewal, anyway=False))
    if lost:
        return None
    return Renewed(now_us + renewal.lease_us, now_us, before_us is not None and before_us <= now_us)


def _renew(renewal: Renewal, floors: Floors) -> Steps[Renewed]:
    yield Lock(ALL)
    [(now_us, before_us, _)] = yield Rows(sql("lease_renew"), _renewed(renewal, anyway=True))
    yield from floors.give_up()
    released = yield from _release_unknown(renewal.worker, set(renewal.held or ()), now_us)
    lapsed = before_us is not None and before_us <= now_us
    return Renewed(now_us + renewal.lease_us, now_us, lapsed, released)


def _leave(worker: str, floors: Floors) -> Steps[int]:
    yield Lock(ALL)
    now_us: int = yield NOW
    yield from floors.give_up()
    released: int = yield from _release_unknown(worker, set(), now_us)
    yield Send(sql("lease_leave"), (worker,))
    return released


def _release_unknown(worker: str, known: set[tuple[str, int]], now_us: int) -> Steps[int]:
    """Give back what the store thinks this worker holds and the worker does not."""
    rows = yield Rows(sql("held_rows"), (worker,))
    lost = [_release(*row) for row in rows if (row[0], row[1]) not in known]
    if lost:
        ids = [one.job_id for one in lost]
        yield from settle_each(lost, now_us, by_owner=False)
        yield from aftermath("id", ids)
        yield from wake_waiters("id", ids)
    return len(lost)


def _release(job_id: str, fence: int, settings: str | None) -> Settlement:
    """A release of a job that nobody began: it costs nothing."""
    retention = retention_of(settings)
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
    job_id, fence, crashes, lone_crashes, alone, worker, lost_us, options = row
    wished = read_options(options)
    max_crashes = None if wished is None else wished.max_crashes
    return Orphan(job_id, fence, crashes, lone_crashes, alone, worker, lost_us, now_us, max_crashes)


def _worker(row: Sequence[Any], now_us: int) -> WorkerRecord:
    names = ("worker", "host", "pid", "version", "queues", "tasks", "concurrency", "running")
    values: dict[str, Any] = dict(zip(names, row, strict=False))
    values["queues"] = tuple(values["queues"])
    values["tasks"] = tuple(values["tasks"])
    started_us, renewed_us, expires_us = row[len(names) :]
    return WorkerRecord(
        **values,
        started_us=started_us,
        renewed_us=renewed_us,
        expires_us=expires_us,
        live=expires_us > now_us,
    )
