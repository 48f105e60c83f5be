# SPDX-License-Identifier: MIT
"""What becomes of a job after an attempt: decided purely, written by a store."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

from packhorse.job import AttemptError, DeadReason, JobStatus

__all__ = ["Settlement", "SettlementKind", "Verdict"]


class SettlementKind(IntEnum):
    """How an attempt ended; stored beside the fence, so that a repeated write is recognised."""

    COMPLETED = 1
    FAILED = 2
    TIMEOUT = 3
    SNOOZED = 4
    CANCELLED = 5
    RELEASED = 6
    DEAD = 7
    RESCUED = 8
    LIMITED = 9


class Settlement(msgspec.Struct, frozen=True):
    """The whole of what a store must write; it adds its clock and nothing else of its own.

    Three rules run inside the store, because only there are they atomic:
    it applies only while the job is processing with this `fence`; a cancel flag turns it into
    cancelled; a delay that ends after the job's deadline turns it into dead `expired`.
    """

    job_id: str
    fence: int
    kind: SettlementKind
    status: JobStatus  #: what the job becomes
    delay_us: int = 0  #: for a job that waits; 0 is queued at once
    keep_place: bool = False  #: a released or rescued job keeps its place in the line
    ended: bool = True  #: an execution ended: attempts + 1 and a line of history
    failures: int = 0  #: added to the counter of that name, like the next four
    crashes: int = 0
    lone_crashes: int = 0
    snoozes: int = 0
    releases: int = 0
    result: str | None = None  #: JSON text, of a completed job
    error: AttemptError | None = None
    dead_reason: DeadReason | None = None
    keep_us: int | None = None  #: lifetime of the record if it ends completed or cancelled
    result_keep_us: int | None = None  #: lifetime of its result
    dead_keep_us: int | None = None  #: lifetime of the record if it ends dead
    suspect: bool = False  #: of a rescue: it is to run alone from now on
    limit_us: int = 0  #: of a limited one: how long its task's rate gate is closed from now


class Verdict(StrEnum):
    """A store's answer to one settlement."""

    APPLIED = "applied"  #: written, now or by the same settlement sent before
    CANCELLED = "cancelled"  #: written as cancelled: the flag wins over every outcome
    EXPIRED = "expired"  #: written as dead: the retry would have come after the deadline
    STALE = "stale"  #: nothing written: the job is somebody else's by now
