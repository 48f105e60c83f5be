# SPDX-License-Identifier: MIT
"""Read jobs, queues and totals, and say why a job does not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from packhorse.core.job import AttemptRecord, JobRecord, JobStatus
from packhorse.core.policies.explain import JOBS_NAMED_MAX, ClosedGate, JobFacts
from packhorse.core.policies.gates import Gate, GateKind, blocked_by
from packhorse.stores.memory.claims import Turnstile, gates_for, open_queues, runnable, state_of
from packhorse.stores.memory.rows import JobRow, as_record, as_summary, as_worker, chosen_by
from packhorse.stores.memory.state import Access, on_state, plan
from packhorse.stores.plan import Plan, about_job
from packhorse.stores.requests import Counts, JobFilter, Outlook, Page, knows, with_workers
from packhorse.stores.transfer import cursor_of


class MemoryInspection:
    """Inspection, in memory."""

    @about_job()
    @on_state(writes=False)
    def job(self, access: Access, job_id: str, *, tenant: str | None = None) -> JobRecord | None:
        row = access.visible(job_id, tenant)
        return None if row is None else as_record(row, access.now_us)

    @on_state(writes=False)
    def history(self, access: Access, job_id: str) -> tuple[AttemptRecord, ...]:
        row = access.state.jobs.get(job_id)
        return () if row is None else (*row.first_attempts, *row.last_attempts)

    def search(
        self, chosen: JobFilter, *, limit: int, after: str | None = None, most: int | None = None
    ) -> Plan[Page]:
        below = None if after is None else cursor_of(after)
        work = partial(_search, chosen=chosen, limit=max(0, limit), below=below, most=most)
        return plan("search", work, writes=False)

    @on_state(writes=False)
    def counts(
        self,
        access: Access,
        *,
        most: int | None = None,  # noqa: ARG002 - it keeps numbers
    ) -> tuple[Counts, ...]:
        counted: dict[str, dict[JobStatus, int]] = {}
        for (queue, status), number in sorted(access.state.counts.items()):
            counted.setdefault(queue, {})[status] = number
        oldest = _oldest_ready(access)
        return tuple(
            Counts(
                queue,
                by_status,
                oldest.get(queue, {}),
                in_steps=access.state.suspended.get(queue, 0),
            )
            for queue, by_status in counted.items()
        )

    def outlook(
        self,
        worker: str,  # noqa: ARG002 - every worker whose lease is gone counts, itself too
        queues: Sequence[str],
        tasks: Sequence[str],
    ) -> Plan[Outlook]:
        work = partial(_outlook, queues=tuple(queues), tasks=tuple(tasks))
        return plan("outlook", work, writes=False)

    @about_job()
    @on_state(writes=False)
    def explain(self, access: Access, job_id: str, *, tenant: str | None = None) -> JobFacts | None:
        row = access.visible(job_id, tenant)
        return None if row is None else facts_of(access, row, tenant)


def _search(
    access: Access, chosen: JobFilter, limit: int, below: int | None, most: int | None
) -> Page:
    newest = (
        row for row in reversed(access.state.jobs.values()) if below is None or row.sequence < below
    )
    looked = newest if most is None else list(islice(newest, most))
    rows = list(islice((row for row in looked if chosen_by(chosen, row)), limit + 1))
    jobs = tuple(as_summary(row, access.now_us) for row in rows[:limit])
    if len(rows) > limit:
        return Page(jobs, after=str(rows[limit - 1].sequence) if limit else None)
    if not isinstance(looked, list) or next(newest, None) is None:
        return Page(jobs)
    stopped_after = len(looked) if len(rows) < limit else None
    return Page(jobs, str(looked[-1].sequence), stopped_after)


def _oldest_ready(access: Access) -> dict[str, dict[int, int]]:
    """Return since when the oldest ready job waits, by queue and priority; parked ones excluded."""
    oldest: dict[str, dict[int, int]] = {}
    for index in (access.state.ready, access.state.suspects):
        for (queue, _), keys in index.items():
            levels = oldest.setdefault(queue, {})
            for row in access.rows(list(keys.ids)):
                level, since_us = int(row.new.priority), row.ready_us
                levels[level] = min(since_us, levels.get(level, since_us))
    return oldest


def _outlook(access: Access, queues: Sequence[str], tasks: Sequence[str]) -> Outlook:
    now_us, unpaused = access.now_us, open_queues(access, queues)
    retries = [next(each, None) for each in _retries(access, unpaused, tasks)]
    dues = [row.due_us for row in retries if row is not None]
    turnstile = Turnstile(access)
    ready = any(
        turnstile.lets(row) for queue in unpaused for row in _could_run(access, queue, tasks)
    )
    return Outlook(
        ready=ready,
        retry_due_us=min(dues, default=None),
        orphaned=_orphaned(access, unpaused, tasks),
        now_us=now_us,
        limit_free_us=None if ready else turnstile.reopens_us,
    )


def _retries(
    access: Access, queues: Sequence[str], tasks: Sequence[str]
) -> Iterator[Iterator[JobRow]]:
    for queue in queues:
        yield runnable(access, access.state.retries, queue, tasks)


def _could_run(access: Access, queue: str, tasks: Sequence[str]) -> Iterator[JobRow]:
    """Yield the jobs that a claim would check after promoting due ones, blocked or not."""
    for index in (access.state.ready, access.state.suspects):
        yield from runnable(access, index, queue, tasks)
    keys = access.state.due.group(queue)
    for row in access.rows(keys.up_to(access.now_us, limit=len(access.state.jobs))):
        if knows(tasks, row.new.task) and not row.overdue(access.now_us):
            yield row


def _orphaned(access: Access, queues: Sequence[str], tasks: Sequence[str]) -> bool:
    return any(
        row.new.queue in queues and knows(tasks, row.new.task)
        for (worker,), keys in access.state.held.items()
        if access.lease_gone(worker)
        for row in access.rows(list(keys.ids))
    )


def facts_of(access: Access, row: JobRow, tenant: str | None) -> JobFacts:
    """Return the facts about one job, without the ids of other tenants' jobs."""
    facts = JobFacts(
        record=as_summary(row, access.now_us),
        now_us=access.now_us,
        suspect=row.suspect,
        queue_paused=row.new.queue in access.state.paused,
        closed=tuple(_closed(access, row, tenant)),
        background_only=access.state.settings(row.new.queue).background_only,
        ahead=_ahead(access, row),
        hold_until_us=row.hold_until_us,
    )
    workers = access.state.workers.values()
    return with_workers(facts, (as_worker(each, access.now_us, running=0) for each in workers))


