# SPDX-License-Identifier: MIT
"""Leases on Redis: which workers live, what they hold, and what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packhorse.core.job import JobOptions
from packhorse.core.lifecycle import Orphan
from packhorse.core.policies.retention import Retention
from packhorse.stores.plan import Steps, planned
from packhorse.stores.redis.scripts import Argument, Script
from packhorse.stores.requests import (
    ExpiredLease,
    ExpiredLeases,
    Renewal,
    Renewed,
    Totals,
    WorkerRecord,
)


class _WorkerRow(msgspec.Struct, frozen=True, array_like=True):
    """A worker as the store keeps it."""

    renewal: str  #: JSON text
    started_us: int
    renewed_us: int
    expires_us: int
    lease_us: int
    totals: Totals = Totals()
    schema: int = 1  #: the newest layout that it knows; older releases say nothing


_read_row: Final = msgspec.msgpack.Decoder(_WorkerRow).decode
_read_renewal: Final = msgspec.json.Decoder(Renewal).decode
_read_options: Final = msgspec.json.Decoder(JobOptions).decode


class RedisLeases:
    """See `LeaseStore`."""

    @planned()
    def renew(self, renewal: Renewal) -> Steps[Renewed]:
        """One script; more only when a worker has lost sight of very many jobs."""
        told = msgspec.structs.asdict(renewal) | {"held": None, "step_us": 0}
        asked_us = told.pop("asked_us")
        args: list[Argument] = [renewal.worker, renewal.lease_us, msgspec.json.encode(told)]
        args += (max(0, renewal.step_us), int(renewal.held is not None))
        args += (*msgspec.structs.astuple(renewal.totals), asked_us)
        for job_id, fence in renewal.held or ():
            args += (job_id, fence)
        expires_us, now_us, lapsed, released, more = yield Script("renew", args)
        while more:
            args[3] = 0  # the holds have moved by now
            expires_us, now_us, _, count, more = yield Script("renew", args)
            released += count
        return Renewed(expires_us=expires_us, now_us=now_us, lapsed=bool(lapsed), released=released)

    @planned()
    def leave(self, worker: str) -> Steps[int]:
        released, more = yield Script("leave", [worker])
        while more:
            count, more = yield Script("leave", [worker])
            released += count
        return int(released)

    @planned(writes=False)
    def cancelled(self, worker: str) -> Steps[tuple[str, ...]]:
        found, beyond = yield Script("cancelled", (worker, 0))
        while beyond != -1:
            more, beyond = yield Script("cancelled", (worker, beyond))
            found += more
        return tuple(job_id.decode() for job_id in found)

    @planned(writes=False)
    def expired(self) -> Steps[ExpiredLeases]:
        now_us, rows = yield Script("expired")
        leases = tuple(_lease(worker.decode(), row) for worker, row in sorted(rows))
        return ExpiredLeases(now_us, leases)

    @planned(writes=False)
    def orphans(self, workers: Sequence[str], *, limit: int) -> Steps[tuple[Orphan, ...]]:
        now_us, rows = yield Script("orphans", (max(0, limit), *workers))
        return tuple(_orphan(row, now_us) for row in rows)

    @planned(writes=False)
    def workers(self) -> Steps[tuple[WorkerRecord, ...]]:
        now_us, rows = yield Script("workers")
        records = (read_worker(row, now_us, running=held) for row, held in rows)
        return tuple(sorted(records, key=lambda record: record.worker))


def _lease(worker: str, row: bytes | None) -> ExpiredLease:
    if row is None:  # not known at all
        return ExpiredLease(worker, expires_us=0, lease_us=0)
    known = _read_row(row)
    return ExpiredLease(worker, known.expires_us, known.lease_us)


def _orphan(row: Sequence[Any], now_us: int) -> Orphan:
    _, job_id, fence, crashes, lone_crashes, alone, worker, hold, expires, options, *kept = row
    ends = [int(hold)] if int(hold) <= now_us else []
    if expires is not None:
        ends.append(int(expires))
    return Orphan(
        job_id=job_id.decode(),
        fence=fence,
        crashes=crashes,
        lone_crashes=lone_crashes,
        alone=bool(alone),
        worker=worker.decode(),
        lost_us=min(ends),
        now_us=now_us,
        max_crashes=None if options is None else _read_options(options).max_crashes,
        retention=Retention(*kept),
    )


def read_worker(text: bytes, now_us: int, *, running: int) -> WorkerRecord:
    """A worker as it is shown."""
    row = _read_row(text)
    return WorkerRecord.of(
        _read_renewal(row.renewal),
        running=running,
        totals=row.totals,
        started_us=row.started_us,
        renewed_us=row.renewed_us,
        expires_us=row.expires_us,
        now_us=now_us,
    )
