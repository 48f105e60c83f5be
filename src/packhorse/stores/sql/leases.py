# SPDX-License-Identifier: MIT
"""Leases of workers, the jobs they hold, and orphans. Each store renews leases itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from packhorse.core.lifecycle import Orphan, release_unbegun
from packhorse.stores.plan import Steps, planned
from packhorse.stores.requests import ExpiredLease, ExpiredLeases, WorkerRecord
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.finish import aftermath
from packhorse.stores.sql.rows import read_options, read_worker, retention_of
from packhorse.stores.sql.settle import settle_each
from packhorse.stores.sql.statements import NOW, Rows


class SqlLeases:
    """See `LeaseStore`. `go_back` runs when jobs return to places that claims have passed."""

    def __init__(self, dialect: Dialect, go_back: Callable[[], Steps[None]]) -> None:
        self._dialect = dialect
        self._go_back = go_back

    @planned()
    def leave(self, worker: str) -> Steps[int]:
        yield from self._dialect.lock_all()
        now_us: int = yield NOW
        yield from self._go_back()
        released: int = yield from release_unknown(self._dialect, worker, set(), now_us)
        yield self._dialect.write(self._dialect.sql("lease_leave"), (worker,))
        return released

    @planned(writes=False)
    def cancelled(self, worker: str) -> Steps[tuple[str, ...]]:
        rows = yield Rows(self._dialect.sql("cancelled_of"), (worker,))
        return tuple(job_id for (job_id,) in rows)

    @planned(writes=False)
    def expired(self) -> Steps[ExpiredLeases]:
        now_us = yield NOW
        rows = yield Rows(self._dialect.sql("leases_expired"), {"now": now_us})
        return ExpiredLeases(now_us, tuple(ExpiredLease(*row) for row in rows))

    @planned(writes=False)
    def orphans(self, workers: Sequence[str], *, limit: int) -> Steps[tuple[Orphan, ...]]:
        dialect = self._dialect
        now_us = yield NOW
        chosen = {"now": now_us, "workers": dialect.many(workers), "limit": limit}
        rows = yield Rows(dialect.sql("orphans"), chosen)
        return tuple(read_orphan(row, now_us) for row in rows)

    @planned(writes=False)
    def workers(self) -> Steps[tuple[WorkerRecord, ...]]:
        now_us = yield NOW
        rows = yield Rows(self._dialect.sql("workers"))
        return tuple(read_worker(self._dialect.listed, row, now_us) for row in rows)


def release_unknown(
    dialect: Dialect, worker: str, known: set[tuple[str, int]], now_us: int
) -> Steps[int]:
    """Release jobs that the store counts as held and the worker does not know; return how many."""
    rows = yield Rows(dialect.sql("held_rows"), (worker,))
    lost = [
        release_unbegun(job_id, fence, retention_of(settings))
        for job_id, fence, settings in rows
        if (job_id, fence) not in known
    ]
    if lost:
        yield from settle_each(dialect, lost, now_us, by_owner=False)
        yield from aftermath(dialect, "id", [one.job_id for one in lost])
    return len(lost)


def read_orphan(row: Sequence[Any], now_us: int) -> Orphan:
    """Return an orphan from its row."""
    job_id, fence, crashes, lone_crashes, alone, worker, lost_us, options = row
    wished = read_options(options)
    max_crashes = None if wished is None else wished.max_crashes
    return Orphan(
        job_id, fence, crashes, lone_crashes, bool(alone), worker, lost_us, now_us, max_crashes
    )
