# SPDX-License-Identifier: MIT
"""Submit, claim and settle in queues without constraints: one statement each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec

from packhorse.core.constraints import UNCONSTRAINED, Constraint, are_alike, job_constraints
from packhorse.core.job import Job, JobStatus, NewJob
from packhorse.core.lifecycle import HOLD_GRACE_US
from packhorse.core.policies.attachments import Attaching
from packhorse.core.policies.retention import lifetimes
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.core.sizes import THE_STORE
from packhorse.errors import PayloadError
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.postgres.floors import FLOOR_TOPIC, Floor, FloorLook, Floors
from packhorse.stores.postgres.locking import Constrained, LockLevel, Memory
from packhorse.stores.postgres.statements import Once, Short, queries, sql
from packhorse.stores.requests import EVERY_TASK, Claimed, ClaimRequest, Submitted
from packhorse.stores.sql.attachments import FEW, verdicts_of
from packhorse.stores.sql.claim import PROMOTE_MAX, merged, merged_tasks
from packhorse.stores.sql.rows import RANK_PER_PRIORITY, Extra, json_text, payload_text, trace_of

#: The columns of a claimed job, in the order of `packhorse.core.job.Job`.
HANDED_COLUMNS: Final = (
    "job.id, job.task, job.queue, job.fence, job.payload, job.priority, job.tenant, job.attempts, "
    "job.failures, job.crashes, job.lone_crashes, job.snoozes, job.timeout_us, job.deadline_us, "
    "coalesce(job.trace_id, replace(job.id, '-', '')), job.upstream_request_id, job.options, "
    "job.ready_us, job.rate_key, job.concurrency_key"
)

#: Constraints that the fast path of a submit does not support.
_FOREIGN: Final = ~(Constraint.DELAY | Constraint.DEADLINE | Constraint.TAGS)
#: The largest number of attachments of a job; the ids found processing, if not all were.
_HELD: Final = (
    "coalesce(max(number), 0), "
    "case when count(*) < :count::bigint then coalesce(array_agg(id), '{}') end"
)
#: Stands for the values of a job that attaches none.
_NOTHING: Final = ((None, None),)
#: Separates texts that are sent as one parameter. It occurs in no JSON, and in hardly any id.
_PART: Final = "\x1e"


def short_submit(jobs: Sequence[NewJob], memory: Memory) -> Short[tuple[Submitted, ...]] | None:
    """Insert jobs that differ only in id, payload and trace; None if that needs a closer look.

    The statement fails on a known id: looking for one first would cost a third of the insert.
    """
    constrained = memory.constrained
    if not jobs or not are_alike(jobs):
        return None
    constraints = job_constraints(jobs[0])
    if constraints is not UNCONSTRAINED and constraints & _FOREIGN:  # flags are slow to compare
        return None
    if not constrained.queues.isdisjoint((THE_STORE, jobs[0].queue)):
        return None
    if jobs[0].task in constrained.tasks:
        return None
    topics = (f"queue:{jobs[0].queue}",)
    row = _row(jobs)
    if row is None:
        return None
    if constraints is not UNCONSTRAINED:
        row |= _rare(jobs)
        return Short(sql("submit_fast"), row, topics, partial(_read_rare, jobs), counts=False)
    return Short(sql("submit_alike"), row, topics, partial(_read, jobs), counts=True)


def _read(jobs: Sequence[NewJob], count: int) -> tuple[Submitted, ...] | None:
    return tuple([Submitted(job.id, False, JobStatus.QUEUED) for job in jobs]) if count else None


def _read_rare(jobs: Sequence[NewJob], rows: list[Any]) -> tuple[Submitted, ...] | None:
    [(unconstrained, ready)] = rows
    status = JobStatus.QUEUED if ready else JobStatus.PENDING
    return tuple([Submitted(job.id, False, status) for job in jobs]) if unconstrained else None


def _row(jobs: Sequence[NewJob]) -> dict[str, Any] | None:
    """The parameters of both statements; None if a text contains the separator."""
    ids = _PART.join([job.id for job in jobs])
    payloads = _payloads(jobs)
    if ids.count(_PART) + payloads.count(_PART) != 2 * (len(jobs) - 1) or "" in (ids, payloads):
        return None
    return {"ids": ids, "payloads": payloads, "traces": _traces(jobs), **_common(jobs[0])}


def _common(first: NewJob) -> dict[str, Any]:
    """The parameters that all of these jobs share."""
    return {
        "task": first.task,
        "queue": first.queue,
        "priority": int(first.priority),
        "rank": first.priority * RANK_PER_PRIORITY,
        "timeout_us": first.timeout_us,
        "options": options_of(first),
        "upstream_request_id": first.upstream_request_id,
        "created_by": first.created_by,
    }


def _rare(jobs: Sequence[NewJob]) -> dict[str, Any]:
    """The further parameters of `submit_fast`."""
    first = jobs[0]
    return {
        "delay_us": first.delay_us,
        "scheduled_us": first.scheduled_us,
        "deadline_us": first.deadline_us,
        "extra": extra_of(first),
        "tags": list(dict.fromkeys(first.tags)),
    }


def extra_of(job: NewJob) -> str | None:
    """The column for what few jobs have; None for most."""
    if not (job.tags or job.unique or job.idempotency):
        return None
    return json_text(Extra(job.tags, unique=job.unique, idempotency=job.idempotency))


def options_of(job: NewJob) -> str | None:
    """The column for what a call decided for its job alone."""
    return None if job.options is None else json_text(job.options)


def _payloads(jobs: Sequence[NewJob]) -> str:
    """Join the payloads to one text."""
    try:
        return _PART.encode().join([job.payload for job in jobs]).decode()
    except UnicodeDecodeError:
        for job in jobs:
            payload_text(job)  # raises an error that names the job
        raise


def _traces(jobs: Sequence[NewJob]) -> list[str | None] | None:
    """The trace ids that differ from the default, which the job's id gives; None if none does."""
    if [job.trace_id for job in jobs] == [job.id.replace("-", "") for job in jobs]:
        return None
    return [trace_of(job) for job in jobs]


