# SPDX-License-Identifier: MIT
"""Submit in two steps: decide about every job, then store; so an error changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from packhorse.core import lifecycle
from packhorse.core.job import WAITING, DeadReason, IdempotencyRule, JobStatus, NewJob
from packhorse.core.policies.depth import Waiting, excess, room, shed, turned_away
from packhorse.core.policies.rate_limit import check_weight
from packhorse.core.policies.uniqueness import (
    Conflict,
    Identity,
    JobKey,
    KnownJob,
    conflict,
    idempotency_identity,
    keys_wanted,
    refuse_strangers,
    same_payload,
    unique_identity,
)
from packhorse.core.sizes import THE_STORE
from packhorse.errors import (
    ConfigError,
    IdempotencyMismatch,
    PackhorseError,
    PayloadError,
    QueueClosed,
    QueueFull,
)
from packhorse.stores.memory.state import Access
from packhorse.stores.memory.transitions import (
    due_us,
    enter,
    finish_waiting,
    holder_of,
    take_place,
)
from packhorse.stores.records import RefusedJob
from packhorse.stores.requests import Submitted


def submit(access: Access, jobs: Sequence[NewJob]) -> tuple[Submitted, ...]:
    """Store all or none; see `JobStore.submit`."""
    for new in jobs:
        _refuse_binary(new)
    refuse_strangers(jobs, _known(access, jobs))
    intake = _Intake(access)
    for new in jobs:
        intake.consider(new)
    intake.refuse_full()
    return intake.store()


def admit_each(access: Access, jobs: Sequence[NewJob]) -> tuple[Submitted | RefusedJob, ...]:
    """Store each job that only depth or a closed queue would refuse; see `RecordStore.change`."""
    answers: list[Submitted | RefusedJob] = []
    for new in jobs:
        intake = _Intake(access, unbounded=True)
        try:
            _refuse_binary(new)
            refuse_strangers([new], _known(access, [new]))
            intake.consider(new)
        except PackhorseError as error:
            answers.append(RefusedJob(new.id, error.code, str(error)))
            continue
        answers += intake.store()
    return tuple(answers)


def _known(access: Access, jobs: Sequence[NewJob]) -> dict[str, KnownJob]:
    rows = [access.state.jobs[new.id].new for new in jobs if new.id in access.state.jobs]
    return {row.id: KnownJob(row.task, row.tenant, row.payload, row.unique) for row in rows}


def _refuse_binary(new: NewJob) -> None:
    try:
        new.payload.decode()
    except UnicodeDecodeError:
        raise PayloadError(
            f"the payload of job {new.id} is not UTF-8 text; nothing was stored: payloads are JSON"
        ) from None


class _Intake:
    """Collects the changes of a submit, and makes them once all are decided."""

    def __init__(self, access: Access, *, unbounded: bool = False) -> None:
        """With `unbounded`, neither depth nor a closed queue refuses or drops a job."""
        self._access = access
        self._unbounded = unbounded
        self._arrivals: dict[str, NewJob] = {}  # by id, in order
        self._numbers: dict[str, int] = {}  # the sequence number of each
        self._taken: dict[JobKey, str] = {}  # keys that arrivals take
        self._away: frozenset[str] = frozenset()  # arrivals that a full queue gives up at once
        self._changes: list[Callable[[], None]] = []  # in the order of the submitted jobs
        self._answers: list[tuple[str, bool]] = []  # for each, which job answers, another one?
        settings = (access.state.settings(queue) for queue in access.state.configured)
        self._shelves = {each.dead_letter: each.name for each in settings}

    # ------------------------------------------------------------------------------- deciding

    def consider(self, new: NewJob) -> None:
        """Decide about the next job, given those before it."""
        holder = self._answering(new)
        if holder is None:
            self._admit(new)
        self._answers.append((holder or new.id, holder is not None))

    def _answering(self, new: NewJob) -> str | None:
        """Return the id of the job that answers for a new one, if any."""
        if new.id in self._arrivals or new.id in self._access.state.jobs:
            return new.id
        self._refuse_shelf(new)
        self._refuse_closed(new)
        self._refuse_heavy(new)
        return self._same(new) or self._rival(new)

    def _refuse_shelf(self, new: NewJob) -> None:
        if new.queue in self._shelves:
            raise ConfigError(
                f"job {new.id} was submitted to {new.queue!r}, which is the dead-letter shelf of "
                f"queue {self._shelves[new.queue]!r}; nothing was stored: submit to another queue"
            )

    def _refuse_closed(self, new: NewJob) -> None:
        state = self._access.state
        closed = new.queue in state.closed or state.copied is not None
        if closed and not self._unbounded:
            raise QueueClosed(new.queue)

    def _refuse_heavy(self, new: NewJob) -> None:
        queue, task = self._access.state.settings(new.queue), self._access.state.tasks.get(new.task)
        check_weight(new.weight, (queue.rate, queue.tenant_rate, task.rate if task else None))

    def _same(self, new: NewJob) -> str | None:
        """Return the holder of the idempotency key; refuse the job if its payload differs."""
        holder, _ = self._holder("idempotency", idempotency_identity(new))
        if holder is None:
            return None
        _refuse_another_payload(new.idempotency, holder)
        return holder.id

    def _rival(self, new: NewJob) -> str | None:
        """Apply the new job's rule to the holder of its unique key; return its id."""
        identity, rule = unique_identity(new), new.unique
        holder, status = self._holder("unique", identity)
        if identity is None or rule is None or holder is None:
            return None
        met = conflict(rule.on_conflict, status)
        if met is Conflict.STASH:
            self._changes.append(partial(self._stash, identity, new))
        elif met is not Conflict.ANSWER:
            self._changes.append(partial(self._stash, identity, None))
            reschedule = met is Conflict.RESCHEDULE
            self._changes.append(partial(self._change, holder.id, new, reschedule=reschedule))
        return holder.id

    def _holder(self, kind: str, identity: Identity | None) -> tuple[NewJob | None, JobStatus]:
        """Return the job that holds a key, and its status; one that arrives now waits."""
        if identity is not None and (kind, identity) in self._taken:
            return self._arrivals[self._taken[kind, identity]], JobStatus.QUEUED
        row = holder_of(self._access, kind, identity)
        return (None, JobStatus.QUEUED) if row is None else (row.new, row.status)

    def _admit(self, new: NewJob) -> None:
        self._arrivals[new.id] = new
        self._changes.append(partial(self._enter, new))
        self._taken.update(dict.fromkeys(keys_wanted(new), new.id))

    def refuse_full(self) -> None:
        """Refuse jobs that do not fit into a queue that does not drop."""
        state, arriving = self._access.state, self._arriving()
        for queue, news in arriving.items():
            settings, depth = state.settings(queue), state.depth(queue)
            if settings.on_full == "drop":
                continue
            limit = settings.max_depth
            if limit is not None and excess(depth, len(news), limit):
                raise QueueFull(queue, depth=depth, limit=limit)
            _refuse_bytes(settings.max_bytes, state.held_bytes(queue), news, "bytes")
        everything = [new for news in arriving.values() for new in news]
        limit = state.settings(THE_STORE).max_bytes
        _refuse_bytes(limit, state.held_bytes(THE_STORE), everything, "store_bytes")

    def _arriving(self) -> dict[str, list[NewJob]]:
        arriving: dict[str, list[NewJob]] = {}
        for new in self._arrivals.values():
            arriving.setdefault(new.queue, []).append(new)
        return arriving

    # -------------------------------------------------------------------------------- storing

    def store(self) -> tuple[Submitted, ...]:
        """Make the decided changes in order; then shed from full queues; return the answers."""
        self._numbers = {job_id: self._access.state.next_sequence() for job_id in self._arrivals}
        doomed, self._away = self._too_many()
        for change in self._changes:
            change()
        for job_id in doomed:
            row = self._access.state.jobs[job_id]
            finish_waiting(self._access, row, JobStatus.DEAD, DeadReason.SHED)
        stored, last = self._access.state.jobs, len(self._answers) - 1
        return tuple(
            Submitted(job_id, known, stored[job_id].status, doomed if number == last else ())
            for number, (job_id, known) in enumerate(self._answers)
        )

    def _enter(self, new: NewJob) -> None:
        enter(self._access, new, self._numbers[new.id], ready=new.id not in self._away)

    def _change(self, holder_id: str, new: NewJob, *, reschedule: bool) -> None:
        """Give a waiting holder the new payload; if it is rescheduled, it loses its place."""
        access, now_us = self._access, self._access.now_us
        row = access.state.jobs[holder_id]
        with access.state.changing(row, now_us):
            row.new = msgspec.structs.replace(row.new, payload=new.payload)
            if not reschedule:
                return
            row.due_us = due_us(new, now_us)
            row.status = lifecycle.status_at_submit(row.due_us, now_us)
            row.place, row.parked_us = None, None
            if row.status is JobStatus.QUEUED:
                take_place(access, row)
        access.wake_queue(row)

    def _stash(self, identity: Identity, new: NewJob | None) -> None:
        """Let a job wait until the holder of its key ends; None drops the stashed one."""
        self._access.state.stashed.pop(identity, None)
        if new is not None:
            self._access.state.stashed[identity] = new

    def _too_many(self) -> tuple[tuple[str, ...], frozenset[str]]:
        """Return jobs that queues have to drop, and which of these are new and take no place."""
        doomed: list[str] = []
        away: set[str] = set()
        state = self._access.state
        for queue, news in {} if self._unbounded else self._arriving().items():
            settings = state.settings(queue)
            jobs = room(state.depth(queue), settings.max_depth)
            size = room(state.held_bytes(queue), settings.max_bytes)
            too_many, too_large = len(news) - jobs, _bytes_of(news) - size
            if settings.on_full == "drop" and (too_many > 0 or too_large > 0):
                waiting = self._waiting(queue)
                arriving = [_waiting(self._numbers[new.id], new) for new in news]
                doomed += shed([*waiting, *arriving], too_many, too_large)
                away |= turned_away(waiting, arriving, jobs, size)
        return tuple(doomed), frozenset(away)

    def _waiting(self, queue: str) -> list[Waiting]:
        return [
            _waiting(row.sequence, row.new)
            for row in self._access.state.jobs.values()
            if row.new.queue == queue and row.status in WAITING and not row.awaits_signal
        ]


def _waiting(sequence: int, new: NewJob) -> Waiting:
    return new.priority, sequence, new.id, len(new.payload)


def _bytes_of(news: Sequence[NewJob]) -> int:
    return sum(len(new.payload) for new in news)


def _refuse_bytes(limit: int | None, held: int, news: Sequence[NewJob], reason: str) -> None:
    if limit is not None and excess(held, _bytes_of(news), limit):
        raise QueueFull(news[0].queue, depth=held, limit=limit, reason=reason)


def _refuse_another_payload(rule: IdempotencyRule | None, holder: NewJob) -> None:
    theirs = holder.idempotency
    if rule is None or theirs is None or same_payload(theirs.digest, rule.digest):
        return
    raise IdempotencyMismatch(
        f"idempotency key {rule.key!r} of task {holder.task!r} belongs to job {holder.id}, which "
        "has another payload; nothing was stored: give each payload a key of its own",
        job_id=holder.id,
    )
