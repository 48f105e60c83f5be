# SPDX-License-Identifier: MIT
"""What a running member asks of its batch: whether it is stopped, and to stop it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from packhorse.core.batches import put_batch, read_batch, stopped_batch
from packhorse.core.job import Job, JobOptions
from packhorse.core.policies.journal import Group
from packhorse.stores.plan import Steps
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed

#: How often a change is tried again that another one came before.
_TRIES: Final = 50


def group_of(options: str | None) -> Group | None:
    """The group that a job is a member of."""
    if options is None or '"member"' not in options:
        return None
    member = msgspec.json.decode(options, type=JobOptions).member
    return None if member is None else Group.of(member.group)


def is_stopped(job: Job) -> Callable[[Store], Steps[bool]]:
    """Whether the batch of a job starts no further members."""

    def asking(store: Store) -> Steps[bool]:
        group = group_of(job.options)
        record = None if group is None else (yield store.records.record(group.record))
        return record is not None and bool(read_batch(record.document).stopped)

    return asking


def stopping(job: Job) -> Callable[[Store], Steps[None]]:
    """Let the batch of a job start no further members."""

    def asking(store: Store) -> Steps[None]:
        group = group_of(job.options)
        if group is None:
            return
        for _ in range(_TRIES):
            record = yield store.records.record(group.record)
            batch = None if record is None else read_batch(record.document)
            if record is None or batch is None or batch.stopped:
                return
            put = put_batch(stopped_batch(batch), record.version)
            changed: Changed = yield store.records.change((put,))
            if changed.applied:
                return

    return asking
