# SPDX-License-Identifier: MIT
"""What became of an attempt, and the worker protocol's answer to it: one table, read both ways.

answer             outcome of the attempt               job
ok                 succeeded                            completed
retryable_error    failed                               failed, then queued; at last dead
invalid_request    given up                             dead: invalid_request
invalid_output     by policy: failed, or given up       failed, or dead: rejected
needs_human        asks: it waits                       pending; approved: queued,
                                                        declined: dead: rejected
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, assert_never

import msgspec

from packhorse.core.job import (
    TERMINAL,
    AttemptError,
    AttemptRecord,
    DeadReason,
    JobRecord,
    JobStatus,
)
from packhorse.core.outcome import Failed, GivenUp, Outcome, asking, attempt_error
from packhorse.core.sealing import require_open
from packhorse.protocol import (
    UNSET,
    AnswerError,
    AnswerStatus,
    Observability,
    UnsetType,
    WorkerResponse,
)

#: The error code of an attempt whose result broke its contract.
INVALID_OUTPUT: Final = "INVALID_OUTPUT"
#: Outputs of a failed attempt that are longer are not kept: they are stored with every attempt.
OUTPUTS_LENGTH_MAX: Final = 16_384

_FIELDS: Final = frozenset(WorkerResponse.__struct_fields__)
_STATUSES: Final = frozenset(AnswerStatus)
#: Codes of our own that mean another thing than "try again".
_BY_CODE: Final[Mapping[str, AnswerStatus]] = MappingProxyType(
    {
        "INVALID_REQUEST": AnswerStatus.INVALID_REQUEST,
        "UNDECODABLE": AnswerStatus.INVALID_REQUEST,
        "REJECTED": AnswerStatus.INVALID_REQUEST,
        "TOOL_NOT_ALLOWED": AnswerStatus.INVALID_REQUEST,
        "TOOL_NOT_FOUND": AnswerStatus.INVALID_REQUEST,
        "BUDGET_EXCEEDED": AnswerStatus.INVALID_REQUEST,
        "DECLINED": AnswerStatus.INVALID_REQUEST,
        INVALID_OUTPUT: AnswerStatus.INVALID_OUTPUT,
        "RESULT_TOO_LARGE": AnswerStatus.INVALID_OUTPUT,
    }
)
#: Reasons that say more than the error of the last attempt; of the others that error says it.
_SAID_BY_REASON: Final = frozenset(DeadReason) - {
    DeadReason.INVALID_REQUEST,
    DeadReason.UNDECODABLE,
    DeadReason.REJECTED,
}
#: Codes of ours by the protocol's word, where that is another one.
_WORDS: Final[Mapping[str, str]] = MappingProxyType({"TASK_TIMEOUT": "timeout"})
_ENDED_BY_HAND: Final[Mapping[JobStatus, str]] = MappingProxyType(
    {
        JobStatus.CANCELLED: "cancelled",
        JobStatus.PENDING: "snoozed",
        JobStatus.QUEUED: "released",
    }
)


# ------------------------------------------------------------------ from an answer to an outcome


def answer_in(value: Mapping[str, Any]) -> WorkerResponse | None:
    """The answer that a handler wrote as plain data; None where it is an ordinary result.

    Raises `ShapeError` for what is meant as one and is none.
    """
    if value.get("status") not in _STATUSES or not value.keys() <= _FIELDS:
        return None
    return WorkerResponse.parse(value) if len(value) > 1 or value["status"] != "ok" else None


def failed_answer(answer: WorkerResponse, policy: str | None) -> Outcome:
    """What an answer that is not `ok` comes to."""
    status, told = answer.status, answer.error
    if isinstance(told, UnsetType):
        if answer.outputs:
            message = "the answer has outputs and no error code; a failure that shows some says why"
            return broken_output(
                _error(AnswerStatus.INVALID_OUTPUT, INVALID_OUTPUT, message), policy
            )
        told = AnswerError(code=str(status).upper(), message=f"the handler answered {status}")
    error = _error(status, told.code, told.message, answer.outputs)
    match status:
        case AnswerStatus.OK:
            message = "the answer is ok and has an error; it is one or the other"
            return broken_output(
                _error(AnswerStatus.INVALID_OUTPUT, INVALID_OUTPUT, message), policy
            )
        case AnswerStatus.RETRYABLE_ERROR:
            if told.retryable is False:
                return GivenUp(DeadReason.REJECTED, error)
            return Failed(error, asked=True)
        case AnswerStatus.INVALID_REQUEST:
            return GivenUp(DeadReason.INVALID_REQUEST, error)
        case AnswerStatus.INVALID_OUTPUT:
            return broken_output(error, policy)
        case AnswerStatus.NEEDS_HUMAN:
            return asking(error)
        case _:
            assert_never(status)


def broken_output(
    error: AttemptError, policy: str | None, *, kinds: tuple[str, ...] = ()
) -> Outcome:
    """What a result that broke its contract comes to; without a policy, `kinds` decide."""
    match policy:
        case "dead":
            return GivenUp(DeadReason.REJECTED, msgspec.structs.replace(error, outputs=None))
        case "store_as_failed":
            return GivenUp(DeadReason.REJECTED, error)
        case _:
            asked = policy == "retry" or not kinds
            return Failed(msgspec.structs.replace(error, outputs=None), kinds=kinds, asked=asked)


def _error(
    status: AnswerStatus, code: str, message: str, outputs: Mapping[str, Any] | None = None
) -> AttemptError:
    error = attempt_error("WorkerResponse", message, code, reason=str(status))
    return with_outputs(error, outputs) if outputs else error


def with_outputs(error: AttemptError, outputs: Any) -> AttemptError:
    """An error that shows what the attempt came to all the same, as far as JSON can carry it."""
    try:
        kept = msgspec.json.encode(outputs).decode()
    except Exception:  # noqa: BLE001 - results may be user classes
        return error
    if len(kept) > OUTPUTS_LENGTH_MAX or "\\u0000" in kept:
        message = f"{error.message} (its outputs, {len(kept)} characters, were not kept)"
        return msgspec.structs.replace(error, message=message)
    return msgspec.structs.replace(error, outputs=kept)


# ----------------------------------------------------------------- from an attempt to an answer


def answer_status(status: JobStatus, error: AttemptError | None) -> AnswerStatus:
    """How an attempt that ended so is answered."""
    if status is JobStatus.COMPLETED:
        return AnswerStatus.OK
    if error is None:
        return AnswerStatus.RETRYABLE_ERROR
    if error.reason in _STATUSES:  # the handler's own answer
        return AnswerStatus(error.reason)
    return _BY_CODE.get(error.code, AnswerStatus.RETRYABLE_ERROR)


def response_of(
    record: JobRecord, history: Sequence[AttemptRecord], worker_id: str, number: int | None = None
) -> WorkerResponse | None:
    """The answer of one attempt, or of the last; None where it has not ended, or is not kept."""
    last = history[-1] if history else None
    attempt = next((one for one in history if one.attempt == number), None) if number else last
    if attempt is not None:
        is_last = attempt is last and record.status in TERMINAL
        return WorkerResponse(
            status=answer_status(attempt.status, attempt.error),
            outputs=_outputs(record, attempt, is_last=is_last),
            error=_told(record, attempt.status, attempt.error, is_last=is_last),
            observability=Observability(
                attempt=attempt.attempt,
                duration_ms=max(0, attempt.finished_us - attempt.started_us) // 1000,
                log_fields={"worker_id": worker_id},
            ),
        )
    if number is not None or record.status not in TERMINAL:
        return None
    return WorkerResponse(  # it ended before any attempt: expired, cancelled, shed, unknown
        status=answer_status(record.status, record.error),
        error=_told(record, record.status, record.error, is_last=True),
        observability=Observability(log_fields={"worker_id": worker_id}),
    )


def _outputs(record: JobRecord, attempt: AttemptRecord, *, is_last: bool) -> dict[str, Any]:
    if attempt.status is JobStatus.COMPLETED:
        result = require_open(record.result or b"null", record.id, "result")
        value = msgspec.json.decode(result) if is_last else None
        if not isinstance(value, dict):
            return {} if value is None else {"result": value}
        whole = value.keys() <= _FIELDS and value.get("status") == AnswerStatus.OK
        inner = value.get("outputs") if whole else None
        return inner if isinstance(inner, dict) else value
    kept = None if attempt.error is None else attempt.error.outputs
    partial = None if kept is None else msgspec.json.decode(kept)
    return partial if isinstance(partial, dict) else {} if partial is None else {"result": partial}


def _told(
    record: JobRecord, status: JobStatus, error: AttemptError | None, *, is_last: bool
) -> AnswerError | UnsetType:
    if status is JobStatus.COMPLETED:
        return UNSET
    own = _word(error.code) if error is not None else _ENDED_BY_HAND.get(status, str(status))
    reason = record.dead_reason if is_last else None
    by_reason = reason is not None and reason in _SAID_BY_REASON and str(reason) != own
    return AnswerError(
        code=str(reason) if by_reason else own,
        message="" if error is None else error.message,
        retryable=not is_last,
        cause=own if by_reason and error is not None else UNSET,
    )


def _word(code: str) -> str:
    return _WORDS.get(code, code.lower() if code.isupper() else code)
