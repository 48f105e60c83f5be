# SPDX-License-Identifier: MIT
"""How a job stands in its row: status codes, lanes, ranks; and queues as a submit sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.core.constraints import Constraint, queue_constraints
from packhorse.core.job import (
    AttemptError,
    AttemptRecord,
    Counters,
    DeadReason,
    IdempotencyRule,
    JobOptions,
    JobRecord,
    JobStatus,
    NewJob,
    Priority,
    UniqueRule,
    read_progress,
)
from packhorse.core.policies.retention import Retention
from packhorse.errors import PayloadError
from packhorse.stores.requests import QueueSettings, Totals, WorkerRecord

#: Status by code, and code by status; the order is that of the protocol.
STATUS: Final = tuple(JobStatus)
CODE: Final = MappingProxyType({status: code for code, status in enumerate(STATUS)})

#: Virtual times stay below this for centuries.
PASSES: Final = 2**56
#: Above every rank by priority, so that a queue that begins to age keeps the order it had.
AGED: Final = (max(Priority) + 1) * PASSES
#: More bytes than there are.
NO_BOUND: Final = 2**62
#: Lines of history kept from each end.
HISTORY_EACH_END: Final = 25
#: Column of a record: whether attempts have attached something. Jobs say so in their options only
#: once an attempt has ended otherwise than well, which spares the others a write of their row.
ATTACHED: Final = (
    "case when job.fence > 0 then (select 1 from {attachments} as kept "
    "where kept.seq = job.seq and kept.name <> '' limit 1) end"
)
_KINDS: Final = 16


class Lane(IntEnum):
    """Where an unfinished or dead job stands; see the schema."""

    READY = 0
    SUSPECT = 1
    PARKED = 2
    WAITING = 3
    HELD = 4
    DEAD = 5
    BLOCKED = 6


#: The code of the status that all jobs of a lane have; in the lane of waiting ones they are mixed.
STATUS_OF: Final = MappingProxyType(
    {
        **dict.fromkeys(
            (Lane.READY, Lane.SUSPECT, Lane.PARKED, Lane.BLOCKED), CODE[JobStatus.QUEUED]
        ),
        Lane.HELD: CODE[JobStatus.PROCESSING],
        Lane.DEAD: CODE[JobStatus.DEAD],
    }
)
#: Jobs of each lane of a queue that a count with a bound looks at, however many lanes there are.
COUNTED_MIN: Final = 500
#: Lanes of jobs that wait for a worker.
UNCLAIMED: Final = (Lane.READY, Lane.SUSPECT, Lane.PARKED, Lane.WAITING, Lane.BLOCKED)


class Extra(msgspec.Struct, frozen=True, omit_defaults=True):
    """What few jobs have, kept in one column; a store may have columns for some of it."""

    tags: tuple[str, ...] = ()
    options: JobOptions | None = None
    upstream_request_id: str | None = None
    created_by: str | None = None
    unique: UniqueRule | None = None
    idempotency: IdempotencyRule | None = None

    @property
    def idempotency_key(self) -> str | None:
        return None if self.idempotency is None else self.idempotency.key


_NO_EXTRA: Final = Extra()
_extra: Final = msgspec.json.Decoder(Extra)
_options: Final = msgspec.json.Decoder(JobOptions)
_error: Final = msgspec.json.Decoder(AttemptError)


def settled_mark(fence: int, kind: int) -> int:
    """What is remembered of a settlement, to know it when it comes again."""
    return fence * _KINDS + kind


def json_text(value: object) -> str:
    """A value as JSON text, for a column or as a parameter."""
    return msgspec.json.encode(value).decode()


def payload_text(job: NewJob) -> str:
    """The payload's column; a payload is JSON, so it is text."""
    try:
        return job.payload.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(
            f"the payload of job {job.id} is not UTF-8 text ({error}); nothing was stored"
        ) from error


def read_extra(text: str | None) -> Extra:
    """What few jobs have, from its column."""
    return _NO_EXTRA if text is None else _extra.decode(text)


def read_options(text: str | None) -> JobOptions | None:
    """What a call decided for its job alone, from its column."""
    return None if text is None else _options.decode(text)


def trace_of(job: NewJob) -> str | None:
    """The trace id's column: a trace id made from the job's id takes no room."""
    return None if job.trace_id == job.id.replace("-", "") else job.trace_id


def encode_error(error: AttemptError | None) -> str | None:
    """An error for its column."""
    return None if error is None else json_text(error)


def decode_error(text: str | None) -> AttemptError | None:
    """An error from its column."""
    return None if text is None else _error.decode(text)


