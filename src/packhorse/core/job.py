# SPDX-License-Identifier: MIT
"""What a job is, the states it can be in, and what is known of it.

Instants are integer microseconds since the Unix epoch (`*_us`), spans are integer microseconds.
They become `datetime` and `timedelta` only at the public edge.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from packhorse.errors import PayloadError

#: Jobs one page may hold.
PAGE_MAX: Final = 1_000
#: Jobs that one look for a page goes through, those that do not fit among them.
LOOK_MAX: Final = 5_000
#: The largest limit, priority or weight: what every store keeps as a whole number.
NUMBER_MAX: Final = 2**31 - 1


class JobStatus(StrEnum):
    """Where a job stands: the eight statuses of the worker protocol."""

    PENDING = "pending"  #: not yet due: scheduled, snoozed, or waiting out a rescue
    QUEUED = "queued"  #: ready for a worker
    PROCESSING = "processing"  #: claimed by a worker
    COMPLETED = "completed"  #: finished with a result
    FAILED = "failed"  #: the last attempt failed; a retry is scheduled
    CANCELLED = "cancelled"  #: stopped on request
    TIMEOUT = "timeout"  #: the last attempt took too long; a retry is scheduled
    DEAD = "dead"  #: will not be tried again by itself

    @property
    def is_final(self) -> bool:
        """Whether the job is over, and changes only by an operator's hand."""
        return self in TERMINAL


#: Statuses that change only by an operator's hand.
TERMINAL: Final = frozenset({JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.DEAD})
#: Statuses that count towards a queue's depth.
WAITING: Final = frozenset(
    {JobStatus.PENDING, JobStatus.QUEUED, JobStatus.FAILED, JobStatus.TIMEOUT}
)
#: Statuses that are not the end of a job.
UNFINISHED: Final = tuple(status for status in JobStatus if status not in TERMINAL)
#: Statuses that wait for a retry; they keep a burst worker, scheduled work does not.
RETRY_WAITING: Final = frozenset({JobStatus.FAILED, JobStatus.TIMEOUT})


class Priority(IntEnum):
    """The five task priorities; the lower number runs first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BACKGROUND = 4


#: Wire name of each priority.
PRIORITY_BY_NAME: Final = MappingProxyType(
    {priority.name.lower(): priority for priority in Priority}
)


class DeadReason(StrEnum):
    """Why a job was given up."""

    POISON_MESSAGE = "poison_message"  #: its retries are used up
    WORKER_CRASHED = "worker_crashed"  #: it took its worker down too often
    UNDECODABLE = "undecodable"  #: its envelope cannot be read
    UNKNOWN_TASK = "unknown_task"  #: no worker has known its task for too long
    INVALID_REQUEST = "invalid_request"  #: its arguments do not fit its own contract
    EXPIRED = "expired"  #: its deadline passed
    REJECTED = "rejected"  #: the handler refused it for good
    SNOOZED_OUT = "snoozed_out"  #: it asked to wait too often
    SHED = "shed"  #: dropped by a full queue that was told to


class AttemptError(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong in one attempt, as it is stored and shown."""

    type: str  #: exception class, or a stable word such as `Timeout`
    message: str
    code: str  #: stable and machine-readable: `TASK_TIMEOUT`, `WORKER_LOST`, `EXCEPTION`, ...
    reason: str = ""  #: why it runs again: `job_timeout`, `exception:<Type>`
    stack: str | None = None
    outputs: str | None = None  #: JSON text of what a failed attempt has to show all the same
    #: Of a job that waits for this: the attempts that had ended, and since when it is set aside.
    attempts: int | None = None
    since_us: int | None = None


class Counters(msgspec.Struct, frozen=True):
    """How often each thing has happened to a job; each has a limit of its own, or none."""

    attempts: int = 0  #: executions that ended
    failures: int = 0  #: counted against `max_retries`
    crashes: int = 0  #: times the job was lost with its worker
    lone_crashes: int = 0  #: of those, while it ran alone; counted against `max_crashes`
    snoozes: int = 0
    releases: int = 0  #: times it was given back; costs nothing


class RetryRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A retry policy as numbers and names, so that a store can keep it with the job."""

    max_retries: int = 3
    backoff: str = "exponential"
    initial_us: int = 1_000_000
    max_us: int = 60_000_000
    multiplier: float = 2.0
    jitter: bool = True
    retry_on: tuple[str, ...] = ("builtins.Exception",)  #: qualified names, matched along the MRO
    give_up_on: tuple[str, ...] = ()
    retry_timeouts: bool = True


class RateRule(msgspec.Struct, frozen=True):
    """No more than `max` weight is started in any window of `window_us`."""

    max: int
    window_us: int


class UniqueScope(StrEnum):
    """How long a job holds its unique key."""

    UNTIL_STARTED = "until_started"  #: while it waits
    UNTIL_FINISHED = "until_finished"  #: while it waits or runs
    WINDOW = "window"  #: so long from its submit, unless it is cancelled or dead by then


class OnConflict(StrEnum):
    """What a submit does that meets a holder of its unique key; see `policies.uniqueness`."""

    REJECT = "reject"  #: nothing; the holder is the answer
    REPLACE = "replace"  #: gives a waiting holder the new payload
    DEBOUNCE = "debounce"  #: as replace, and gives it a new due
    THROTTLE = "throttle"  #: nothing, for a window of time
    PRESERVE_RUN_AT = "preserve_run_at"  #: gives a waiting holder the new payload; its due stays
    KEEP_LATEST = "keep_latest"  #: as replace; behind a running holder the newest one waits


class UniqueRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the jobs of one (tenant, task, key) only one may be there; its own rule says how long."""

    key: str
    scope: UniqueScope = UniqueScope.UNTIL_FINISHED
    on_conflict: OnConflict = OnConflict.REJECT
    window_us: int | None = None  #: of scope `window` only


class IdempotencyRule(msgspec.Struct, frozen=True):
    """One (tenant, task, key) is one job: while it is unfinished, and for a window if completed."""

    key: str
    digest: str  #: of the payload; the same key with another digest is a mistake
    window_us: int  #: from the submit


class Member(msgspec.Struct, frozen=True, array_like=True):
    """What a job of a group says of it; `policies.journal.Group.member` makes it."""

    group: str  #: `Group.text`
    node: str  #: what the job is called in its group


class Input(msgspec.Struct, frozen=True, array_like=True):
    """An argument that is the result of other nodes of the job's workflow, read when it starts."""

    path: tuple[str | int, ...]  #: where it stands in the payload
    nodes: str  #: their numbers, as `core.workflows.numbers_text` writes them
    many: bool = False  #: a list of results, else the result of the only one


class JobOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call decided for its job alone; what is absent follows task, queue and defaults."""

    retry: RetryRule | None = None
    max_crashes: int | None = None
    max_snoozes: int | None = None
    idempotency_key: str | None = None  #: as given at submit, for the handler
    attached: bool = False  #: something is kept with the job, which an attempt has to read
    version: str | None = None  #: of the contract that its payload was made for
    schedule: str | None = None  #: whose fire it is
    scheduled_for_us: int | None = None  #: when that fire was due
    member: Member | None = None  #: of a group, whose journal tells when the job ends
    carrier: dict[str, str] | None = None  #: trace context of its submit, as headers carry it
    inputs: tuple[Input, ...] = ()  #: arguments that are results of other nodes


_NO_OPTIONS: Final = JobOptions()
# A type is known before threads decode it: two that decode the first one at once crash in msgspec.
_options: Final = msgspec.json.Decoder(JobOptions)


def options_of(text: str | None) -> JobOptions:
    """The options of a claimed job; none of one that a release wrote which knew others."""
    try:
        return _NO_OPTIONS if text is None else _options.decode(text)
    except msgspec.DecodeError:
        return _NO_OPTIONS


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a running job says it is."""

    done: float
    total: float | None = None
    note: str = ""

    def __post_init__(self) -> None:  # a number reads back as one kind, whichever store has it
        msgspec.structs.force_setattr(self, "done", float(self.done))
        if self.total is not None:
            msgspec.structs.force_setattr(self, "total", float(self.total))


_progress: Final = msgspec.json.Decoder(Progress)