#: Jobs of other tasks, or locked, that a claim skips before it searches task by task.
PASSED_MAX: Final = 500
#: A claim of more queues than this never searches task by task.
_MERGED_QUEUES_MAX: Final = 32
#: Number of columns of a claimed job; rank and place follow them.
_HANDED: Final = len(Job.__struct_fields__)
_QUEUE: Final = Job.__struct_fields__.index("queue")
_PAYLOAD: Final = Job.__struct_fields__.index("payload")
_RANK: Final = _HANDED
_PLACE: Final = _HANDED + 1
#: The state of the queues, in the column of the payload; the other columns of that row are null. It
#: lists what is constrained only if that is why nothing was claimed.
_STANDING: Final = (
    "json_build_array(now_us, lease_us, due_us, suspects, survey.queues, case when survey.special "
    "then json_build_array(entered.queues, entered.tasks, entered.tasked) end, case when "
    "(select count(*) from picked) < :limit then (select count(*) from candidates) >= "
    ":window::bigint end)::text"
)
SURVEYED: Final = ", ".join(
    [_STANDING if index == _PAYLOAD else "null" for index in range(_HANDED)]
)


class _Survey(msgspec.Struct, frozen=True, array_like=True):
    """The state of the queues, as `claim_fast` found it."""

    now_us: int
    lease_us: int | None
    due_us: int | None
    suspects: bool
    queues: list[str]  #: those that are served, in the order of service
    constrained: tuple[list[str], list[str], list[str]] | None
    crowded: bool | None  #: the claim was not filled, and more jobs lie beyond its window

    @property
    def lapsed(self) -> bool:
        return self.lease_us is None or self.lease_us <= self.now_us

    @property
    def unconstrained(self) -> bool:
        """Whether jobs may be claimed without asking limits."""
        return self.constrained is None and not self.lapsed

    @property
    def late(self) -> bool:
        return self.due_us is not None and self.due_us <= self.now_us


