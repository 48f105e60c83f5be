# SPDX-License-Identifier: MIT
"""Ask a worker anywhere what its handlers do: a record asks, and the worker answers in it.

Answers hold places in the code, never values of variables; question and answer expire after a
minute.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.core.policies.records import Put, Record, RecordId
from packhorse.stores.protocol import Store

STACKS_KIND: Final = "worker_stacks"
_KEPT_US: Final = 60 * SECOND_US
_LOOK_S: Final = 0.1


class HandlerStack(msgspec.Struct, frozen=True, kw_only=True):
    """Where the handler of one job is."""

    job_id: str
    task: str
    seconds: float  #: since it began
    kind: str  #: `thread`, `coroutine` or `process`
    stack: str


class WorkerStacks(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of a worker, and what it answered."""

    worker: str
    by: str = ""  #: who asked
    answered: bool = False
    more: int = 0  #: handlers that were left out
    stacks: tuple[HandlerStack, ...] = ()


_decode: Final = msgspec.json.Decoder(WorkerStacks).decode


def stacks_id(worker: str) -> RecordId:
    """Return the record in which a worker is asked, and answers."""
    return RecordId(STACKS_KIND, "", worker)


def read_stacks(record: Record | None) -> WorkerStacks | None:
    """Read a question or an answer from its record."""
    return None if record is None else _decode(record.document)


def stacks_put(stacks: WorkerStacks, version: int | None = None) -> Put:
    """Return the change that stores a question or an answer."""
    return Put(stacks_id(stacks.worker), msgspec.json.encode(stacks), version, keep_us=_KEPT_US)


def ask_stacks(store: Store, worker: str, *, by: str, timeout_s: float) -> WorkerStacks:
    """Ask a worker, and wait for its answer; without one in time, the question comes back."""
    asked = WorkerStacks(worker=worker, by=by)
    store.run(store.records.change((stacks_put(asked),)))
    for _ in range(round(timeout_s / _LOOK_S)):
        found = read_stacks(store.run(store.records.record(stacks_id(worker))))
        if found is not None and found.answered:
            return found
        threading.Event().wait(_LOOK_S)
    return asked


async def aask_stacks(store: Store, worker: str, *, by: str, timeout_s: float) -> WorkerStacks:
    """As `ask_stacks`, without blocking the event loop."""
    asked = WorkerStacks(worker=worker, by=by)
    await store.arun(store.records.change((stacks_put(asked),)))
    for _ in range(round(timeout_s / _LOOK_S)):
        found = read_stacks(await store.arun(store.records.record(stacks_id(worker))))
        if found is not None and found.answered:
            return found
        await asyncio.sleep(_LOOK_S)
    return asked
