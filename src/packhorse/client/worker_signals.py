# SPDX-License-Identifier: MIT
"""Tell a worker to claim nothing more, or to claim again.

By a signal, where its process can be signalled from here; anywhere else by a record, which the
worker reads as soon as it hears of it or within ten seconds, heeds, and removes. One that has not
heeded it within a minute has not heard of it.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Final

import msgspec

from packhorse.client.workers import WorkerInfo
from packhorse.core.clock import SECOND_US
from packhorse.core.policies.records import Put, Record, RecordId
from packhorse.errors import PackhorseError
from packhorse.stores.protocol import Store

QUIET_KIND: Final = "worker_quiet"
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


_decode: Final = msgspec.json.Decoder(QuietOrder).decode


def quiet_id(worker: str) -> RecordId:
    """Where a worker is told."""
    return RecordId(QUIET_KIND, "", worker)


def quiet_put(worker: str, *, quiet: bool, by: str) -> Put:
    """How a worker is told through the store; the last word counts."""
    document = msgspec.json.encode(QuietOrder(quiet, by))
    return Put(quiet_id(worker), document, keep_us=_KEPT_US)


def read_quiet(record: Record | None) -> QuietOrder | None:
    """What a record tells a worker."""
    return None if record is None else _decode(record.document)


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
