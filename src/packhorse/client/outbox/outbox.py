# SPDX-License-Identifier: MIT
"""An outbox: made once, written by users' transactions, drained into the store once.

A batch is taken, stored under a mark, and then removed. The mark is a record with the name of the
batch, written by the change that stores its jobs. Who dies before that change leaves the batch to
be delivered again, who dies behind it leaves a mark that refuses a second time, however long ago
the jobs have ended and been forgotten. When the batch is removed the mark stays for another hour:
one who was stopped before that change, and whose batch another one has delivered, is refused too.

Users' databases are used from threads, so draining is sync code; async callers run it in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

from packhorse.client.outbox.databases import Database
from packhorse.client.outbox.table import OutboxBatch, OutboxTable
from packhorse.client.sealed_store import SealedStore, plain_store, sealed_requests
from packhorse.core.clock import SECOND_US, Clock
from packhorse.core.job import NewJob
from packhorse.core.lifecycle import CancelAnswer
from packhorse.core.policies.records import Put, RecordId
from packhorse.errors import StoreCopied, StoreUnavailable
from packhorse.stores.intake import ALIAS_KEPT_US, IntakeRequest, UserStatement, alias_of
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.records import RefusedJob
from packhorse.stores.requests import Submitted
from packhorse.stores.transfer import rejected

T = TypeVar("T")

#: The mark of a batch whose rows may be there still.
_MARK_KEPT_US: Final = 90 * 24 * 3600 * SECOND_US
#: And of one whose rows are removed: for those that took it before, were stopped, and go on.
_MARK_LEFT_US: Final = 3600 * SECOND_US
#: A verb about a job that is not found drains so many batches, or waits for another process that
#: does, which is two seconds then.
_LOOKS_MAX: Final = 100
_LOOK_S: Final = 0.02

_Answers = Sequence[Submitted | RefusedJob]


class OutboxState(NamedTuple):
    """What waits in an outbox."""

    waiting: int  #: jobs and cancels, counted up to 10,000
    oldest_s: float | None  #: for how long the first of them has been waiting


class Outbox:
    """A table in a database of yours, for `tx=` where the app's store lies elsewhere."""

    def __init__(self, database: Database, table: str, clock: Clock) -> None:
        self._database = database
        self._table = OutboxTable(table, database.family, clock)
        self._identity: object = None
        self._held: str | None = None  # a batch that could not be delivered
        self.family = database.family
        self.label = f"{database.label}, table {table}"  #: where it is, without secrets

    def __repr__(self) -> str:
        return f"<Outbox {self.label}>"

    def create(self) -> None:
        """Make its table, unless it is there; `packhorse migrate` and workers do the same."""
        try:
            self._database.work(self._table.create)
        except Exception:
            if not self.exists():  # else another process was a moment earlier
                raise

    async def acreate(self) -> None:
        """As `create`, without blocking the event loop."""
        await asyncio.to_thread(self.create)

    def state(self) -> OutboxState:
        """How many jobs and cancels wait, and for how long."""
        waiting, oldest_us = self._database.work(self._table.waiting)
        return OutboxState(waiting, None if oldest_us is None else oldest_us / SECOND_US)

    async def astate(self) -> OutboxState:
        """As `state`, without blocking the event loop."""
        return await asyncio.to_thread(self.state)

    def close(self) -> None:
        """Let go of connections that were opened for it; an engine of yours stays as it is."""
        self._database.close()

    @property
    def duty(self) -> RecordId:
        """The record that says which worker drains it."""
        return RecordId("duty", "", f"outbox:{self.label}"[:400])

    def exists(self) -> bool:
        """Whether its table is there; which one that is, is asked again."""
        probe = self._table.probe()
        rows = self._database.work(lambda way: way.rows(probe))
        self._identity, exists, _ = self._table.read_probe(rows)
        return exists

    # ------------------------------------------------------------------------ for `tx=`

    def probe(self) -> UserStatement:
        """Ask a connection, without harm to its transaction, which table it would write to."""
        return self._table.probe()

    def unfit(self, rows: Sequence[Sequence[Any]]) -> str | None:
        """What is wrong with a connection that answered this; None: it writes to this outbox."""
        identity, exists, may_insert = self._table.read_probe(rows)
        if identity != self._identity:
            return (
                f"it is connected to another database than the outbox ({self.label}), or sees "
                "another table there: give a connection to the same one"
            )
        if not exists:
            return (
                f"its database has no table {self._table.name} yet: call create() of the outbox, "
                "or run 'packhorse migrate' for this app, before the transaction begins"
            )
        if not may_insert:
            return f"its role may not write: grant it insert on {self._table.name}"
        return None

    def append(self, store: Store, requests: Sequence[IntakeRequest]) -> UserStatement:
        """Add requests; their values are sealed if those of the store are."""
        if isinstance(store, SealedStore):
            requests = sealed_requests(requests, store.sealer)
        return self._table.append(requests)

    # ----------------------------------------------------------------------- into the store

    def drain(self, store: Store) -> int:
        """Deliver one batch; says how many requests that were."""
        batch = self._take()
        if batch is None:
            return 0
        plain = plain_store(store)  # what was sealed when it was written stays as it is
        try:
            deliver(plain, batch)
            self._database.work(lambda way: self._table.remove(way, batch.id))
        except BaseException:
            # Only now: another thread of this process would take it too.
            self._held = batch.id
            raise
        self._held = None
        if any(one.job is not None for one in batch.requests):
            plain.run(plain.records.change([_put_mark(batch, None, _MARK_LEFT_US)]))
        return len(batch.requests)

    async def adrain(self, store: Store) -> int:
        """As `drain`, without blocking the event loop."""
        return await asyncio.to_thread(self.drain, store)

    def _take(self) -> OutboxBatch | None:
        if not self._database.work(self._table.any):
            return None
        return self._database.work(lambda way: self._table.take(way, self._held))

    def is_empty(self) -> bool:
        """Whether nothing waits, nor is being delivered; a table that is not there is empty."""
        with contextlib.suppress(Exception):
            return not self._database.work(self._table.any)
        return True


