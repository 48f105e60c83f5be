# SPDX-License-Identifier: MIT
"""Who lives, who holds what, and what was lost: the half of `LeaseStore` that reads only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packhorse.job import JobOptions
from packhorse.lifecycle import Orphan
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.statements import Script
from packhorse.stores.requests import ExpiredLease, ExpiredLeases, Renewal, WorkerRecord

__all__ = ["LeaseReading", "read_worker"]


class _WorkerRow(msgspec.Struct, frozen=True, array_like=True):
    """A worker as the store keeps it."""

    renewal: str  #: JSON text
    started_us: int
    renewed_us: int
    expires_us: int
    lease_us: int


_read_row: Final = msgspec.msgpack.Decoder(_WorkerRow).decode
_read_renewal: Final = msgspec.json.Decoder(Renewal).decode
_read_options: Final = msgspec.json.Decoder(JobOptions).decode


class LeaseReading:
    """See `LeaseStore`."""

    def cancelled(self, worker: str) -> Plan[tuple[str, ...]]:
        def steps() -> Steps[tuple[str, ...]]:
            found, beyond = yield Script("cancelled", (worker, 0))
            while beyond != -1:
                more, beyond = yield Script("cancelled", (worker, beyond))
                found += more
            return tuple(job_id.decode() for job_id in found)

        return Plan("cancelled", steps, writes=False)

    def expired(self) -> Plan[ExpiredLeases]:
        def steps() -> Steps[ExpiredLeases]:
            now_us, rows = yield Script("expired")
            leases = tuple(_lease(worker.decode(), row) for worker, row in sorted(rows))
            return ExpiredLeases(now_us, leases)

        return Plan("expired", steps, writes=False)

    def orphans(self, workers: Sequence[str], *, limit: int) -> Plan[tuple[Orphan, ...]]:
        def steps() -> Steps[tuple[Orphan, ...]]:
            now_us, rows = yield Script("orphans", (max(0, limit), *workers))
            return tuple(_orphan(row, now_us) for row in rows)

        return Plan("orphans", steps, writes=False)

    def workers(self) -> Plan[tuple[WorkerRecord, ...]]:
        def steps() -> Steps[tuple[WorkerRecord, ...]]:
            now_us, rows = yield Script("workers")
            records = (read_worker(row, now_us) for row in rows)
            return tuple(sorted(records, key=lambda record: record.worker))

        return Plan("workers", steps, writes=False)


def _lease(worker: str, row: bytes | None) -> ExpiredLease:
    if row is None:  # not known at all
        return ExpiredLease(worker, expires_us=0, lease_us=0)
    known = _read_row(row)
    return ExpiredLease(worker, known.expires_us, known.lease_us)


def _orphan(row: Sequence[Any], now_us: int) -> Orphan:
    _, job_id, fence, crashes, lone_crashes, alone, worker, hold, expires, options = row
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
    )


def read_worker(text: bytes, now_us: int) -> WorkerRecord:
    """A worker as it is shown."""
    row = _read_row(text)
    return WorkerRecord.of(
        _read_renewal(row.renewal),
        started_us=row.started_us,
        renewed_us=row.renewed_us,
        expires_us=row.expires_us,
        now_us=now_us,
    )
