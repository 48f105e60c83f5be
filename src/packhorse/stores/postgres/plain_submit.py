# SPDX-License-Identifier: MIT
"""Submit to plain queues: jobs that are alike go in one statement, in a single round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from packhorse.job import JobStatus, NewJob
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.postgres.locking import Level, Special
from packhorse.stores.postgres.rows import (
    PASSES,
    STATUS,
    extra_of,
    options_of,
    payload_text,
    trace_of,
    worded,
)
from packhorse.stores.postgres.statements import Once, sql
from packhorse.stores.postgres.submitting import is_plain
from packhorse.stores.requests import Submitted

_LEAVE: Final = "on conflict (id) do nothing"

__all__ = ["goes_in_one", "submit_in_one"]

#: Parts texts that are sent as one. JSON has no such character, and names of jobs have none.
_PART: Final = "\x1e"


def goes_in_one(jobs: Sequence[NewJob]) -> bool:
    """Whether these are plain, and alike in all but id, payload and trace."""
    if not jobs or not is_plain(jobs[0]):
        return False
    first = _alike(jobs[0])
    return all(_alike(job) == first and is_plain(job) for job in jobs[1:])


def _alike(job: NewJob) -> tuple[Any, ...]:
    times = (job.delay_us, job.scheduled_us, job.deadline_us, job.timeout_us)
    origin = (job.upstream_request_id, job.created_by)
    return (job.task, job.queue, job.priority, *times, job.options, *origin, job.tags)


def submit_in_one(jobs: Sequence[NewJob], level: Level) -> Steps[tuple[Submitted, ...] | None]:
    """Store them if queue and task are plain; None if not."""
    ids = _PART.join([job.id for job in jobs])
    payloads = _PART.join([payload_text(job) for job in jobs])
    if ids.count(_PART) + payloads.count(_PART) != 2 * (len(jobs) - 1) or "" in (ids, payloads):
        return None
    first = jobs[0]
    yield Wake(f"queue:{first.queue}")
    row = {**_common(first), "ids": ids, "payloads": payloads, "traces": _traces(jobs)}
    # To look for known ids costs a third of the insert; so it is done only if one was met.
    text = worded("submit_plain", conflict=_LEAVE if level.tries else "")
    level.tries += 1
    [(plain, added, ready, *special)] = yield Once(text, {**row, "count": len(jobs)})
    if not plain:
        level.expect([first.queue], Special.of(special))
        return None
    status = JobStatus.QUEUED if ready else JobStatus.PENDING
    if added is None:
        return tuple([Submitted(job.id, False, status) for job in jobs])
    wanted = {"ids": [job.id for job in jobs], "but": []}
    known = yield Once(sql("submit_known"), wanted)
    return _answers(jobs, set(added), dict(known), status)


def _common(job: NewJob) -> dict[str, Any]:
    """What all of them have."""
    return {
        "task": job.task,
        "queue": job.queue,
        "priority": int(job.priority),
        "rank": job.priority * PASSES,
        "delay_us": job.delay_us,
        "scheduled_us": job.scheduled_us,
        "timeout_us": job.timeout_us,
        "deadline_us": job.deadline_us,
        "options": options_of(job),
        "upstream_request_id": job.upstream_request_id,
        "created_by": job.created_by,
        "extra": extra_of(job),
        "tags": list(dict.fromkeys(job.tags)),
    }


def _traces(jobs: Sequence[NewJob]) -> list[str | None] | None:
    """The trace ids that are not made from the job's id; None when there are none at all."""
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
