# SPDX-License-Identifier: MIT
"""Submit in two steps: decide about every job, then store; so an error changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from packhorse.core import lifecycle
from packhorse.core.job import WAITING, DeadReason, IdempotencyRule, JobStatus, NewJob
from packhorse.core.policies.depth import Waiting, excess, room, shed, turned_away
from packhorse.core.policies.rate_limit import check_weight
from packhorse.core.policies.uniqueness import (
    Conflict,
    Identity,
    KnownJob,
    conflict,
    idempotency_identity,
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
from packhorse.stores.memory.rows import JobRow
from packhorse.stores.memory.state import Access
from packhorse.stores.memory.transitions import (
    due_us,
    enter,
    finish_waiting,
    idempotency_holder,
    take_place,
    unique_holder,
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
    shed = intake.store()
    stored, last = access.state.jobs, len(jobs) - 1
    return tuple(
        Submitted(
            answer.job_id,
            answer.deduplicated,
            stored[answer.job_id].status,
            shed if number == last else (),
        )
        for number, answer in enumerate(intake.answers)
    )


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
        intake.store()
        (answer,) = intake.answers
        answers.append(Submitted(*answer, access.state.jobs[answer.job_id].status))
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


class _Answer(NamedTuple):
    job_id: str
    deduplicated: bool


class _Arrive(NamedTuple):
    """A new job is stored."""

    job_id: str


class _Change(NamedTuple):
    """A waiting holder gets the payload of a new job, and perhaps its due time."""

    holder_id: str
    new: NewJob
    reschedule: bool


class _Stash(NamedTuple):
    """A job waits until the holder of its key ends; None drops the stashed one."""

    identity: Identity
    new: NewJob | None


#: One change; they are made in the order of the submitted jobs.
_Deed = _Arrive | _Change | _Stash


class _Intake:
    """Collects the changes of a submit, and makes them once all are decided."""

    def __init__(self, access: Access, *, unbounded: bool = False) -> None:
        """With `unbounded`, neither depth nor a closed queue refuses or drops a job."""
        self.answers: list[_Answer] = []
        self._access = access
        self._unbounded = unbounded
        self._arrivals: dict[str, NewJob] = {}  # by id, in order
        self._unique: dict[Identity, str] = {}  # keys that arrivals take
        self._idempotent: dict[Identity, str] = {}
        self._deeds: list[_Deed] = []
        settings = (access.state.settings(queue) for queue in access.state.configured)
        self._shelves = {each.dead_letter: each.name for each in settings}

    # ------------------------------------------------------------------------------- deciding

    def consider(self, new: NewJob) -> None:
        """Decide about the next job, given those before it."""
        holder = self._answering(new)
        if holder is None:
            self._admit(new)
        self.answers.append(_Answer(holder or new.id, deduplicated=holder is not None))

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
        identity = idempotency_identity(new)
        if identity is None:
            return None
        arrival = self._arrivals.get(self._idempotent.get(identity, ""))
        row = None if arrival is not None else idempotency_holder(self._access, identity)
        holder = arrival if row is None else row.new
        if holder is None:
            return None
        _refuse_another_payload(new.idempotency, holder)
        return holder.id

    def _rival(self, new: NewJob) -> str | None:
        """Apply the new job's rule to the holder of its unique key; return its id."""
        identity, rule = unique_identity(new), new.unique
        if identity is None or rule is None:
            return None
        arrival = self._arrivals.get(self._unique.get(identity, ""))
        if arrival is not None:  # it waits: no claim runs in the middle of a submit
            self._meet(arrival.id, JobStatus.QUEUED, new)
            return arrival.id
        row = unique_holder(self._access, identity)
        if row is not None:
            self._meet(row.new.id, row.status, new)
        return None if row is None else row.new.id

    def _meet(self, holder_id: str, status: JobStatus, new: NewJob) -> None:
        identity, rule = unique_identity(new), new.unique
        if identity is None or rule is None:
            return
        met = conflict(rule.on_conflict, status)
        if met is Conflict.STASH:
            self._deeds.append(_Stash(identity, new))
        elif met is not Conflict.ANSWER:
            self._deeds.append(_Stash(identity, None))
            self._deeds.append(_Change(holder_id, new, reschedule=met is Conflict.RESCHEDULE))

    def _admit(self, new: NewJob) -> None:
        self._arrivals[new.id] = new
        self._deeds.append(_Arrive(new.id))
        unique, idempotency = unique_identity(new), idempotency_identity(new)
        if unique is not None:
            self._unique[unique] = new.id
        if idempotency is not None:
            self._idempotent[idempotency] = new.id

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

    def store(self) -> tuple[str, ...]:
        """Make the decided changes in order; then shed from full queues; return the ids shed."""
        numbered = {job_id: self._access.state.next_sequence() for job_id in self._arrivals}
        doomed, away = self._too_many(numbered)
        for deed in self._deeds:
            match deed:
                case _Arrive(job_id):
                    new, ready = self._arrivals[job_id], job_id not in away
                    enter(self._access, new, numbered[job_id], ready=ready)
                case _Change():
                    _change(self._access, deed)
                case _Stash():
                    _stash(self._access, deed)
        for job_id in doomed:
            self._drop(self._access.state.jobs[job_id])
        return doomed

    def _too_many(self, numbered: dict[str, int]) -> tuple[tuple[str, ...], frozenset[str]]:
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
                arriving = [_waiting(numbered[new.id], new) for new in news]
                doomed += shed([*waiting, *arriving], too_many, too_large)
                away |= turned_away(waiting, arriving, jobs, size)
        return tuple(doomed), frozenset(away)

    def _waiting(self, queue: str) -> list[Waiting]:
        return [
            _waiting(row.sequence, row.new)
            for row in self._access.state.jobs.values()
            if row.new.queue == queue and row.status in WAITING and not row.awaits_signal
        ]

    def _drop(self, row: JobRow) -> None:
        finish_waiting(self._access, row, JobStatus.DEAD, DeadReason.SHED)


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


def _change(access: Access, change: _Change) -> None:
    """Give a waiting holder the new payload; if it is rescheduled, it loses its place."""
    row, now_us = access.state.jobs[change.holder_id], access.now_us
    with access.state.changing(row, now_us):
        row.new = msgspec.structs.replace(row.new, payload=change.new.payload)
        if not change.reschedule:
            return
        row.due_us = due_us(change.new, now_us)
        row.status = lifecycle.status_at_submit(row.due_us, now_us)
        row.place, row.parked_us = None, None
        if row.status is JobStatus.QUEUED:
            take_place(access, row)
    access.wake_queue(row)


def _stash(access: Access, stash: _Stash) -> None:
    if stash.new is None:
        access.state.stashed.pop(stash.identity, None)
    else:
        access.state.stashed[stash.identity] = stash.new
