# SPDX-License-Identifier: MIT
"""Messages between a worker process and its supervisor: one JSON document per line."""

from __future__ import annotations

from typing import Final

import msgspec

from packhorse.core.job import RetryRule
from packhorse.core.policies.series import Series, added, merged

#: The fields of a report that only rise, and add up over workers.
COUNTS: Final = ("succeeded", "failed", "retried", "dead", "expired", "timed_out", "abandoned")


class TaskRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of a task, for settling its jobs without its code."""

    retry: RetryRule | None = None
    max_snoozes: int | None = None
    result_keep_us: int | None = None
    worker_id: str = ""  #: of its contract


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A worker has begun; this is all that is needed to keep its lease."""

    worker: str
    pid: int
    url: str | None  #: of the store; None if it lives inside the worker
    label: str  #: the same, secrets masked
    queues: tuple[str, ...]
    tasks: dict[str, TaskRules]
    lease_us: int
    concurrency: int
    version: str
    host: str
    stop_grace_us: int
    shutdown_timeout_us: int
    default_timeout_us: int
    app: str = ""


class Stuck(msgspec.Struct, frozen=True, omit_defaults=True):
    """An abandoned job whose code still runs."""

    job_id: str
    task: str
    seconds: float  #: since it was abandoned
    stack: str = ""
    kind: str = "thread"  #: or "coroutine"


class Report(msgspec.Struct, frozen=True, tag="report"):
    """What a worker has done so far, and its state."""

    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    expired: int = 0  #: of the dead: their deadline passed before they could begin, or begin again
    timed_out: int = 0
    abandoned: int = 0
    p95_duration_ms: float | None = None  #: of the last attempts
    running: int = 0
    trouble: str = ""  #: what fails at the store, if anything
    lease: bool = False  #: it has a lease it may trust
    quiet: bool = False
    stopping: bool = False
    stuck: tuple[Stuck, ...] = ()
    blocked: str = ""  #: the stack that blocks the event loop, while one does
    ahead: int = 0  #: jobs it holds that have not begun
    unsettled: int = 0  #: jobs that have ended and are not settled
    slots: int = 0  #: jobs it may run at once
    series: tuple[Series, ...] = ()  #: that have changed; only where they are read

    def heard_after(self, before: Report) -> Report:
        """Add the series of the report before that this one does not repeat."""
        if not before.series:
            return self
        return msgspec.structs.replace(self, series=merged(before.series, self.series))

    def after(self, past: Report) -> Report:
        """Add the counts of earlier workers."""
        sums = {name: getattr(past, name) + getattr(self, name) for name in COUNTS}
        return Report(**sums, series=added(past.series, self.series))


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """The process finishes its jobs and leaves; start its successor now."""

    reason: str


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The worker has left the store: it holds no jobs."""

    finished: bool = False  #: it has done all that it was started for


class Quiet(msgspec.Struct, frozen=True, tag="quiet"):
    """Pause claiming, or go on. Sent to the parent when a signal paused this worker."""

    on: bool


class NoSuspects(msgspec.Struct, frozen=True, tag="no_suspects"):
    """Claim no suspects, which run alone: another process does."""


FromChild = Hello | Report | Retire | Left | Quiet
ToChild = Quiet | NoSuspects

#: Of a line without its end.
READ_FROM_CHILD: Final[msgspec.json.Decoder[FromChild]] = msgspec.json.Decoder(FromChild)
READ_TO_CHILD: Final[msgspec.json.Decoder[ToChild]] = msgspec.json.Decoder(ToChild)


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message as a line."""
    return msgspec.json.encode(message) + b"\n"
