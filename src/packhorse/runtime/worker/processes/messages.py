# SPDX-License-Identifier: MIT
"""Messages between a worker and a process that runs handlers: one JSON document per line."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse.core.job import Job, Progress
from packhorse.core.outcome import (
    Cancelled,
    Failed,
    GivenUp,
    Limited,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    TimedOut,
)


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """What to import, and the limits of the process."""

    app: str  #: `module:attribute`
    folder: str  #: the working directory the worker's app was made in, if it is known
    path: tuple[str, ...]  #: `sys.path`
    main: str | None  #: the file to import as the main module, when the app is in it
    worker: str
    log_level: int
    memory_bytes: int | None = None
    cpu_s: int | None = None
    recycle_on: str = "fatal"  #: see `WorkerOptions`
    tells_memory: bool = False  #: after each job; asking costs as much as a small job
    include: tuple[str, ...] = ()  #: modules that declare more of the app's tasks
    url: str | None = None  #: of the worker's store, which may be another than the app names


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Run this job."""

    job: Job
    #: The store's clock less the monotonic one, which all processes share: at least, at most.
    offsets_us: tuple[int, int]
    start_by: float | None = None  #: by the monotonic clock
    carrier: dict[str, str] | None = None  #: trace context of the attempt, as headers carry it


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancel this job if it still runs."""

    job_id: str
    fence: int


class LeaseGone(msgspec.Struct, frozen=True, tag="lease_gone"):
    """Tell whether the worker's lease may be lost, so that others may hold the job."""

    gone: bool


class Where(msgspec.Struct, frozen=True, tag="where"):
    """Tell where the handler is."""


class Whereabouts(msgspec.Struct, frozen=True, tag="whereabouts"):
    """Where the handler of a job is."""

    job_id: str
    fence: int
    stack: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The app is imported, and its lifespan hooks have been entered."""


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The app could not be imported, or a lifespan hook failed."""

    message: str
    stack: str | None = None
    hopeless: bool = False  #: it would fail again


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The outcome of a job, and the state of the process after it."""

    job_id: str
    fence: int
    kind: str
    body: msgspec.Raw
    memory_mib: float  #: 0: not asked for
    rebuild: str = ""  #: why the process must be replaced, if it must


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """A job reports progress."""

    job_id: str
    fence: int
    progress: Progress


class Logged(msgspec.Struct, frozen=True, tag="logged"):
    """A log record."""

    logger: str
    level: int
    message: str
    fields: dict[str, Any] = {}
    exception: str = ""  #: the traceback that goes with it

    def log(self) -> None:
        """Log it in this process."""
        logger = logging.getLogger(self.logger)
        if logger.isEnabledFor(self.level):
            about = (self.logger, self.level, "", 0, "%s", (self.message,), None)
            record = logger.makeRecord(*about, extra=self.fields)
            record.exc_text = self.exception or None
            contextvars.Context().run(logger.handle, record)  # outside of any job that runs here


ToProcess = Setup | Run | Cancel | LeaseGone | Where
FromProcess = Ready | Broken | Done | Noted | Logged | Whereabouts

#: Of a line without its end.
READ_TO: Final[msgspec.json.Decoder[ToProcess]] = msgspec.json.Decoder(ToProcess)
READ_FROM: Final[msgspec.json.Decoder[FromProcess]] = msgspec.json.Decoder(FromProcess)
_OUTCOMES: Final[Mapping[str, type]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            *(Succeeded, Failed, TimedOut, Snoozed, Cancelled, Released, Limited, GivenUp),
        )
    }
)


def done(job: Job, outcome: Outcome, memory_mib: float, *, rebuild: str) -> Done:
    """Put an outcome into a message."""
    body = msgspec.Raw(msgspec.json.encode(outcome))
    return Done(job.id, job.fence, type(outcome).__name__, body, memory_mib, rebuild)


def outcome_of(message: Done) -> Outcome:
    """Take the outcome out of a message."""
    outcome: Outcome = msgspec.json.decode(message.body, type=_OUTCOMES[message.kind])
    return outcome
