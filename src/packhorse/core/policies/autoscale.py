# SPDX-License-Identifier: MIT
"""How many workers a queue wants, from its size and its rates, without going up and down for ever.

    size ──▶ 0 ─────── scale_down ─────────── scale_up ───────▶
               fewer │        as many as now        │ more

Between the two thresholds nothing changes, and after a change fewer are wanted only when things
have been quiet for a while. Fewer is never fewer than the running jobs need, nor than the arriving
ones do; a worker that is no longer wanted finishes what it runs.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.errors import ConfigError

#: How long the number of workers must have stood before there may be fewer.
QUIET_US: Final = 30 * SECOND_US


class ScaleRule(msgspec.Struct, frozen=True):
    """When to have more or fewer workers; sizes are jobs ready to run."""

    enabled: bool = False
    min_workers: int = 1
    max_workers: int = 10
    scale_up: int = 100
    scale_down: int = 10


class Load(msgspec.Struct, frozen=True):
    """What a queue is asked to do, and does, just now."""

    ready: int  #: jobs that could run now if there were a worker
    running: int
    slots: int = 1  #: jobs one worker runs at once
    arrivals_per_s: float = 0.0  #: jobs that become ready
    served_per_s: float = 0.0  #: jobs that end, over all workers


def demand(load: Load) -> int:
    """The one number for scalers outside: what there is to do, and what is being done."""
    return load.ready + load.running


def wanted(rule: ScaleRule, load: Load, workers: int) -> int:
    """How many workers there should be when there are `workers`; as many when not enabled."""
    if not rule.enabled:
        return workers
    now = _within(rule, workers)
    if load.ready >= rule.scale_up:
        return _within(rule, max(now + 1, _for_arrivals(rule, load, workers)))
    if load.ready <= rule.scale_down:
        needed = max(_for_running(load), _for_arrivals(rule, load, workers))
        return _within(rule, max(now - 1, min(now, needed)))
    return now


class Scaling(msgspec.Struct, frozen=True):
    """How many workers are wanted, and since when."""

    workers: int
    changed_us: int


def scale(rule: ScaleRule, load: Load, before: Scaling, now_us: int) -> Scaling:
    """The next wish: more at once, fewer only after `QUIET_US` without a change."""
    workers = wanted(rule, load, before.workers)
    too_soon = rule.min_workers <= before.workers <= rule.max_workers and (
        now_us - before.changed_us < QUIET_US
    )
    if workers == before.workers or (workers < before.workers and too_soon):
        return before
    return Scaling(workers, now_us)


def _within(rule: ScaleRule, workers: int) -> int:
    return max(rule.min_workers, min(rule.max_workers, workers))


def _for_running(load: Load) -> int:
    """Workers that the running jobs fill."""
    return math.ceil(load.running / max(1, load.slots))


def _for_arrivals(rule: ScaleRule, load: Load, workers: int) -> int:
    """Workers that keep up with what arrives, as fast as those there are; 0 when unknown."""
    if workers < 1 or load.served_per_s <= 0:
        return 0
    return math.ceil(min(rule.max_workers, load.arrivals_per_s * workers / load.served_per_s))


def check_scale(rule: ScaleRule) -> None:
    """Refuse thresholds and bounds that contradict each other."""
    problems = [
        (rule.min_workers < 1, f"min_workers is {rule.min_workers}; give 1 or more"),
        (
            rule.min_workers > rule.max_workers,
            (
                f"min_workers is {rule.min_workers}, above max_workers, which is "
                f"{rule.max_workers}: lower min_workers or raise max_workers"
            ),
        ),
        (rule.scale_down < 0, f"scale_down is {rule.scale_down}; give 0 or more"),
        (
            rule.scale_down >= rule.scale_up,
            (
                f"scale_down is {rule.scale_down}, not below scale_up, which is {rule.scale_up}: "
                "workers would be started and stopped at the same size; lower scale_down or raise "
                "scale_up"
            ),
        ),
    ]
    for wrong, message in problems:
        if wrong:
            raise ConfigError(f"autoscale: {message}")
