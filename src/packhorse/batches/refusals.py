# SPDX-License-Identifier: MIT
"""Callbacks that the store did not take."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from packhorse.core.batches import callbacks_refused, put_batch, read_batch
from packhorse.core.policies.journal import Group
from packhorse.core.policies.records import Record
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RefusedJob

__all__ = ["refused_callbacks"]

#: How often a note is tried again that another change came before.
_TRIES: Final = 50


def refused_callbacks(
    store: Store, group: Group, changed: Changed
) -> Generator[Plan[Any], Any, None]:
    """Note with a batch which of its callbacks the store did not take, and why."""
    reasons = {one.job_id: one.reason for one in changed.jobs if isinstance(one, RefusedJob)}
    for _ in range(_TRIES if reasons else 0):
        record: Record | None = yield store.records.record(group.record)
        if record is None:
            return
        noted = callbacks_refused(read_batch(record.document), reasons)
        answer: Changed = yield store.records.change((put_batch(noted, record.version),))
        if answer.applied:
            return
