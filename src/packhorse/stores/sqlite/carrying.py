# SPDX-License-Identifier: MIT
"""Taking over jobs from another store: as rows that were always here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packhorse.job import JobStatus
from packhorse.policies.uniqueness import Identity
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import TaskSettings
from packhorse.stores.sqlite.keys import Holder, holder_of, take_keys
from packhorse.stores.sqlite.lines import join_lines, line_of, order_line_of
from packhorse.stores.sqlite.ranking import AGED
from packhorse.stores.sqlite.rows import (
    CODE,
    PASSES,
    Lane,
    encode_error,
    extra_of,
    json_text,
    payload_text,
    trace_of,
)
from packhorse.stores.sqlite.settings import QueueRow, queue_rows, task_settings
from packhorse.stores.sqlite.statements import Change, ChangeMany, sql
from packhorse.stores.sqlite.submitting import known_jobs
from packhorse.stores.transfer import (
    CarriedJob,
    CarryAnswer,
    Standing,
    deals_passes,
    highest_number,
    keys_of,
)

__all__ = ["carry_in_steps"]

#: Columns that are called as what is in them.
_AS_GIVEN: Final = (
    *("id", "task", "queue", "timeout_us", "deadline_us", "tenant", "ordering_key"),
    *("concurrency_key", "rate_key", "weight"),
)
_AS_CARRIED: Final = (
    *("due_us", "created_us", "updated_us", "fence", "suspect", "cancel_requested", "worker"),
    *("started_us", "finished_us", "expires_us", "dead_reason", "dead_letter"),
)


def carry_in_steps(jobs: Sequence[CarriedJob]) -> Steps[tuple[CarryAnswer, ...]]:
    """All that are new, in one go; see `TransferStore.carry_in`."""
    answers: tuple[CarryAnswer, ...] = yield from _decide(jobs)
    pairs = zip(jobs, answers, strict=True)
    chosen = [job for job, answer in pairs if answer is CarryAnswer.CARRIED]
    if not chosen:
        return answers
    queues: dict[str, QueueRow] = yield from queue_rows({one.job.queue: None for one in chosen})
    rows: list[dict[str, Any]] = yield from _rows(chosen, queues)
    yield ChangeMany(sql("carry_in"), rows)
    yield Change(sql("carry_numbers"), (highest_number(chosen),))
    yield from _index(chosen, rows)
    for one in chosen:
        yield from take_keys(one.job.id, keys_of(one))
    yield from _pass_on_passes(chosen)
    yield from join_lines([row["seq"] for row in rows if row["lane"] == Lane.READY])
    lines = sorted({row["order_line"] for row in rows if row["order_line"] is not None})
    yield Change(sql("carry_behind"), (json_text(lines),))
    for queue in queues:
        yield Wake(f"queue:{queue}")
    return answers


def _decide(jobs: Sequence[CarriedJob]) -> Steps[tuple[CarryAnswer, ...]]:
    known = set((yield from known_jobs([one.job for one in jobs])))
    taken: set[tuple[str, Identity]] = set()
    answers = []
    for one in jobs:
        keys = keys_of(one)
        answer = CarryAnswer.CARRIED
        if one.job.id in known:
            answer = CarryAnswer.KNOWN
        elif not taken.isdisjoint(keys) or (yield from _held(keys)):
            answer = CarryAnswer.CONFLICT
        else:
            known.add(one.job.id)
            taken.update(keys)
        answers.append(answer)
    return tuple(answers)


def _held(keys: Sequence[tuple[str, Identity]]) -> Steps[bool]:
    for kind, identity in keys:
        holder: Holder | None = yield from holder_of(kind, identity)
        if holder is not None:
            return True
    return False


def _rows(jobs: Sequence[CarriedJob], queues: dict[str, QueueRow]) -> Steps[list[dict[str, Any]]]:
    """Their rows, with numbers behind all that were given out."""
    first = 1 + max(row.last for row in queues.values())
    tasks: dict[str, TaskSettings] = yield from task_settings({one.job.task: None for one in jobs})
    rows = []
    for seq, one in enumerate(jobs, first):
        line = line_of(one.job, queues[one.job.queue].settings, tasks.get(one.job.task))
        rows.append(_row(one, seq, line))
    return rows


def _row(carried: CarriedJob, seq: int, line: str | None) -> dict[str, Any]:
    """The row of a job that comes from elsewhere."""
    job, dead = carried.job, carried.status is JobStatus.DEAD
    standing = carried.standing
    in_line = carried.line_number is not None
    return {
        "seq": seq,
        "status": CODE[carried.status],
        **_where(carried, seq),
        **msgspec.structs.asdict(carried.counters),
        **{name: getattr(job, name) for name in _AS_GIVEN},
        **{name: getattr(carried, name) for name in _AS_CARRIED},
        "priority": int(job.priority),
        "ready_us": carried.created_us if standing is None else standing.ready_us,
        "trace_id": trace_of(job),
        "extra": extra_of(job),
        "payload": payload_text(job),
        "error": encode_error(carried.error),
        "progress": None if carried.progress is None else json_text(carried.progress),
        "line": None if dead else line,
        "order_line": order_line_of(job) if in_line else None,
        "line_no": carried.line_number,
    }


def _where(carried: CarriedJob, seq: int) -> dict[str, int | None]:
    """Lane, rank and place."""
    standing = carried.standing
    if carried.status is JobStatus.DEAD:
        return {"lane": Lane.DEAD, "rank": seq, "place": seq, "kept_rank": None, "kept_place": None}
    rank = None if standing is None else _rank(carried.job.priority, standing)
    place = None if standing is None else standing.place
    if carried.status is JobStatus.QUEUED:
        lane = Lane.SUSPECT if carried.suspect else Lane.READY
        return {"lane": lane, "rank": rank, "place": place, "kept_rank": None, "kept_place": None}
    waiting = {"lane": Lane.WAITING, "rank": carried.due_us, "place": seq}
    return {**waiting, "kept_rank": rank, "kept_place": place}


def _rank(priority: int, standing: Standing) -> int:
    if standing.aged is not None:
        return AGED + standing.aged
    return priority * PASSES + standing.pass_number


def _index(jobs: Sequence[CarriedJob], rows: Sequence[dict[str, Any]]) -> Steps[None]:
    """What few jobs have, and the histories."""
    ids = json_text([one.job.id for one in jobs])
    yield Change(sql("submit_deadlines"), (ids,))
    yield Change(sql("submit_tags"), (ids,))
    lines = [
        {
            "seq": row["seq"],
            "attempt": line.attempt,
            "attempt_status": CODE[line.status],
            "started_us": line.started_us,
            "now": line.finished_us,
            "worker": line.worker,
            "will_retry": line.will_retry,
            "error": encode_error(line.error),
        }
        for one, row in zip(jobs, rows, strict=True)
        for line in one.history
    ]
    yield ChangeMany(sql("attempt_add"), lines)
    stashed = [
        (row["seq"], json_text(one.stashed))
        for one, row in zip(jobs, rows, strict=True)
        if one.stashed is not None
    ]
    yield ChangeMany(sql("stash_keep"), stashed)


def _pass_on_passes(jobs: Sequence[CarriedJob]) -> Steps[None]:
    """Queues that deal passes go on behind those that are carried here."""
    dealing = [one for one in jobs if deals_passes(one)]
    for queue in dict.fromkeys(one.job.queue for one in dealing):
        yield Change(sql("queue_tenanted"), (queue,))
    passes = [
        (one.job.queue, int(one.job.priority), one.job.tenant, one.standing.pass_number)
        for one in dealing
        if one.standing is not None and one.standing.aged is None
    ]
    yield ChangeMany(sql("carry_pass"), passes)
