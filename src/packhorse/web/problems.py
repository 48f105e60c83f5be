# SPDX-License-Identifier: MIT
"""Errors as RFC 9457 problem documents."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

import msgspec
from starlette.responses import Response

from packhorse import errors
from packhorse.client.operations import OperationNotFound
from packhorse.client.worker_signals import WorkerGone
from packhorse.core.redaction import redact_default, redacted_text
from packhorse.group_errors import BatchConflict, BatchNotFound, WorkflowFailed, WorkflowNotFound

PROBLEM_TYPE: Final = "application/problem+json"
#: The first class that matches an error decides.
_STATUSES: Final[tuple[tuple[type[errors.PackhorseError], int], ...]] = (
    (errors.JobNotFound, 404),
    (errors.ScheduleNotFound, 404),
    (BatchNotFound, 404),
    (WorkflowNotFound, 404),
    (WorkerGone, 404),
    (OperationNotFound, 404),
    (BatchConflict, 409),
    (WorkflowFailed, 409),
    (errors.QueueClosed, 409),
    (errors.StoreCopied, 409),
    (errors.QueueFull, 429),
    (errors.StoreUnavailable, 503),
    (errors.SchemaOutOfDate, 503),
    (errors.StoreRefused, 422),
    (errors.StoreError, 500),
    (errors.IdempotencyMismatch, 422),
    (errors.JobError, 409),
    (errors.PayloadError, 422),
    (errors.ContractError, 422),
    (errors.TenantRequired, 422),
    (errors.ConfigError, 422),
    (errors.UsageError, 422),
)
#: Seconds after which to try again, by status.
_RETRY_AFTER: Final[Mapping[int, str]] = MappingProxyType({429: "5", 503: "5"})


class WebRefusal(Exception):
    """Refuses a request before anything was done; says how to answer."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})


def problem_of(error: errors.PackhorseError | WebRefusal) -> Response:
    """Return the answer for an error."""
    if isinstance(error, WebRefusal):
        return problem(error.status, error.code, str(error), headers=error.headers)
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    more: dict[str, Any] = {}
    for name, key in (("job_id", "jobId"), ("field", "field"), ("queue", "queue")):
        value = getattr(error, name, None)
        if value is not None:
            more[key] = value
    retry = _RETRY_AFTER.get(status)
    headers = {} if retry is None else {"Retry-After": retry}
    return problem(status, error.code, str(error), headers=headers, **more)


def problem(
    status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """Return a problem document; secrets in its text are masked."""
    document = {
        "type": f"urn:packhorse:problem:{code.lower()}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": redacted_text(redact_default, detail),
        **more,
    }
    return Response(
        msgspec.json.encode(document),
        status_code=status,
        media_type=PROBLEM_TYPE,
        headers=dict(headers or {}),
    )
