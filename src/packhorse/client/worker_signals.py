# SPDX-License-Identifier: MIT
"""Tell a worker's process on this machine to claim nothing more, or to claim again."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Final

from packhorse.client.workers import WorkerInfo
from packhorse.errors import PackhorseError

__all__ = ["QUIET", "RESUME", "WorkerElsewhere", "WorkerGone", "is_here", "signal_worker"]

QUIET: Final = signal.SIGUSR1
RESUME: Final = signal.SIGUSR2


class WorkerGone(PackhorseError):
    """The process of a worker has ended."""

    code = "WORKER_GONE"

    def __init__(self, worker_id: str) -> None:
        super().__init__(
            f"worker {worker_id} is gone: its process has ended; its jobs are rescued when its "
            "lease ends"
        )


class WorkerElsewhere(PackhorseError):
    """A worker's process cannot be told anything from here."""

    code = "WORKER_ELSEWHERE"


def is_here(worker: WorkerInfo) -> bool:
    """Whether a worker runs on this machine."""
    return worker.host == socket.gethostname()


def signal_worker(worker: WorkerInfo, number: int) -> None:
    """Send a signal to the process of a worker on this machine."""
    if not is_here(worker):
        raise WorkerElsewhere(
            f"worker {worker.id} runs on {worker.host}, and signals do not go there; do it on "
            "that machine"
        )
    if not _heeds(worker.pid, number):
        raise WorkerGone(worker.id)
    try:
        os.kill(worker.pid, number)
    except ProcessLookupError:
        raise WorkerGone(worker.id) from None
    except PermissionError:
        raise WorkerElsewhere(
            f"worker {worker.id} runs as another user, who alone may tell its process "
            f"{worker.pid}; do it as that user"
        ) from None


def _heeds(pid: int, number: int) -> bool:
    """Tell whether a process handles a signal: one that has reused a worker's pid would die of it.

    Only Linux tells; elsewhere the answer is yes.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    caught = [line.split()[1] for line in lines.splitlines() if line.startswith("SigCgt:")]
    return all(int(mask, 16) >> (number - 1) & 1 for mask in caught)
