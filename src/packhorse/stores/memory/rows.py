# SPDX-License-Identifier: MIT
"""A job and a worker as the reference store keeps them, and the records made from them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from typing import Final

import msgspec

from packhorse.core.job import (
    AttemptError,
    AttemptRecord,
    Counters,
    DeadReason,
    Job,
    JobRecord,
    JobStatus,
    NewJob,
    Progress,
)
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.fairness import Rank
from packhorse.core.policies.retention import may_prune
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import JobFilter, Renewal, Totals, WorkerRecord
from packhorse.stores.transfer import SUBMITTED_FIELDS

#: Of a long history, as many attempts are kept from its beginning, and as many from its end.
HISTORY_KEPT: Final = 25


@dataclass(slots=True)
class JobRow:
    """One job. Changed only inside `MemoryState.changing`, which keeps the indexes true."""

    new: NewJob
    sequence: int  #: order of submission
    created_us: int
    updated_us: int
    due_us: int
    deadline_us: int | None
    status: JobStatus
    place: int | None = None  #: order of becoming ready; None when it has none, or lost it
    ready_us: int = 0  #: when it took its place
    pass_number: int = 0  #: its tenant's turn in a fair queue, given with its place
    rank: Rank = (0, 0, 0)  #: the order of claiming, written with its place
    line_number: int = 0  #: order of admission to its line
    holds_line: bool = False  #: it died in a queue whose dead jobs hold their line
    fence: int = 0
    counters: Counters = field(default_factory=Counters)
    worker: str | None = None  #: the holder, or the last one
    started_us: int | None = None
    hold_until_us: int = 0
    alone: bool = False  #: the running attempt runs alone
    suspect: bool = False  #: it was lost with its worker, and has ended no attempt since
    settled: tuple[int, SettlementKind] | None = None  #: the last settlement by an owner
    cancel_requested: bool = False
    parked_us: int | None = None
    awaited: bool = False  #: a handle waits for its end
    error: AttemptError | None = None
    progress: Progress | None = None
    result: str | None = None
    result_dropped: bool = False
    dead_reason: DeadReason | None = None
    dead_letter: str | None = None
    finished_us: int | None = None
    keep_us: int | None = None  #: lifetime of the record, once finished
    result_keep_us: int | None = None
    expires_us: int | None = None  #: when upkeep next takes something of it away
    attached: Attachments = field(default_factory=Attachments)
    waits_with: int | None = None  #: the fence with which it was left to wait for a signal
    first_attempts: list[AttemptRecord] = field(default_factory=list)
    last_attempts: deque[AttemptRecord] = field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))

    @property
    def line(self) -> tuple[str, str]:
        """Queue and task: what decides which workers can run it."""
        return (self.new.queue, self.new.task)

    @property
    def aged(self) -> bool:
        """Whether it ranks by its age: then it has no pass, whatever its queue does by now."""
        return self.rank[0] != self.new.priority

    @property
    def awaits_signal(self) -> bool:
        """Whether a signal makes it due: it was left to wait for one, and not run since."""
        return self.status is JobStatus.PENDING and self.waits_with == self.fence

    def overdue(self, now_us: int) -> bool:
        """Whether its deadline has passed."""
        return self.deadline_us is not None and self.deadline_us <= now_us


#: Fields that the record of a job has under the names they have in its row.
_RECORD_FIELDS: Final = tuple(
    {one.name for one in fields(JobRow)} & {*JobRecord.__struct_fields__} - {"result"}
)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """The last renewal of a worker, and when its lease expires."""

    renewal: Renewal
    totals: Totals
    started_us: int
    renewed_us: int
    expires_us: int

    def live(self, now_us: int) -> bool:
        """Whether its lease still holds."""
        return self.expires_us > now_us


def as_worker(row: WorkerRow, now_us: int, *, running: int) -> WorkerRecord:
    """Return the record of a worker."""
    return WorkerRecord.of(
        row.renewal,
        running=running,
        totals=row.totals,
        started_us=row.started_us,
        renewed_us=row.renewed_us,
        expires_us=row.expires_us,
        now_us=now_us,
    )


#: Fields that a claimed job has under the names they have in a submit, and in its counters.
_CLAIM_FIELDS: Final = tuple(
    {*Job.__struct_fields__} & {*NewJob.__struct_fields__} - {"payload", "options"}
)
_CLAIM_COUNTERS: Final = tuple({*Job.__struct_fields__} & {*Counters.__struct_fields__})


def as_claimed(row: JobRow) -> Job:
    """Return the job as its worker gets it."""
    new = row.new
    submitted = {name: getattr(new, name) for name in _CLAIM_FIELDS}
    counted = {name: getattr(row.counters, name) for name in _CLAIM_COUNTERS}
    return Job(
        **{**submitted, **counted, "deadline_us": row.deadline_us},
        fence=row.fence,
        payload=new.payload.decode(),
        options=None if new.options is None else msgspec.json.encode(new.options).decode(),
        ready_us=row.ready_us,
    )


def as_record(row: JobRow, now_us: int) -> JobRecord:
    """Return the job as it is shown, without a result whose lifetime has passed."""
    new = row.new
    expired = row.result_dropped or _result_expired(row, now_us)
    hidden = expired or row.result is None
    submitted = {name: getattr(new, name) for name in SUBMITTED_FIELDS}
    kept = {name: getattr(row, name) for name in _RECORD_FIELDS}
    return JobRecord(
        **{**submitted, **kept},
        result=None if hidden else (row.result or "").encode(),
        result_expired=expired,
        idempotency_key=None if new.idempotency is None else new.idempotency.key,
    )


def as_summary(row: JobRow, now_us: int) -> JobRecord:
    """Return the job as a list shows it: without payload and result."""
    return msgspec.structs.replace(as_record(row, now_us), payload=b"", result=None)


def _result_expired(row: JobRow, now_us: int) -> bool:
    if row.result is None or row.finished_us is None:
        return False
    return may_prune(row.finished_us, row.result_keep_us, now_us)


def chosen_by(chosen: JobFilter, row: JobRow) -> bool:
    """Whether a job matches every given part of a filter."""
    new = row.new
    return (
        chosen.queue in (None, new.queue)
        and chosen.task in (None, new.task)
        and (not chosen.statuses or row.status in chosen.statuses)
        and chosen.tenant in (None, new.tenant)
        and (chosen.tag is None or chosen.tag in new.tags)
        and (chosen.created_by is None or chosen.created_by == new.created_by)
        and (chosen.dead_reason is None or chosen.dead_reason == row.dead_reason)
        and (chosen.dead_letter is None or chosen.dead_letter == row.dead_letter)
        and (chosen.created_before_us is None or row.created_us < chosen.created_before_us)
        and _fits_id(chosen.id_part or "", new.id)
    )


def _fits_id(part: str, job_id: str) -> bool:
    return job_id.startswith(part) or job_id.endswith(part)
