# SPDX-License-Identifier: MIT
"""What Redis keeps of a job, and how it is shown to others.

A job is one hash. Its state, which changes, is two MessagePack arrays, and its definition, which
does not, is one that scripts hand over unread.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from packhorse.job import (
    AttemptError,
    AttemptRecord,
    Counters,
    DeadReason,
    IdempotencyRule,
    Job,
    JobOptions,
    JobRecord,
    JobStatus,
    NewJob,
    Progress,
    UniqueRule,
)
from packhorse.policies.retention import may_prune

__all__ = [
    "CODE",
    "RECORD_FIELDS",
    "STATUS",
    "Definition",
    "Own",
    "State",
    "as_attempt",
    "as_claimed",
    "as_record",
    "as_summary",
    "attempt_line",
    "definition_of",
    "new_state",
    "own_trace_id",
    "read_definition",
    "read_options",
    "read_own",
    "read_state",
    "signature_of",
]

#: How statuses are stored.
STATUS: Final[tuple[JobStatus, ...]] = (
    JobStatus.PENDING,
    JobStatus.QUEUED,
    JobStatus.PROCESSING,
    JobStatus.COMPLETED,
    JobStatus.FAILED,
    JobStatus.CANCELLED,
    JobStatus.TIMEOUT,
    JobStatus.DEAD,
)
CODE: Final[Mapping[JobStatus, int]] = MappingProxyType(
    {status: code for code, status in enumerate(STATUS)}
)
#: The fields of a job's hash that `as_record` reads, in this order.
RECORD_FIELDS: Final = ("s", "d", "p", "r", "e", "o", "b")


class State(msgspec.Struct, frozen=True, array_like=True):
    """What jobs that go the same way at the same time share, as `lua/lib/jobs.lua` packs it."""

    status: int
    fence: int
    updated_us: int
    worker: str | None
    started_us: int | None
    hold_until_us: int
    alone: bool | None
    timeout_us: int | None
    deadline_us: int | None
    cancel_requested: bool | None
    awaited: bool | None
    attempts: int
    suspect: bool | None
    settled_fence: int | None
    settled_kind: int | None
    finished_us: int | None
    keep_us: int | None
    result_keep_us: int | None
    expires_us: int | None
    has_result: bool | None
    queue: str
    task: str
    signature: str
    keyed: bool | None
    priority: int
    ready_us: int
    failures: int
    crashes: int
    lone_crashes: int
    snoozes: int


class Own(msgspec.Struct, frozen=True, array_like=True):
    """What else changes about a job, and is its own."""

    sequence: int
    created_us: int
    due_us: int
    place: int | None
    rank: int
    pass_number: int
    line_number: int
    releases: int
    parked_us: int | None
    dead_reason: str | None
    dead_letter: str | None
    result_dropped: bool | None
    holds_line: bool | None


class Definition(msgspec.Struct, frozen=True, array_like=True):
    """What the producer decided, save the payload; never written again."""

    task: str
    queue: str
    priority: int
    tenant: str
    tags: tuple[str, ...]
    timeout_us: int | None
    trace_id: str | None  #: None: see `own_trace_id`
    upstream_request_id: str | None
    created_by: str | None
    options: str | None  #: JSON text
    ordering_key: str | None
    concurrency_key: str | None
    rate_key: str | None
    weight: int
    unique: UniqueRule | None
    idempotency: IdempotencyRule | None


class _Attempt(msgspec.Struct, frozen=True, array_like=True):
    """One line of history."""

    attempt: int
    status: int
    started_us: int
    finished_us: int
    worker: str
    will_retry: bool
    error: str | None  #: JSON text


read_state: Final = msgspec.msgpack.Decoder(State).decode
read_own: Final = msgspec.msgpack.Decoder(Own).decode
read_definition: Final = msgspec.msgpack.Decoder(Definition).decode
_read_attempt: Final = msgspec.msgpack.Decoder(_Attempt).decode
_read_error: Final = msgspec.json.Decoder(AttemptError).decode
_read_progress: Final = msgspec.json.Decoder(Progress).decode
read_options: Final = msgspec.json.Decoder(JobOptions).decode
_pack: Final = msgspec.msgpack.Encoder().encode
#: Stands for an instant that the server will know; its bytes are in no text and in no other number.
_INSTANT: Final = 2**64 - 1


def own_trace_id(job_id: str) -> str:
    """The trace id of most jobs. It is not stored, so that jobs alike share one definition."""
    return job_id.replace("-", "")


def definition_of(new: NewJob) -> bytes:
    """The definition of a new job, as it is stored."""
    return _pack(
        (
            new.task,
            new.queue,
            new.priority,
            new.tenant,
            new.tags,
            new.timeout_us,
            None if new.trace_id == own_trace_id(new.id) else new.trace_id,
            new.upstream_request_id,
            new.created_by,
            None if new.options is None else msgspec.json.encode(new.options).decode(),
            new.ordering_key,
            new.concurrency_key,
            new.rate_key,
            new.weight,
            new.unique,
            new.idempotency,
        )
    )


def new_state(queue: str, task: str, priority: int, timeout_us: int | None) -> bytes:
    """The state of plain jobs that are ready at once, from one instant in it to the other.

    The server knows the instant, and what comes before and after is always the same.
    """
    state = State(
        status=CODE[JobStatus.QUEUED],
        fence=0,
        updated_us=_INSTANT,
        worker=None,
        started_us=None,
        hold_until_us=0,
        alone=None,
        timeout_us=timeout_us,
        deadline_us=None,
        cancel_requested=None,
        awaited=None,
        attempts=0,
        suspect=None,
        settled_fence=None,
        settled_kind=None,
        finished_us=None,
        keep_us=None,
        result_keep_us=None,
        expires_us=None,
        has_result=None,
        queue=queue,
        task=task,
        signature="",
        keyed=None,
        priority=priority,
        ready_us=_INSTANT,
        failures=0,
        crashes=0,
        lone_crashes=0,
        snoozes=0,
    )
    _, between, _ = _pack(state).split(_pack(_INSTANT))
    return between


def signature_of(new: NewJob) -> str:
    """What a job shares with the others of its line, besides queue and task; empty for most."""
    keys = (new.ordering_key, new.concurrency_key, new.rate_key)
    if not new.tenant and new.weight == 1 and keys == (None, None, None):
        return ""
    parts = (new.tenant, str(new.weight), *keys)
    return "".join("-" if part is None else f"{len(part.encode())}:{part}" for part in parts)


def as_claimed(job_id: str, now: State, new: Definition, payload: str) -> Job:
    """A job as its new holder is given it."""
    return Job(
        job_id,
        now.task,
        now.queue,
        now.fence,
        payload,
        now.priority,
        new.tenant,
        now.attempts,
        now.failures,
        now.crashes,
        now.lone_crashes,
        now.snoozes,
        now.timeout_us,
        now.deadline_us,
        own_trace_id(job_id) if new.trace_id is None else new.trace_id,
        new.upstream_request_id,
        new.options,
        now.ready_us,
        new.rate_key,
        new.concurrency_key,
    )


def as_record(job_id: str, fields: list[bytes | None], now_us: int) -> JobRecord:
    """A job as it is shown, from its `RECORD_FIELDS`; an expired result is not."""
    state, definition, payload, result, error, progress, own_text = fields
    now, own = read_state(state or b""), read_own(own_text or b"")
    new = read_definition(definition or b"")
    expired = bool(own.result_dropped) or _result_expired(now, now_us)
    return JobRecord(
        id=job_id,
        task=now.task,
        queue=now.queue,
        status=STATUS[now.status],
        priority=now.priority,
        tenant=new.tenant,
        tags=new.tags,
        counters=Counters(
            attempts=now.attempts,
            failures=now.failures,
            crashes=now.crashes,
            lone_crashes=now.lone_crashes,
            snoozes=now.snoozes,
            releases=own.releases,
        ),
        fence=now.fence,
        created_us=own.created_us,
        updated_us=now.updated_us,
        due_us=own.due_us,
        payload=payload or b"",
        trace_id=own_trace_id(job_id) if new.trace_id is None else new.trace_id,
        worker=now.worker,
        timeout_us=now.timeout_us,
        deadline_us=now.deadline_us,
        started_us=now.started_us,
        finished_us=now.finished_us,
        dead_reason=None if own.dead_reason is None else DeadReason(own.dead_reason),
        dead_letter=own.dead_letter,
        error=None if error is None else _read_error(error),
        progress=None if progress is None else _read_progress(progress),
        result=None if expired or not now.has_result else result,
        result_expired=expired,
        options=None if new.options is None else read_options(new.options),
        upstream_request_id=new.upstream_request_id,
        created_by=new.created_by,
        cancel_requested=bool(now.cancel_requested),
        parked_us=own.parked_us,
        ordering_key=new.ordering_key,
        concurrency_key=new.concurrency_key,
        rate_key=new.rate_key,
        weight=new.weight,
        idempotency_key=None if new.idempotency is None else new.idempotency.key,
    )


def as_summary(job_id: str, fields: list[bytes | None], now_us: int) -> JobRecord:
    """A job as it is shown in a list, from its `RECORD_FIELDS`: without payload and result."""
    shown = as_record(job_id, fields, now_us)
    return msgspec.structs.replace(shown, payload=b"", result=None)


def as_attempt(line: bytes) -> AttemptRecord:
    """One line of history as it is shown."""
    read = _read_attempt(line)
    return AttemptRecord(
        attempt=read.attempt,
        status=STATUS[read.status],
        started_us=read.started_us,
        finished_us=read.finished_us,
        worker=read.worker,
        will_retry=read.will_retry,
        error=None if read.error is None else _read_error(read.error),
    )


def attempt_line(record: AttemptRecord) -> bytes:
    """One line of history as it is stored."""
    error = None if record.error is None else msgspec.json.encode(record.error).decode()
    when = (record.started_us, record.finished_us)
    line = (record.attempt, CODE[record.status], *when, record.worker, record.will_retry, error)
    return _pack(line)


def _result_expired(state: State, now_us: int) -> bool:
    if not state.has_result or state.finished_us is None:
        return False
    return may_prune(state.finished_us, state.result_keep_us, now_us)
