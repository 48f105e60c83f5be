# SPDX-License-Identifier: MIT
"""Reading, for handles, the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from packhorse.job import AttemptRecord, JobRecord, JobStatus
from packhorse.policies.explain import JobFacts
from packhorse.stores.memory.access import Access, plan
from packhorse.stores.memory.claims import open_queues, runnable
from packhorse.stores.memory.explaining import facts_of
from packhorse.stores.memory.filters import chosen_by
from packhorse.stores.memory.gating import Turnstile
from packhorse.stores.memory.rows import JobRow, as_record, as_summary
from packhorse.stores.plan import Plan
from packhorse.stores.requests import Counts, JobFilter, Outlook, Page, knows
from packhorse.stores.transfer import cursor_of

__all__ = ["MemoryInspection"]


class MemoryInspection:
    """Inspection, in memory."""

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        def work(access: Access) -> JobRecord | None:
            row = access.visible(job_id, tenant)
            return None if row is None else as_record(row, access.now_us)

        return plan("job", work, writes=False)

    def history(self, job_id: str) -> Plan[tuple[AttemptRecord, ...]]:
        def work(access: Access) -> tuple[AttemptRecord, ...]:
            row = access.state.jobs.get(job_id)
            return () if row is None else (*row.first_attempts, *row.last_attempts)

        return plan("history", work, writes=False)

    def search(self, chosen: JobFilter, *, limit: int, after: str | None = None) -> Plan[Page]:
        below = None if after is None else cursor_of(after)
        work = partial(_search, chosen=chosen, limit=limit, below=below)
        return plan("search", work, writes=False)

    def counts(self) -> Plan[tuple[Counts, ...]]:
        return plan("counts", _counts, writes=False)

    def outlook(
        self,
        worker: str,  # noqa: ARG002 - every worker whose lease is gone counts, itself too
        queues: Sequence[str],
        tasks: Sequence[str],
    ) -> Plan[Outlook]:
        work = partial(_outlook, queues=tuple(queues), tasks=tuple(tasks))
        return plan("outlook", work, writes=False)

    def explain(self, job_id: str, *, tenant: str | None = None) -> Plan[JobFacts | None]:
        def work(access: Access) -> JobFacts | None:
            row = access.visible(job_id, tenant)
            return None if row is None else facts_of(access, row, tenant)

        return plan("explain", work, writes=False)


def _search(access: Access, chosen: JobFilter, limit: int, below: int | None) -> Page:
    meant = (
        row
        for row in reversed(access.state.jobs.values())
        if (below is None or row.sequence < below) and chosen_by(chosen, row)
    )
    rows = list(islice(meant, max(0, limit)))
    more = next(meant, None) is not None
    return Page(
        jobs=tuple(as_summary(row, access.now_us) for row in rows),
        after=str(rows[-1].sequence) if more and rows else None,
    )


def _counts(access: Access) -> tuple[Counts, ...]:
    counted: dict[str, dict[JobStatus, int]] = {}
    for (queue, status), number in sorted(access.state.counts.items()):
        counted.setdefault(queue, {})[status] = number
    oldest = _oldest_ready(access)
    return tuple(
        Counts(queue, by_status, oldest.get(queue, {})) for queue, by_status in counted.items()
    )


def _oldest_ready(access: Access) -> dict[str, dict[int, int]]:
    """Per queue and priority, since when the first ready job waits; those set aside are not."""
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
    """What a claim would look at once it had promoted what is due, held back or not."""
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
