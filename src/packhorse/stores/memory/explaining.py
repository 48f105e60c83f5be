# SPDX-License-Identifier: MIT
"""What there is to see of a job when somebody asks why it does not run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from packhorse.job import JobStatus
from packhorse.policies.explain import JOBS_NAMED_MAX, ClosedGate, JobFacts
from packhorse.policies.gates import Gate, GateKind, refusal
from packhorse.stores.memory.access import Access
from packhorse.stores.memory.gating import gates_for, standing_of
from packhorse.stores.memory.rows import JobRow, as_summary
from packhorse.stores.requests import knows

__all__ = ["facts_of"]


def facts_of(access: Access, row: JobRow, tenant: str | None) -> JobFacts:
    """The facts about one job; a tenant is not told the names of other tenants' jobs."""
    queue, task = row.line
    live = [each.renewal for each in access.state.workers.values() if each.live(access.now_us)]
    serving = [worker for worker in live if queue in worker.queues]
    return JobFacts(
        record=as_summary(row, access.now_us),
        now_us=access.now_us,
        suspect=row.suspect,
        queue_paused=queue in access.state.paused,
        closed=tuple(_closed(access, row, tenant)),
        ahead=_ahead(access, row),
        served=bool(serving),
        known=any(knows(worker.tasks, task) for worker in serving),
    )


def _closed(access: Access, row: JobRow, tenant: str | None) -> Iterator[ClosedGate]:
    for gate in gates_for(access, row):
        standing = standing_of(access, gate, row)
        refused = refusal(standing, job_id=row.new.id, weight=row.new.weight, now_us=access.now_us)
        if refused is not None:
            yield ClosedGate(
                gate,
                reopens_us=refused.reopens_us,
                limit=standing.limit,
                running=standing.running,
                rule=standing.rule,
                jobs=_named(access, gate, tenant),
            )


def _named(access: Access, gate: Gate, tenant: str | None) -> tuple[str, ...]:
    visible = (
        job_id for job_id in _in_the_way(access, gate) if access.visible(job_id, tenant) is not None
    )
    return tuple(islice(visible, JOBS_NAMED_MAX))


def _in_the_way(access: Access, gate: Gate) -> Iterator[str]:
    """The head of the line, or those who run, in order of submission."""
    state = access.state
    if gate.kind is GateKind.ORDER:
        yield from islice(state.lines.group(*gate.name).ids, 1)
    elif gate.kind is GateKind.TASK_CONCURRENCY:
        yield from state.busy.group(*gate.name).ids
    elif gate.kind is GateKind.QUEUE_CONCURRENCY:
        running = (row for row in state.jobs.values() if row.status is JobStatus.PROCESSING)
        yield from (row.new.id for row in running if row.new.queue == gate.name[0])


def _ahead(access: Access, row: JobRow) -> int:
    """How many ready jobs of its queue rank before it; of a suspect, how many suspects."""
    if row.status is not JobStatus.QUEUED or row.parked_us is not None:
        return 0
    own = (*row.rank, row.new.id)
    lane = access.state.lane_of(row)
    groups = (keys for (queue, _), keys in lane.items() if queue == row.new.queue)
    return sum(key < own for keys in groups for key in keys)
