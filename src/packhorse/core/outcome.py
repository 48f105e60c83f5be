# SPDX-License-Identifier: MIT
"""What one attempt came to. The executor says which; `lifecycle.settle` decides what follows."""

from __future__ import annotations

from typing import Final, Self

import msgspec

from packhorse.core.job import AttemptError, DeadReason
from packhorse.core.text import storable

#: A longer message is cut; it is stored with every attempt.
MESSAGE_LENGTH_MAX: Final = 2_000
#: How long a wait without an end may last: a hundred years.
FOREVER_US: Final = 100 * 365 * 86_400 * 1_000_000
#: A wait without an end ends so long before the deadline of its job, which then passes.
_MARGIN_US: Final = 1_000
#: Longer names of types, codes and reasons are cut; they are meant to be a word.
_WORD_LENGTH_MAX: Final = 200


class Succeeded(msgspec.Struct, frozen=True, gc=False):
    """The handler returned; `result` is JSON text."""

    result: str
    counted: tuple[int, int] | None = None  #: items of a chunk, and those that failed


class _Raised(msgspec.Struct, frozen=True, dict=True):
    """An outcome that may come from an exception."""

    @property
    def exception(self) -> BaseException | None:
        """What was raised, if that was in this process. Not a field: it is never written."""
        return self.__dict__.get("exception")

    def carrying(self, exception: BaseException) -> Self:
        """The same outcome, with what was raised."""
        self.__dict__["exception"] = exception
        return self


class Failed(_Raised, frozen=True):
    """The handler raised, or asked for a retry."""

    error: AttemptError
    kinds: tuple[str, ...] = ()  #: qualified names along the exception's MRO
    asked: bool = False  #: the handler raised `Retry`: its kind is not looked at
    retry_delay_us: int | None = None  #: a delay the handler asked for, instead of the policy's
    counted: tuple[int, int] | None = None  #: as above


class TimedOut(msgspec.Struct, frozen=True):
    """The attempt took longer than it may."""

    error: AttemptError
    deadline: bool = False  #: it was the whole job's deadline, so there is no retry


class Snoozed(msgspec.Struct, frozen=True):
    """The handler asked to be called again later; nothing failed."""

    delay_us: int
    counts: bool = True  #: against `max_snoozes`; a step that sleeps or waits does not
    waits: int | None = None  #: a signal ends the wait; it has seen so many
    begun: bool = True  #: the handler has; else the job is given back as it came
    error: AttemptError | None = None  #: why it waits, where that is worth telling
    asks: bool = False  #: the handler needs a person, and the question has not been kept yet

    def why(self, attempts: int) -> AttemptError | None:
        """Its error, with the attempts that have ended by then; `attempts` had before."""
        if self.error is None:
            return None
        return msgspec.structs.replace(self.error, attempts=attempts + self.begun)


class Cancelled(msgspec.Struct, frozen=True):
    """The job was cancelled while it ran, and the handler was stopped."""


class Released(msgspec.Struct, frozen=True):
    """The worker gives the job back: shutdown, or look-ahead it did not use."""

    started: bool  #: the handler had begun, so the attempt is part of history


class Limited(msgspec.Struct, frozen=True):
    """The limit of another system was met: nothing failed, and others of its kind must wait too."""

    retry_after_us: int


class Crashed(msgspec.Struct, frozen=True):
    """The process that ran this job alone died of it; the worker did not."""

    error: AttemptError


class GivenUp(_Raised, frozen=True):
    """There is no point in trying again: rejected, undecodable, or invalid."""

    reason: DeadReason
    error: AttemptError
    counted: tuple[int, int] | None = None  #: as above


Outcome = (
    Succeeded | Failed | TimedOut | Snoozed | Cancelled | Released | Limited | Crashed | GivenUp
)


def forever_us(deadline_us: int | None, now_us: int) -> int:
    """How long a wait without an end lasts: until the deadline of the job, if it has one."""
    left_us = 0 if deadline_us is None else deadline_us - now_us - _MARGIN_US
    return left_us if left_us > 0 else FOREVER_US


def asking(error: AttemptError) -> Snoozed:
    """What an attempt comes to whose handler needs a person."""
    return Snoozed(FOREVER_US, counts=False, error=error, asks=True)


def attempt_error(
    kind: str, message: str, code: str, *, reason: str, stack: str | None = None
) -> AttemptError:
    """What went wrong, each part bounded and such that every store can keep it."""
    if len(message) > MESSAGE_LENGTH_MAX:
        message = message[: MESSAGE_LENGTH_MAX - 1] + "…"
    kind, code, reason = [storable(word[:_WORD_LENGTH_MAX]) for word in (kind, code, reason)]
    return AttemptError(type=kind, message=storable(message), code=code, reason=reason, stack=stack)
