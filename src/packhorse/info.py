# SPDX-License-Identifier: MIT
"""A job as people see it: instants as datetimes, spans as seconds, priorities by name."""

from __future__ import annotations

from datetime import datetime

import msgspec

from packhorse.clock import SECOND_US, to_datetime
from packhorse.job import (
    AttemptError,
    AttemptRecord,
    DeadReason,
    JobRecord,
    JobStatus,
    Priority,
    Progress,
)
from packhorse.protocol import (
    UNSET,
    TaskError,
    TaskExecutionResult,
    TaskStatus,
    UnsetType,
    wire_datetime,
)

__all__ = ["JobInfo", "execution_results", "job_info"]


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a job, save its arguments, its result and its history."""

    id: str
    task: str
    queue: str
    status: JobStatus
    priority: str
    tenant: str  #: "" when it belongs to none
    tags: tuple[str, ...]
    attempts: int  #: executions begun
    failures: int  #: those that count against `max_retries`
    crashes: int
    snoozes: int
    releases: int
    fence: int
    worker: str | None  #: who holds it now
    timeout: float | None  #: seconds per attempt; None is the worker's default
    deadline: datetime | None
    ordering_key: str | None
    dead_reason: DeadReason | None
    dead_letter: str | None  #: the shelf it stands on
    error: AttemptError | None  #: the last one it met
    progress: Progress | None
    trace_id: str
    created_at: datetime
    updated_at: datetime
    due_at: datetime
    started_at: datetime | None  #: of the last attempt
    finished_at: datetime | None
    created_by: str | None
    upstream_request_id: str | None
    concurrency_key: str | None
    rate_key: str | None
    idempotency_key: str | None


def job_info(record: JobRecord) -> JobInfo:
    """What a store knows of a job, as people see it."""
    counters = record.counters
    running = record.status is JobStatus.PROCESSING
    return JobInfo(
        id=record.id,
        task=record.task,
        queue=record.queue,
        status=record.status,
        priority=Priority(record.priority).name.lower(),
        tenant=record.tenant,
        tags=record.tags,
        attempts=counters.attempts + running,
        failures=counters.failures,
        crashes=counters.crashes,
        snoozes=counters.snoozes,
        releases=counters.releases,
        fence=record.fence,
        worker=record.worker,
        timeout=None if record.timeout_us is None else record.timeout_us / SECOND_US,
        deadline=_moment(record.deadline_us),
        ordering_key=record.ordering_key,
        dead_reason=record.dead_reason,
        dead_letter=record.dead_letter,
        error=record.error,
        progress=record.progress,
        trace_id=record.trace_id,
        created_at=to_datetime(record.created_us),
        updated_at=to_datetime(record.updated_us),
        due_at=to_datetime(record.due_us),
        started_at=_moment(record.started_us),
        finished_at=_moment(record.finished_us),
        created_by=record.created_by,
        upstream_request_id=record.upstream_request_id,
        concurrency_key=record.concurrency_key,
        rate_key=record.rate_key,
        idempotency_key=record.idempotency_key,
    )


def execution_results(
    record: JobRecord, history: tuple[AttemptRecord, ...]
) -> list[TaskExecutionResult]:
    """A job's history in the shape of the worker protocol, the result with the last attempt."""
    return [
        TaskExecutionResult(
            task_id=record.id,
            status=TaskStatus(attempt.status),
            result=_result(record, attempt),
            error=_task_error(attempt.error),
            duration_ms=max(0, attempt.finished_us - attempt.started_us) // 1000,
            started_at=wire_datetime(attempt.started_us),
            completed_at=wire_datetime(attempt.finished_us),
            attempt=attempt.attempt,
            will_retry=attempt.will_retry,
        )
        for attempt in history
    ]


def _result(record: JobRecord, attempt: AttemptRecord) -> object:
    last = attempt.attempt == record.counters.attempts
    kept = attempt.status is JobStatus.COMPLETED and record.result is not None
    return msgspec.json.decode(record.result or b"null") if last and kept else UNSET


def _task_error(error: AttemptError | None) -> TaskError | UnsetType:
    if error is None:
        return UNSET
    return TaskError(
        message=error.message,
        code=error.code,
        stack=UNSET if error.stack is None else error.stack,
    )


def _moment(instant_us: int | None) -> datetime | None:
    return None if instant_us is None else to_datetime(instant_us)
