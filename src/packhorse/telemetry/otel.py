# SPDX-License-Identifier: MIT
"""Traces and metrics of OpenTelemetry, by its messaging conventions 1.44; needs the extra `otel`.

    otel.install(app)                        with the global providers
    otel.install(app, trace_link="parent")   attempts become children of what submitted them

A submit is a span `send <queue>`. Its context is stored with the job (`JobOptions.carrier`), so
that every attempt, also the last retry, is a span `process <queue>` that links to it. Steps are
child spans. The program sets up the SDK; without one nothing is recorded or stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import msgspec

from packhorse.app import Packhorse
from packhorse.core.clock import SECOND_US, SystemClock
from packhorse.core.job import AttemptError, Job, JobOptions, NewJob
from packhorse.core.outcome import Crashed, Failed, GivenUp, Outcome, Succeeded, TimedOut
from packhorse.core.redaction import Redact, redacted_text
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.errors import ConfigError
from packhorse.runtime.worker.attempt import Attempt
from packhorse.steps.calls import around_steps
from packhorse.telemetry.otel_metrics import histogram
from packhorse.version import installed_version

_SYSTEM: Final = "packhorse"
#: The most characters of a carrier that are stored with a job.
_CARRIER_CHARACTERS_MAX: Final = 8_192
_OWN: Final = "messaging.packhorse"
_ATTEMPT: Final = f"{_OWN}.job.attempt"
_OUTCOME: Final = f"{_OWN}.job.outcome"
_PRIORITY: Final = f"{_OWN}.job.priority"
_TENANT: Final = f"{_OWN}.tenant"
_FAILED: Final = (Failed, GivenUp, TimedOut, Crashed)
_FAILURES: Final = (SettlementKind.FAILED, SettlementKind.TIMEOUT, SettlementKind.DEAD)
#: Cached carriers and span names; all jobs of one submit share one carrier.
_REMEMBERED_MAX: Final = 1_024
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

    With `span_name="task"` spans are named after tasks; the queue stays an attribute.
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


class _Kind(NamedTuple):
    """What the spans of all attempts of one task in one queue have in common."""

    name: str  #: of their spans
    attributes: Mapping[str, Any]


class _Telemetry:
    """The telemetry of one app: an `Instrument` of its workers, and spans around submits."""

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
        self._root = self._context.Context()
        self._providers = (
            tracer_provider or self._trace.get_tracer_provider(),
            meter_provider or metrics.get_meter_provider(),
        )
        version = installed_version()
        self._tracer = self._providers[0].get_tracer(_SYSTEM, version)
        self._consumer = self._trace.SpanKind.CONSUMER
        self._light = self._made_light(version)
        meter = self._providers[1].get_meter(_SYSTEM, version)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")
        self._run_s = histogram(meter, "messaging.process.duration", "How long attempts ran")
        self._wait_s = histogram(
            meter, "packhorse.job.wait.duration", "How long jobs were ready before they first ran"
        )
        self._kind = lru_cache(_REMEMBERED_MAX)(self._made_kind)
        self._labels = lru_cache(_REMEMBERED_MAX)(_process_labels)
        self._carried = lru_cache(_REMEMBERED_MAX)(self._extracted)

    def connect(self, app: Packhorse) -> None:
        """Connect it to the app's submits and workers."""
        app._submission.around = self.sending  # noqa: SLF001 - of this package, as below
        app._instruments.append(self)  # noqa: SLF001 - no word for users
        app.lifespan(self.while_running)

    def while_running(self) -> Iterator[None]:
        """Send what is left when the worker stops."""
        yield
        if self._light is not None:
            self._light.flush()
        for provider in self._providers:
            if (flush := getattr(provider, "force_flush", None)) is not None:
                flush()

    # ------------------------------------------------------------------------------- submitting

    @contextmanager
    def sending(self, jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
        """Trace a submit; yield the jobs with the trace context that is stored with them."""
        queues = {job.queue for job in jobs}
        tasks = {job.task for job in jobs}
        attributes = _attributes("send", "send")
        if len(queues) == 1:
            attributes["messaging.destination.name"] = next(iter(queues))
        if len(tasks) == 1:
            attributes[f"{_OWN}.task.name"] = next(iter(tasks))
        if len(jobs) == 1 and jobs[0].id:
            attributes["messaging.message.id"] = jobs[0].id
        elif jobs[0].id:  # else it is the template of a batch's jobs
            attributes["messaging.batch.message_count"] = len(jobs)
        about = next(iter(tasks if self._by_task else queues), "")
        one = len(tasks if self._by_task else queues) == 1
        name = f"send {about}" if one else "send"
        with self._around(name, attributes, self._trace.SpanKind.PRODUCER):
            carrier: dict[str, str] = {}
            self._propagate.inject(carrier)
            yield _carrying(jobs, carrier)
        for queue, count in Counter(job.queue for job in jobs if job.id).items():
            self._sent.add(count, _labels("send", queue))

    # ---------------------------------------------------------------------------------- running

    def entered(self, attempt: Attempt) -> None:
        """Start the span of an attempt, and make it the current one."""
        if attempt.span is not None:  # middlewares run in it already
            return
        job, light = attempt.job, self._light
        attempt.span = span = self._started(job) if light is None else light.start_span(job)
        carried, _ = self._carried(job.options)
        self._context.attach(self._trace.set_span_in_context(span, carried))
        around_steps(self._step)

    def _started(self, job: Job) -> Any:
        name, context, kind, links = self._described(job)
        return self._tracer.start_span(name, context, kind, self._attributes(job), links)

    def _described(self, job: Job) -> tuple[Any, ...]:
        """Return the name, context, kind and links of the span of an attempt."""
        carried, links = self._carried(job.options)
        context = carried if self._as_parent else self._root
        return self._kind(job.queue, job.task).name, context, self._consumer, links

    def _attributes(self, job: Job) -> dict[str, Any]:
        attributes = {
            **self._kind(job.queue, job.task).attributes,
            "messaging.message.id": job.id,
            "messaging.message.conversation_id": job.trace_id,
            _ATTEMPT: job.attempt,
            _PRIORITY: job.priority,
        }
        if job.tenant:
            attributes[_TENANT] = job.tenant
        return attributes

    def carrier(self, attempt: Attempt) -> Mapping[str, str]:
        """Return the trace context of an attempt's span, for another process."""
        carrier: dict[str, str] = {}
        carried, _ = self._carried(attempt.job.options)
        self._propagate.inject(carrier, self._trace.set_span_in_context(attempt.span, carried))
        return carrier

    def resumed(self, carrier: Mapping[str, str]) -> None:
        """Start spans below a span of the worker."""
        self._context.attach(self._propagate.extract(carrier, context=self._root))
        around_steps(self._step)

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """Set the outcome on the span of an attempt, and end it."""
        span, attempt.span = attempt.span, None
        if span is None:
            return
        kind = type(outcome)
        span.set_attribute(_OUTCOME, "succeeded" if kind is Succeeded else kind.__name__.lower())
        if isinstance(outcome, _FAILED):
            self._tell_failed(span, outcome.error)
        span.end()

    def settled(
        self,
        settlements: Sequence[Settlement],
        attempts: Sequence[Attempt],
        verdicts: Sequence[Verdict],  # noqa: ARG002 - an attempt that came too late ran too
    ) -> None:
        """Record the metrics of attempts, grouped by their labels."""
        if self._light is not None:
            self._light.flush()
        runs: dict[tuple[str, str, str], list[float]] = {}
        waits: dict[tuple[str, str], list[float]] = {}
        for attempt, settlement in zip(attempts, settlements, strict=True):
            if not attempt.begun:
                continue
            job, error = attempt.job, settlement.error
            failed = error.type if error is not None and settlement.kind in _FAILURES else ""
            runs.setdefault((job.queue, job.task, failed), []).append(attempt.duration)
            if not job.attempts:  # later attempts waited for their back-off, too
                ready_s = (job.ready_us - attempt.offset_us) / SECOND_US
                waited_s = max(0.0, attempt.started - ready_s)
                waits.setdefault((job.queue, job.task), []).append(waited_s)
        for key, values in runs.items():
            self._consumed.add(len(values), self._labels(*key))
            self._run_s.record(values, self._labels(*key))
        for kind, values in waits.items():
            self._wait_s.record(values, self._labels(*kind))

    def _made_light(self, version: str) -> Any:
        """Return a tracer of lighter spans if the tracer is the SDK's own; else None."""
        try:
            from opentelemetry.sdk.trace import Tracer  # noqa: PLC0415 - what the program sets up

            from packhorse.telemetry.otel_spans import LightTracer  # noqa: PLC0415 - as above
        except ImportError:
            return None
        if type(self._tracer) is not Tracer:
            return None
        now_us = SystemClock().now_us
        return LightTracer(self._tracer, version, now_us, self._described, self._attributes)

    def _made_kind(self, queue: str, task: str) -> _Kind:
        return _Kind(
            f"process {task if self._by_task else queue}",
            {
                **_attributes("process", "process"),
                "messaging.destination.name": queue,
                f"{_OWN}.task.name": task,
            },
        )

    def _extracted(self, options: str | None) -> tuple[Any, tuple[Any, ...]]:
        """Return the trace context stored with a job, and the link to the span of its submit."""
        carrier = None if options is None else _options.decode(options).carrier
        carried = self._propagate.extract(carrier or {}, context=self._root)
        creation = self._trace.get_current_span(carried).get_span_context()
        return carried, ((self._trace.Link(creation),) if creation.is_valid else ())

    def _tell_failed(self, span: Any, error: AttemptError) -> None:
        message = redacted_text(self._redact, error.message)
        told = {"exception.type": error.type, "exception.message": message}
        if error.stack:
            told["exception.stacktrace"] = redacted_text(self._redact, error.stack)
        span.add_event("exception", told)
        span.set_attribute("error.type", error.type)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, message))

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Trace a step that is called now; one whose result was stored has no span."""
        attributes = {"messaging.system": _SYSTEM, f"{_OWN}.step.name": name}
        with self._around(f"step {name}", attributes, self._trace.SpanKind.INTERNAL):
            yield

    @contextmanager
    def _around(self, name: str, attributes: dict[str, Any], kind: Any) -> Iterator[None]:
        """Trace what runs inside; of what it raises the span has the type, never the text."""
        with self._tracer.start_as_current_span(
            name,
            kind=kind,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,  # it would write the text, with secrets in it
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
                raise


def _attributes(name: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }


def _labels(operation: str, queue: str) -> dict[str, str]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
    }


def _process_labels(queue: str, task: str, error: str = "") -> dict[str, str]:
    labels = {**_labels("process", queue), f"{_OWN}.task.name": task}
    return {**labels, "error.type": error} if error else labels


def _carrying(jobs: Sequence[NewJob], carrier: dict[str, str]) -> list[NewJob]:
    """Store the trace context with the jobs, except those that have one already."""
    size = sum(len(name) + len(value) for name, value in carrier.items())
    if not carrier or size > _CARRIER_CHARACTERS_MAX:
        return list(jobs)
    alone = JobOptions(carrier=carrier)
    return [
        job
        if job.options is not None and job.options.carrier is not None
        else msgspec.structs.replace(
            job,
            options=alone
            if job.options is None
            else msgspec.structs.replace(job.options, carrier=carrier),
        )
        for job in jobs
    ]
