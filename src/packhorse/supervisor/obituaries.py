# SPDX-License-Identifier: MIT
"""What became of the jobs of a dead process, as the events its worker would have told.

crash       job.failed, then job.retried or job.dead
timeout     job.timed_out, then job.retried or job.dead
given back  job.released, if it had begun
cancelled   job.cancelled
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from packhorse.events import (
    JobCancelled,
    JobDead,
    JobEnded,
    JobFailed,
    JobReleased,
    JobRetried,
    JobTimedOut,
)
from packhorse.job import DeadReason, JobRecord, JobStatus
from packhorse.settlement import SettlementKind, Verdict
from packhorse.supervisor.aftermath import Buried
from packhorse.supervisor.messages import Hello

__all__ = ["events_of"]


def events_of(buried: Buried, hello: Hello) -> Iterator[JobEnded]:
    """All that is to be told of one job."""
    settlement, end = buried.settlement, _end(buried, hello)
    status = settlement.status.value
    if buried.verdict is Verdict.CANCELLED:
        yield JobCancelled(status=JobStatus.CANCELLED.value, **end)
    elif settlement.kind is not SettlementKind.RELEASED:
        timed_out = settlement.error is not None and settlement.error.type == "Timeout"
        yield (JobTimedOut if timed_out else JobFailed)(status=status, **end)
        yield _what_follows(buried, end)
    elif settlement.ended:  # unused look-ahead is not worth a word
        yield JobReleased(status=status, **end)


def _what_follows(buried: Buried, end: dict[str, Any]) -> JobEnded:
    settlement, record = buried.settlement, buried.record
    expired = buried.verdict is Verdict.EXPIRED
    reason = DeadReason.EXPIRED if expired else settlement.dead_reason
    if reason is not None:
        return JobDead(status=JobStatus.DEAD.value, reason=reason.value, **end)
    return JobRetried(
        status=settlement.status.value,
        retry=1 if record is None else record.counters.failures + 1,
        max_retries=buried.limits.retry.max_retries,
        delay_ms=settlement.delay_us / 1000,
        reason=settlement.error.reason if settlement.error else "",
        **end,
    )


def _end(buried: Buried, hello: Hello) -> dict[str, Any]:
    """The fields of every event about the end of an attempt."""
    error = buried.settlement.error
    about = {
        "job_id": buried.settlement.job_id,
        "worker_id": hello.worker,
        "duration_ms": buried.ran_s * 1000,
        **({} if buried.record is None else _about(buried.record)),
    }
    if error is not None:
        about |= {
            "error_code": error.code,
            "error_type": error.type,
            "error_message": error.message,
        }
    return about


def _about(record: JobRecord) -> dict[str, Any]:
    return {
        "queue": record.queue,
        "task": record.task,
        "tenant": record.tenant,
        "attempt": record.counters.attempts + 1,
        "trace_id": record.trace_id,
        "upstream_request_id": record.upstream_request_id,
    }
