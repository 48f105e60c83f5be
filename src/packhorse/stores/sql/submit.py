# SPDX-License-Identifier: MIT
"""General submit: admit jobs, answer with the holder of a key, or shed jobs from a full queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from packhorse.core.job import DeadReason, JobStatus, NewJob
from packhorse.core.lifecycle import status_at_submit
from packhorse.core.policies.uniqueness import (
    Conflict,
    KnownJob,
    conflict,
    idempotency_identity,
    refuse_strangers,
    same_payload,
    unique_identity,
)
from packhorse.errors import IdempotencyMismatch, PackhorseError
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.records import RefusedJob
from packhorse.stores.requests import Submitted
from packhorse.stores.sql.dialect import Dialect, PlanLocks, read_queues
from packhorse.stores.sql.finish import give_up
from packhorse.stores.sql.keys import (
    Holder,
    holder_of,
    holds,
    keys_wanted,
    last_holder,
    leave_ready,
    never_taken,
    take_keys,
    take_new_keys,
)
from packhorse.stores.sql.lines import join_lines
from packhorse.stores.sql.new_jobs import (
    due_us_of,
    insert_jobs,
    is_keyed,
    known_as,
    known_jobs,
    least_urgent,
    note_bytes,
    refuse_full,
    refuse_known,
    refuse_queues,
    room_in,
    store_all,
)
from packhorse.stores.sql.ranks import Newcomer, rank_of
from packhorse.stores.sql.rows import (
    CODE,
    STATUS,
    Lane,
    QueueRow,
    json_text,
    payload_text,
    read_extra,
)
from packhorse.stores.sql.statements import NOW, Send


def submit_general(
    dialect: Dialect, jobs: Sequence[NewJob], locks: PlanLocks
) -> Steps[tuple[Submitted, ...]]:
    """Submit any jobs: as one batch, unless some want keys that another job took before them."""
    for job in jobs:
        payload_text(job)  # binary payloads are refused first
    queues = yield from read_queues(dialect, dict.fromkeys([job.queue for job in jobs]))
    drops = any(row.drops for row in queues.values())
    keyed = [job for job in jobs if is_keyed(job)]
    if keyed and (not (yield from never_taken(dialect, keyed)) or drops):
        answers: tuple[Submitted, ...] = yield from _one_by_one(dialect, jobs, locks)
        return answers
    answers = yield from store_all(dialect, jobs, queues, locks)
    if keyed:
        stored = {answer.job_id for answer in answers if not answer.deduplicated}
        yield from take_new_keys(dialect, [job for job in keyed if job.id in stored])
    if drops:
        answers = yield from _shed_after(dialect, jobs, answers, locks)
    return answers


def _one_by_one(
    dialect: Dialect, jobs: Sequence[NewJob], locks: PlanLocks
) -> Steps[tuple[Submitted, ...]]:
    """Submit jobs in order, since an earlier one may take the key of a later one."""
    answers = []
    held: dict[str, int] = {}
    for job in jobs:
        answer = yield from _admit(dialect, job, locks, held)
        answers.append(answer)
    pairs = zip(jobs, answers, strict=True)
    stored = [job for job, (_, again) in pairs if not again]
    queues = yield from read_queues(dialect, dict.fromkeys(job.queue for job in stored))
    yield from refuse_full(dialect, stored, queues, stored=True, held=held)
    shed = yield from _shed_all(dialect, queues, locks)
    statuses = yield from known_jobs(dialect, [job_id for job_id, _ in answers])
    told = [Submitted(job_id, again, statuses[job_id]) for job_id, again in answers]
    return _with_shed(told, shed)


def _shed_after(
    dialect: Dialect, jobs: Sequence[NewJob], answers: Sequence[Submitted], locks: PlanLocks
) -> Steps[tuple[Submitted, ...]]:
    """Shed jobs from queues that drop, after the insert; the answers have the final statuses."""
    pairs = zip(jobs, answers, strict=True)
    queues = dict.fromkeys(job.queue for job, one in pairs if not one.deduplicated)
    shed = yield from _shed_all(dialect, queues, locks)
    statuses = yield from known_jobs(dialect, [answer.job_id for answer in answers])
    told = [msgspec.structs.replace(one, status=statuses[one.job_id]) for one in answers]
    return _with_shed(told, shed)


def _with_shed(answers: list[Submitted], shed: Sequence[str]) -> tuple[Submitted, ...]:
    if shed:
        answers[-1] = msgspec.structs.replace(answers[-1], shed=tuple(shed))
    return tuple(answers)


def admit_each(
    dialect: Dialect, jobs: Sequence[NewJob], locks: PlanLocks
) -> Steps[tuple[Submitted | RefusedJob, ...]]:
    """Store each job that only depth or a closed queue would refuse; see `RecordStore.change`."""
    answers: list[tuple[str, bool] | RefusedJob] = []
    yield from never_taken(dialect, [job for job in jobs if is_keyed(job)])  # locks in order
    for keyed, group in groupby(jobs, key=is_keyed):
        if not keyed:
            answers += yield from _admit_together(dialect, list(group), locks)
            continue
        for job in group:
            try:
                payload_text(job)
                yield from refuse_known(dialect, [job])
                answer = yield from _admit(dialect, job, locks)
                answers.append(answer)
            except PackhorseError as error:  # raised before anything was written about the job
                answers.append(RefusedJob(job.id, error.code, str(error)))
    stored = [one[0] for one in answers if not isinstance(one, RefusedJob)]
    statuses = yield from known_jobs(dialect, stored)
    return tuple(
        [
            one if isinstance(one, RefusedJob) else Submitted(*one, statuses[one[0]])
            for one in answers
        ]
    )


def _admit_together(
    dialect: Dialect, jobs: Sequence[NewJob], locks: PlanLocks
) -> Steps[list[tuple[str, bool] | RefusedJob]]:
    """Do as `_admit` for a batch of jobs without keys, ignoring the bounds of their queues."""
    known: dict[str, KnownJob] = yield from known_as(dialect, [job.id for job in jobs])
    rows = yield from read_queues(dialect, dict.fromkeys(job.queue for job in jobs))
    queues = {name: row.unbounded() for name, row in rows.items()}
    answers: list[tuple[str, bool] | RefusedJob] = []
    fresh = []
    for job in jobs:
        try:
            payload_text(job)
            refuse_strangers([job], known)
            if job.id not in known:
                yield from refuse_queues(dialect, [job], queues)
                known[job.id] = KnownJob(job.task, job.tenant, job.payload, job.unique)
                fresh.append(job)
                answers.append((job.id, False))
            else:
                answers.append((job.id, True))
        except PackhorseError as error:
            answers.append(RefusedJob(job.id, error.code, str(error)))
    if fresh:
        chosen = {job.queue: queues[job.queue] for job in fresh}
        yield from insert_jobs(dialect, fresh, chosen, (yield NOW), locks)
    return answers


def _admit(
    dialect: Dialect, job: NewJob, locks: PlanLocks, held: dict[str, int] | None = None
) -> Steps[tuple[str, bool]]:
    """Store one job, or find the one that answers for it; return its id and whether it existed.

    Add the bytes that its queue and the store held before to `held`. If that is None, neither
    bounds nor a closed queue refuse the job.
    """
    known = yield from known_jobs(dialect, [job.id])
    if known:
        return job.id, True
    now_us: int = yield NOW
    queues = yield from read_queues(dialect, [job.queue])
    if held is None:
        queues = {name: row.unbounded() for name, row in queues.items()}
    else:
        yield from note_bytes(dialect, queues, held)
    yield from refuse_queues(dialect, [job], queues)
    holder = yield from _same(dialect, job)
    if holder is None:
        holder, now_us = yield from _rival(dialect, job, now_us, locks)
    if holder is not None:
        return holder, True
    yield from insert_jobs(dialect, [job], queues, now_us, locks)
    yield from take_keys(dialect, job.id, keys_wanted(job))
    return job.id, False


def _same(dialect: Dialect, job: NewJob) -> Steps[str | None]:
    """Return the holder of the idempotency key; refuse the job if its payload differs."""
    identity = idempotency_identity(job)
    holder: Holder | None = yield from holder_of(dialect, "idempotency", identity)
    if holder is None or job.idempotency is None:
        return None
    theirs = read_extra(holder.extra).idempotency
    if theirs is not None and not same_payload(theirs.digest, job.idempotency.digest):
        raise IdempotencyMismatch(
            f"idempotency key {job.idempotency.key!r} of task {job.task!r} belongs to job "
            f"{holder.id}, which has another payload; nothing was stored: give each payload a key "
            "of its own",
            job_id=holder.id,
        )
    yield from leave_ready(holder.queue, holder.status)
    return holder.id


def _rival(
    dialect: Dialect, job: NewJob, now_us: int, locks: PlanLocks
) -> Steps[tuple[str | None, int]]:
    """Apply the new job's rule to the holder of its unique key; return the holder and the time.

    Reading the holder may wait for a settlement of it that ends after `now_us` was read. The new
    job must not seem to be created before that end.
    """
    holder = yield from last_holder(dialect, "unique", unique_identity(job))
    if holder is None or job.unique is None:
        return None, now_us
    now_us = max(now_us, holder.finished_us or 0)
    if not holds("unique", holder, now_us):
        return None, now_us
    locks.allow([holder.queue])
    yield from leave_ready(holder.queue, holder.status)
    met = conflict(job.unique.on_conflict, STATUS[holder.status])
    if met is Conflict.STASH:
        yield Send(dialect.sql("stash_keep"), (holder.seq, json_text(job)))
    elif met is not Conflict.ANSWER:
        yield Send(dialect.sql("stash_forget"), (holder.seq,))
        own = {"payload": payload_text(job), "bytes": len(job.payload)}
        replaced = {**own, "now": now_us, "seq": holder.seq}
        yield Send(dialect.sql("payload_replace"), replaced)
        if met is Conflict.RESCHEDULE:
            yield from _reschedule(dialect, holder, job, now_us)
    return holder.id, now_us


def _reschedule(dialect: Dialect, holder: Holder, job: NewJob, now_us: int) -> Steps[None]:
    """Reschedule a waiting holder, which loses its place."""
    due_us = due_us_of(job, now_us)
    where = {"lane": int(Lane.WAITING), "rank": due_us, "place": holder.seq, "due_us": due_us}
    row = {"status": CODE[JobStatus.PENDING], "now": now_us, "seq": holder.seq}
    yield Send(dialect.sql("reschedule"), {**where, **row})
    if status_at_submit(due_us, now_us) is JobStatus.QUEUED:  # as one that was not ready before
        where["lane"] = int(Lane.SUSPECT if holder.suspect else Lane.READY)
        queues = yield from read_queues(dialect, [holder.queue])
        newcomer = Newcomer(holder.queue, holder.priority, holder.tenant)
        where["rank"] = yield from rank_of(dialect, newcomer, queues, now_us)
        [where["place"]] = yield from dialect.take_places(1)
        row["status"] = CODE[JobStatus.QUEUED]
        yield Send(dialect.sql("reschedule"), {**where, **row})
    yield from join_lines(dialect, [holder.seq])
    yield Wake(f"queue:{holder.queue}")


def _shed_all(dialect: Dialect, names: Iterable[str], locks: PlanLocks) -> Steps[list[str]]:
    """Shed the least urgent jobs, latest first, from each queue that drops and holds too many."""
    queues = yield from read_queues(dialect, names)
    shed: list[str] = []
    for name, row in queues.items():
        if row.drops:
            shed += yield from _shed(dialect, name, row, locks)
    return shed


def _shed(dialect: Dialect, queue: str, row: QueueRow, locks: PlanLocks) -> Steps[tuple[str, ...]]:
    now_us: int = yield NOW
    jobs, size = yield from room_in(dialect, queue, row.settings, 0)
    if jobs >= 0 and size >= 0:
        return ()
    locks.go_alone()
    rows = yield from least_urgent(dialect, queue, -jobs, -size)
    shed: tuple[str, ...] = yield from give_up(dialect, rows, DeadReason.SHED, now_us)
    return shed
