# SPDX-License-Identifier: MIT
"""How the processes of a supervisor are, as a document, and whether jobs are taken."""

from __future__ import annotations

from typing import Any

from packhorse.supervisor.process import ChildProcess
from packhorse.supervisor.supervisor import Supervisor

__all__ = ["not_ready", "status_document"]


def not_ready(supervisor: Supervisor) -> str | None:
    """Why no jobs are taken just now; None if they are."""
    if supervisor.stopping_at is not None:
        return "stopping"
    if supervisor.quiet:
        return "quiet"
    begun = [child for child in supervisor.children if child.hello is not None]
    reports = [child.report for child in begun if not child.quiet]
    if not reports:
        return "quiet" if begun else "no process has begun yet"
    if any(each.lease and not each.trouble for each in reports):
        return None
    troubles = sorted({each.trouble for each in reports if each.trouble})
    return f"the store fails at {', '.join(troubles)}" if troubles else "no process has a lease"


def status_document(supervisor: Supervisor) -> dict[str, Any]:
    """Every process: what it runs, what it has done, what is stuck in it."""
    hello = supervisor.hello
    seats = {id(seat.child): seat for seat in supervisor.seats if seat.child is not None}
    processes = []
    for child in supervisor.children:
        seat = seats.get(id(child))
        processes.append(
            {
                **_process(supervisor, child),
                "seat": None if seat is None else seat.number,
                "restarts": 0 if seat is None else seat.restarts,
                "draining": seat is None,
            }
        )
    return {
        "app": "" if hello is None else hello.app,
        "store": "" if hello is None else hello.label,
        "queues": [] if hello is None else list(hello.queues),
        "ready": not_ready(supervisor) is None,
        "quiet": supervisor.quiet,
        "stopping": supervisor.stopping_at is not None,
        "restarts": sum(seat.restarts for seat in supervisor.seats),
        "processes": processes,
    }


def _process(supervisor: Supervisor, child: ChildProcess) -> dict[str, Any]:
    hello, report, sight = child.hello, child.report, supervisor.sight(child)
    return {
        "pid": child.pid,
        "worker": None if hello is None else hello.worker,
        "version": "" if hello is None else hello.version,
        "quiet": child.quiet,
        "upS": round(sight.now - child.started_at, 1),
        "loopTurnedS": round(sight.now - sight.turned_at, 1) if sight.turned_at else None,
        "leaseKept": supervisor.renewals(child),
        "running": [
            {
                "jobId": each.job_id,
                "fence": each.fence,
                "runningS": round(sight.now - each.started, 1),
                "leftS": round(each.expires - sight.now, 1),
            }
            for each in sight.running
        ],
        "ahead": report.ahead,
        "unsettled": report.unsettled,
        "succeeded": report.succeeded,
        "failed": report.failed,
        "retried": report.retried,
        "dead": report.dead,
        "p95DurationMs": report.p95_duration_ms,
        "trouble": report.trouble,
        "blocked": report.blocked,
        "stuck": [
            {
                "jobId": each.job_id,
                "task": each.task,
                "kind": each.kind,
                "stuckS": each.seconds,
                "stack": each.stack,
            }
            for each in report.stuck
        ],
        "lastLog": child.page.last_log,
    }