_survey: Final = msgspec.json.Decoder(_Survey).decode


def claim_in_one(request: ClaimRequest, locks: LockLevel, floors: Floors) -> Steps[Claimed | None]:
    """As `JobStore.claim` if all queues are unconstrained; None if not."""
    floor = floors.of(request.tasks)
    look = first = floor.begin()
    survey, rows = yield from _look(request, floor, look)
    late = survey.late and survey.unconstrained
    if late:
        yield from _promote(survey.queues, floors)
        look = first = floor.begin()
        survey, rows = yield from _look(request, floor, look, late=True)
    while survey.unconstrained and request.limit > 0:
        _in_order(rows, survey.queues)
        handed = [(row[_QUEUE], row[_RANK], row[_PLACE]) for row in _furthest(rows)]
        floor.learn(look, handed, queues=survey.queues, filled=len(rows) >= request.limit)
        again = None if rows else floor.again(first)
        if again is None:
            break
        look = again
        survey, rows = yield from _look(request, floor, look, late=late)
    if survey.lapsed:
        return Claimed((), survey.now_us, lease_lost=True)
    if survey.constrained is not None:
        constrained = Constrained.of(survey.constrained)
        locks.expect(constrained.gated(request.queues), constrained)
        return None
    jobs = tuple([Job(*row[:_HANDED]) for row in rows])
    return Claimed(jobs, survey.now_us, next_due_us=survey.due_us, suspects=survey.suspects)


def _promote(queues: Sequence[str], floors: Floors) -> Steps[None]:
    due = {"queues": list(queues), "limit": PROMOTE_MAX, "passes": RANK_PER_PRIORITY}
    [(kept,)] = yield Once(sql("promote_fast"), due)
    if kept:
        floors.forget()  # the claim that follows in this plan begins a sweep
        yield Wake(FLOOR_TOPIC)


def _in_order(rows: list[tuple[Any, ...]], queues: Sequence[str]) -> None:
    """Sort rows by queue, in the order of service, then by the order of claiming."""
    rows.sort(key=itemgetter(_RANK, _PLACE))
    if len(queues) > 1:
        number = {queue: index for index, queue in enumerate(queues)}
        rows.sort(key=lambda row: number[row[_QUEUE]])