def read_progress(text: str | bytes | None) -> Progress | None:
    """Progress as a store kept it; None where an older release let something else in."""
    try:
        return None if text is None else _progress.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return None


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A call ready to be stored; everything the producer decided, nothing the store decides.

    Every store takes an id, a task, a queue, a tenant, tags and keys of up to `KEY_LENGTH_MAX`
    characters each; longer ones are refused before they come to a store.
    """

    id: str
    task: str
    payload: bytes  #: JSON text
    queue: str = "default"
    priority: int = int(Priority.NORMAL)  #: a plain number, which drivers take as it is
    tenant: str = ""
    tags: tuple[str, ...] = ()
    delay_us: int = 0  #: the store adds its clock; 0 is due now
    scheduled_us: int | None = None  #: an instant; beats `delay_us`
    deadline_us: int | None = None
    timeout_us: int | None = None  #: per attempt; None is the worker's default
    options: JobOptions | None = None
    trace_id: str = ""
    upstream_request_id: str | None = None
    created_by: str | None = None
    ordering_key: str | None = None  #: jobs of one key run one at a time, as they were admitted
    concurrency_key: str | None = None  #: the task's concurrency limit is one per key
    rate_key: str | None = None  #: the task's rate limit is one per key
    weight: int = 1  #: how much of a rate limit its start uses up
    unique: UniqueRule | None = None
    idempotency: IdempotencyRule | None = None


class Job(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A claimed job: what a worker needs to run it, and the fence that makes its writes count.

    An array on the wire, in this field order, so that a store can hand over a whole batch as one
    JSON document that decodes in C.
    """

    id: str
    task: str
    queue: str
    fence: int
    payload: str  #: JSON text
    priority: int
    tenant: str
    attempts: int  #: ended before this one; this attempt's number is one more
    failures: int
    crashes: int
    lone_crashes: int
    snoozes: int
    timeout_us: int | None
    deadline_us: int | None
    trace_id: str
    upstream_request_id: str | None
    options: str | None  #: JSON text of `JobOptions`, decoded only when needed
    ready_us: int  #: when it became ready, for the wait time
    rate_key: str | None = None
    concurrency_key: str | None = None

    @property
    def attempt(self) -> int:
        """The number of the running attempt, from 1."""
        return self.attempts + 1


class AttemptRecord(msgspec.Struct, frozen=True):
    """One line of a job's history: how one attempt ended."""

    attempt: int  #: from 1
    status: JobStatus
    started_us: int
    finished_us: int
    worker: str
    will_retry: bool
    error: AttemptError | None = None


class JobRecord(msgspec.Struct, frozen=True):
    """All a store knows of a job, save its history; what `job.info()` is made from."""

    id: str
    task: str
    queue: str
    status: JobStatus
    priority: int
    tenant: str
    tags: tuple[str, ...]
    counters: Counters
    fence: int
    created_us: int
    updated_us: int
    due_us: int
    payload: bytes
    trace_id: str = ""
    worker: str | None = None
    timeout_us: int | None = None
    deadline_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None
    dead_reason: DeadReason | None = None
    dead_letter: str | None = None  #: the shelf it stands on, when its queue names one
    error: AttemptError | None = None
    progress: Progress | None = None
    result: bytes | None = None  #: JSON text, while its lifetime lasts
    result_expired: bool = False  #: completed, but the result's lifetime has passed
    options: JobOptions | None = None
    upstream_request_id: str | None = None
    created_by: str | None = None
    cancel_requested: bool = False
    parked_us: int | None = None  #: since when no live worker knows its task
    ordering_key: str | None = None
    concurrency_key: str | None = None
    rate_key: str | None = None
    weight: int = 1
    idempotency_key: str | None = None


def waits_for(record: JobRecord) -> AttemptError | None:
    """What a job was made to wait for when it was last claimed; None: nothing worth telling."""
    error = record.error
    if error is None or error.attempts != record.counters.attempts:
        return None
    return error


#: A longer note of progress is cut.
NOTE_LENGTH_MAX: Final = 1_000
#: The largest number of progress: larger ones are not exact.
PROGRESS_MAX: Final = 2**53


def checked_progress(done: float, total: float | None, note: str) -> Progress:
    """Progress as a handler told it; what no store could keep is a `PayloadError`."""
    if total is not None:
        total = _measure(total, "total")
    return Progress(done=_measure(done, "done"), total=total, note=_note_text(note))


def _measure(value: object, name: str) -> float:
    """A number that every store keeps as it is."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        told = f"of type {type(value).__name__}"
    elif 0 <= value <= PROGRESS_MAX:  # so it is neither NaN nor infinite
        return float(value)
    else:
        told = "out of bounds"
    raise PayloadError(
        f"ctx.progress(): {name} is {told}; give a number from 0 to {PROGRESS_MAX:g}", field=name
    )


def _note_text(note: object) -> str:
    if not isinstance(note, str):
        kind = type(note).__name__
        raise PayloadError(f"ctx.progress(): note is of type {kind}; give a text", field="note")
    # Half characters, as names of files may have, are no text that a store could keep.
    return note[:NOTE_LENGTH_MAX].encode("utf-8", "replace").decode()
