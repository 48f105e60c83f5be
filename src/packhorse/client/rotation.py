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
from packhorse.core.job import AttemptError, JobRecord, NewJob
from packhorse.core.job_info import has_attachments
from packhorse.core.policies.records import Put, Record
from packhorse.core.schedules import SCHEDULE_KIND, read_schedule
from packhorse.core.sealing import token_of
from packhorse.core.workflows import NODE_KIND, read_node
from packhorse.stores.protocol import Store
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


#: Hears what a run has come to, and where jobs go on.
Heard = Callable[[Rotation, str | None], object]


def rotate(store: SealedStore, *, after: str | None = None, progress: Heard) -> Rotation:
    """Go through records and all jobs, the newest first; `progress` hears where jobs go on.

    With `after`, an earlier run has been through the records.
    """
    run = _Run(store)
    if after is None:
        run.through_records(progress)
    while True:
        search = store.plain.inspection.search(JobFilter(), limit=PAGE_JOBS, after=after)
        page = store.plain.run(search)
        for found in page.jobs:
            run.exchange_job(found.id)
        after = page.after
        progress(run.told, after)
        if after is None:
            return run.told


class _Run:
    """One run through a store."""

    def __init__(self, store: SealedStore) -> None:
        self._plain = store.plain
        self._keys = store.sealer.keys
        self.told = Rotation(unreadable={})

    def through_records(self, progress: Heard) -> None:
        """Exchange what the documents of records hold of jobs."""
        after: str | None = None
        while True:
            page = self._plain.run(self._plain.records.records(None, after=after, limit=PAGE_JOBS))
            for record in page.records:
                self._exchange_record(record, page.now_us)
                self.told.records += 1
            after = page.after
            if after is None:
                return
            progress(self.told, None)

    def exchange_job(self, job_id: str) -> None:
        """Exchange the values of one job."""
        self.told.jobs += 1
        record = self._plain.run(self._plain.inspection.job(job_id))
        if record is None:  # it is gone by now
            return
        loose, texts = loose_place(record.task, record.tenant), dict[str, str]()
        for value in _values(self._plain, record):
            new = self._resealed(value, loose, job_id, self.told.unreadable)
            old, became = token_of(value.text), None if new is None else token_of(new)
            if old is not None and became is not None:
                texts[old[0]] = became[0]
        if texts:
            self._plain.run(self._plain.transfer.exchange(job_id, texts))
        self.told.values += len(texts)

    def _exchange_record(self, found: Record, now_us: int) -> None:
        """Exchange the jobs of one record, again if it has changed meanwhile."""
        record: Record | None = found
        while record is not None:
            exchanged, unreadable = list[NewJob](), Counter[str]()
            document = self._exchanged(record, exchanged, unreadable)
            keep_us = None if record.expires_us is None else max(1, record.expires_us - now_us)
            put = Put(record.id, document, record.version, record.order, keep_us)
            if not exchanged or self._plain.run(self._plain.records.change([put])).applied:
                for key, count in unreadable.items():
                    self.told.unreadable[key] = self.told.unreadable.get(key, 0) + count
                self.told.values += len(exchanged)
                return
            record = self._plain.run(self._plain.records.record(record.id))

    def _exchanged(
        self, record: Record, exchanged: list[NewJob], unreadable: dict[str, int]
    ) -> bytes:
        """The document of a record with its jobs under the active key."""

        def resealed(job: NewJob) -> NewJob:
            loose = loose_place(job.task, job.tenant)
            sealed = _Sealed(job.payload, place(job.id, "payload"))
            text = self._resealed(sealed, loose, record.id.text, unreadable)
            if text is None:
                return job
            exchanged.append(job)
            return msgspec.structs.replace(job, payload=text.encode())

        kind, document = record.id.kind, record.document
        if kind == BATCH_KIND:
            batch = read_batch(document)
            callbacks = {name: resealed(job) for name, job in batch.callbacks.items()}
            return msgspec.json.encode(msgspec.structs.replace(batch, callbacks=callbacks))
        if kind not in (SCHEDULE_KIND, NODE_KIND):
            return document
        kept = read_schedule(document) if kind == SCHEDULE_KIND else read_node(document)
        return msgspec.json.encode(msgspec.structs.replace(kept, job=resealed(kept.job)))

    def _resealed(
        self, value: _Sealed, loose: str, keeper: str, unreadable: dict[str, int]
    ) -> str | None:
        """A value under the active key; None: it is that already, or plain, or cannot be read."""
        keys, was = self._keys, token_of(value.text)
        if was is None or was["key"] == keys.active:
            return None
        opened = keys.open(value.text, value.place, loose_place=loose)
        if opened is None:
            unreadable[was["key"]] = unreadable.get(was["key"], 0) + 1
            return None
        if was["loose"]:
            return keys.seal(opened, loose, loose_for=keeper)
        return keys.seal(opened, value.place)


def _values(plain: Store, record: JobRecord) -> Iterator[_Sealed]:
    job_id = record.id
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
