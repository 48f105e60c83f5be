# SPDX-License-Identifier: MIT
"""Encrypt what older keys have sealed with the active one, while work goes on.

First the documents of records, which become jobs later, then job by job. Each value is opened and
sealed here, and exchanged in the store only where it still stands, so that a run may be
interrupted, repeated, and go beside workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from packhorse.client.encryption import loose_place, place
from packhorse.client.sealed_store import SealedStore
from packhorse.core.batches import BATCH_KIND, read_batch
from packhorse.core.info import has_attachments
from packhorse.core.job import AttemptError, JobRecord, NewJob
from packhorse.core.policies.records import Put, Record
from packhorse.core.schedules import SCHEDULE_KIND, read_schedule
from packhorse.core.sealing import token_of
from packhorse.core.workflows import NODE_KIND, read_node
from packhorse.stores.requests import JobFilter

#: Jobs, or records, looked at between two words of progress.
PAGE_JOBS: Final = 100


class Rotation(msgspec.Struct):
    """What a rotation has come to."""

    jobs: int = 0  #: looked at
    records: int = 0  #: looked at: what schedules, batches and workflows hold
    values: int = 0  #: sealed with the active key now
    #: Values that no key here opens, by the ids of their keys; they stay as they are.
    unreadable: dict[str, int] = {}


class _Sealed(NamedTuple):
    """A value and where it belongs."""

    text: str | bytes
    place: str


def rotate(
    store: SealedStore,
    *,
    after: str | None = None,
    progress: Callable[[Rotation, str | None], object],
) -> Rotation:
    """Go through records and all jobs, the newest first; `progress` hears where jobs go on.

    With `after`, an earlier run has been through the records.
    """
    told, unreadable = Rotation(), Counter[str]()
    if after is None:
        _rotate_records(store, told, unreadable, progress)
    while True:
        search = store.plain.inspection.search(JobFilter(), limit=PAGE_JOBS, after=after)
        page = store.plain.run(search)
        for found in page.jobs:
            told.values += _rotate_job(store, found.id, unreadable)
            told.jobs += 1
        told.unreadable = dict(unreadable)
        after = page.after
        progress(told, after)
        if after is None:
            return told


def _rotate_job(store: SealedStore, job_id: str, unreadable: Counter[str]) -> int:
    """Exchange the values of one job; returns how many."""
    plain = store.plain
    record = plain.run(plain.inspection.job(job_id))
    if record is None:  # it is gone by now
        return 0
    loose, texts = loose_place(record.task, record.tenant), dict[str, str]()
    for value in _values(store, record):
        old, new = token_of(value.text), _resealed(store, value, loose, job_id, unreadable)
        became = None if new is None else token_of(new)
        if old is not None and became is not None:
            texts[old[0]] = became[0]
    if texts:
        plain.run(plain.transfer.exchange(job_id, texts))
    return len(texts)


def _resealed(
    store: SealedStore, value: _Sealed, loose: str, keeper: str, unreadable: Counter[str]
) -> str | None:
    """A value under the active key; None: it is that already, or plain, or cannot be read."""
    keys, was = store.sealer.keys, token_of(value.text)
    if was is None or was["key"] == keys.active:
        return None
    opened = keys.open(value.text, value.place, loose_place=loose)
    if opened is None:
        unreadable[was["key"]] += 1
        return None
    return (
        keys.seal(opened, loose, loose_for=keeper)
        if was["loose"]
        else keys.seal(opened, value.place)
    )


def _rotate_records(
    store: SealedStore,
    told: Rotation,
    unreadable: Counter[str],
    progress: Callable[[Rotation, str | None], object],
) -> None:
    """Exchange what the documents of records hold of jobs."""
    plain, after = store.plain, None
    while True:
        page = plain.run(plain.records.records(None, after=after, limit=PAGE_JOBS))
        for record in page.records:
            told.values += _rotate_record(store, record, page.now_us, unreadable)
            told.records += 1
        told.unreadable = dict(unreadable)
        after = page.after
        if after is None:
            return
        progress(told, None)


def _rotate_record(store: SealedStore, found: Record, now_us: int, unreadable: Counter[str]) -> int:
    """Exchange the jobs of one record, again if it has changed meanwhile; returns how many."""
    plain = store.plain
    record: Record | None = found
    while record is not None:
        kept = _KeptJobs(store, record.id.text)
        document = kept.exchanged(record)
        keep_us = None if record.expires_us is None else max(1, record.expires_us - now_us)
        put = Put(record.id, document, record.version, record.order, keep_us)
        if not kept.number or plain.run(plain.records.change([put])).applied:
            unreadable.update(kept.unreadable)
            return kept.number
        record = plain.run(plain.records.record(record.id))
    return 0


class _KeptJobs:
    """The jobs that one record keeps, under the active key."""

    def __init__(self, store: SealedStore, keeper: str) -> None:
        self._store = store
        self._keeper = keeper
        self.number = 0  #: of those that were exchanged
        self.unreadable = Counter[str]()

    def exchanged(self, record: Record) -> bytes:
        """The document of a record with its jobs under the active key."""
        kind, document = record.id.kind, record.document
        if kind == BATCH_KIND:
            batch = read_batch(document)
            callbacks = {name: self._job(job) for name, job in batch.callbacks.items()}
            return msgspec.json.encode(msgspec.structs.replace(batch, callbacks=callbacks))
        if kind not in (SCHEDULE_KIND, NODE_KIND):
            return document
        kept = read_schedule(document) if kind == SCHEDULE_KIND else read_node(document)
        return msgspec.json.encode(msgspec.structs.replace(kept, job=self._job(kept.job)))

    def _job(self, job: NewJob) -> NewJob:
        value, loose = place(job.id, "payload"), loose_place(job.task, job.tenant)
        sealed = _Sealed(job.payload, value)
        text = _resealed(self._store, sealed, loose, self._keeper, self.unreadable)
        if text is None:
            return job
        self.number += 1
        return msgspec.structs.replace(job, payload=text.encode())


def _values(store: SealedStore, record: JobRecord) -> Iterator[_Sealed]:
    plain, job_id = store.plain, record.id
    yield _Sealed(record.payload, place(job_id, "payload"))
    if record.result is not None:
        yield _Sealed(record.result, place(job_id, "result"))
    yield from _errors(job_id, [record.error])
    if record.counters.attempts:
        history = plain.run(plain.inspection.history(job_id))
        yield from _errors(job_id, [line.error for line in history])
    kept = plain.run(plain.attachments.attachments(job_id)) if has_attachments(record) else None
    if kept is not None:
        for name, value in kept.values.items():
            yield _Sealed(value, place(job_id, "step", name))
        for name, came in kept.signals.items():
            yield from (_Sealed(value, place(job_id, "signal", name)) for value in came)


def _errors(job_id: str, errors: Iterable[AttemptError | None]) -> Iterator[_Sealed]:
    where = place(job_id, "error")
    return (_Sealed(error.message, where) for error in errors if error is not None)
