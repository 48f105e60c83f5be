# SPDX-License-Identifier: MIT
"""What a worker and a process that runs handlers for it say: one JSON document per line."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse.job import Job, Progress
from packhorse.outcome import (
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

__all__ = [
    "Broken",
    "Cancel",
    "Done",
    "LeaseGone",
    "Logged",
    "Noted",
    "Ready",
    "Run",
    "Setup",
    "done",
    "encode",
    "outcome_of",
    "read_from_process",
    "read_to_process",
]


class Setup(msgspec.Struct, frozen=True, tag="setup"):
    """How to become ready: what to import, and within which limits."""

    app: str  #: `module:attribute`
    path: tuple[str, ...]  #: where modules are looked for
    main: str | None  #: the file to import as the main module, when the app is in it
    worker: str
    log_level: int
    memory_bytes: int | None = None
    cpu_s: int | None = None


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Run this job."""

    job: Job


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The job that runs is not wanted any more."""


class LeaseGone(msgspec.Struct, frozen=True, tag="lease_gone"):
    """Others may hold the job by now, or, `False`, may not."""

    gone: bool


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The app is imported, and its lifespan hooks have been entered."""


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The app could not be imported, or a lifespan hook failed."""

    message: str
    stack: str | None = None
    hopeless: bool = False  #: it will not do any better the next time


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What the job came to, and how the process is after it."""

    kind: str
    body: msgspec.Raw
    memory_mib: float
    rebuild: bool = False  #: something happened that nobody expected: do not use this one again


class Noted(msgspec.Struct, frozen=True, tag="noted"):
    """The job says how far it is."""

    progress: Progress


class Logged(msgspec.Struct, frozen=True, tag="logged"):
    """A line for the log."""

    logger: str
    level: int
    message: str
    fields: dict[str, Any] = {}
    exception: str = ""  #: the traceback that goes with it


ToProcess = Setup | Run | Cancel | LeaseGone
FromProcess = Ready | Broken | Done | Noted | Logged

_TO: Final = msgspec.json.Decoder(ToProcess)
_FROM: Final = msgspec.json.Decoder(FromProcess)
_OUTCOMES: Final[Mapping[str, type]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            *(Succeeded, Failed, TimedOut, Snoozed, Cancelled, Released, Limited, GivenUp),
        )
    }
)


def encode(message: ToProcess | FromProcess) -> bytes:
    """A message as a line."""
    return msgspec.json.encode(message) + b"\n"


def read_to_process(line: bytes) -> ToProcess:
    """What the worker said."""
    message: ToProcess = _TO.decode(line)
    return message


def read_from_process(line: bytes) -> FromProcess:
    """What the process said."""
    message: FromProcess = _FROM.decode(line)
    return message


def done(outcome: Outcome, memory_mib: float, *, rebuild: bool) -> Done:
    """An outcome as a message."""
    body = msgspec.Raw(msgspec.json.encode(outcome))
    return Done(type(outcome).__name__, body, memory_mib, rebuild)


def outcome_of(message: Done) -> Outcome:
    """The outcome in a message."""
    outcome: Outcome = msgspec.json.decode(message.body, type=_OUTCOMES[message.kind])
    return outcome
