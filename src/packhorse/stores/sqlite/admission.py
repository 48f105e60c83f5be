# SPDX-License-Identifier: MIT
"""Submit: who is let in, who is answered by another job, and who goes when there are too many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from packhorse.errors import IdempotencyMismatch
from packhorse.job import DeadReason, JobStatus, NewJob
from packhorse.lifecycle import status_at_submit
from packhorse.policies.uniqueness import (
    Conflict,
    conflict,
    idempotency_identity,
    unique_identity,
)
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import Submitted
from packhorse.stores.sqlite.finishing import give_up
from packhorse.stores.sqlite.keys import Holder, holder_of, identities_of, take_keys
from packhorse.stores.sqlite.lines import join_lines
from packhorse.stores.sqlite.plain import alike
from packhorse.stores.sqlite.ranking import Newcomer, ranks_of
from packhorse.stores.sqlite.rows import (
    CODE,
    STATUS,
    Extra,
    Lane,
    json_text,
    payload_text,
    read_extra,
)
from packhorse.stores.sqlite.settings import QueueRow, queue_rows
from packhorse.stores.sqlite.statements import NOW, Change, Rows, sql
from packhorse.stores.sqlite.submitting import (
    due_us_of,
    insert_jobs,
    known_jobs,
    refuse_full,
    refuse_queues,
    store_alike,
    store_all,
    take_places,
)

__all__ = ["submit_steps"]


def submit_steps(jobs: Sequence[NewJob]) -> Steps[tuple[Submitted, ...]]:
    """All or none; see `JobStore.submit`. Jobs without keys of their own go in one batch."""
    if not jobs:
        return ()
    batch = alike(jobs)
    if batch is not None:
        stored: tuple[Submitted, ...] | None = yield from store_alike(jobs, batch)
        if stored is not None:
            return stored
    if any(job.unique is not None or job.idempotency is not None for job in jobs):
        answers: tuple[Submitted, ...] = yield from _one_by_one(jobs)
        return answers
    answers, queues = yield from store_all(jobs)
    if not any(row.drops for row in queues.values()):
        return answers
    pairs = zip(jobs, answers, strict=True)
    yield from _shed_all(dict.fromkeys(job.queue for job, one in pairs if not one.deduplicated))
    statuses = yield from _statuses([answer.job_id for answer in answers])
    return tuple([msgspec.structs.replace(one, status=statuses[one.job_id]) for one in answers])


def _one_by_one(jobs: Sequence[NewJob]) -> Steps[tuple[Submitted, ...]]:
    answers = []
    for job in jobs:
        answer = yield from _admit(job)
        answers.append(answer)
    pairs = zip(jobs, answers, strict=True)
    stored = [job for job, (_, again) in pairs if not again]
    queues = yield from queue_rows(dict.fromkeys(job.queue for job in stored))
    yield from refuse_full(stored, queues, stored=True)
    yield from _shed_all(queues)
    statuses = yield from _statuses([job_id for job_id, _ in answers])
    return tuple([Submitted(job_id, again, statuses[job_id]) for job_id, again in answers])


def _admit(job: NewJob) -> Steps[tuple[str, bool]]:
    """The id of the job that answers for this one, and whether it was there already."""
    known = yield from known_jobs([job])
    if known:
        return job.id, True
    now_us: int = yield NOW
    queues: dict[str, QueueRow] = yield from queue_rows([job.queue])
    yield from refuse_queues([job], queues)
    holder = yield from _same(job)
    holder = holder or (yield from _rival(job, now_us))
    if holder is not None:
        return holder, True
    yield from insert_jobs([job], queues, now_us)
    wants = Extra(unique=job.unique, idempotency=job.idempotency)
    yield from take_keys(job.id, identities_of(job.tenant, job.task, wants))
    return job.id, False


def _same(job: NewJob) -> Steps[str | None]:
    """The holder of the idempotency key, which must be about the same payload."""
    holder: Holder | None = yield from holder_of("idempotency", idempotency_identity(job))
    if holder is None or job.idempotency is None:
        return None
    theirs = read_extra(holder.extra).idempotency
    if theirs is not None and theirs.digest != job.idempotency.digest:
        raise IdempotencyMismatch(
            f"idempotency key {job.idempotency.key!r} of task {job.task!r} belongs to job "
            f"{holder.id}, which has another payload; nothing was stored: give each payload a key "
            "of its own",
            job_id=holder.id,
        )
    return holder.id


def _rival(job: NewJob, now_us: int) -> Steps[str | None]:
    """The holder of the unique key, once it has been dealt with as the new job's rule says."""
    holder: Holder | None = yield from holder_of("unique", unique_identity(job))
    if holder is None or job.unique is None:
        return None
    met = conflict(job.unique.on_conflict, STATUS[holder.status])
    if met is Conflict.STASH:
        yield Change(sql("stash_keep"), (holder.seq, json_text(job)))
    elif met is not Conflict.ANSWER:
        yield Change(sql("stash_forget"), (holder.seq,))
        yield Change(sql("payload_replace"), (payload_text(job), now_us, holder.seq))
        if met is Conflict.RESCHEDULE:
            yield from _reschedule(holder, job, now_us)
    return holder.id


def _reschedule(holder: Holder, job: NewJob, now_us: int) -> Steps[None]:
    """A waiting holder is due anew, and loses its place."""
    due_us = due_us_of(job, now_us)
    where = {"lane": Lane.WAITING, "rank": due_us, "place": holder.seq, "due_us": due_us}
    row = {"status": CODE[JobStatus.PENDING], "now": now_us, "seq": holder.seq}
    yield Change(sql("reschedule"), {**where, **row})
    if status_at_submit(due_us, now_us) is JobStatus.QUEUED:  # as one that was not ready before
        where["lane"] = Lane.SUSPECT if holder.suspect else Lane.READY
        queues = yield from queue_rows([holder.queue])
        newcomer = Newcomer(holder.queue, holder.priority, holder.tenant)
        [where["rank"]] = yield from ranks_of([newcomer], queues, now_us)
        where["place"] = yield from take_places(1)
        row["status"] = CODE[JobStatus.QUEUED]
        yield Change(sql("reschedule"), {**where, **row})
    yield from join_lines([holder.seq])
    yield Wake(f"queue:{holder.queue}")


def _shed_all(names: Iterable[str]) -> Steps[None]:
    """Queues that drop give up the least urgent, latest first, when they hold too many."""
    queues: dict[str, QueueRow] = yield from queue_rows(names)
    for name, row in queues.items():
        if row.drops:
            yield from _shed(name, row)


def _shed(queue: str, row: QueueRow) -> Steps[None]:
    now_us: int = yield NOW
    [(depth,)] = yield Rows(sql("depth"), (queue,))
    too_many = depth - (row.settings.max_depth or depth)
    if too_many > 0:
        rows = yield Rows(sql("shed"), (queue, too_many))
        yield from give_up([row[:2] for row in rows], DeadReason.SHED, now_us)


def _statuses(job_ids: Sequence[str]) -> Steps[dict[str, JobStatus]]:
    rows = yield Rows(sql("submit_known"), {"ids": json_text(list(job_ids)), "up_to": None})
    return {job_id: STATUS[status] for job_id, status in rows}
