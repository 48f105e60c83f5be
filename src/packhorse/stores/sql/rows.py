# SPDX-License-Identifier: MIT
"""The rows of jobs and queues: status codes, lanes, ranks, and how columns are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

#: Above every virtual time for centuries.
RANK_PER_PRIORITY: Final = 2**56
#: Above every rank by priority, so that a queue that begins to age keeps the order it had.
AGED: Final = (max(Priority) + 1) * RANK_PER_PRIORITY
#: More bytes than there are.
NO_BOUND: Final = 2**62
#: Lines of history kept from each end.
HISTORY_EACH_END: Final = 25
#: The columns of a record by name, and how they are written in queries of `{jobs} as job`.
RECORD_NAMES: Final = (
    *("seq", "id", "task", "queue", "status", "priority", "tenant", "attempts", "failures"),
    *("crashes", "lone_crashes", "snoozes", "releases", "fence", "created_us", "updated_us"),
    *("due_us", "payload", "trace_id", "worker", "timeout_us", "deadline_us", "started_us"),
    *("finished_us", "dead_reason", "dead_letter", "error", "progress", "result"),
    *("result_until_us", "extra", "options", "upstream_request_id", "created_by"),
    *("cancel_requested", "parked_us", "ordering_key", "concurrency_key", "rate_key", "weight"),
    "attached",
)
_WRITTEN: Final = MappingProxyType(
    {
        "payload": "{payload}",
        "options": "{options job}",
        "upstream_request_id": "{upstream_request_id job}",
        "created_by": "{created_by job}",
        # Whether attempts have attached something. The options of a job say so only after an
        # attempt that did not complete, which spares other jobs a write of their row.
        "attached": (
            "case when job.fence > 0 then (select 1 from {attachments} as kept "
            "where kept.seq = job.seq and kept.name <> '' limit 1) end"
        ),
    }
)
RECORD_COLUMNS: Final = ", ".join([_WRITTEN.get(name, name) for name in RECORD_NAMES])
#: Columns of a record that hold a field of it as it is.
_AS_THEY_LIE: Final = tuple(
    {*RECORD_NAMES}
    & {*JobRecord.__struct_fields__}
    - {"status", "payload", "trace_id", "dead_reason", "error", "progress", "result", "options"}
    - {"cancel_requested"}
)
_KINDS: Final = 16


class Lane(IntEnum):
    """The lane of an unfinished or dead job; see the schema."""

    READY = 0
    SUSPECT = 1
    PARKED = 2
    WAITING = 3
    HELD = 4
    DEAD = 5
    BLOCKED = 6


#: The status code of all jobs of a lane; the lane of waiting jobs has several.
STATUS_OF: Final = MappingProxyType(
    {
        **dict.fromkeys(
            (Lane.READY, Lane.SUSPECT, Lane.PARKED, Lane.BLOCKED), CODE[JobStatus.QUEUED]
        ),
        Lane.HELD: CODE[JobStatus.PROCESSING],
        Lane.DEAD: CODE[JobStatus.DEAD],
    }
)
#: Jobs of each lane of a queue that a bounded count reads at least.
COUNTED_MIN: Final = 500
#: Lanes of jobs that wait for a worker.
UNCLAIMED: Final = (Lane.READY, Lane.SUSPECT, Lane.PARKED, Lane.WAITING, Lane.BLOCKED)


class Extra(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rare fields of a job, kept in one column; a store may have columns for some of them."""

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
    """Return the mark by which a repeated settlement is recognised."""
    return fence * _KINDS + kind


def json_text(value: object) -> str:
    """Return a value as JSON text, for a column or a parameter."""
    return msgspec.json.encode(value).decode()


def payload_text(job: NewJob) -> str:
    """Return the payload as text; refuse one that is not UTF-8."""
    try:
        return job.payload.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(
            f"the payload of job {job.id} is not UTF-8 text ({error}); nothing was stored"
        ) from error


def read_extra(text: str | None) -> Extra:
    """Return the rare fields of a job from their column."""
    return _NO_EXTRA if text is None else _extra.decode(text)


def read_options(text: str | None) -> JobOptions | None:
    """Return the options of a job from their column."""
    return None if text is None else _options.decode(text)


