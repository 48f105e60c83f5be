# SPDX-License-Identifier: MIT
"""Encrypt what older keys have sealed with the active one, job by job, while work goes on.

Each value is opened and sealed here, and exchanged in the store only where it still stands, so that
a run may be interrupted, repeated, and go beside workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from packhorse.client.sealed_store import SealedStore
from packhorse.client.sealer import loose_place, place
from packhorse.core.info import has_attachments
from packhorse.core.job import AttemptError, JobRecord
from packhorse.core.sealing import token_of
from packhorse.stores.requests import JobFilter

__all__ = ["PAGE_JOBS", "Rotation", "rotate"]

#: Jobs looked at between two words of progress.
PAGE_JOBS: Final = 100


class Rotation(msgspec.Struct):
    """What a rotation has come to."""

    jobs: int = 0  #: looked at
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
    """Go through all jobs, the newest first; `progress` hears where the next page begins."""
    told, unreadable = Rotation(), Counter[str]()
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
    plain, keys = store.plain, store.sealer.keys
    record = plain.run(plain.inspection.job(job_id))
    if record is None:  # it is gone by now
        return 0
    loose, texts = loose_place(record.task, record.tenant), dict[str, str]()
    for text, where in _values(store, record):
        was = token_of(text)
        if was is None or was["key"] == keys.active:
            continue
        value = keys.open(text, where, loose_place=loose)
        if value is None:
            unreadable[was["key"]] += 1
            continue
        new = keys.seal(value, loose, loose_for=job_id) if was["loose"] else keys.seal(value, where)
        became = token_of(new)
        if became is not None:
            texts[was[0]] = became[0]
    if texts:
        plain.run(plain.transfer.exchange(job_id, texts))
    return len(texts)


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
