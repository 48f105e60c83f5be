# SPDX-License-Identifier: MIT
"""What the tests of the Redis store share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from packhorse.core.job import Job
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.scripts import RedisCommand
from packhorse.stores.redis.store import RedisStore
from packhorse.stores.requests import ClaimRequest, JobFilter, Renewal
from packhorse.testing.conformance.samples import ANNA, LEASE_US, QUEUE, TASK, TIMEOUT_US, new_job

#: Far longer than anything takes, so that only a hang reaches it.
PATIENCE_S: Final = 20.0
SOURCE: Final = Path(__file__).resolve().parents[3] / "src"


def submitting(store: RedisStore, *names: str) -> Plan[Any]:
    return store.jobs.submit([new_job(name) for name in names])


def claim(store: RedisStore, *, worker: str = ANNA, limit: int = 100) -> tuple[Job, ...]:
    """Renew the lease and claim."""
    store.run(store.leases.renew(renewing(worker)))
    return store.run(store.jobs.claim(claiming(worker=worker, limit=limit))).jobs


def claiming(*, worker: str = ANNA, limit: int = 100) -> ClaimRequest:
    return ClaimRequest(
        worker=worker, queues=(QUEUE,), tasks=(TASK,), limit=limit, default_timeout_us=TIMEOUT_US
    )


def renewing(worker: str = ANNA, lease_us: int = LEASE_US, **details: Any) -> Renewal:
    return Renewal(worker, lease_us, queues=(QUEUE,), tasks=(TASK,), **details)


def names_in(store: RedisStore) -> list[str]:
    """The ids of the jobs in the store, the oldest first."""
    page = store.run(store.inspection.search(JobFilter(), limit=10_000))
    return [record.id for record in reversed(page.jobs)]


def asking(*command: Any, verb: str = "ask", writes: bool = False) -> Plan[Any]:
    """A plan that is one command."""

    def steps() -> Steps[Any]:
        reply = yield RedisCommand(*command)
        return reply

    return Plan(verb, steps, writes=writes)
