# SPDX-License-Identifier: MIT
"""Compute from a store's counts how many workers are wanted: the signal for scalers.

Ready jobs are queued; demand is ready + running. Rates are measured between two snapshots; a single
one has none, and goes by the sizes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from packhorse.core.job import TERMINAL, WAITING, JobStatus
from packhorse.core.policies.autoscale import Load, ScaleRule, Scaling, demand, scale, wanted
from packhorse.stores.requests import Counts, QueueState, WorkerRecord


class ScaleSignal(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one queue, and the number of workers it wants."""

    queue: str
    ready: int  #: jobs that a free worker could run now
    running: int
    demand: int  #: ready + running
    workers: int  #: live ones that serve it
    wanted: int | None  #: how many there should be; None: it has no autoscale that is on


def stored_scales(states: Iterable[QueueState]) -> dict[str, ScaleRule]:
    """Return the stored `autoscale` rules by queue."""
    found = ((state.settings.name, state.settings.autoscale) for state in states)
    return {name: rule for name, rule in found if rule is not None}


def scale_signals(
    counts: Iterable[Counts], workers: Sequence[WorkerRecord], rules: Mapping[str, ScaleRule]
) -> tuple[ScaleSignal, ...]:
    """Return the signal of every queue that holds a job or has a rule, sorted by name."""
    held = {each.queue: each for each in counts}
    return tuple(
        _signal(name, held.get(name), workers, rules.get(name)) for name in sorted({*held, *rules})
    )


def _signal(
    queue: str, held: Counts | None, workers: Sequence[WorkerRecord], rule: ScaleRule | None
) -> ScaleSignal:
    serving = [worker for worker in workers if worker.live and queue in worker.queues]
    load = _load(held, slots=max((worker.concurrency for worker in serving), default=1))
    on = rule is not None and rule.enabled
    return ScaleSignal(
        queue=queue,
        ready=load.ready,
        running=load.running,
        demand=demand(load),
        workers=len(serving),
        wanted=wanted(rule, load, len(serving)) if rule is not None and on else None,
    )


def _load(held: Counts | None, *, slots: int) -> Load:
    by_status: Mapping[JobStatus, int] = MappingProxyType({}) if held is None else held.by_status
    return Load(
        ready=by_status.get(JobStatus.QUEUED, 0),
        running=by_status.get(JobStatus.PROCESSING, 0),
        slots=max(1, slots),
    )


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The counts of some queues at one moment."""

    counts: Mapping[str, Counts]
    at_s: float  #: monotonic


def snapshot(counts: Iterable[Counts], queues: Iterable[str], at_s: float) -> QueueSnapshot:
    """Take a snapshot of these queues."""
    held = {each.queue: each for each in counts}
    return QueueSnapshot({name: held.get(name, Counts(name, {})) for name in queues}, at_s)


def loads(before: QueueSnapshot | None, now: QueueSnapshot, *, slots: int) -> dict[str, Load]:
    """Return the load of each queue, with the rates since the snapshot before."""
    return {
        name: _with_rates(_load(counts, slots=slots), counts, before, now)
        for name, counts in now.counts.items()
    }


def _with_rates(
    load: Load, counts: Counts, before: QueueSnapshot | None, now: QueueSnapshot
) -> Load:
    span_s = 0.0 if before is None else now.at_s - before.at_s
    if before is None or span_s <= 0:
        return load
    then = before.counts.get(counts.queue, Counts(counts.queue, {}))
    # Jobs that retention removes in between are missed, so this is never too many.
    served = max(0, _sum(counts, TERMINAL) - _sum(then, TERMINAL))
    unfinished = WAITING | {JobStatus.PROCESSING}
    arrived = max(0, _sum(counts, unfinished) - _sum(then, unfinished) + served)
    return msgspec.structs.replace(
        load, arrivals_per_s=arrived / span_s, served_per_s=served / span_s
    )


def _sum(counts: Counts, statuses: Iterable[JobStatus]) -> int:
    return sum(counts.by_status.get(status, 0) for status in statuses)


def next_scaling(
    rules: Mapping[str, ScaleRule], asked: Mapping[str, Load], before: Scaling, now_us: int
) -> Scaling:
    """Return how many workers are wanted that serve all these queues: the largest wish."""
    wishes = [scale(rules[name], load, before, now_us) for name, load in asked.items()]
    return max(wishes, key=lambda wish: wish.workers, default=before)
