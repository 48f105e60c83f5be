# SPDX-License-Identifier: MIT
"""Submit to plain queues: jobs that are alike go in one statement, in a single round trip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from packhorse.job import JobStatus, LikeJobs, NewJob
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.postgres.locking import Level, Memory, Special
from packhorse.stores.postgres.rows import extra_of, options_of, worded
from packhorse.stores.postgres.statements import Like, Once, Short, sql
from packhorse.stores.postgres.submitting import is_plain
from packhorse.stores.requests import Submitted
from packhorse.stores.sql.rows import PASSES, STATUS, payload_text, trace_of

_LEAVE: Final = "on conflict (id) do nothing"

__all__ = ["goes_in_one", "short_submit", "submit_in_one"]

#: Parts texts that are sent as one. JSON has no such character, and names of jobs have none.
_PART: Final = "\x1e"
#: Tasks whose last job is remembered.
_REMEMBERED_MAX: Final = 1000
#: What must be the same; whether a job is plain depends on nothing else.
_alike: Final = attrgetter(*sorted(set(NewJob.__struct_fields__) - {"id", "payload", "trace_id"}))


def goes_in_one(jobs: Sequence[NewJob]) -> bool:
    """Whether these are plain, and alike in all but id, payload and trace."""
    if isinstance(jobs, LikeJobs):
        return bool(jobs)
    if not jobs or not is_plain(jobs[0]):
        return False
    if len(jobs) == 1:
        return True
    first = _alike(jobs[0])
    return all(_alike(job) == first for job in jobs[1:])


def short_submit(jobs: Sequence[NewJob], memory: Memory) -> Short[tuple[Submitted, ...]] | None:
    """Jobs that go in one, to what was last seen to be plain; the ids are taken to be new.

    To look for known ids costs a third of the insert, so it is done only when one was met.
    """
    special = memory.special
    if not goes_in_one(jobs) or jobs[0].queue in special.queues or jobs[0].task in special.tasks:
        return None
    topics = (f"queue:{jobs[0].queue}",)
    usual = isinstance(jobs, LikeJobs)
    rare = not usual and _is_rare(jobs[0])
    like = _like_last(jobs[0], memory, usual=usual) if len(jobs) == 1 and not rare else None
    if like is not None:
        return Short(sql("submit_one"), like, topics, partial(_read, jobs), counts=True)
    row = _row(jobs)
    if row is None:
        return None
    if rare:
        text, row = worded("submit_plain", conflict=""), {**row, **_rare(jobs)}
        return Short(text, row, topics, partial(_read_rare, jobs), counts=False)
    return Short(sql("submit_alike"), row, topics, partial(_read, jobs), counts=True)


def _like_last(job: NewJob, memory: Memory, *, usual: bool) -> Like | None:
    """What differs from the last job of its task; None if the careful way must look at it.

    A `usual` job is one of `LikeJobs`, which can differ in little else.
    """
    job_id, payload = job.id.encode(), job.payload
    if not payload.isascii() or b"\0" in job_id + payload:
        return None
    if not usual and trace_of(job) is not None:
        return None
    shape = (job.queue, job.timeout_us) if usual else _alike(job)
    known = memory.plain.get(job.task)
    if known is None or known[0] != shape:
        if len(memory.plain) >= _REMEMBERED_MAX:
            memory.plain.clear()
        known = memory.plain[job.task] = (shape, _common(job))
    return Like(known[1], {"id": job_id, "payload": payload})


def _read(jobs: Sequence[NewJob], count: int) -> tuple[Submitted, ...] | None:
    return tuple([Submitted(job.id, False, JobStatus.QUEUED) for job in jobs]) if count else None


def _read_rare(jobs: Sequence[NewJob], rows: list[Any]) -> tuple[Submitted, ...] | None:
    [(plain, _, ready, *_)] = rows
    status = JobStatus.QUEUED if ready else JobStatus.PENDING
    return tuple([Submitted(job.id, False, status) for job in jobs]) if plain else None


def submit_in_one(jobs: Sequence[NewJob], level: Level) -> Steps[tuple[Submitted, ...] | None]:
    """Store them, as far as their ids are new, if queue and task are plain; None if not."""
    row = _row(jobs)
    if row is None:
        return None
    yield Wake(f"queue:{jobs[0].queue}")
    text = worded("submit_plain", conflict=_LEAVE)
    [(plain, added, ready, *special)] = yield Once(text, {**row, **_rare(jobs)})
    if not plain:
        level.expect([jobs[0].queue], Special.of(special))
        return None
    status = JobStatus.QUEUED if ready else JobStatus.PENDING
    if added is None:
        return tuple([Submitted(job.id, False, status) for job in jobs])
    wanted = {"ids": [job.id for job in jobs], "but": []}
    known = yield Once(sql("submit_known"), wanted)
    return _answers(jobs, set(added), dict(known), status)


def _is_rare(job: NewJob) -> bool:
    """Whether it has more than the statement for most jobs knows of."""
    later = job.delay_us or job.scheduled_us is not None
    return bool(later or job.deadline_us is not None or job.tags)


def _row(jobs: Sequence[NewJob]) -> dict[str, Any] | None:
    """What all statements want to know; None if it cannot be told so."""
    ids = _PART.join([job.id for job in jobs])
    payloads = _payloads(jobs)
    if ids.count(_PART) + payloads.count(_PART) != 2 * (len(jobs) - 1) or "" in (ids, payloads):
        return None
    return {"ids": ids, "payloads": payloads, "traces": _traces(jobs), **_common(jobs[0])}


def _common(first: NewJob) -> dict[str, Any]:
    """What jobs that are alike have in common."""
    return {
        "task": first.task,
        "queue": first.queue,
        "priority": int(first.priority),
        "rank": first.priority * PASSES,
        "timeout_us": first.timeout_us,
        "options": options_of(first),
        "upstream_request_id": first.upstream_request_id,
        "created_by": first.created_by,
    }


def _rare(jobs: Sequence[NewJob]) -> dict[str, Any]:
    """What few have, and the statement for all must know."""
    first = jobs[0]
    return {
        "delay_us": first.delay_us,
        "scheduled_us": first.scheduled_us,
        "deadline_us": first.deadline_us,
        "extra": extra_of(first),
        "tags": list(dict.fromkeys(first.tags)),
        "count": len(jobs),
    }


def _payloads(jobs: Sequence[NewJob]) -> str:
    """All of them as one text."""
    try:
        return _PART.encode().join([job.payload for job in jobs]).decode()
    except UnicodeDecodeError:
        for job in jobs:
            payload_text(job)  # says whose it is
        raise


def _traces(jobs: Sequence[NewJob]) -> list[str | None] | None:
    """The trace ids that are not made from the job's id; None when there are none at all."""
    if isinstance(jobs, LikeJobs):
        return None
    traces = [trace_of(job) for job in jobs]
    return None if all(trace is None for trace in traces) else traces


def _answers(
    jobs: Sequence[NewJob], added: set[str], known: dict[str, int], status: JobStatus
) -> tuple[Submitted, ...]:
    """Some were there already, or came twice in this call."""
    answers = []
    for job in jobs:
        fresh = job.id in added
        added.discard(job.id)
        answers.append(Submitted(job.id, not fresh, status if fresh else STATUS[known[job.id]]))
    return tuple(answers)