def _closed(access: Access, row: JobRow, tenant: str | None) -> Iterator[ClosedGate]:
    for gate in gates_for(access, row):
        state = state_of(access, gate, row)
        blocked = blocked_by(state, job_id=row.new.id, weight=row.new.weight, now_us=access.now_us)
        if blocked is not None:
            yield ClosedGate(
                gate,
                reopens_us=blocked.reopens_us,
                limit=state.limit,
                running=state.running,
                rule=state.rule,
                jobs=_named(access, gate, tenant),
            )


def _named(access: Access, gate: Gate, tenant: str | None) -> tuple[str, ...]:
    visible = (
        job_id for job_id in _in_the_way(access, gate) if access.visible(job_id, tenant) is not None
    )
    return tuple(islice(visible, JOBS_NAMED_MAX))


def _in_the_way(access: Access, gate: Gate) -> Iterator[str]:
    """Yield the head of the line, or the running jobs in order of submission."""
    state = access.state
    if gate.kind is GateKind.ORDER:
        yield from islice(state.lines.group(*gate.name).ids, 1)
    elif gate.kind is GateKind.TASK_CONCURRENCY:
        yield from state.busy.group(*gate.name).ids
    elif gate.kind is GateKind.QUEUE_CONCURRENCY:
        running = (row for row in state.jobs.values() if row.status is JobStatus.PROCESSING)
        yield from (row.new.id for row in running if row.new.queue == gate.name[0])


def _ahead(access: Access, row: JobRow) -> int:
    """Return how many ready jobs of its queue rank before it; of a suspect, how many suspects."""
    if row.status is not JobStatus.QUEUED or row.parked_us is not None:
        return 0
    own = (*row.rank, row.new.id)
    lane = access.state.lane_of(row)
    groups = (keys for (queue, _), keys in lane.items() if queue == row.new.queue)
    return sum(key < own for keys in groups for key in keys)
