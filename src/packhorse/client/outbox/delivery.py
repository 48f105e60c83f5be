# SPDX-License-Identifier: MIT
"""From an outbox into the store, once: a batch is taken, stored under a mark, and then removed.

The mark is a record with the name of the batch, written by the change that stores its jobs. Who
dies before that change leaves the batch to be delivered again, who dies behind it leaves a mark
that refuses a second time, however long ago the jobs have ended and been forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from packhorse.client.outbox.table import OutboxBatch
from packhorse.core.clock import SECOND_US
from packhorse.core.job import NewJob
from packhorse.core.lifecycle import CancelAnswer
from packhorse.core.policies.records import Put, RecordId, Remove
from packhorse.errors import StoreCopied, StoreUnavailable
from packhorse.stores.intake import ALIAS_KEPT_US, IntakeRequest, alias_of
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import RefusedJob
from packhorse.stores.requests import Submitted
from packhorse.stores.transfer import rejected

#: A batch whose rows are removed needs no mark; it is kept so long should it be left behind.
_MARK_KEPT_US: Final = 90 * 24 * 3600 * SECOND_US

_Answers = Sequence[Submitted | RefusedJob]


def deliver(store: Store, batch: OutboxBatch) -> Asking[None]:
    """Do what the requests of a batch ask for, in order; that it was done before is noticed."""
    copied = yield store.transfer.copied()
    if copied is not None:  # they wait for the app to be told of the other store
        raise StoreCopied(store.label, to=copied.to)
    jobs = [one.job for one in batch.requests if one.job is not None]
    if not jobs:
        for one in batch.requests:
            yield from _cancel(store, one)
        return
    mark = Put(_mark(batch), b"delivered", 0, keep_us=_MARK_KEPT_US)
    try:
        changed = yield store.records.change([mark], jobs=jobs)
    except StoreUnavailable:
        raise
    except Exception:  # noqa: BLE001 - one of them is to blame, and found
        yield from _one_by_one(store, jobs)
        return
    if changed.applied:
        yield from _answered(store, jobs, changed.jobs, changed.now_us)
    else:
        yield from _look_after(store, jobs)


def forget(store: Store, batch: OutboxBatch) -> Asking[None]:
    """Remove the mark of a batch that is not in the outbox any more."""
    yield store.records.change([Remove(_mark(batch))])


def _mark(batch: OutboxBatch) -> RecordId:
    return RecordId("outbox", "", batch.id)


def _cancel(store: Store, request: IntakeRequest) -> Asking[None]:
    answer = yield store.jobs.cancel(request.cancel, tenant=request.tenant)
    if answer is not CancelAnswer.UNKNOWN:
        return
    holder = yield store.records.record(alias_of(request.cancel))
    if holder is not None:
        yield store.jobs.cancel(holder.document.decode(), tenant=request.tenant)


def _answered(store: Store, jobs: Sequence[NewJob], answers: _Answers, now_us: int) -> Asking[None]:
    """Keep what was refused as dead letters, and lead from ids to those who answered for them."""
    aliases, dead = [], []
    for job, answer in zip(jobs, answers, strict=True):
        if isinstance(answer, RefusedJob):
            dead.append(rejected(job, answer.code, answer.reason, now_us))
        elif answer.job_id != job.id:
            aliases.append(Put(alias_of(job.id), answer.job_id.encode(), keep_us=ALIAS_KEPT_US))
    if aliases:
        yield store.records.change(aliases)
    if dead:
        yield store.transfer.carry_in(dead)


def _one_by_one(store: Store, jobs: Sequence[NewJob]) -> Asking[None]:
    """Store those that can be stored; the others are dead letters, or they would stop all."""
    for job in jobs:
        try:
            changed = yield store.records.change((), jobs=(job,))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - kept with the job
            now_us = (yield store.inspection.outlook("", (), ())).now_us
            yield store.transfer.carry_in((rejected(job, "STORE_ERROR", repr(error), now_us),))
        else:
            yield from _answered(store, (job,), changed.jobs, changed.now_us)


def _look_after(store: Store, jobs: Sequence[NewJob]) -> Asking[None]:
    """They were delivered before, by one who may have died before what follows was written.

    A job that is not there has ended and was removed, or was refused. Only what could be refused is
    asked about again: a refusal is one again, and the idempotency key of a job that has ended
    answers for it.
    """
    shelves = {state.settings.dead_letter for state in (yield store.queues.queues())}
    for job in jobs:
        if job.idempotency is None and job.weight == 1 and job.queue not in shelves:
            continue
        if (yield store.inspection.job(job.id)) is None:
            changed = yield store.records.change((), jobs=(job,))
            yield from _answered(store, (job,), changed.jobs, changed.now_us)
