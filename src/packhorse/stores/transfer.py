# SPDX-License-Identifier: MIT
"""Carry jobs from one store to another: the carried values, and the store contract.

Numbers that only express an order (place, pass, number in line) are carried unchanged, so that a
store can be carried in any number of parts, with interruptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from packhorse.core.clock import to_datetime
from packhorse.core.job import (
    RETRY_WAITING,
    AttemptError,
    AttemptRecord,
    Counters,
    DeadReason,
    IdempotencyRule,
    JobRecord,
    JobStatus,
    NewJob,
    Progress,
    UniqueRule,
)
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.retention import Retention, lifetimes
from packhorse.core.policies.uniqueness import JobKey, keys_wanted
from packhorse.errors import ConfigError, StoreCopied
from packhorse.stores.plan import Plan
from packhorse.stores.requests import QueueSettings

#: The statuses that are carried. Running jobs are not; completed and cancelled ones are as members
#: of groups whose record is there: others have their results, or count on them.
CARRIED: Final = frozenset({JobStatus.PENDING, JobStatus.QUEUED, JobStatus.DEAD, *RETRY_WAITING})
#: Sequence numbers that every store can represent.
_SEQUENCE: Final = range(2**63)


class Standing(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of a ready job, or the one it will have when it is due again."""

    place: int  #: order of becoming ready
    ready_us: int  #: when it took its place
    pass_number: int = 0  #: its tenant's turn in a fair queue
    aged: int | None = None  #: the rank it got in a queue whose jobs age


class CarriedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a store knows of a job that is carried, independent of the store."""

    job: NewJob  #: with its current deadline and payload; its delay is in `due_us`
    status: JobStatus
    counters: Counters
    fence: int  #: the next claim goes on from here, so that no fence is used twice
    created_us: int
    updated_us: int
    due_us: int
    standing: Standing | None = None  #: None: it takes a place when it becomes ready
    line_number: int | None = None  #: in the line of its ordering key, while it is in it
    took_unique: bool = False  #: it was the last to take its unique key; a dead job holds none
    took_idempotency: bool = False
    suspect: bool = False
    cancel_requested: bool = False
    worker: str | None = None  #: the last one that held it
    started_us: int | None = None
    error: AttemptError | None = None
    progress: Progress | None = None
    dead_reason: DeadReason | None = None
    dead_letter: str | None = None
    finished_us: int | None = None
    expires_us: int | None = None  #: when upkeep takes a finished job away
    result: bytes | None = None  #: of a completed one
    history: tuple[AttemptRecord, ...] = ()
    attached: Attachments = Attachments()
    stashed: NewJob | None = None  #: submitted when this holder of its unique key ends


class CarriedPage(msgspec.Struct, frozen=True):
    """Some of the jobs to carry, in order of submission, and where to go on."""

    jobs: tuple[CarriedJob, ...]
    after: str | None = None  #: pass it to get the next page; None: there is no more


#: Fields that the record of a job has under the names they have in a submit.
SUBMITTED_FIELDS: Final = tuple(
    [name for name in NewJob.__struct_fields__ if name in JobRecord.__struct_fields__]
)
#: Fields that a carried job has under the names they have in its record.
_RECORD_FIELDS: Final = tuple(
    [name for name in CarriedJob.__struct_fields__ if name in JobRecord.__struct_fields__]
)


class CarryAnswer(StrEnum):
    """The result of carrying one job."""

    CARRIED = "carried"
    KNOWN = "known"  #: a job of this id exists; it stays as it is
    CONFLICT = "conflict"  #: another job holds a key that this one took; it is left out


class Copied(msgspec.Struct, frozen=True):
    """Says that the jobs of a store were carried to another one, where they run now."""

    to: str  #: the label of the other store
    at_us: int
    under_way: bool = False  #: the copy began then, and has not carried all of them

    @property
    def since(self) -> str | None:
        """When a copy that is under way began."""
        return f"{to_datetime(self.at_us):%Y-%m-%d %H:%M:%S} UTC" if self.under_way else None

    @property
    def said(self) -> str:
        """What became of the jobs, for messages."""
        if self.under_way:
            return f"are being copied to {self.to}, since {self.since}"
        return f"were copied to {self.to}"

    def way_back(self, label: str = "URL") -> str:
        """What to do to use the store again, for messages; `label` is the store that is marked."""
        undo = f"'packhorse copy --undo --from {label}'"
        if self.under_way:
            return f"run the copy again to go on, or take it back with {undo}"
        return f"use that store, or lift the mark with {undo}"

    def refusal(self, label: str = "URL") -> StoreCopied:
        """The error for what the marked store does not do; `label` is that store."""
        return StoreCopied(label, to=self.to, since=self.since)


class TransferStore(Protocol):
    """Takes over jobs from another store of any kind."""

    def copied(self) -> Plan[Copied | None]:
        """Return what `mark` wrote last. Reads only."""

    def mark(self, copied: Copied | None) -> Plan[None]:
        """Mark that the jobs of this store are or were carried to another one; None removes it.

        While the mark exists, submits are refused as those to closed queues are.
        """

    def carry_out(self, *, after: str | None, limit: int) -> Plan[CarriedPage]:
        """Jobs that wait or are dead, with all that is known of them. Reads only.

        In order of submission, a page at a time; a page holds at most `limit` jobs and may hold
        fewer, even none, though others follow. Jobs that run are left out, and so are those that
        have completed or were cancelled, unless the record of their group is there. A parked
        job is shown as ready, since only the workers of this store did not know its task.
        """

    def carried(self, job_ids: Sequence[str]) -> Plan[tuple[CarriedJob, ...]]:
        """Return those of these jobs that `carry_out` would show, in that order. Reads only."""

    def carry_in(self, jobs: Sequence[CarriedJob]) -> Plan[tuple[CarryAnswer, ...]]:
        """Store each job as it was in the other store, and answer each in order.

        A job whose id is known is left as it is. A job takes the keys it took there; where
        another job holds one of them, it is a `CONFLICT` and left out. Neither depth, a closed
        queue, nor the weight of a job refuses it. What is carried keeps its order: of becoming
        ready, of its line, of passes, and, among equals, that in which it is given; what becomes
        ready or joins a line later stands behind all of it. Fences, counters, history, what is
        attached and every instant stay. Gates hold back a job carried here as any other. Workers
        are woken.
        """

    def exchange(self, job_id: str, texts: Mapping[str, str]) -> Plan[bool]:
        """Replace texts in the values of a job; return whether the job exists.

        Each key of `texts` is replaced by its value in the payload, the result, the errors of all
        attempts and the attachments. Nothing else of the job changes, whatever its status. Used to
        encrypt values with another key.
        """


def as_carried(
    record: JobRecord, unique: UniqueRule | None, idempotency: IdempotencyRule | None, **kept: Any
) -> CarriedJob:
    """Return a job as it is carried, without what only mattered while it lived.

    `kept` has the fields of `CarriedJob` that are not in the record.
    """
    new = {name: getattr(record, name) for name in SUBMITTED_FIELDS}
    shown = {name: getattr(record, name) for name in _RECORD_FIELDS}
    if record.status.is_final:
        kept |= {"standing": None, "took_unique": False}
    if record.status is JobStatus.DEAD:
        kept["took_idempotency"] = False
    if not kept["took_unique"]:
        kept["stashed"] = None
    return CarriedJob(NewJob(**new, unique=unique, idempotency=idempotency), **shown, **kept)


def rejected(
    job: NewJob, code: str, reason: str, now_us: int, settings: QueueSettings
) -> CarriedJob:
    """Return a refused job as a dead letter of its queue, without its keys and lines."""
    try:
        job.payload.decode()
    except UnicodeDecodeError:  # a binary payload cannot be stored
        job = msgspec.structs.replace(job, payload=b"null")
    bare = msgspec.structs.replace(
        job,
        delay_us=0,
        scheduled_us=None,
        ordering_key=None,
        concurrency_key=None,
        rate_key=None,
        weight=1,
        unique=None,
        idempotency=None,
    )
    retention = settings.retention or Retention()
    return CarriedJob(
        bare,
        JobStatus.DEAD,
        Counters(),
        fence=0,
        created_us=now_us,
        updated_us=now_us,
        due_us=now_us,
        error=AttemptError("Rejected", reason, code),
        dead_reason=DeadReason.REJECTED,
        dead_letter=settings.dead_letter,
        finished_us=now_us,
        expires_us=lifetimes(now_us, retention.dead_us)["expires_us"],
    )


def cursor_of(after: str | None) -> int:
    """Return the sequence number after which a page begins."""
    try:
        number = 0 if after is None else int(after)
    except ValueError:
        number = -1
    if number not in _SEQUENCE:
        raise ConfigError(
            f"{after!r} is no place in a list of jobs; pass `after` of the page before"
        )
    return number


def keys_of(carried: CarriedJob) -> list[JobKey]:
    """Return the keys that a job takes."""
    takes = {"unique": carried.took_unique, "idempotency": carried.took_idempotency}
    return [key for key in keys_wanted(carried.job) if takes[key[0]]]


def deals_passes(carried: CarriedJob) -> bool:
    """Whether the queue of a job deals passes, or will from now on."""
    standing = carried.standing
    return bool(carried.job.tenant) or (standing is not None and standing.pass_number > 0)


def highest_number(jobs: Sequence[CarriedJob]) -> int:
    """Return the highest place or number in line; new numbers must be above it."""
    places = [job.standing.place for job in jobs if job.standing is not None]
    numbers = [job.line_number for job in jobs if job.line_number is not None]
    return max([0, *places, *numbers])


# Known before threads decode them: two that decode the first one at once crash in msgspec.
msgspec.json.Decoder(Copied)
