# SPDX-License-Identifier: MIT
"""Failures of jobs as events of Sentry; needs the extra `sentry`.

    sentry_sdk.init(dsn=...)
    sentry.install(app)                   one event for each attempt that failed
    sentry.install(app, each="death")     one for each job that is given up

The program sets up the SDK; this module only sends events. An event has the exception, its stack,
and the job, task, tenant and trace. The app's `redact` is applied to exception texts and to local
variables. Those are left out unless asked for, since they show a handler's arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from packhorse.app import Packhorse
from packhorse.core.redaction import Redact, redacted, redacted_text
from packhorse.core.text import text_of
from packhorse.errors import ConfigError
from packhorse.events import JobDead, JobEnded, JobFailed, JobRescued, JobTimedOut

#: Send an event for each attempt that failed, timed out or was lost, or for each dead job.
Each = Literal["attempt", "death"]

_KINDS: Final = ((JobFailed, JobTimedOut, JobRescued), (JobDead,))
_NAMES: Final = ("attempt", "death")
_DEAD: Final = "dead"
#: How long a worker that stops waits for events to be sent.
_FLUSH_S: Final = 2.0
_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
#: Fields of the context of an event.
_FIELDS: Final = (
    *("job_id", "task", "queue", "tenant", "attempt", "worker", "worker_id", "trace_id"),
    *("span_id", "upstream_request_id", "status", "reason", "error_code", "duration_ms"),
    "lost_worker",
)
#: Fields that people search by.
_TAGS: Final = ("task", "queue", "tenant", "error_code")
#: Log lines of these events are dropped: the SDK would make a second event of each.
_LOGGED: Final = tuple(kind.name for kinds in _KINDS for kind in kinds)


def install(app: Packhorse, *, each: Each = "attempt", variables: bool = False) -> None:
    """Send this app's failures to Sentry, in every worker that runs it.

    `variables` adds the local variables of each frame, as the app's `redact` shows them.
    """
    if each not in _NAMES:
        raise ConfigError(f"sentry: each={each!r} is neither 'attempt' nor 'death'")
    reporter = _Reporter(_sdk(), app.bus.redact, variables=variables)
    for kind in _KINDS[_NAMES.index(each)]:
        app.bus.subscribe(kind, reporter.failed)
    app.lifespan(reporter.while_running)


def _sdk() -> Any:
    try:
        import sentry_sdk  # noqa: PLC0415 - of an extra
    except ImportError:
        raise ConfigError(
            "packhorse.telemetry.sentry needs the Sentry SDK; install it with: "
            "pip install 'packhorse[sentry]'"
        ) from None
    return sentry_sdk


class _Reporter:
    """Send failures as events."""

    def __init__(self, sdk: Any, redact: Redact, *, variables: bool) -> None:
        self._sdk = sdk
        self._redact = redact
        self._variables = variables
        sdk.get_global_scope().add_event_processor(_without_logged)

    def while_running(self) -> Iterator[None]:
        """Send what is left when the worker stops."""
        yield
        self._sdk.flush(timeout=_FLUSH_S)

    def failed(self, failure: JobEnded) -> None:
        """Send one failure."""
        client = self._sdk.get_client()
        if not client.is_active():
            return
        event, hint = self._event(failure, client.options)
        # A scope of its own, without what other jobs left behind in this thread.
        with self._sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            for name in _TAGS:
                if value := getattr(failure, name):
                    scope.set_tag(f"packhorse.{name}", value)
            scope.set_context("job", _about(failure))
            self._sdk.capture_event(event, hint)

    def _event(
        self, failure: JobEnded, options: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        hint = None
        if failure.exception is None:  # it was raised in another process, or not at all
            event = self._event_from_text(failure)
        else:
            event, hint = self._sdk.utils.event_from_exception(
                failure.exception,
                client_options={**options, "include_local_variables": self._variables},
                mechanism={"type": "packhorse", "handled": False},
            )
        for value in event["exception"]["values"]:
            value["value"] = redacted_text(self._redact, str(value.get("value") or ""))
            for frame in (value.get("stacktrace") or {}).get("frames", ()):
                self._redact_frame(frame)
        goes_on = failure.status != _DEAD and not isinstance(failure, JobDead)
        event["level"] = "warning" if goes_on else "error"
        event["transaction"] = failure.task
        event["contexts"] = {"trace": _trace(failure)} if _trace(failure) else {}
        return event, hint

    def _event_from_text(self, failure: JobEnded) -> dict[str, Any]:
        """Describe an exception by its type and message alone."""
        stack = getattr(failure, "error_stack", "")
        kind = failure.error_type or failure.error_code or failure.name
        mechanism = {"type": "packhorse", "handled": False}
        value = {"type": kind, "value": failure.error_message, "mechanism": mechanism}
        event: dict[str, Any] = {"exception": {"values": [value]}}
        if stack:
            event["extra"] = {"stack": redacted_text(self._redact, stack)}
        return event

    def _redact_frame(self, frame: dict[str, Any]) -> None:
        found = frame.pop("vars", None)
        if self._variables and found:
            shown = {name: self._shown(value) for name, value in found.items()}
            frame["vars"] = redacted(self._redact, shown)

    def _shown(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, dict):
            return {str(name): self._shown(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._shown(part) for part in value]
        return redacted_text(self._redact, text_of(value))


def _about(failure: JobEnded) -> dict[str, Any]:
    found = {name: getattr(failure, name, None) for name in _FIELDS}
    return {name: value for name, value in found.items() if value not in (None, "")}


def _trace(failure: JobEnded) -> dict[str, Any]:
    """Return the job's trace if its id has the shape of Sentry's; the context names it anyway."""
    if not (_TRACE_ID.fullmatch(failure.trace_id) and failure.span_id):
        return {}
    return {"trace_id": failure.trace_id, "span_id": failure.span_id, "op": "queue.process"}


def _without_logged(event: Any, hint: Mapping[str, Any]) -> Any:
    """Drop an event that the SDK made of a log line about the same failure."""
    fields = getattr(hint.get("log_record"), "fields", None)
    is_repeated = isinstance(fields, Mapping) and fields.get("event") in _LOGGED
    return None if is_repeated else event
