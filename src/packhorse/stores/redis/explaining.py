# SPDX-License-Identifier: MIT
"""What there is to see of a job when somebody asks why it does not run, or what still could."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packhorse.job import RateRule
from packhorse.policies.explain import ClosedGate, JobFacts
from packhorse.stores.plan import Steps
from packhorse.stores.redis.gates import gate_of
from packhorse.stores.redis.lease_reading import read_worker
from packhorse.stores.redis.rows import RECORD_FIELDS, as_summary
from packhorse.stores.redis.statements import Script
from packhorse.stores.requests import Outlook, knows

__all__ = ["facts_steps", "outlook_steps"]

_read_rule: Final = msgspec.json.Decoder(RateRule).decode


def facts_steps(job_id: str, tenant: str | None) -> Steps[JobFacts | None]:
    """See `InspectionStore.explain`."""
    asked = (job_id, int(tenant is not None), tenant or "", *RECORD_FIELDS)
    reply = yield Script("explain", asked)
    if reply is None:
        return None
    now_us, fields, suspect, queue_paused, closed, ahead, workers = reply
    record = as_summary(job_id, fields, now_us)
    if tenant not in (None, record.tenant):
        return None
    known = (read_worker(row, now_us) for row in workers)
    serving = [worker for worker in known if worker.live and record.queue in worker.queues]
    return JobFacts(
        record=record,
        now_us=now_us,
        suspect=bool(suspect),
        queue_paused=bool(queue_paused),
        closed=tuple(_closed(row) for row in closed),
        ahead=ahead,
        served=bool(serving),
        known=any(knows(worker.tasks, record.task) for worker in serving),
    )


def _closed(row: Sequence[Any]) -> ClosedGate:
    name, reopens_us, limit, running, rule, jobs = row
    return ClosedGate(
        gate_of(name.decode()),
        reopens_us=reopens_us,
        limit=limit,
        running=running,
        rule=None if rule is None else _read_rule(rule),
        jobs=tuple(job_id.decode() for job_id in jobs),
    )


def outlook_steps(queues: Sequence[str], tasks: Sequence[str]) -> Steps[Outlook]:
    """See `InspectionStore.outlook`."""
    chosen = tuple(dict.fromkeys(queues))
    reply = yield Script("outlook", (len(chosen), *chosen, *tasks))
    now_us, ready, retry_due_us, orphaned, limit_free_us = reply
    return Outlook(bool(ready), retry_due_us, bool(orphaned), now_us, limit_free_us)