def _furthest(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows that tell how far a claim went: only the last, if all share queue and priority."""
    if not rows:
        return []
    first, last = rows[0], rows[-1]
    alike = (
        first[_QUEUE] == last[_QUEUE]
        and first[_RANK] // RANK_PER_PRIORITY == last[_RANK] // RANK_PER_PRIORITY
    )
    return rows[-1:] if alike else rows


def _look(
    request: ClaimRequest, floor: Floor, look: FloorLook, *, late: bool = False
) -> Steps[tuple[_Survey, list[tuple[Any, ...]]]]:
    """Claim jobs in order, or task by task where too many jobs of other tasks lie between."""
    queues, limit = list(dict.fromkeys(request.queues)), max(0, request.limit)
    tasks = merged_tasks(request) if len(queues) <= _MERGED_QUEUES_MAX else {}
    asked = {
        "worker": request.worker,
        "queues": queues,
        "tasks": list(request.tasks),
        "any_task": EVERY_TASK in request.tasks,
        "limit": limit,
        "window": limit + PASSED_MAX if tasks else None,
        "late": late,
        "default_timeout_us": request.default_timeout_us,
        "grace_us": HOLD_GRACE_US,
        **floor.ranges(queues, look),
    }
    if tasks and floor.crowded:
        return (yield from _ask({**asked, **tasks, "window": None}, len(tasks)))
    survey, rows = yield from _ask(asked, 0)
    if not survey.crowded:
        return survey, rows
    floor.note_crowd()
    rest = {"limit": limit - len(rows), "window": None, "late": late or bool(rows)}
    then, others = yield from _ask({**asked, **tasks, **rest}, len(tasks))
    # Jobs that were claimed stay claimed; a later change counts only if there are none.
    return (survey if rows else then), [*rows, *others]


def _ask(asked: dict[str, Any], tasks: int) -> Steps[tuple[_Survey, list[tuple[Any, ...]]]]:
    """Run `claim_fast`, for so many tasks merged, or for all in order (0)."""
    filled = queries.filled
    following = merged(queries, "claim_range_of_task", tasks) if tasks else filled("claim_range")
    parts = {"next": following, "lock": filled("claim_lock")}
    text = sql("claim_fast", handed_columns=HANDED_COLUMNS, survey_columns=SURVEYED, **parts)
    first, *rows = yield Once(text, asked)
    return _survey(first[_PAYLOAD]), rows


def complete_alike(settlements: Sequence[Settlement]) -> bool:
    """Whether these are completions of different jobs that are kept equally long."""
    if not settlements:
        return False
    kept = settlements[0].keep_us, settlements[0].result_keep_us, None
    alike = all(
        one.kind is SettlementKind.COMPLETED
        and (one.keep_us, one.result_keep_us, one.counted) == kept
        for one in settlements
    )
    return alike and len({one.job_id for one in settlements}) == len(settlements)


def complete_in_one(
    settlements: Sequence[Settlement], locks: LockLevel
) -> Steps[tuple[Verdict, ...] | None]:
    """Complete jobs in one statement; None if some must be settled by the general route."""
    row = completions(settlements, locked=())
    [(count, awaited, queues, *constrained)] = yield Once(sql("settle_completed"), row)
    for job_id in awaited:
        yield Wake(f"job:{job_id}")
    if count < len(settlements):
        locks.expect(queues, Constrained.of(constrained))
        return None  # the general route answers APPLIED for those that are done
    return (Verdict.APPLIED,) * len(settlements)


def completions(
    settlements: Sequence[Settlement], *, locked: Iterable[str] | None
) -> dict[str, Any]:
    """The parameters of `settle_completed`; all results are kept equally long."""
    first = settlements[0]
    settlements = sorted(settlements, key=attrgetter("job_id"))  # rows are locked in this order
    ids = _PART.join([one.job_id for one in settlements])
    results = _PART.join([one.result or "" for one in settlements])
    if ids.count(_PART) != results.count(_PART) or results.count(_PART) >= len(settlements):
        raise PayloadError("a result is not JSON text; nothing was settled")
    return {
        "ids": ids,
        "fences": " ".join([str(one.fence) for one in settlements]),
        "results": results,
        "count": len(settlements),
        "locked": None if locked is None else list(locked),
        "keep_us": first.keep_us,
        "result_keep_us": first.result_keep_us,
        "expires_us": lifetimes(0, first.keep_us, first.result_keep_us)["expires_us"],
    }


def attach_in_one(kept: Sequence[Attaching]) -> Steps[tuple[Verdict, ...] | None]:
    """As `AttachmentStore.attach`; None if a job has more than `FEW` attachments."""
    asked = attaching(kept, FEW)
    text = sql("attach", answer=_HELD)
    [(number, ids)] = yield Once(text, {**asked, "count": len(asked["names"])})
    return None if number > FEW else verdicts_of(kept, ids)


def attaching(kept: Sequence[Attaching], most: int = 2**62) -> dict[str, Any]:
    """The parameters of `attach`, which stores nothing if a job would have more than `most`."""
    rows = [(one, pair) for one in kept for pair in one.values.items() or _NOTHING]
    ids = _PART.join([one.job_id for one, _ in rows])
    if rows and ids.count(_PART) >= len(rows):
        raise PayloadError("a job id contains the character U+001E; nothing was attached")
    return {
        "ids": ids,
        "fences": " ".join([str(one.fence) for one, _ in rows]),
        "numbers": " ".join([str(len(one.values)) for one, _ in rows]),
        "names": [name for _, (name, _) in rows],
        "values": [value for _, (_, value) in rows],
        "most": most,
    }
