# SPDX-License-Identifier: MIT
"""Traces and metrics of OpenTelemetry, by its messaging conventions 1.44; needs the extra `otel`.

    otel.install(app)                        with the global providers
    otel.install(app, trace_link="parent")   attempts become children of what submitted them

A submit is a span `send <queue>`; its context travels with the job (`JobOptions.carrier`), so that
every attempt, also the last retry, is a span `process <queue>` that links to it. Steps are its
children. The program sets up the SDK; without one nothing is recorded, and nothing travels.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import msgspec

from packhorse.app import Packhorse
from packhorse.context import Context
from packhorse.core.clock import SECOND_US, SystemClock
from packhorse.core.job import Job, JobOptions, NewJob
from packhorse.core.outcome import Crashed, Failed, GivenUp, Outcome, TimedOut
from packhorse.core.redaction import Redact, redacted_text
from packhorse.errors import ConfigError
from packhorse.steps.calls import around_steps
from packhorse.version import installed_version

__all__ = ["install"]

_SYSTEM: Final = "packhorse"
#: Seconds, up to an hour: jobs take longer than what the conventions advise.
_BOUNDS_S: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(300.0, 1800.0, 3600.0),
)
#: Names and values of a carrier that are kept with a job.
_CARRIER_CHARACTERS_MAX: Final = 8_192
_OWN: Final = "messaging.packhorse"
_options: Final = msgspec.json.Decoder(JobOptions)


def install(
    app: Packhorse,
    *,
    tracer_provider: Any = None,
    meter_provider: Any = None,
    trace_link: Literal["link", "parent"] = "link",
    span_name: Literal["queue", "task"] = "queue",
) -> None:
    """Trace and measure this app's submits and attempts, in every process that runs it.

    With `span_name="task"` spans are called after tasks; the queue stays an attribute.
    """
    if trace_link not in ("link", "parent"):
        raise ConfigError(f"otel: trace_link={trace_link!r} is neither 'link' nor 'parent'")
    if span_name not in ("queue", "task"):
        raise ConfigError(f"otel: span_name={span_name!r} is neither 'queue' nor 'task'")
    _Telemetry(
        app,
        tracer_provider,
        meter_provider,
        as_parent=trace_link == "parent",
        by_task=span_name == "task",
    ).connect(app)


def _api() -> tuple[Any, Any, Any, Any]:
    try:
        from opentelemetry import (  # noqa: PLC0415 - of an extra
            context,
            metrics,
            propagate,
            trace,
        )
    except ImportError:
        raise ConfigError(
            "packhorse.telemetry.otel needs the API of OpenTelemetry; install it with: "
            "pip install 'packhorse[otel]'"
        ) from None
    return context, metrics, propagate, trace


class _Telemetry:
    """What is told of one app."""

    def __init__(
        self,
        app: Packhorse,
        tracer_provider: Any,
        meter_provider: Any,
        *,
        as_parent: bool,
        by_task: bool,
    ) -> None:
        self._context, metrics, self._propagate, self._trace = _api()
        self._redact: Redact = app.bus.redact
        self._as_parent = as_parent
        self._by_task = by_task
        self._clock = SystemClock()
        self._providers = (
            tracer_provider or self._trace.get_tracer_provider(),
            meter_provider or metrics.get_meter_provider(),
        )
        version = installed_version()
        self._tracer = self._providers[0].get_tracer(_SYSTEM, version)
        meter = self._providers[1].get_meter(_SYSTEM, version)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self._run_s = _histogram(meter, "messaging.process.duration", "How long attempts ran")
        self._wait_s = _histogram(
            meter, "packhorse.job.wait.duration", "How long jobs were ready before they first ran"
        )

    def connect(self, app: Packhorse) -> None:
        """Listen to what the app does."""
        app._submission.around = self.sending  # noqa: SLF001 - as below
        app.middleware(self.around_attempt)
        app.lifespan(self.while_running)

    def while_running(self) -> Iterator[None]:
        """Send what is not sent yet when the worker leaves."""
        yield
        for provider in self._providers:
            if (flush := getattr(provider, "force_flush", None)) is not None:
                flush()

    # ------------------------------------------------------------------------------- submitting

    @contextmanager
    def sending(self, jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
        """Trace a submit; yields the jobs with the context that travels with them."""
        queues = {job.queue for job in jobs}
        tasks = {job.task for job in jobs}
        attributes = _attributes("send", "send")
        if len(queues) == 1:
            attributes["messaging.destination.name"] = next(iter(queues))
        if len(tasks) == 1:
            attributes[f"{_OWN}.task.name"] = next(iter(tasks))
        if len(jobs) == 1:
            attributes["messaging.message.id"] = jobs[0].id
        else:
            attributes["messaging.batch.message_count"] = len(jobs)
        about = next(iter(tasks if self._by_task else queues), "")
        one = len(tasks if self._by_task else queues) == 1
        with self._tracer.start_as_current_span(
            f"send {about}" if one else "send",
            kind=self._trace.SpanKind.PRODUCER,
            attributes=attributes,
            record_exception=False,
        ):
            carrier: dict[str, str] = {}
            self._propagate.inject(carrier)
            yield [_carrying(job, carrier) for job in jobs]
        for queue in queues:
            count = sum(job.queue == queue for job in jobs)
            self._sent.add(count, _labels("send", queue))

    # ---------------------------------------------------------------------------------- running

    async def around_attempt(self, ctx: Context, proceed: Callable[[], Awaitable[Outcome]]) -> None:
        """A middleware: one span for each attempt."""
        job: Job = ctx._job  # noqa: SLF001 - of this package, and no word for users
        begun, carried = self._clock.monotonic(), self._carried(job)
        if not job.attempts:
            waited_s = max(0, self._clock.now_us() - job.ready_us) / SECOND_US
            self._wait_s.record(waited_s, _labels("process", job.queue, job.task))
        span = self._started(job, carried)
        inside = self._trace.set_span_in_context(span, carried)
        token = self._context.attach(inside)
        around_steps(self._step)
        outcome: Outcome | None = None
        try:
            outcome = await proceed()
        finally:
            self._context.detach(token)
            labels = _labels("process", job.queue, job.task)
            if outcome is not None and (error := self._told(span, outcome)):
                labels["error.type"] = error
            span.end()
            self._consumed.add(1, labels)
            self._run_s.record(self._clock.monotonic() - begun, labels)

    def _carried(self, job: Job) -> Any:
        carrier = None if job.options is None else _options.decode(job.options).carrier
        return self._propagate.extract(carrier or {}, context=self._context.Context())

    def _started(self, job: Job, carried: Any) -> Any:
        creation = self._trace.get_current_span(carried).get_span_context()
        attributes = {
            **_attributes("process", "process"),
            "messaging.destination.name": job.queue,
            "messaging.message.id": job.id,
            "messaging.message.conversation_id": job.trace_id,
            f"{_OWN}.task.name": job.task,
            f"{_OWN}.job.attempt": job.attempt,
            f"{_OWN}.job.priority": job.priority,
        }
        if job.tenant:
            attributes[f"{_OWN}.tenant"] = job.tenant
        return self._tracer.start_span(
            f"process {job.task if self._by_task else job.queue}",
            context=carried if self._as_parent else self._context.Context(),
            kind=self._trace.SpanKind.CONSUMER,
            attributes=attributes,
            links=[self._trace.Link(creation)] if creation.is_valid else (),
        )

    def _told(self, span: Any, outcome: Outcome) -> str:
        """Say how an attempt ended; returns the type of its error, if it failed."""
        span.set_attribute(f"{_OWN}.job.outcome", type(outcome).__name__.lower())
        if not isinstance(outcome, Failed | GivenUp | TimedOut | Crashed):
            return ""
        error = outcome.error
        message = redacted_text(self._redact, error.message)
        told = {"exception.type": error.type, "exception.message": message}
        if error.stack:
            told["exception.stacktrace"] = redacted_text(self._redact, error.stack)
        span.add_event("exception", told)
        span.set_attribute("error.type", error.type)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, message))
        return error.type

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """A step that is called now; one whose result was stored is not."""
        attributes = {"messaging.system": _SYSTEM, f"{_OWN}.step.name": name}
        with self._tracer.start_as_current_span(
            f"step {name}", attributes=attributes, record_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
                raise


def _histogram(meter: Any, name: str, description: str) -> Any:
    return meter.create_histogram(
        name, "s", description, explicit_bucket_boundaries_advisory=_BOUNDS_S
    )


def _attributes(name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _labels(operation: str, queue: str, task: str = "") -> dict[str, Any]:
    labels = {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
    }
    return {**labels, f"{_OWN}.task.name": task} if task else labels


def _carrying(job: NewJob, carrier: dict[str, str]) -> NewJob:
    """The job with the context; what its caller gave already stays."""
    options = job.options or JobOptions()
    size = sum(len(name) + len(value) for name, value in carrier.items())
    if options.carrier is not None or not carrier or size > _CARRIER_CHARACTERS_MAX:
        return job
    options = msgspec.structs.replace(options, carrier=carrier)
    return msgspec.structs.replace(job, options=options)
