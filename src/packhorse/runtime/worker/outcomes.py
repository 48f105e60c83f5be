# SPDX-License-Identifier: MIT
"""Turn what a handler raised or returned, or why it was stopped, into an `Outcome`."""

from __future__ import annotations

import logging
from typing import Final, TypeGuard

import msgspec

from packhorse.context import Context, job_fields
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
    asking,
    attempt_error,
)
from packhorse.core.policies.retry import qualified_name
from packhorse.core.responses import with_outputs
from packhorse.core.text import bounded_stack, stack_of, text_of
from packhorse.errors import BudgetExceeded, KeyUnavailable, ToolNotAllowed, ToolNotFound
from packhorse.protocol import TaskError
from packhorse.runtime.worker.attempt import Attempt, Ending, Stage
from packhorse.signals import (
    BreakerOpen,
    Declined,
    JobSignal,
    NeedsHuman,
    RateLimited,
    Reject,
    Retry,
    Snooze,
    Suspend,
)

_LOG: Final = logging.getLogger("packhorse.job")
#: How long a job waits whose key this worker does not have; another worker may have it.
KEY_WAIT_US: Final = 60 * 1_000_000
_ERROR_OBJECTS: Final = (BaseException, TaskError)
#: Another attempt would use the same tool, and still have nothing left to spend.
_CONTRACT_BROKEN: Final = (BudgetExceeded, ToolNotAllowed, ToolNotFound)


def raised(error: BaseException, *, code: str = "EXCEPTION") -> Outcome:
    """Return the outcome of a raised exception or signal."""
    if isinstance(error, JobSignal):
        return signalled(error)
    if isinstance(error, KeyUnavailable):
        return keyless(error)
    if isinstance(error, _CONTRACT_BROKEN):
        return GivenUp(DeadReason.REJECTED, described(error, code=error.code)).carrying(error)
    return Failed(described(error, code=code), kinds=kinds_of(type(error))).carrying(error)


def keyless(error: KeyUnavailable) -> Outcome:
    """Return the outcome of a job without its key here: it waits, and no attempt is counted."""
    _LOG.warning("%s", error, extra=job_fields())
    told, begun = described(error, code=error.code), error.what != "payload"
    return Snoozed(KEY_WAIT_US, counts=False, begun=begun, error=told)


def signalled(signal: JobSignal) -> Outcome:
    """Return the outcome that a handler's signal, raised or returned, asks for."""
    match signal:
        case Snooze():
            return Snoozed(signal.delay_us)
        case Suspend():
            return Snoozed(signal.delay_us, counts=False, waits=signal.waits, error=signal.error)
        case BreakerOpen(code=code):
            error = attempt_error("BreakerOpen", str(signal), code, reason=code)
            return Snoozed(signal.delay_us, counts=False, error=error)
        case NeedsHuman():
            told = "needs_human"
            error = attempt_error("NeedsHuman", str(signal), signal.code, reason=told)
            return asking(with_outputs(error, signal.outputs) if signal.outputs else error)
        case Declined():
            error = attempt_error("Declined", str(signal), "DECLINED", reason="declined")
            return GivenUp(DeadReason.REJECTED, error)
        case RateLimited():
            return Limited(signal.retry_after_us)
        case Reject():
            error = attempt_error("Reject", str(signal), "REJECTED", reason="rejected")
            return GivenUp(DeadReason.REJECTED, error).carrying(signal)
        case Retry():
            error = attempt_error("Retry", str(signal), "RETRY_REQUESTED", reason="retry_requested")
            failed = Failed(error, asked=True, retry_delay_us=signal.delay_us)
            return failed.carrying(signal)
        case _:
            return Failed(described(signal), kinds=kinds_of(type(signal))).carrying(signal)


def as_error_object(value: object) -> TypeGuard[BaseException | TaskError]:
    """Whether a returned value says "failed": an exception, or the error type of the protocol."""
    return isinstance(value, _ERROR_OBJECTS)


def returned_error(value: BaseException | TaskError) -> Outcome:
    """Return the outcome of a returned exception, signal or protocol error: never a success."""
    if isinstance(value, BaseException):
        return raised(value)
    kind = type(value).__name__
    code = value.code or "EXCEPTION"
    stack = bounded_stack(value.stack) if value.stack else None
    error = attempt_error(kind, value.message, code, reason=f"exception:{kind}", stack=stack)
    return Failed(error, kinds=kinds_of(type(value)))


def oversized(problem: str) -> Outcome:
    """Return the outcome of a result that is too large: another attempt would not help."""
    error = attempt_error("PayloadError", problem, "RESULT_TOO_LARGE", reason="result_too_large")
    return GivenUp(DeadReason.REJECTED, error)


def within_budget(attempt: Attempt, context: Context, outcome: Outcome) -> Outcome:
    """Give up an attempt that has spent too much, whatever its own outcome is."""
    if attempt.ending is not None or not context.overspent:
        return outcome
    told = context.steps.spending.exceeded()
    error = attempt_error(
        type(told).__name__, str(told), told.code, reason="exception:BudgetExceeded"
    )
    if isinstance(outcome, Succeeded):
        error = with_outputs(error, msgspec.json.decode(outcome.result))
    return GivenUp(DeadReason.REJECTED, error)


def ended_by_worker(attempt: Attempt, ending: Ending) -> Outcome:
    """Return the outcome of an attempt that this worker ended, whatever its handler did."""
    match ending:
        case Ending.TIMEOUT:
            message = f"Task exceeded {round(attempt.timeout_s * 1000)}ms timeout"
            return TimedOut(attempt_error("Timeout", message, "TASK_TIMEOUT", reason="job_timeout"))
        case Ending.DEADLINE:
            error = attempt_error(
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
    """Describe an exception for the store: type, message and stack, bounded; no local values."""
    kind = type(error).__name__
    return attempt_error(
        kind, text_of(error), code, reason=f"exception:{kind}", stack=stack_of(error)
    )


def kinds_of(kind: type) -> tuple[str, ...]:
    """Return the names that a retry policy is matched against.

    What is no Exception (a handler's own SystemExit or CancelledError, a returned TaskError) is
    an ordinary failure of the job, so a policy that names Exception means it too.
    """
    names = tuple(qualified_name(base) for base in kind.__mro__)
    return names if issubclass(kind, Exception) else (*names, qualified_name(Exception))
