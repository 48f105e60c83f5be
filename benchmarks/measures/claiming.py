# SPDX-License-Identifier: MIT
"""Claims and settlements made by hand, as a worker makes them."""

from __future__ import annotations

from typing import Final

from packhorse.core.job import JobStatus
from packhorse.core.settlement import Settlement, SettlementKind
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Claimed, ClaimRequest, Renewal

_SETTLE_BATCH: Final = 1000
_LEASE_US: Final = 3_600_000_000
_WORKER: Final = "benchmark"
_QUEUES: Final = ("default",)
_TASKS: Final = ("noop",)


def join(store: Store) -> None:
    """Become a worker."""
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, _QUEUES, _TASKS)))


def claim(store: Store, limit: int) -> Claimed:
    """Claim so many jobs, all of which must be there."""
    request = ClaimRequest(_WORKER, _QUEUES, _TASKS, limit, _LEASE_US)
    claimed = store.run(store.jobs.claim(request))
    if len(claimed.jobs) != limit:
        raise RuntimeError(f"a claim of {limit} jobs gave {len(claimed.jobs)}")
    return claimed


def finish(store: Store, count: int) -> None:
    """Run `count` jobs through the store, as a worker would."""
    done = 0
    while done < count:
        jobs = claim(store, min(_SETTLE_BATCH, count - done)).jobs
        ends = [
            Settlement(
                job.id,
                job.fence,
                SettlementKind.COMPLETED,
                JobStatus.COMPLETED,
                result="null",
                keep_us=_LEASE_US,
                result_keep_us=_LEASE_US,
            )
            for job in jobs
        ]
        store.run(store.jobs.settle(ends))
        done += len(jobs)
