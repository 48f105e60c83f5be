# SPDX-License-Identifier: MIT
"""The envelope of the worker protocol: a request to a worker, and its answer, by their wire names.

The protocol leaves the inside of `error` and of a log entry open; they are defined here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import UNSET, UnsetType

from packhorse.protocol.scalars import Count, Positive
from packhorse.protocol.shapes import Shape


class AnswerStatus(StrEnum):
    """What an attempt came to, as a caller has to act on it."""

    OK = "ok"  #: accept the outputs
    RETRYABLE_ERROR = "retryable_error"  #: safe to try again
    INVALID_REQUEST = "invalid_request"  #: not to be tried again unchanged
    INVALID_OUTPUT = "invalid_output"  #: tried again or given up, by policy
    NEEDS_HUMAN = "needs_human"  #: for a person to decide


class _Envelope(Shape, frozen=True, kw_only=True, rename=str):
    """A shape whose names on the wire are those in Python."""


class AnswerError(_Envelope, frozen=True, kw_only=True):
    """Why an attempt has no valid outputs."""

    code: str  #: stable: `poison_message`, `timeout`, or the worker's own
    message: str = ""
    retryable: bool | UnsetType = UNSET  #: whether it will be, or may be, tried again
    cause: str | UnsetType = UNSET  #: the code of the last attempt, where the job's differs


class Observability(_Envelope, frozen=True, kw_only=True):
    """What is known about the attempt itself."""

    attempt: Positive = 1
    duration_ms: Count = 0
    log_fields: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it


class RequestTrace(_Envelope, frozen=True, kw_only=True):
    """What the request belongs to."""

    trace_id: str


class RequestConstraints(_Envelope, frozen=True, kw_only=True):
    """Limits that a caller asks for; a contract's own are ceilings."""

    timeout_seconds: Positive | UnsetType = UNSET
    max_tokens: Positive | UnsetType = UNSET
    tools_allowed: list[str] | UnsetType = UNSET


class WorkerRequest(_Envelope, frozen=True, kw_only=True):
    """A request to a worker."""

    worker_id: str
    version: str | UnsetType = UNSET
    trace: RequestTrace | UnsetType = UNSET
    inputs: dict[str, Any]
    constraints: RequestConstraints | UnsetType = UNSET
    idempotency_key: str | UnsetType = UNSET


class WorkerResponse(_Envelope, frozen=True, kw_only=True):
    """What one attempt came to; a handler may return one too."""

    status: AnswerStatus
    outputs: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it
    error: AnswerError | UnsetType = UNSET
    logs: list[Any] = []  # noqa: RUF012 - msgspec copies it
    observability: Observability = Observability()
    artifacts: list[Any] = []  # noqa: RUF012 - msgspec copies it
