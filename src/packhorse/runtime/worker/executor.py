# SPDX-License-Identifier: MIT
"""Run one attempt and say what it came to: decode, call the handler, classify what it did.

Nothing user code does makes these functions raise: its failures are values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeGuard

import msgspec

from packhorse.context import Context, entered_job
from packhorse.core.job import AttemptError, DeadReason
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
from packhorse.core.policies.retry import qualified_name
from packhorse.core.text import bounded_stack, stack_of, storable, text_of
from packhorse.protocol import TaskError
from packhorse.runtime.worker.attempt import Attempt, Ending, Stage
from packhorse.runtime.worker.plans import too_large
from packhorse.signals import JobSignal, RateLimited, Reject, Retry, Snooze

__all__ = [
    "MESSAGE_LENGTH_MAX",
    "Executor",
    "as_error_object",
    "described",
    "ended_by_worker",
    "oversized",
    "raised",
    "raised_in",
    "returned_error",
    "signalled",
]

_NOTHING: Final = Succeeded("null")
#: A tuple, since a union would be made again for each result.
_ERROR_OBJECTS: Final = (BaseException, TaskError)


class Executor:
    """Calls handlers."""

    def __init__(self, make_context: Callable[[Attempt], Context], worker: str = "") -> None:
        self._make_context = make_context
        self.worker = worker

    async def execute(self, attempt: Attempt) -> Outcome:
        """Run a coroutine handler."""
        try:
            return _returned(attempt, await self._call(attempt))
        except BaseException as error:  # noqa: BLE001 - SystemExit fails the job, not the worker
            return raised_in(attempt, error)

    def execute_here(self, attempt: Attempt) -> Outcome:
        """Run a plain handler in the calling thread."""
        try:
            return _returned(attempt, self._call(attempt))
        except BaseException as error:  # noqa: BLE001 - as above
            return raised_in(attempt, error)

    def _call(self, attempt: Attempt) -> Any:
        """Decode the arguments and call the handler; of a coroutine, that is its beginning."""
        if attempt.ending is not None:
            raise asyncio.CancelledError
        entered_job(attempt.job, self.worker)
        plan = attempt.plan
        try:
            arguments = plan.decode(attempt.job.payload)
        except Exception as error:  # annotations may run user code
            raise _UnreadableArguments from error
        if plan.wants_context:
            return plan.call(plan.function, arguments, self.context(attempt))
        return plan.call(plan.function, arguments)

    def context(self, attempt: Attempt) -> Context:
        """The attempt's context; made when first asked for."""
        context = attempt.context
        if context is None:
            context = attempt.context = self._make_context(attempt)
            if attempt.ending is not None:  # told to stop while it was being made
                context.request_cancel()
        return context


def _returned(attempt: Attempt, value: Any) -> Outcome:
    """What a returned value means."""
    if attempt.ending is not None:
        # It was told to stop and ended in its own way: what it made of that does not count.
        return ended_by_worker(attempt, attempt.ending)
    if value is None:
        return _NOTHING
    if as_error_object(value):
        return returned_error(value)
    try:
        result = attempt.plan.encode_result(value)
    except Exception as error:  # noqa: BLE001 - results may be user classes
        return raised(error, code="INVALID_OUTPUT")
    problem = too_large(attempt.plan, result)
    return Succeeded(result) if problem is None else oversized(problem)


class _UnreadableArguments(Exception):
    """The payload does not fit the handler; the cause says why."""


def raised_in(attempt: Attempt, error: BaseException) -> Outcome:
    """What an attempt came to in which this was raised; the worker's own ending comes first."""
    if attempt.ending is not None:
        return ended_by_worker(attempt, attempt.ending)
    if isinstance(error, _UnreadableArguments) and isinstance(error.__cause__, Exception):
        return _unreadable(attempt, error.__cause__)
    return raised(error)