def trace_of(job: NewJob) -> str | None:
    """Return the column of the trace id: null if it is made from the job's id."""
    return None if job.trace_id == job.id.replace("-", "") else job.trace_id


def encode_error(error: AttemptError | None) -> str | None:
    """An error for its column."""
    return None if error is None else json_text(error)


def decode_error(text: str | None) -> AttemptError | None:
    """An error from its column."""
    return None if text is None else _error.decode(text)


def read_record(row: Sequence[Any], now_us: int, *, bodies: bool = True) -> JobRecord:
    """Return a job from `RECORD_COLUMNS`; without `bodies`, leave out payload and result."""
    values = dict(zip(RECORD_NAMES, row, strict=True))
    extra, options = read_extra(values["extra"]), read_options(values["options"])
    if values["attached"]:
        options = msgspec.structs.replace(options or JobOptions(), attached=True)
    status = STATUS[values["status"]]
    until_us = values["result_until_us"]
    expired = status is JobStatus.COMPLETED and until_us is not None and until_us <= now_us
    result = values["result"]
    return JobRecord(
        **{name: values[name] for name in _AS_THEY_LIE},
        status=status,
        tags=extra.tags,
        counters=Counters(*[values[name] for name in Counters.__struct_fields__]),
        payload=values["payload"].encode() if bodies else b"",
        trace_id=_trace(values["id"], values["trace_id"]),
        dead_reason=None if values["dead_reason"] is None else DeadReason(values["dead_reason"]),
        error=decode_error(values["error"]),
        progress=read_progress(values["progress"]),
        result=result.encode() if bodies and result is not None and not expired else None,
        result_expired=expired,
        options=options,
        cancel_requested=bool(values["cancel_requested"]),
        idempotency_key=extra.idempotency_key,
    )


def both_ends(lines: Sequence[AttemptRecord]) -> tuple[AttemptRecord, ...]:
    """Return the lines of a history that are kept: the first and the last ones."""
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
    """Return a worker from a row of `workers`."""
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
    tenanted: bool  #: jobs with tenants were submitted to it, so it deals passes
    shelf: bool  #: it is some queue's dead-letter shelf
    limited_tasks: bool  #: some task has limits
    lined: bool = False  #: jobs that gates may block were submitted to it; PostgreSQL only
    last: int = 0  #: the highest number used as sequence or place; SQLite only
    #: The bytes that all jobs of the store may have; NO_BOUND to count bytes and refuse nothing.
    store_bytes: int | None = None

    @property
    def constraints(self) -> Constraint:
        """The constraints that the queue adds to its jobs."""
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
        """Whether the bytes of its jobs are counted."""
        return self.settings.max_bytes is not None or self.store_bytes is not None

    @property
    def ranks_specially(self) -> bool:
        """Whether ranks depend on more than the priority, or jobs may be dropped."""
        return self.tenanted or self.settings.ageing_us is not None or self.drops

    @property
    def gates_every_job(self) -> bool:
        """Whether gates may block jobs without keys too, so that they form lines."""
        return self.limited_tasks or self.settings.tenant_rate is not None

    @property
    def drops(self) -> bool:
        settings = self.settings
        bounded = settings.max_depth is not None or settings.max_bytes is not None
        return bounded and settings.on_full == "drop"

    def unbounded(self) -> QueueRow:
        """Return the row for jobs that neither bounds nor a closed queue refuse."""
        settings = msgspec.structs.replace(self.settings, max_depth=None, max_bytes=None)
        counted = NO_BOUND if self.counts_bytes else None
        return self._replace(settings=settings, closed=False, store_bytes=counted)

    @property
    def deals_passes(self) -> bool:
        return self.tenanted and self.settings.fair and self.settings.ageing_us is None


@lru_cache(maxsize=DECODED_MAX)
def queue_settings(name: str, text: str | None) -> QueueSettings:
    """Return the settings of a queue from their column; null: the defaults."""
    if text is None:
        return QueueSettings(name)
    return msgspec.json.decode(text, type=QueueSettings)


@lru_cache(maxsize=DECODED_MAX)
def is_limited(text: str | None) -> bool:
    """Whether a queue with these settings has a limit that may block its jobs."""
    return queue_settings("", text).limited


def retention_of(text: str | None) -> Retention:
    """Return how long a queue with these settings keeps finished jobs."""
    return queue_settings("", text).retention or Retention()
