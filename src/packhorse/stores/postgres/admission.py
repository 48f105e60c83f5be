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
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.postgres.finishing import give_up
from packhorse.stores.postgres.keys import Holder, holder_of, identities_of, take_keys
from packhorse.stores.postgres.lines import join_lines
from packhorse.stores.postgres.locking import Level, Memory, Special
from packhorse.stores.postgres.plain_submit import goes_in_one, submit_in_one
from packhorse.stores.postgres.queue_settings import QueueRow, queue_rows
from packhorse.stores.postgres.ranking import Newcomer, ranks_of
from packhorse.stores.postgres.rows import (
    CODE,
    STATUS,
    Extra,
    Lane,
    json_text,
    payload_text,
    read_extra,
)
from packhorse.stores.postgres.statements import NOW, Rows, Send, sql
from packhorse.stores.postgres.submitting import (
    due_us_of,
    insert_jobs,
    is_plain,
    known_jobs,
    refuse_full,
    refuse_queues,
    store_all,
    store_plain,
    take_places,
)
from packhorse.stores.requests import Submitted

__all__ = ["submit_plan"]


def submit_plan(jobs: Sequence[NewJob], memory: Memory) -> Plan[tuple[Submitted, ...]]:
    """All or none; see `JobStore.submit`. Plain jobs go beside others, and in one if alike."""
    level = Level(memory, keys=[key for job in jobs for key in _keys_of(job)])
    level.expect([job.queue for job in jobs])
    plain = level.plain and goes_in_one(jobs)
    one = (lambda: submit_in_one(jobs, level)) if plain else None
    return Plan("submit", lambda: _submit(jobs, level), look=one)


def _submit(jobs: Sequence[NewJob], level: Level) -> Steps[tuple[Submitted, ...]]:
    if not jobs:
        return ()
    special: Special = yield from level.enter()
    level.allow([job.queue for job in jobs])
    limited = any(job.task in special.tasks for job in jobs)
    if level.plain and not limited and all(is_plain(job) for job in jobs):
        answers: tuple[Submitted, ...] = yield from store_plain(jobs)
    else:
        answers = yield from _submit_special(jobs, level)
    return answers


def _keys_of(job: NewJob) -> Iterable[str]:
    """The keys a job wants, as locks."""
    wants = Extra(unique=job.unique, idempotency=job.idempotency)
    for kind, identity in identities_of(job.tenant, job.task, wants):
        yield json_text((kind, *identity))


def _submit_special(jobs: Sequence[NewJob], level: Level) -> Steps[tuple[Submitted, ...]]:
    """Jobs without keys of their own go in one batch."""
    for job in jobs:
        payload_text(job)  # judged before anything that depends on other jobs
    if any(job.unique is not None or job.idempotency is not None for job in jobs):
        answers: tuple[Submitted, ...] = yield from _one_by_one(jobs, level)
        return answers
    answers, queues = yield from store_all(jobs, level)
    if not any(row.drops for row in queues.values()):
        return answers
    pairs = zip(jobs, answers, strict=True)
    yield from _shed_all(
        dict.fromkeys(job.queue for job, one in pairs if not one.deduplicated), level
    )
    statuses = yield from _statuses([answer.job_id for answer in answers])
    return tuple([msgspec.structs.replace(one, status=statuses[one.job_id]) for one in answers])


def _one_by_one(jobs: Sequence[NewJob], level: Level) -> Steps[tuple[Submitted, ...]]:
    answers = []
    for job in jobs:
        answer = yield from _admit(job, level)
        answers.append(answer)
    pairs = zip(jobs, answers, strict=True)
    stored = [job for job, (_, again) in pairs if not again]
    queues = yield from queue_rows(dict.fromkeys(job.queue for job in stored))
    yield from refuse_full(stored, queues, stored=True)
    yield from _shed_all(queues, level)
    statuses = yield from _statuses([job_id for job_id, _ in answers])
    return tuple([Submitted(job_id, again, statuses[job_id]) for job_id, again in answers])


def _admit(job: NewJob, level: Level) -> Steps[tuple[str, bool]]:
    """The id of the job that answers for this one, and whether it was there already."""
    known = yield from known_jobs([job])
    if known:
        return job.id, True
    now_us: int = yield NOW
    queues: dict[str, QueueRow] = yield from queue_rows([job.queue])
    yield from refuse_queues([job], queues)
    holder = yield from _same(job)
    holder = holder or (yield from _rival(job, now_us, level))
    if holder is not None:
        return holder, True
    yield from insert_jobs([job], queues, now_us, level)
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


def _rival(job: NewJob, now_us: int, level: Level) -> Steps[str | None]:
    """The holder of the unique key, once it has been dealt with as the new job's rule says."""
    holder: Holder | None = yield from holder_of("unique", unique_identity(job))
    if holder is None or job.unique is None:
        return None
    level.allow([holder.queue])
    met = conflict(job.unique.on_conflict, STATUS[holder.status])
    if met is Conflict.STASH:
        yield Send(sql("stash_keep"), (holder.seq, json_text(job)))
    elif met is not Conflict.ANSWER:
        yield Send(sql("stash_forget"), (holder.seq,))
        yield Send(sql("payload_replace"), (payload_text(job), now_us, holder.seq))
        if met is Conflict.RESCHEDULE:
            yield from _reschedule(holder, job, now_us)
    return holder.id


def _reschedule(holder: Holder, job: NewJob, now_us: int) -> Steps[None]:
    """A waiting holder is due anew, and loses its place."""
    due_us = due_us_of(job, now_us)
    where = {"lane": int(Lane.WAITING), "rank": due_us, "place": holder.seq, "due_us": due_us}
    row = {"status": CODE[JobStatus.PENDING], "now": now_us, "seq": holder.seq}
    yield Send(sql("reschedule"), {**where, **row})
    if status_at_submit(due_us, now_us) is JobStatus.QUEUED:  # as one that was not ready before
        where["lane"] = int(Lane.SUSPECT if holder.suspect else Lane.READY)
        queues = yield from queue_rows([holder.queue])
        newcomer = Newcomer(holder.queue, holder.priority, holder.tenant)
        [where["rank"]] = yield from ranks_of([newcomer], queues, now_us)
        [where["place"]] = yield from take_places(1)
        row["status"] = CODE[JobStatus.QUEUED]
        yield Send(sql("reschedule"), {**where, **row})
    yield from join_lines([holder.seq])
    yield Wake(f"queue:{holder.queue}")


def _shed_all(names: Iterable[str], level: Level) -> Steps[None]:
    """Queues that drop give up the least urgent, latest first, when they hold too many."""
    queues: dict[str, QueueRow] = yield from queue_rows(names)
    for name, row in queues.items():
        if row.drops:
            yield from _shed(name, row, level)


def _shed(queue: str, row: QueueRow, level: Level) -> Steps[None]:
    now_us: int = yield NOW
    [(depth,)] = yield Rows(sql("depth"), (queue,))
    too_many = depth - (row.settings.max_depth or depth)
    if too_many > 0:
        level.go_alone()
        rows = yield Rows(sql("shed"), (queue, too_many))
        yield from give_up([row[:2] for row in rows], DeadReason.SHED, now_us)


def _statuses(job_ids: Sequence[str]) -> Steps[dict[str, JobStatus]]:
    rows = yield Rows(sql("submit_known"), {"ids": list(job_ids), "but": []})
    return {job_id: STATUS[status] for job_id, status in rows}