class Outboxes(tuple[Outbox, ...]):
    """All outboxes of an app."""

    __slots__ = ()

    def find(self, store: Store, plan: Plan[T], answer: T) -> T:
        """The answer of a verb about one job that was missed, once the outboxes are drained."""
        named = plan.named
        if named is None:
            return answer
        if self.drain(store):
            answer = store.run(plan)
        if named.missed(answer):
            holder = store.run(store.records.record(alias_of(named.job_id)))
            if holder is not None:
                answer = store.run(named.again(holder.document.decode()))
        return answer

    async def afind(self, store: Store, plan: Plan[T], answer: T) -> T:
        """As `find`, without blocking the event loop."""
        return await asyncio.to_thread(self.find, store, plan, answer)

    def drain(self, store: Store) -> int:
        """Deliver all that waits, within bounds; says how many requests that were.

        Also what another process is about to deliver is waited for: it is counted as one.
        """
        drained = 0
        for outbox in self:
            for _ in range(_LOOKS_MAX):
                delivered = outbox.drain(store)
                drained += delivered
                if delivered:
                    continue
                if outbox.is_empty():
                    break
                drained += 1
                threading.Event().wait(_LOOK_S)
        return drained

    async def adrain(self, store: Store) -> int:
        """As `drain`, without blocking the event loop."""
        return await asyncio.to_thread(self.drain, store)


def deliver(store: Store, batch: OutboxBatch) -> None:
    """Do what the requests of a batch ask for, in order; that it was done before is noticed."""
    copied = store.run(store.transfer.copied())
    if copied is not None:  # they wait for the app to be told of the other store
        raise StoreCopied(store.label, to=copied.to)
    jobs = [one.job for one in batch.requests if one.job is not None]
    if not jobs:
        for one in batch.requests:
            _cancel(store, one)
        return
    mark = _put_mark(batch, 0, _MARK_KEPT_US)
    try:
        changed = store.run(store.records.change([mark], jobs=jobs))
    except StoreUnavailable:
        raise
    except Exception:  # noqa: BLE001 - one of them is to blame, and found
        _one_by_one(store, jobs)
        return
    if changed.applied:
        _answered(store, jobs, changed.jobs, changed.now_us)
    else:
        _look_after(store, jobs)


def _put_mark(batch: OutboxBatch, expected: int | None, keep_us: int) -> Put:
    return Put(RecordId("outbox", "", batch.id), b"delivered", expected, keep_us=keep_us)


def _cancel(store: Store, request: IntakeRequest) -> None:
    answer = store.run(store.jobs.cancel(request.cancel, tenant=request.tenant))
    if answer is not CancelAnswer.UNKNOWN:
        return
    holder = store.run(store.records.record(alias_of(request.cancel)))
    if holder is not None:
        store.run(store.jobs.cancel(holder.document.decode(), tenant=request.tenant))


def _answered(store: Store, jobs: Sequence[NewJob], answers: _Answers, now_us: int) -> None:
    """Keep what was refused as dead letters, and lead from ids to those who answered for them."""
    aliases, dead = [], []
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, RefusedJob):
            dead.append(rejected(job, answer.code, answer.reason, now_us))
        elif answer.job_id != job.id:
            aliases.append(Put(alias_of(job.id), answer.job_id.encode(), keep_us=ALIAS_KEPT_US))
    if aliases:
        store.run(store.records.change(aliases))
    if dead:
        store.run(store.transfer.carry_in(dead))


def _one_by_one(store: Store, jobs: Sequence[NewJob]) -> None:
    """Store those that can be stored; the others are dead letters, or they would stop all."""
    for job in jobs:
        try:
            changed = store.run(store.records.change((), jobs=(job,)))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - kept with the job
            now_us = store.run(store.inspection.outlook("", (), ())).now_us
            letter = rejected(job, "STORE_ERROR", repr(error), now_us)
            store.run(store.transfer.carry_in((letter,)))
        else:
            _answered(store, (job,), changed.jobs, changed.now_us)


def _look_after(store: Store, jobs: Sequence[NewJob]) -> None:
    """They were delivered before, by one who may have died before what follows was written.

    A job that is not there has ended and was removed, or was refused. Only what could be refused is
    asked about again: a refusal is one again, and the idempotency key of a job that has ended
    answers for it.
    """
    shelves = {state.settings.dead_letter for state in store.run(store.queues.queues())}
    for job in jobs:
        if job.idempotency is None and job.weight == 1 and job.queue not in shelves:
            continue
        if store.run(store.inspection.job(job.id)) is None:
            changed = store.run(store.records.change((), jobs=(job,)))
            _answered(store, (job,), changed.jobs, changed.now_us)
