# SPDX-License-Identifier: MIT
"""The verbs about jobs and attachments that PostgreSQL implements itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from packhorse.core.job import JobRecord, NewJob
from packhorse.core.policies.attachments import Attaching
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.core.sizes import THE_STORE
from packhorse.stores.plan import Plan, Steps, Wake
from packhorse.stores.postgres.dialect import POSTGRES
from packhorse.stores.postgres.fast_paths import (
    attach_in_one,
    claim_in_one,
    complete_alike,
    complete_in_one,
    completions,
    short_submit,
)
from packhorse.stores.postgres.floors import Floors
from packhorse.stores.postgres.locking import LockLevel, Memory
from packhorse.stores.postgres.statements import Once, sql
from packhorse.stores.requests import Claimed, ClaimRequest, Submitted
from packhorse.stores.sql.attachments import SqlAttachments
from packhorse.stores.sql.claim import claim_steps
from packhorse.stores.sql.dialect import Needs
from packhorse.stores.sql.finish import aftermath
from packhorse.stores.sql.jobs import SqlJobs
from packhorse.stores.sql.keys import keys_wanted
from packhorse.stores.sql.new_jobs import refuse_known
from packhorse.stores.sql.rows import RECORD_COLUMNS, json_text, read_record
from packhorse.stores.sql.settle import settle_in_order
from packhorse.stores.sql.statements import NOW, Rows, Together
from packhorse.stores.sql.submit import submit_general


class PostgresJobs(SqlJobs):
    """See `JobStore`."""

    def __init__(self) -> None:
        super().__init__(POSTGRES, LockLevel)
        self.floors = Floors()
        self._memory = Memory()

    def locks_for(self, jobs: Sequence[NewJob]) -> LockLevel:
        """The locks of a plan that submits these jobs, as far as known."""
        locks = LockLevel(self._memory, keys=[key for job in jobs for key in keys_of(job)])
        locks.expect([THE_STORE, *[job.queue for job in jobs]])
        return locks

    def new_locks(self) -> LockLevel:
        """The locks of a plan that does not know its jobs yet."""
        return LockLevel(self._memory)

    def submit(
        self, jobs: Sequence[NewJob], *, ids_are_new: bool = False
    ) -> Plan[tuple[Submitted, ...]]:
        """Store all or none, in one statement where that is possible."""
        short = short_submit(jobs, self._memory)
        # Jobs that fit the short statement want no keys, and were last seen to be unconstrained.
        locks = self.locks_for(jobs) if short is None else self.new_locks()
        steps = partial(_submit, jobs, locks, ids_are_new=ids_are_new)
        return Plan("submit", steps, short=short)

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        """Claim from unconstrained queues in one statement, from others step by step."""
        locks, constrained = LockLevel(self._memory), self._memory.constrained
        locks.expect(constrained.gated(request.queues))
        fast = constrained.queues.isdisjoint(request.queues)
        fast = fast and not (request.quarantine or request.narrow)
        one = (lambda: claim_in_one(request, locks, self.floors)) if fast else None
        return Plan("claim", lambda: claim_steps(POSTGRES, request, locks), look=one)

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        """Complete in one statement where no end releases a job, settle others step by step."""
        memory, alike = self._memory, complete_alike(settlements)
        limited = any(one.kind is SettlementKind.LIMITED for one in settlements)
        locks = LockLevel(memory, alone=limited)
        locks.expect(memory.constrained.releasing(memory.completed))

        def steps() -> Steps[tuple[Verdict, ...]]:
            if alike and locks.queues:
                return _complete(settlements, locks, memory)
            return _settle(settlements, locks)

        in_one = alike and not locks.queues
        look = (lambda: complete_in_one(settlements, locks)) if in_one else None
        return Plan("settle", steps, look=look)

    def await_finish(self, job_id: str) -> Plan[JobRecord | None]:
        def steps() -> Steps[JobRecord | None]:
            # Claims skip locked rows, and this statement locked one: let workers claim again.
            for (queue,) in (yield Once(sql("await_finish"), (job_id,))):
                yield Wake(f"queue:{queue}")
            rows = yield Once(sql("job", columns=RECORD_COLUMNS), (job_id,))
            now_us = yield NOW
            return read_record(rows[0], now_us) if rows else None

        return Plan("await_finish", steps)


class PostgresAttachments(SqlAttachments):
    """See `AttachmentStore`."""

    def __init__(self) -> None:
        super().__init__(POSTGRES)

    def attach(self, kept: Sequence[Attaching]) -> Plan[tuple[Verdict, ...]]:
        """Attach in one statement that commits, where no job has many attachments."""
        return msgspec.structs.replace(super().attach(kept), look=partial(attach_in_one, kept))


def _complete(
    settlements: Sequence[Settlement], locks: LockLevel, memory: Memory
) -> Steps[tuple[Verdict, ...]]:
    """Complete jobs in locked queues, and release others; settle one by one if some are not done.

    The statement leaves jobs with keys alone, so nothing is stashed behind those it completes.
    """
    row = completions(settlements, locked=None if locks.alone else locks.queues)
    completing, asking = Rows(sql("settle_completed"), row), Rows(sql("aftermath_needed"))
    [(count, awaited, queues, *_)], [needed] = yield from locks.enter(completing, asking)
    memory.completed = queues
    if count < len(settlements):
        locks.allow(queues)
        verdicts: tuple[Verdict, ...] = yield from _settle_entered(settlements, locks)
        return verdicts
    for job_id in awaited:
        yield Wake(f"job:{job_id}")
    needs = Needs(*needed)._replace(stashed=False, awaited=False)
    ids = [one.job_id for one in settlements]
    yield from aftermath(POSTGRES, "id", ids, stashed=False, needs=needs)
    return (Verdict.APPLIED,) * len(settlements)


def _settle(settlements: Sequence[Settlement], locks: LockLevel) -> Steps[tuple[Verdict, ...]]:
    yield from locks.enter()
    verdicts: tuple[Verdict, ...] = yield from _settle_entered(settlements, locks)
    return verdicts


def _settle_entered(
    settlements: Sequence[Settlement], locks: LockLevel
) -> Steps[tuple[Verdict, ...]]:
    ids = [one.job_id for one in settlements]
    # In this order, since a submit stashes a job while it holds the row of a running one: when we
    # have the row, the next statement sees what was stashed, and nothing is stashed after that.
    lock, read = Rows(sql("settle_lock"), (ids,)), Rows(sql("queues_of"), {"ids": ids})
    _, [(queues, stashed)] = yield Together((lock, read))
    if stashed:
        locks.go_alone()
    locks.allow(queues)
    verdicts: tuple[Verdict, ...] = yield from settle_in_order(
        POSTGRES, settlements, locks, stashed=stashed
    )
    return verdicts


def _submit(
    jobs: Sequence[NewJob], locks: LockLevel, *, ids_are_new: bool
) -> Steps[tuple[Submitted, ...]]:
    if not jobs:
        return ()
    yield from locks.enter()
    locks.allow([THE_STORE, *[job.queue for job in jobs]])
    yield from refuse_known(POSTGRES, jobs, ids_are_new=ids_are_new)
    answers: tuple[Submitted, ...] = yield from submit_general(POSTGRES, jobs, locks)
    pairs = zip(jobs, answers, strict=True)
    again = [job for job, one in pairs if one.deduplicated and one.job_id == job.id]
    yield from refuse_known(POSTGRES, again)  # one of them may have been stored meanwhile
    return answers


def keys_of(job: NewJob) -> Iterable[str]:
    """The keys a job wants, as locks."""
    for kind, identity in keys_wanted(job):
        yield json_text((kind, *identity))
