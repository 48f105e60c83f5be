# SPDX-License-Identifier: MIT
"""Jobs as Redis keeps them, read and written; see `layout` for their parts."""

from __future__ import annotations

from typing import Final

import msgspec

from packhorse.core.job import (
    AttemptError,
    AttemptRecord,
    Counters,
    DeadReason,
    Job,
    JobOptions,
    JobRecord,
    NewJob,
    read_progress,
)
from packhorse.core.policies.retention import may_prune
from packhorse.stores.redis.layout import CODE, STATUS, Definition, OwnState, SharedState
from packhorse.stores.requests import JobFilter


class _Attempt(msgspec.Struct, frozen=True, array_like=True):
    """One line of history."""

    attempt: int
    status: int
    started_us: int
    finished_us: int
    worker: str
    will_retry: bool
    error: str | None  #: JSON text


read_state: Final = msgspec.msgpack.Decoder(SharedState).decode
read_own: Final = msgspec.msgpack.Decoder(OwnState).decode
read_definition: Final = msgspec.msgpack.Decoder(Definition).decode
_read_attempt: Final = msgspec.msgpack.Decoder(_Attempt).decode
_read_error: Final = msgspec.json.Decoder(AttemptError).decode
read_options: Final = msgspec.json.Decoder(JobOptions).decode
_pack: Final = msgspec.msgpack.Encoder().encode


def own_trace_id(job_id: str) -> str:
    """The trace id of most jobs. It is not stored, so that jobs alike share one definition."""
    return job_id.replace("-", "")


def stored_trace_id(new: NewJob) -> str | None:
    """The trace id of a new job as it is stored: None if it follows from the job's id."""
    return None if new.trace_id == own_trace_id(new.id) else new.trace_id


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
            stored_trace_id(new),
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


def signature_of(new: NewJob) -> str:
    """What a job shares with the others of its line, besides queue and task; empty for most."""
    keys = (new.ordering_key, new.concurrency_key, new.rate_key)
    if not new.tenant and new.weight == 1 and keys == (None, None, None):
        return ""
    parts = (new.tenant, str(new.weight), *keys)
    return "".join("-" if part is None else f"{len(part.encode())}:{part}" for part in parts)


def as_claimed(job_id: str, now: SharedState, new: Definition, payload: str) -> Job:
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
        progress=read_progress(progress),
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


def _result_expired(state: SharedState, now_us: int) -> bool:
    if not state.has_result or state.finished_us is None:
        return False
    return may_prune(state.finished_us, state.result_keep_us, now_us)


def filter_text(chosen: JobFilter) -> bytes:
    """The parts of the filter that are given, in the scripts' words."""
    given = {name: value for name, value in msgspec.structs.asdict(chosen).items() if value != ()}
    given = {name: value for name, value in given.items() if value is not None}
    if chosen.statuses:
        given["statuses"] = [CODE[status] for status in chosen.statuses]
    return msgspec.json.encode(given)