def record_of(
    values: Mapping[str, Any], extra: Extra, now_us: int, *, bodies: bool = True
) -> JobRecord:
    """A job from its columns, by name; without `bodies`, payload and result stay out."""
    options = extra.options
    if values["attached"]:
        options = msgspec.structs.replace(options or JobOptions(), attached=True)
    status = STATUS[values["status"]]
    until_us = values["result_until_us"]
    expired = status is JobStatus.COMPLETED and until_us is not None and until_us <= now_us
    result = values["result"]
    return JobRecord(
        id=values["id"],
        task=values["task"],
        queue=values["queue"],
        status=status,
        priority=values["priority"],
        tenant=values["tenant"],
        tags=extra.tags,
        counters=Counters(*[values[name] for name in Counters.__struct_fields__]),
        fence=values["fence"],
        created_us=values["created_us"],
        updated_us=values["updated_us"],
        due_us=values["due_us"],
        payload=values["payload"].encode() if bodies else b"",
        trace_id=_trace(values["id"], values["trace_id"]),
        worker=values["worker"],
        timeout_us=values["timeout_us"],
        deadline_us=values["deadline_us"],
        started_us=values["started_us"],
        finished_us=values["finished_us"],
        dead_reason=None if values["dead_reason"] is None else DeadReason(values["dead_reason"]),
        dead_letter=values["dead_letter"],
        error=decode_error(values["error"]),
        progress=read_progress(values["progress"]),
        result=result.encode() if bodies and result is not None and not expired else None,
        result_expired=expired,
        options=options,
        upstream_request_id=extra.upstream_request_id,
        created_by=extra.created_by,
        cancel_requested=bool(values["cancel_requested"]),
        parked_us=values["parked_us"],
        ordering_key=values["ordering_key"],
        concurrency_key=values["concurrency_key"],
        rate_key=values["rate_key"],
        weight=values["weight"],
        idempotency_key=extra.idempotency_key,
    )


def both_ends(lines: Sequence[AttemptRecord]) -> tuple[AttemptRecord, ...]:
    """The lines of a history that are kept."""
    first, rest = lines[:HISTORY_EACH_END], lines[HISTORY_EACH_END:]
    return (*first, *rest[-HISTORY_EACH_END:])


def _trace(job_id: str, trace_id: str | None) -> str:
    return job_id.replace("-", "") if trace_id is None else trace_id


def read_attempt(row: Sequence[Any]) -> AttemptRecord:
    """A line of history from (attempt, status, started, finished, worker, will_retry, error)."""
    attempt, status, started_us, finished_us, worker, will_retry, error = row
    return AttemptRecord(
        attempt,
        STATUS[status],
        started_us,
        finished_us,
        worker,
        bool(will_retry),
        decode_error(error),
    )


def read_worker(
    listed: Callable[[Any], tuple[str, ...]], row: Sequence[Any], now_us: int
) -> WorkerRecord:
    """The worker as it is shown, from `workers`."""
    names = ("worker", "host", "pid", "version", "queues", "tasks", "concurrency", "quiet")
    values: dict[str, Any] = dict(zip(names, row, strict=False))
    values["queues"] = listed(values["queues"])
    values["tasks"] = listed(values["tasks"])
    values["quiet"] = bool(values["quiet"])
    running, started_us, renewed_us, expires_us, *totals = row[len(names) :]
    return WorkerRecord(
        **values,
        running=running,
        started_us=started_us,
        renewed_us=renewed_us,
        expires_us=expires_us,
        live=expires_us > now_us,
        totals=Totals(*totals),
    )


#: Different settings kept decoded; a store has far fewer.
DECODED_MAX: Final = 1024


class QueueRow(NamedTuple):
    """A queue as a submit sees it."""

    settings: QueueSettings
    closed: bool
    tenanted: bool  #: jobs with tenants were submitted to it, so passes are dealt
    shelf: bool  #: it is some queue's dead-letter shelf
    limited_tasks: bool  #: some task has limits of its own
    last: int = 0  #: the last number given out, as sequence or place, where the store keeps it here
    lined: bool = False  #: jobs that gates may hold back were submitted to it, where that matters
    #: The bytes that all jobs of the store may have; NO_BOUND for one that is let in anyway.
    store_bytes: int | None = None

    @property
    def constraints(self) -> Constraint:
        """What the queue adds to the constraints of its jobs."""
        return queue_constraints(
            self.settings,
            closed=self.closed,
            shelf=self.shelf,
            tenanted=self.tenanted,
            limited_tasks=self.limited_tasks,
            full_store=self.store_bytes is not None,
        )

    @property
    def counts_bytes(self) -> bool:
        """Whether those of its jobs are counted."""
        return self.settings.max_bytes is not None or self.store_bytes is not None

    @property
    def ranks_specially(self) -> bool:
        """Whether more than its priority decides where a job stands, or whether it stands."""
        return self.tenanted or self.settings.ageing_us is not None or self.drops

    @property
    def gates_every_job(self) -> bool:
        """Whether jobs without keys may be held back too, so that they form lines."""
        return self.limited_tasks or self.settings.tenant_rate is not None

    @property
    def drops(self) -> bool:
        settings = self.settings
        bounded = settings.max_depth is not None or settings.max_bytes is not None
        return bounded and settings.on_full == "drop"

    def unbounded(self) -> QueueRow:
        """For a job that is let in however many wait, and though the queue is closed."""
        settings = msgspec.structs.replace(self.settings, max_depth=None, max_bytes=None)
        counted = NO_BOUND if self.counts_bytes else None
        return self._replace(settings=settings, closed=False, store_bytes=counted)

    @property
    def deals_passes(self) -> bool:
        return self.tenanted and self.settings.fair and self.settings.ageing_us is None


@lru_cache(maxsize=DECODED_MAX)
def queue_settings(name: str, text: str | None) -> QueueSettings:
    """Settings from their column; an undeclared queue has the defaults."""
    if text is None:
        return QueueSettings(name)
    return msgspec.json.decode(text, type=QueueSettings)


@lru_cache(maxsize=DECODED_MAX)
def is_limited(text: str | None) -> bool:
    """Whether a limit of its own may hold back the jobs of a queue with these settings."""
    return queue_settings("", text).limited


def retention_of(text: str | None) -> Retention:
    """How long a queue with these settings keeps what is over."""
    return queue_settings("", text).retention or Retention()
