# SPDX-License-Identifier: MIT
"""Workers as people are shown them, from what a store knows of each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from packhorse.core.job_info import shown
from packhorse.protocol import UNSET, WorkerStats
from packhorse.stores.requests import WorkerRecord


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker: what it last reported, and what it holds."""

    id: str
    host: str
    pid: int
    version: str  #: of Packhorse
    code: str = ""  #: version of the code it runs: a given name, or a fingerprint of its files
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    running: int  #: jobs it holds now, as the store counts them
    stats: WorkerStats  #: as it last reported; totals only rise while it lives
    quiet: bool = False  #: it was told to claim nothing
    live: bool  #: its lease has not run out
    started_at: datetime
    renewed_at: datetime
    expires_at: datetime


def uptime_ms(workers: Iterable[WorkerRecord], now_us: int) -> int:
    """How long the oldest live worker has been up."""
    started = [record.started_us for record in workers if record.live]
    return max(0, now_us - min(started)) // 1000 if started else 0


def worker_info(record: WorkerRecord, now_us: int) -> WorkerInfo:
    """A worker from its record."""
    release, _, code = record.version.partition(" ")
    return shown(
        WorkerInfo,
        record,
        id=record.worker,
        version=release,
        code=code,
        stats=_worker_stats(record, now_us),
    )


def _worker_stats(record: WorkerRecord, now_us: int) -> WorkerStats:
    totals = record.totals
    ended = totals.succeeded + totals.failed
    return WorkerStats(
        worker_name=record.worker,
        total_processed=ended,
        succeeded=totals.succeeded,
        failed=totals.failed,
        active=record.running,
        avg_execution_ms=totals.execution_us / 1000 / ended if ended else UNSET,
        uptime_ms=max(0, now_us - record.started_us) // 1000,
    )
