# SPDX-License-Identifier: MIT
"""The real SDK of OpenTelemetry with its exporters in memory, and a task to trace."""

from __future__ import annotations

from typing import Any

from opentelemetry import baggage
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from packhorse import Context, Packhorse, RetryPolicy
from packhorse.telemetry import otel

SOON = RetryPolicy(max_retries=1, initial_delay="1ms", jitter=False)


class Traced:
    """Providers of a test's own, and what they exported."""

    def __init__(self, meters: MeterProvider | None = None, **provider: Any) -> None:
        self.spans = InMemorySpanExporter()
        self.tracers = TracerProvider(**provider)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.meters = meters or MeterProvider([self.reader])

    def install(self, app: Packhorse, **options: Any) -> None:
        providers: Any = {"tracer_provider": self.tracers, "meter_provider": self.meters}
        otel.install(app, **providers, **options)

    def called(self, name: str) -> list[Any]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        return points_of(self.reader.get_metrics_data(), name)


def points_of(data: Any, name: str) -> list[Any]:
    return [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]


def flaky(app: Packhorse) -> Any:
    """A task with a step that fails once, with a secret in what it raises."""

    @app.task(queue="mail", retry=SOON, name="flaky")
    def run(ctx: Context) -> str:
        ctx.step("fetch", lambda: ctx.job.attempt)
        if ctx.job.attempt == 1:
            raise ValueError("refused, password=hunter2")
        return str(baggage.get_baggage("customer"))

    return run