def _unreadable(attempt: Attempt, error: Exception) -> Outcome:
    """Why the arguments could not be read: no JSON object at all, or one that does not fit."""
    if not _is_readable(attempt.job.payload, whole=attempt.plan.whole):
        reason, code = DeadReason.UNDECODABLE, "UNDECODABLE"
    else:
        reason, code = DeadReason.INVALID_REQUEST, "INVALID_REQUEST"
    return GivenUp(reason, described(error, code=code)).carrying(error)


def _is_readable(payload: str, *, whole: bool) -> bool:
    try:
        return isinstance(msgspec.json.decode(payload), dict) or whole
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


#: A longer message is cut; it is stored with every attempt.
MESSAGE_LENGTH_MAX: Final = 2_000
#: Longer names of types, codes and reasons are cut; they are meant to be a word.
_WORD_LENGTH_MAX: Final = 200


def raised(error: BaseException, *, code: str = "EXCEPTION") -> Outcome:
    """What a raised exception or signal means."""
    if isinstance(error, JobSignal):
        return signalled(error)
    return Failed(described(error, code=code), kinds=_kinds(type(error))).carrying(error)


def signalled(signal: JobSignal) -> Outcome:
    """What a handler's signal, raised or returned, asks for."""
    match signal:
        case Snooze():
            return Snoozed(signal.delay_us)
        case RateLimited():
            return Limited(signal.retry_after_us)
        case Reject():
            error = _error("Reject", str(signal), "REJECTED", reason="rejected")
            return GivenUp(DeadReason.REJECTED, error).carrying(signal)
        case Retry():
            error = _error("Retry", str(signal), "RETRY_REQUESTED", reason="retry_requested")
            failed = Failed(error, asked=True, retry_delay_us=signal.delay_us)
            return failed.carrying(signal)
        case _:
            return Failed(described(signal), kinds=_kinds(type(signal))).carrying(signal)


def as_error_object(value: object) -> TypeGuard[BaseException | TaskError]:
    """Whether a returned value says "failed": an exception, or the error type of the protocol."""
    return isinstance(value, _ERROR_OBJECTS)


def returned_error(value: BaseException | TaskError) -> Outcome:
    """What a returned exception, signal or protocol error means; it is never a success."""
    if isinstance(value, BaseException):
        return raised(value)
    kind = type(value).__name__
    code = value.code or "EXCEPTION"
    stack = bounded_stack(value.stack) if value.stack else None
    error = _error(kind, value.message, code, reason=f"exception:{kind}", stack=stack)
    return Failed(error, kinds=_kinds(type(value)))


def oversized(problem: str) -> Outcome:
    """What a result that is too large means: another attempt would return it again."""
    error = _error("PayloadError", problem, "RESULT_TOO_LARGE", reason="result_too_large")
    return GivenUp(DeadReason.REJECTED, error)


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
        case Ending.SHUTDOWN:
            return Released(started=attempt.stage >= Stage.RUNNING)
        case Ending.TOO_LATE:
            return Released(started=False)


def described(error: BaseException, *, code: str = "EXCEPTION") -> AttemptError:
    """An exception as it is stored: type, message and stack, each bounded; no local values."""
    kind = type(error).__name__
    return _error(kind, text_of(error), code, reason=f"exception:{kind}", stack=stack_of(error))


def _error(
    kind: str, message: str, code: str, *, reason: str, stack: str | None = None
) -> AttemptError:
    if len(message) > MESSAGE_LENGTH_MAX:
        message = message[: MESSAGE_LENGTH_MAX - 1] + "…"
    kind, code, reason = [storable(word[:_WORD_LENGTH_MAX]) for word in (kind, code, reason)]
    return AttemptError(type=kind, message=storable(message), code=code, reason=reason, stack=stack)


def _kinds(kind: type) -> tuple[str, ...]:
    """The names a retry policy is matched against.

    What is no Exception (a handler's own SystemExit or CancelledError, a returned TaskError) is
    an ordinary failure of the job, so a policy that names Exception means it too.
    """
    names = tuple(qualified_name(base) for base in kind.__mro__)
    return names if issubclass(kind, Exception) else (*names, qualified_name(Exception))
