# SPDX-License-Identifier: MIT
"""Plain jobs: no keys, no tenant, nothing that few jobs have. They are submitted a shorter way.

Most jobs are plain, and most batches are calls of one task that differ in their arguments only, so
that what they share is handed to SQLite once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from operator import attrgetter
from typing import ClassVar, Final, NamedTuple

import msgspec

from packhorse.job import FreshJobs, JobStatus, LikeJobs, NewJob
from packhorse.stores.requests import Submitted
from packhorse.stores.sql.rows import CODE, PASSES, Lane, payload_text, trace_of
from packhorse.stores.sql.steps import Change, Parameters
from packhorse.stores.sql.submitting import due_us_of, fresh_answer, has_keys, place_of
from packhorse.stores.sqlite.intake import IntakeSubmit, usual_submit
from packhorse.stores.sqlite.rows import extra_of
from packhorse.stores.sqlite.statements import Short, sql

__all__ = ["Alike", "ShortSubmit", "alike", "short_submit"]

#: Rows in one insert: enough to spread the cost of a statement.
_ROWS_MAX: Final = 100
_QUEUED: Final = (CODE[JobStatus.QUEUED], int(Lane.READY))
_PENDING: Final = (CODE[JobStatus.PENDING], int(Lane.WAITING))


#: All of a job but its id, its arguments and its trace.
_shared: Final = attrgetter(
    *(name for name in NewJob.__struct_fields__ if name not in ("id", "payload", "trace_id"))
)


def _is_rare(job: NewJob) -> bool:
    """Whether a job has something that is kept apart."""
    return job.deadline_us is not None or bool(job.tags)


def _is_plain(job: NewJob) -> bool:
    keyed = job.unique is not None or job.idempotency is not None or has_keys(job)
    return not (keyed or job.tenant or _is_rare(job))


def short_submit(jobs: Sequence[NewJob]) -> Short | None:
    """The short way for one plain job, the shortest if its id is new; None for others."""
    if len(jobs) != 1:
        return None
    if isinstance(jobs, LikeJobs):
        return usual_submit(jobs[0])
    if not _is_plain(jobs[0]):
        return None
    return (IntakeSubmit if isinstance(jobs, FreshJobs) else ShortSubmit)(jobs[0])


class ShortSubmit(msgspec.Struct, frozen=True, gc=False):
    """Adds one plain job of any id; see `Short`. Its queue may have a say after all."""

    text: ClassVar[str] = sql("submit_one").format(
        queue_has_a_say=sql("queue_has_a_say").format(task="?2", queue="?3")
    )
    taken_in: ClassVar[bool] = False

    job: NewJob

    def at(self, now_us: int) -> tuple[Parameters, tuple[Submitted, ...]]:
        job = self.job
        parameters = (
            *(job.id, job.task, job.queue, *place_of(job, now_us), job.priority),
            *(due_us_of(job, now_us), now_us, job.timeout_us),
            *(trace_of(job), extra_of(job), payload_text(job)),
        )
        return parameters, (fresh_answer(job, now_us),)


class Alike(NamedTuple):
    """Plain jobs that differ in their ids and arguments only."""

    first: NewJob
    ids: list[str]
    payloads: list[str]
    trace_id: str | None  #: of all of them; None: each made from its id

    def inserts(self, now_us: int, last: int) -> Iterator[Change]:
        """The statements that add them, with numbers from `last` on."""
        job = self.first
        due_us = now_us + job.delay_us if job.scheduled_us is None else job.scheduled_us
        ready = due_us <= now_us
        where = (*_QUEUED, job.priority * PASSES) if ready else (*_PENDING, due_us)
        when = (job.priority, due_us, now_us, job.timeout_us)
        common = (job.task, job.queue, *where, *when, self.trace_id)
        own = [""] * (2 * len(self.ids))
        own[::2], own[1::2] = self.ids, self.payloads
        for start in range(0, len(self.ids), _ROWS_MAX):
            chunk = own[2 * start : 2 * (start + _ROWS_MAX)]
            yield Change(_insert(len(chunk) // 2), (last + 1 + start, *common, *chunk))


def alike(jobs: Sequence[NewJob]) -> Alike | None:
    """The jobs, if they are plain and differ in their ids and arguments only.

    Their traces are made from their ids, or the same for all.
    """
    first = jobs[0]
    if not _is_plain(first) or extra_of(first) is not None:
        return None
    ids = [job.id for job in jobs]
    trace_id = None
    if not isinstance(jobs, LikeJobs):
        # Batches are large: compared in C, and nothing is kept that the collector would look at.
        if not all(map(_shared(first).__eq__, map(_shared, jobs))):
            return None
        traces = [job.trace_id for job in jobs]
        if traces != [job_id.replace("-", "") for job_id in ids]:
            trace_id = traces[0]
            if traces.count(trace_id) != len(traces):
                return None
    try:
        return Alike(first, ids, [job.payload.decode() for job in jobs], trace_id)
    except UnicodeDecodeError:
        return None  # the longer way tells which


@cache
def _insert(rows: int) -> str:
    """What rows share are the parameters 1 to 11; each adds its id and its payload."""
    values = [
        f"(?1 + {row}, ?{12 + 2 * row}, ?2, ?3, ?4, ?5, ?6, ?1 + {row}, ?7, ?8, ?9, ?9, ?9, "
        f"?10, null, '', ?11, null, ?{13 + 2 * row})"
        for row in range(rows)
    ]
    return sql("submit").format(rows=", ".join(values))
