# SPDX-License-Identifier: MIT
"""From what a store counts to how many workers are wanted: the signal for scalers, here or outside.

Ready are queued jobs; demand is ready + running, the one number most scalers ask for. Rates are
measured between two looks; a single look knows none, and goes by the sizes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from packhorse.job import TERMINAL, WAITING, JobStatus
from packhorse.policies.autoscale import Load, ScaleRule, Scaling, demand, scale, wanted
from packhorse.stores.requests import Counts, QueueState, WorkerRecord

__all__ = ["Look", "ScaleSignal", "loads", "look", "next_scaling", "scale_signals", "stored_scales"]


class ScaleSignal(msgspec.Struct, frozen=True, kw_only=True):
    """What one queue is asked to do, and how many workers it wants for that."""

    queue: str
    ready: int  #: jobs that could run now if there were a worker
    running: int
    demand: int  #: ready + running
    workers: int  #: live ones that serve it
    wanted: int | None  #: how many there should be; None: it has no autoscale that is on


def stored_scales(states: Iterable[QueueState]) -> dict[str, ScaleRule]:
    """The queues with an `autoscale` that holds, by name."""
    found = ((state.settings.name, state.settings.autoscale) for state in states)
    return {name: rule for name, rule in found if rule is not None}


def scale_signals(
    counts: Iterable[Counts], workers: Sequence[WorkerRecord], rules: Mapping[str, ScaleRule]
) -> tuple[ScaleSignal, ...]:
    """The signal of every queue that holds a job or has a rule, by name."""
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
class Look:
    """What was counted of some queues at one moment."""

    counts: Mapping[str, Counts]
    at_s: float  #: monotonic


def look(counts: Iterable[Counts], queues: Iterable[str], at_s: float) -> Look:
    """What is to be remembered of a look at these queues."""
    held = {each.queue: each for each in counts}
    return Look({name: held.get(name, Counts(name, {})) for name in queues}, at_s)


def loads(before: Look | None, now: Look, *, slots: int) -> dict[str, Load]:
    """What each queue is asked to do, with the rates since the look before."""
    return {
        name: _with_rates(_load(counts, slots=slots), counts, before, now)
        for name, counts in now.counts.items()
    }


def _with_rates(load: Load, counts: Counts, before: Look | None, now: Look) -> Load:
    span_s = 0.0 if before is None else now.at_s - before.at_s
    if before is None or span_s <= 0:
        return load
    then = before.counts.get(counts.queue, Counts(counts.queue, {}))
    # What retention removes in between is missed, so this is never too many.
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
    """How many workers that serve all these queues are wanted: as many as the neediest says."""
    wishes = [scale(rules[name], load, before, now_us) for name, load in asked.items()]
    return max(wishes, key=lambda wish: wish.workers, default=before)
