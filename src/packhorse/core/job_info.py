# SPDX-License-Identifier: MIT
"""What users are shown of a job: its record, its history, and why it does not run."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from packhorse.core.approvals import Approval, Consent
from packhorse.core.budgets import tokens_spent
from packhorse.core.clock import SECOND_US, optional_datetime, to_datetime
from packhorse.core.job import (
    AttemptError,
    AttemptRecord,
    DeadReason,
    JobRecord,
    JobStatus,
    Priority,
    Progress,
    RetryRule,
)
from packhorse.core.policies import explain as policy
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.explain import JobFacts, ReasonCode
from packhorse.core.sealing import require_open
from packhorse.core.steps import StepInfo, open_step, steps_of
from packhorse.protocol import (
    UNSET,
    BackoffStrategy,
    Task,
    TaskError,
    TaskExecutionResult,
    TaskMetadata,
    TaskPriority,
    TaskRetryPolicy,
    TaskStatus,
    UnsetType,
    to_wire,
    wire_datetime,
)

S = TypeVar("S", bound=msgspec.Struct)


def shown(kind: type[S], *sources: object, **own: Any) -> S:
    """Make what users are shown: fields that are not its `own` come from the first source with one.

    What a source has as an instant, `created_us`, is shown as a date, `created_at`.
    """
    for name in kind.__struct_fields__:
        if name in own:
            continue
        is_date = name.endswith("_at")
        field = f"{name[:-3]}_us" if is_date else name
        source = next((each for each in sources if hasattr(each, field)), None)
        if source is not None:
            value = getattr(source, field)
            own[name] = optional_datetime(value) if is_date else value
    return kind(**own)


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
    steps: tuple[StepInfo, ...] = ()  #: of all attempts, in the order of their beginnings
    approvals: tuple[Approval, ...] = ()  #: who let it go on or declined, in order
    tokens_spent: int = 0  #: over all attempts


def has_attachments(record: JobRecord) -> bool:
    """Whether something is kept with the job."""
    return record.options is not None and record.options.attached


def job_info(record: JobRecord, attachments: Attachments | None = None) -> JobInfo:
    """What a store knows of a job, as people see it; with what is kept with it, its steps."""
    counters = record.counters
    running = record.status is JobStatus.PROCESSING
    kept = Attachments() if attachments is None else attachments
    return shown(
        JobInfo,
        *(record, counters),
        priority=Priority(record.priority).name.lower(),
        attempts=counters.attempts + running,
        timeout=None if record.timeout_us is None else record.timeout_us / SECOND_US,
        deadline=optional_datetime(record.deadline_us),
        steps=steps_of(kept.values),
        approvals=Consent(kept).given,
        tokens_spent=tokens_spent(kept.values),
    )


def wire_task(record: JobRecord) -> Task:
    """A job in the shape of the worker protocol, as it is now."""
    timeout_us, retry = record.timeout_us, None if record.options is None else record.options.retry
    running = record.status is JobStatus.PROCESSING
    task = Task(
        id=record.id,
        type=record.task,
        payload=msgspec.json.decode(require_open(record.payload, record.id, "payload")),
        queue=record.queue,
        priority=TaskPriority(Priority(record.priority).name.lower()),
        retry_policy=UNSET if retry is None else _retry_policy(retry),
        timeout_ms=UNSET if timeout_us is None else max(1, timeout_us // 1000),
        scheduled_at=wire_datetime(record.due_us) if record.due_us > record.created_us else UNSET,
        attempts=record.counters.attempts + running,
        status=TaskStatus(record.status),
        metadata=TaskMetadata(
            created_at=wire_datetime(record.created_us),
            updated_at=wire_datetime(record.updated_us),
            created_by=UNSET if record.created_by is None else record.created_by,
            tags=list(record.tags),
        ),
    )
    return Task.parse(to_wire(task))  # whose name may be one that the protocol does not know


def _retry_policy(rule: RetryRule) -> TaskRetryPolicy:
    return TaskRetryPolicy(
        max_retries=rule.max_retries,
        backoff_strategy=BackoffStrategy(rule.backoff),
        initial_delay_ms=max(1, rule.initial_us // 1000),
        max_delay_ms=max(1, rule.max_us // 1000),
        backoff_multiplier=rule.multiplier,
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
    if not (last and kept):
        return UNSET
    return msgspec.json.decode(require_open(record.result or b"null", record.id, "result"))


def _task_error(error: AttemptError | None) -> TaskError | UnsetType:
    if error is None:
        return UNSET
    return TaskError(
        message=error.message,
        code=error.code,
        stack=UNSET if error.stack is None else error.stack,
    )


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps a job from running, or says what it does instead."""

    code: ReasonCode  #: stable: `not_due`, `rate_limit`, `behind_head`, ...
    text: str
    at: datetime | None = None  #: the instant it is about: when it is due, when the limit frees
    jobs: tuple[str, ...] = ()  #: the jobs it is about: who runs, who is before it
    count: int | None = None  #: how many it is about

    def __str__(self) -> str:
        return self.text


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that keeps a job from running at one instant, the first to be removed first."""

    job_id: str
    status: JobStatus
    queue: str
    task: str
    at: datetime  #: when that was so, by the store's clock
    reasons: tuple[Reason, ...]  #: never none: one that runs, has finished, or is next says so

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the reasons, in the same order."""
        return tuple(str(reason.code) for reason in self.reasons)

    def __str__(self) -> str:
        head = f"job {self.job_id} of task {self.task} in queue {self.queue} is {self.status}:"
        return "\n".join((head, *(f"- {reason.text}" for reason in self.reasons)))


def waits_in_step(facts: JobFacts | None) -> bool:
    """Whether what is kept with a job may say what it waits for."""
    if facts is None or facts.record.status is not JobStatus.PENDING:
        return False
    return has_attachments(facts.record)


def explanation_of(facts: JobFacts, kept: Attachments | None = None) -> Explanation:
    """From what a store sees of a job, and what is kept with it, to what people are told."""
    record = facts.record
    if kept is not None:
        consent = Consent(kept)
        asked = consent.question if consent.waits else None
        facts = msgspec.structs.replace(
            facts,
            step=open_step(kept.values, record.due_us),
            question=None if asked is None else asked.error.message,
        )
    return Explanation(
        job_id=record.id,
        status=record.status,
        queue=record.queue,
        task=record.task,
        at=to_datetime(facts.now_us),
        reasons=tuple(_reason(reason) for reason in policy.explain(facts)),
    )


def _reason(reason: policy.Obstacle) -> Reason:
    return Reason(
        code=reason.code,
        text=reason.text,
        at=optional_datetime(reason.at_us),
        jobs=reason.jobs,
        count=reason.count,
    )
