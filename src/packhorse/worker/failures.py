# SPDX-License-Identifier: MIT
"""What user code did, as values: exceptions, signals and error objects become outcomes."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any, Final

from packhorse.job import AttemptError, DeadReason
from packhorse.outcome import (
    Cancelled,
    Failed,
    GivenUp,
    Limited,
    Outcome,
    Released,
    Snoozed,
    TimedOut,
)
from packhorse.policies.retry import qualified_name
from packhorse.signals import JobSignal, RateLimited, Reject, Retry, Snooze
from packhorse.worker.attempt import Attempt, Ending, Stage

__all__ = [
    "MESSAGE_LENGTH_MAX",
    "STACK_LENGTH_MAX",
    "as_error_object",
    "described",
    "ended_by_worker",
    "raised",
    "returned_error",
    "signalled",
]

#: A longer message is cut; it is stored with every attempt.
MESSAGE_LENGTH_MAX: Final = 2_000
#: Of a longer stack the end is kept, where the error happened.
STACK_LENGTH_MAX: Final = 8_000
_FRAMES_MAX: Final = 50
_OWN_CODE: Final = "packhorse.worker."


def raised(error: BaseException, *, code: str = "EXCEPTION") -> Outcome:
    """What a raised exception or signal means."""
    if isinstance(error, JobSignal):
        return signalled(error)
    return Failed(described(error, code=code), kinds=_kinds(type(error)))


def signalled(signal: JobSignal) -> Outcome:
    """What a handler's signal, raised or returned, asks for."""
    match signal:
        case Snooze():
            return Snoozed(signal.delay_us)
        case RateLimited():
            return Limited(signal.retry_after_us)
        case Reject():
            error = _error("Reject", str(signal), "REJECTED", reason="rejected")
            return GivenUp(DeadReason.REJECTED, error)
        case Retry():
            error = _error("Retry", str(signal), "RETRY_REQUESTED", reason="retry_requested")
            return Failed(error, asked=True, retry_delay_us=signal.delay_us)
        case _:
            return Failed(described(signal), kinds=_kinds(type(signal)))


def as_error_object(value: Any) -> bool:
    """Whether a returned value says "failed": an exception, or an error that reports itself."""
    if isinstance(value, BaseException):
        return True
    kind = type(value)
    return callable(getattr(kind, "to_payload", None)) and hasattr(value, "code")


def returned_error(value: Any) -> Outcome:
    """What a returned exception, signal or error object means; it is never a success."""
    if isinstance(value, BaseException):
        return raised(value)
    kind = type(value).__name__
    message = _text(getattr(value, "message", None) or value)
    code = getattr(value.code, "value", value.code)
    error = _error(kind, message, str(code), reason=f"exception:{kind}")
    return Failed(error, kinds=_kinds(type(value)))


def ended_by_worker(attempt: Attempt, ending: Ending) -> Outcome:
    """What an attempt that this worker ended came to, whatever its handler made of that."""
    match ending:
        case Ending.TIMEOUT:
            message = f"Task exceeded {round(attempt.timeout_s * 1000)}ms timeout"
            return TimedOut(_error("Timeout", message, "TASK_TIMEOUT", reason="job_timeout"))
        case Ending.DEADLINE:
            error = _error(
                "Timeout",
                f"Task exceeded its deadline after {round(attempt.timeout_s * 1000)}ms",
                "DEADLINE_EXCEEDED",
                reason="deadline",
            )
            return TimedOut(error, deadline=True)
        case Ending.CANCEL:
            return Cancelled()
        case Ending.SHUTDOWN | Ending.TOO_LATE:
            return Released(started=attempt.stage >= Stage.RUNNING)


def described(error: BaseException, *, code: str = "EXCEPTION") -> AttemptError:
    """An exception as it is stored: type, message and stack, each bounded; no local values."""
    kind = type(error).__name__
    return _error(kind, _text(error), code, reason=f"exception:{kind}", stack=_stack(error))


def _error(
    kind: str, message: str, code: str, *, reason: str, stack: str | None = None
) -> AttemptError:
    if len(message) > MESSAGE_LENGTH_MAX:
        message = message[: MESSAGE_LENGTH_MAX - 1] + "…"
    return AttemptError(
        type=kind, message=_storable(message), code=_storable(code), reason=reason, stack=stack
    )


def _kinds(kind: type) -> tuple[str, ...]:
    """The names a retry policy is matched against.

    What is no Exception (a handler's own SystemExit or CancelledError, a returned error object) is
    an ordinary failure of the job, so a policy that names Exception means it too.
    """
    names = tuple(qualified_name(base) for base in kind.__mro__)
    return names if issubclass(kind, Exception) else (*names, qualified_name(Exception))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a broken __str__ is user code like any other
        return f"<unprintable {type(value).__name__}>"


def _stack(error: BaseException) -> str | None:
    """The traceback from the first frame of user code on."""
    frames = error.__traceback__
    while frames is not None and _is_own(frames):
        frames = frames.tb_next
    if frames is None:
        return None
    try:
        lines = traceback.format_exception(type(error), error, frames, limit=-_FRAMES_MAX)
    except Exception:  # noqa: BLE001 - an exception that cannot be shown must not hide the failure
        return None
    text = "".join(lines)
    if len(text) > STACK_LENGTH_MAX:
        text = "…" + text[1 - STACK_LENGTH_MAX :]
    return _storable(text)


def _is_own(frames: TracebackType) -> bool:
    module = frames.tb_frame.f_globals.get("__name__", "")
    return isinstance(module, str) and module.startswith((_OWN_CODE, "packhorse.codec"))


def _storable(text: str) -> str:
    """The text without what no store can write: lone surrogates and NUL."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")
