# SPDX-License-Identifier: MIT
"""Ranks of jobs that become ready: by priority and virtual time, or by age; then by place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from packhorse.core.policies.fairness import REDEALT_MAX, STRIDE, aged_rank, deal
from packhorse.stores.plan import Steps
from packhorse.stores.sql.dialect import Dialect, PlanLocks
from packhorse.stores.sql.rows import AGED, RANK_PER_PRIORITY, QueueRow
from packhorse.stores.sql.statements import Rows, Send


class Newcomer(NamedTuple):
    """A job that becomes ready."""

    queue: str
    priority: int
    tenant: str


def mark_tenanted(
    dialect: Dialect, queues: dict[str, QueueRow], jobs: Iterable[Newcomer], locks: PlanLocks
) -> Steps[dict[str, QueueRow]]:
    """Let queues deal passes from their first job with a tenant on; ready jobs get passes now."""
    first = {job.queue for job in jobs if job.tenant and not queues[job.queue].tenanted}
    if not first:
        return queues
    locks.go_alone()
    for queue in sorted(first):
        yield Send(dialect.sql("queue_tenanted"), (queue,))
        if queues[queue]._replace(tenanted=True).deals_passes:
            dealt = {
                "queue": queue,
                "most": REDEALT_MAX,
                "stride": STRIDE,
                "passes": RANK_PER_PRIORITY,
            }
            yield Send(dialect.sql("pass_redeal"), dealt)
            yield Send(dialect.sql("pass_redealt"), dealt)
    yield from dialect.settings_changed()
    return {
        name: row._replace(tenanted=True) if name in first else row for name, row in queues.items()
    }


def rank_of(
    dialect: Dialect, newcomer: Newcomer, queues: dict[str, QueueRow], now_us: int
) -> Steps[int]:
    """Return the rank of one job; see `ranks_of`."""
    [rank] = yield from ranks_of(dialect, [newcomer], queues, now_us)
    return rank


def ranks_of(
    dialect: Dialect, newcomers: Sequence[Newcomer], queues: dict[str, QueueRow], now_us: int
) -> Steps[list[int]]:
    """Return the first part of each newcomer's order of claiming; see `policies.fairness`."""
    ranks = [_plain_rank(job, queues[job.queue], now_us) for job in newcomers]
    groups: dict[tuple[str, int], list[int]] = {}
    for index, job in enumerate(newcomers):
        if queues[job.queue].deals_passes:
            groups.setdefault((job.queue, job.priority), []).append(index)
    for (queue, priority), indexes in groups.items():
        tenants = [newcomers[index].tenant for index in indexes]
        passes = yield from _deal(dialect, queue, priority, tenants, queues[queue])
        for index, number in zip(indexes, passes, strict=True):
            ranks[index] = priority * RANK_PER_PRIORITY + number
    return ranks


def _plain_rank(job: Newcomer, queue: QueueRow, now_us: int) -> int:
    ageing_us = queue.settings.ageing_us
    if ageing_us is None:
        return job.priority * RANK_PER_PRIORITY
    return AGED + aged_rank(job.priority, 0, ready_us=now_us, ageing_us=ageing_us)[0]


def _deal(
    dialect: Dialect, queue: str, priority: int, tenants: Sequence[str], row: QueueRow
) -> Steps[tuple[int, ...]]:
    level = {"queue": queue, "priority": priority, "low": priority * RANK_PER_PRIORITY}
    level["high"] = (priority + 1) * RANK_PER_PRIORITY
    [(first_rank, running_rank, highest)] = yield Rows(dialect.sql("pass_level"), level)
    names = dialect.many(sorted(set(tenants)))
    lasts = yield Rows(dialect.sql("pass_lasts"), {**level, "tenants": names})
    passes = deal(
        tenants,
        first_ready=None if first_rank is None else first_rank - level["low"],
        running=None if running_rank is None else running_rank - level["low"],
        highest=highest,
        lasts=dict(lasts),
        weights=row.settings.weights,
    )
    changed = dict(zip(tenants, passes, strict=True))  # a tenant's last pass stays
    kept = [
        {"queue": queue, "priority": priority, "tenant": tenant, "pass": number}
        for tenant, number in changed.items()
    ]
    yield dialect.write_rows(dialect.sql("pass_keep"), kept)
    return passes
