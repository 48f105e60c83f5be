# SPDX-License-Identifier: MIT
"""The verbs of an app that are about batches."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any, TypeVar, Unpack

import msgspec

from packhorse.batches.beginning import BatchOptions, NewBatch
from packhorse.batches.changes import single_job
from packhorse.batches.handle import Batch, Batches
from packhorse.client.connection import Connection
from packhorse.client.registry import DEFAULT_QUEUE, Registry
from packhorse.client.submission import Submission
from packhorse.core.batches import BATCH_QUEUE
from packhorse.core.job import NewJob
from packhorse.task import Task

R = TypeVar("R")


class BatchVerbs:
    """Begin batches, and find those that the store holds."""

    registry: Registry
    _connection: Connection
    _submission: Submission

    @property
    def known_queues(self) -> tuple[str, ...]:
        """The queues declared, those tasks name, the default one and that of batches."""
        named = (*self._connection.queues, *self.registry.queues, DEFAULT_QUEUE, BATCH_QUEUE)
        return tuple(dict.fromkeys(named))

    @property
    def batches(self) -> Batches:
        """The batches that the store holds, to look at and to end."""
        return Batches(self._connection)

    def _member_job(self, job: NewJob, payload: bytes) -> NewJob:
        """Make the job of an item that a handler adds to its batch; for workers."""
        task = self.registry.get(job.task)
        if task is None:
            return msgspec.structs.replace(job, payload=payload)
        return single_job(task, job, payload)

    def batch(
        self, task: Task[..., R], items: Iterable[Any], /, **options: Unpack[BatchOptions]
    ) -> Batch[R]:
        """Run a task for each item, in jobs of `batch_size` items.

        An item is a mapping of arguments, or the value of the only parameter. Any iterator will
        do: it is read as the jobs are stored, and never held whole. Items that fail are tried
        again by the task's retry policy.
        """
        return NewBatch(self._submission, task.definition, task.choices, options).begin(items)

    async def abatch(
        self,
        task: Task[..., R],
        items: Iterable[Any] | AsyncIterable[Any],
        /,
        **options: Unpack[BatchOptions],
    ) -> Batch[R]:
        """As `batch`, without blocking the event loop; also of async iterators."""
        new = NewBatch(self._submission, task.definition, task.choices, options)
        return await new.abegin(items)
