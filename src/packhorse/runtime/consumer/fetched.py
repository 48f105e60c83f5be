# SPDX-License-Identifier: MIT
"""A job that another runtime has fetched, and the outcomes of failures that it reports.

    job_timeout        the attempt took too long: status timeout, `on_timeout` decides
    deadline           the whole job's deadline passed: dead, `expired`
    exception:<Type>   something was raised
    anything else      a word of the runtime's own

The reason is stored with the attempt as it was given. Details may be a text, an exception, an error
object that reports itself, or any JSON value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from packhorse.core.approvals import Approval
from packhorse.core.budgets import Budget
from packhorse.core.clock import to_datetime
from packhorse.core.job import AttemptError, DeadReason
from packhorse.core.lifecycle import TASK_TIMEOUT
from packhorse.core.outcome import MESSAGE_LENGTH_MAX, Failed, GivenUp, Outcome, TimedOut
from packhorse.errors import ConfigError
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.handlers import current_payload
from packhorse.runtime.worker.outcomes import as_error_object, described, returned_error


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FetchedJob:
    """A fetched job; pass it to the consumer's verbs.

    Two fetches of one job are two objects: each settles its own attempt, and no other.
    """

    id: str
    task: str
    queue: str
    tenant: str  #: `""` when it has none
    payload: Any = field(repr=False)  #: the arguments by name, or whatever JSON came by the wire
    attempts: int  #: ended before this one
    attempt: int  #: the number of this one, from 1
    fence: int  #: rises with every fetch; give it to systems that can refuse an older one
    trace_id: str  #: one per job, the same on every attempt
    timeout: float  #: seconds this attempt may take, shortened by the deadline
    deadline: datetime | None
    upstream_request_id: str | None
    origin: Attempt = field(repr=False)  #: the consumer's own record of it

    @property
    def approval(self) -> Approval | None:
        """Who let it go on, after it had asked for a person; None before."""
        context = self.origin.context
        return None if context is None else context.approval

    @property
    def budget(self) -> Budget:
        """What it has spent over all attempts, and what is left."""
        context = self.origin.context
        return Budget(0, self.origin.handler.max_tokens) if context is None else context.budget

    @property
    def attempt_trace_id(self) -> str:
        """Another one for every fetch of every job, also of jobs that share a trace id.

        For runtimes in which a trace that was cut short keeps the next one of its name waiting.
        """
        return f"{self.trace_id}-{self.id}-{self.fence}"


def fetched_job(attempt: Attempt) -> FetchedJob:
    """Make a fetched job; raises `msgspec.DecodeError` if its payload cannot be read."""
    job = attempt.job
    return FetchedJob(
        id=job.id,
        task=job.task,
        queue=job.queue,
        tenant=job.tenant,
        payload=msgspec.json.decode(current_payload(attempt.handler, job)),
        attempts=job.attempts,
        attempt=job.attempt,
        fence=job.fence,
        trace_id=job.trace_id,
        timeout=attempt.timeout_s,
        deadline=None if job.deadline_us is None else to_datetime(job.deadline_us),
        upstream_request_id=job.upstream_request_id,
        origin=attempt,
    )


JOB_TIMEOUT: Final = "job_timeout"
DEADLINE: Final = "deadline"
_EXCEPTION: Final = "exception:"
_TIMEOUT_TYPE: Final = "Timeout"
#: A longer reason is cut; it is stored with every attempt, and meant to be a word.
_REASON_LENGTH_MAX: Final = 200


def failed_once(reason: str, details: object, timeout_s: float) -> Outcome:
    """Return the outcome of a retry that a runtime asks for; it counts as a failure."""
    error = _error(reason, details, timeout_s)
    if reason == JOB_TIMEOUT:
        return TimedOut(error)
    if reason == DEADLINE:
        return TimedOut(error, deadline=True)
    return Failed(error, asked=True)


def failed_for_good(reason: str, details: object, timeout_s: float, *, last: bool) -> Outcome:
    """Return the outcome of a job that a runtime gives up; `last` if no retry was left."""
    error = _error(reason, details, timeout_s)
    if reason == DEADLINE:
        return TimedOut(error, deadline=True)
    return Failed(error) if last else GivenUp(DeadReason.REJECTED, error)


def _error(reason: object, details: object, timeout_s: float) -> AttemptError:
    if not isinstance(reason, str) or not reason:
        raise ConfigError(f"reason is {reason!r}; give a text that is not empty")
    kind, code, message = _words(reason, timeout_s)
    word = _storable(reason, _REASON_LENGTH_MAX)
    found = _as_error(details)
    if found is not None:
        if kind == _TIMEOUT_TYPE:  # history and events go by it, whatever the error calls itself
            found = msgspec.structs.replace(found, type=kind, code=code)
        return msgspec.structs.replace(found, reason=word)
    return AttemptError(
        type=_storable(kind, _REASON_LENGTH_MAX),
        message=_storable(_text(details) or message, MESSAGE_LENGTH_MAX),
        code=code,
        reason=word,
    )


def _words(reason: str, timeout_s: float) -> tuple[str, str, str]:
    """Return type, code and message of a reason."""
    if reason == JOB_TIMEOUT:
        message = f"Task exceeded {round(timeout_s * 1000)}ms timeout"
        return _TIMEOUT_TYPE, TASK_TIMEOUT, message
    if reason == DEADLINE:
        return _TIMEOUT_TYPE, "DEADLINE_EXCEEDED", "Task exceeded its deadline"
    if reason.startswith(_EXCEPTION):
        return reason.removeprefix(_EXCEPTION) or "Exception", "EXCEPTION", ""
    return "Failure", "REPORTED", reason


def _as_error(details: object) -> AttemptError | None:
    if isinstance(details, BaseException):
        return described(details)
    if not as_error_object(details):
        return None
    outcome = returned_error(details)
    return outcome.error if isinstance(outcome, Failed) else None


def _text(details: object) -> str:
    if details is None:
        return ""
    if isinstance(details, str):
        return details
    try:
        return msgspec.json.encode(details, enc_hook=str).decode()
    except Exception:  # noqa: BLE001 - a failure that cannot be written is still a failure
        return f"<unprintable {type(details).__name__}>"


def _storable(text: str, longest: int) -> str:
    """Escape lone surrogates and NUL, which no store can write, and cut the text to its bound."""
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"
