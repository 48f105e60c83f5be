# SPDX-License-Identifier: MIT
"""Counts and depths in the text format that Prometheus reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from packhorse.stores.protocol import Store
from packhorse.supervisor.messages import Report
from packhorse.supervisor.supervisor import Supervisor

__all__ = ["metrics_text"]

_LOG: Final = logging.getLogger("packhorse.supervisor")
#: How long the store may take to say how deep its queues are; the counts do not wait for it.
_DEPTHS_S: Final = 2.0
_PREFIX: Final = "packhorse_"


async def metrics_text(supervisor: Supervisor) -> str:
    """All there is to count, since the supervisor started."""
    reports = [supervisor.past, *(child.report for child in supervisor.children)]
    slow = [each.p95_duration_ms for each in reports if each.p95_duration_ms is not None]
    lines = [
        *_metric("success_count", "counter", "Attempts that succeeded", _sum(reports, "succeeded")),
        *_metric("failure_count", "counter", "Attempts that failed", _sum(reports, "failed")),
        *_metric("retry_count", "counter", "Retries scheduled", _sum(reports, "retried")),
        *_metric("dead_count", "counter", "Jobs given up", _sum(reports, "dead")),
        *_metric("timeout_count", "counter", "Attempts that timed out", _sum(reports, "timed_out")),
        *_metric("running_jobs", "gauge", "Handlers that run", _sum(reports, "running")),
        *_metric("ahead_jobs", "gauge", "Jobs held that have not begun", _sum(reports, "ahead")),
        *_metric("unsettled_jobs", "gauge", "Ends not stored yet", _sum(reports, "unsettled")),
        *_metric("stuck_handlers", "gauge", "Handlers that do not stop", _stuck(supervisor)),
        *_metric("processes", "gauge", "Worker processes", len(supervisor.children)),
        *_metric("process_restarts", "counter", "Processes replaced", _restarts(supervisor)),
    ]
    if slow:
        help_text = "Time within which 95 % of the last attempts ended"
        lines += _metric("p95_duration_ms", "gauge", help_text, max(slow))
    lines += await _depths(supervisor)
    return "\n".join(lines) + "\n"


def _sum(reports: Sequence[Report], name: str) -> int:
    return sum(int(getattr(report, name)) for report in reports)


def _restarts(supervisor: Supervisor) -> int:
    return sum(seat.restarts for seat in supervisor.seats)


def _stuck(supervisor: Supervisor) -> int:
    return sum(len(child.report.stuck) for child in supervisor.children)


def _metric(name: str, kind: str, help_text: str, value: float) -> list[str]:
    full = _PREFIX + name
    return [f"# HELP {full} {help_text}.", f"# TYPE {full} {kind}", f"{full} {value}"]


async def _depths(supervisor: Supervisor) -> list[str]:
    desk, hello = supervisor.desk, supervisor.hello
    if desk is None or hello is None:
        return []

    def ask(store: Store) -> list[tuple[str, int]]:
        return [(name, store.run(store.queues.depth(name))) for name in hello.queues]

    try:
        depths = await asyncio.wait_for(desk.ask(ask), _DEPTHS_S)
    except Exception as error:  # noqa: BLE001 - the counts are answered all the same
        _LOG.warning("the depth of the queues could not be read: %s", error)
        return []
    full = f"{_PREFIX}queue_depth"
    return [
        f"# HELP {full} Jobs that wait.",
        f"# TYPE {full} gauge",
        *(f'{full}{{queue="{_escaped(name)}"}} {depth}' for name, depth in depths),
    ]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
