# SPDX-License-Identifier: MIT
"""Tell a worker to claim nothing more, or to claim again; ask it what its handlers do.

By a signal, where its process can be signalled from here; anywhere else by a record, which the
worker reads as soon as it hears of it or within ten seconds, heeds, and removes. One that has not
heeded it within a minute has not heard of it. What its handlers do is asked and answered in a
record too: places in the code, never values of variables.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import msgspec

from packhorse.client.workers import WorkerInfo
from packhorse.core.clock import SECOND_US
from packhorse.core.generators import adrive, drive
from packhorse.core.policies.records import Put, Record, RecordId
from packhorse.errors import PackhorseError
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Store

QUIET_KIND: Final = "worker_quiet"
STACKS_KIND: Final = "worker_stacks"
_KEPT_US: Final = 60 * SECOND_US
_LOOK_S: Final = 0.1


class WorkerGone(PackhorseError):
    """The process of a worker has ended."""

    code = "WORKER_GONE"

    def __init__(self, worker_id: str) -> None:
        super().__init__(
            f"worker {worker_id} is gone: its process has ended; its jobs are rescued when its "
            "lease ends"
        )


class QuietOrder(msgspec.Struct, frozen=True):
    """Whether a worker is to be quiet."""

    quiet: bool
    by: str = ""  #: who says so


_ORDERS: Final = msgspec.json.Decoder(QuietOrder)


def quiet_id(worker: str) -> RecordId:
    """Where a worker is told."""
    return RecordId(QUIET_KIND, "", worker)


def quiet_put(worker: str, *, quiet: bool, by: str) -> Put:
    """How a worker is told through the store; the last word counts."""
    document = msgspec.json.encode(QuietOrder(quiet, by))
    return Put(quiet_id(worker), document, keep_us=_KEPT_US)


def read_quiet(record: Record | None) -> QuietOrder | None:
    """What a record tells a worker."""
    return None if record is None else _ORDERS.decode(record.document)


def heeds(store: Store, worker: str, *, timeout_s: float) -> bool:
    """Wait until a worker has heeded what it was told through the store."""
    for _ in range(round(timeout_s / _LOOK_S)):
        if store.run(store.records.record(quiet_id(worker))) is None:
            return True
        threading.Event().wait(_LOOK_S)
    return False


def is_here(worker: WorkerInfo) -> bool:
    """Whether a worker runs on this machine."""
    return worker.host == socket.gethostname()


def signal_worker(worker: WorkerInfo, number: int) -> bool:
    """Send a signal to the process of a worker; False if it is elsewhere or another user's."""
    if not is_here(worker):
        return False
    if not _catches(worker.pid, number):
        raise WorkerGone(worker.id)
    try:
        os.kill(worker.pid, number)
    except ProcessLookupError:
        raise WorkerGone(worker.id) from None
    except PermissionError:
        return False
    return True


def _catches(pid: int, number: int) -> bool:
    """Tell whether a process handles a signal: one that has reused a worker's pid would die of it.

    Only Linux tells; elsewhere the answer is yes.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    caught = [line.split()[1] for line in lines.splitlines() if line.startswith("SigCgt:")]
    return all(int(mask, 16) >> (number - 1) & 1 for mask in caught)


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


_STACKS: Final = msgspec.json.Decoder(WorkerStacks)


def stacks_id(worker: str) -> RecordId:
    """Return the record in which a worker is asked, and answers."""
    return RecordId(STACKS_KIND, "", worker)


def read_stacks(record: Record | None) -> WorkerStacks | None:
    """Read a question or an answer from its record."""
    return None if record is None else _STACKS.decode(record.document)


def stacks_put(stacks: WorkerStacks, version: int | None = None) -> Put:
    """Return the change that stores a question or an answer."""
    return Put(stacks_id(stacks.worker), msgspec.json.encode(stacks), version, keep_us=_KEPT_US)


def ask_stacks(store: Store, worker: str, *, by: str, timeout_s: float) -> WorkerStacks:
    """Ask a worker, and wait for its answer; without one in time, the question comes back."""
    asking = _asking(store, WorkerStacks(worker=worker, by=by), timeout_s)
    return drive(asking, lambda plan: store.run(plan) if plan else threading.Event().wait(_LOOK_S))


async def aask_stacks(store: Store, worker: str, *, by: str, timeout_s: float) -> WorkerStacks:
    """As `ask_stacks`, without blocking the event loop."""
    asking = _asking(store, WorkerStacks(worker=worker, by=by), timeout_s)
    return await adrive(asking, lambda plan: store.arun(plan) if plan else asyncio.sleep(_LOOK_S))


def _asking(
    store: Store, asked: WorkerStacks, timeout_s: float
) -> Generator[Plan[Any] | None, Any, WorkerStacks]:
    """Yield plans to run; None is a short rest."""
    yield store.records.change((stacks_put(asked),))
    for _ in range(round(timeout_s / _LOOK_S)):
        found = read_stacks((yield store.records.record(stacks_id(asked.worker))))
        if found is not None and found.answered:
            return found
        yield None
    return asked
