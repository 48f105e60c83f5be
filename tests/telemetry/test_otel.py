# SPDX-License-Identifier: MIT
"""Traces and metrics of jobs: the real SDK of OpenTelemetry, with its exporters in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from packhorse import ConfigError, Context, Packhorse, RetryPolicy
from packhorse.telemetry import otel
from tests.stores.conftest import new_app, store_kind, store_url

__all__ = ["new_app", "store_kind", "store_url"]

SOON = RetryPolicy(max_retries=1, initial_delay="1ms", jitter=False)


class Traced:
    """Providers of a test's own, and what they exported."""

    def __init__(self) -> None:
        self.spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def install(self, app: Packhorse, **options: Any) -> None:
        providers: Any = {"tracer_provider": self.tracers, "meter_provider": self.meters}
        otel.install(app, **providers, **options)

    def called(self, name: str) -> list[Any]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        data: Any = self.reader.get_metrics_data()
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def traced() -> Traced:
    return Traced()


def flaky(app: Packhorse) -> Any:
    """A task with a step that fails once, with a secret in what it raises."""

    @app.task(queue="mail", retry=SOON, name="flaky")
    def run(ctx: Context) -> str:
        ctx.step("fetch", lambda: ctx.job.attempt)
        if ctx.job.attempt == 1:
            raise ValueError("refused, password=hunter2")
        return str(baggage.get_baggage("customer"))

    return run


def test_the_context_of_a_submit_travels_through_every_store_and_over_retries(
    new_app: Callable[[], Packhorse], traced: Traced
) -> None:
    app = new_app()
    task = flaky(app)
    traced.install(app)
    token = context.attach(baggage.set_baggage("customer", "acme"))
    with traced.tracers.get_tracer("web").start_as_current_span("request") as request:
        job = task.enqueue()
    context.detach(token)

    app.run(burst=True)

    (sent,) = traced.called("send mail")
    first, second = traced.called("process mail")
    assert sent.kind is trace.SpanKind.PRODUCER
    assert sent.parent.span_id == request.get_span_context().span_id
    for attempt, span in enumerate((first, second), 1):
        assert span.kind is trace.SpanKind.CONSUMER
        assert span.parent is None
        assert [link.context.span_id for link in span.links] == [sent.context.span_id]
        assert span.attributes["messaging.message.id"] == job.id
        assert span.attributes["messaging.packhorse.job.attempt"] == attempt
    (step,) = traced.called("step fetch")
    assert step.parent.span_id == first.context.span_id
    assert job.result() == "acme"


def test_a_failed_attempt_is_an_error_whose_text_is_redacted(traced: Traced) -> None:
    app = Packhorse("memory://")
    traced.install(app)
    flaky(app).enqueue()

    app.run(burst=True)

    first, second = traced.called("process mail")
    assert first.status.status_code is trace.StatusCode.ERROR
    assert first.attributes["error.type"] == "ValueError"
    assert (second.status.status_code, second.attributes["messaging.packhorse.job.outcome"]) == (
        *(trace.StatusCode.UNSET, "succeeded"),
    )
    assert "hunter2" not in str(first.to_json())
    assert first.events[0].attributes["exception.type"] == "ValueError"


async def test_the_submit_is_the_parent_and_tasks_name_spans_where_that_is_chosen(
    traced: Traced,
) -> None:
    app = Packhorse("memory://")
    traced.install(app, trace_link="parent", span_name="task")

    @app.task(name="child")
    async def child() -> None:
        pass

    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        await ctx.astep("think", child.function)
        await child.aenqueue()

    await parent.aenqueue_many([{}, {}])
    await app.arun(burst=True)

    (many,) = traced.called("send parent")
    assert many.attributes["messaging.batch.message_count"] == 2
    assert {span.context.trace_id for span in traced.spans.get_finished_spans()} == {
        many.context.trace_id
    }
    parents = {span.context.span_id for span in traced.called("process parent")}
    assert {span.parent.span_id for span in traced.called("step think")} == parents
    assert {span.parent.span_id for span in traced.called("send child")} == parents
    assert len(traced.called("process child")) == 2


def test_messages_are_counted_and_runs_and_waits_are_timed(traced: Traced) -> None:
    app = Packhorse("memory://")
    traced.install(app)
    flaky(app).enqueue()

    app.run(burst=True)

    (sent,) = traced.points("messaging.client.sent.messages")
    assert (sent.value, sent.attributes["messaging.destination.name"]) == (1, "mail")
    runs = traced.points("messaging.process.duration")
    assert {point.attributes.get("error.type"): point.count for point in runs} == {
        None: 1,
        "ValueError": 1,
    }
    assert sum(point.value for point in traced.points("messaging.client.consumed.messages")) == 2
    (waited,) = traced.points("packhorse.job.wait.duration")
    assert (waited.count, waited.attributes["messaging.packhorse.task.name"]) == (1, "flaky")


def test_without_an_sdk_nothing_travels_with_a_job() -> None:
    app = Packhorse("memory://")
    otel.install(app, tracer_provider=trace.NoOpTracerProvider())
    job = flaky(app).enqueue()

    record = app.store.run(app.store.inspection.job(job.id))

    assert record is not None
    assert record.options is None


@pytest.mark.parametrize("choice", [{"trace_link": "child"}, {"span_name": "job"}])
def test_a_choice_that_does_not_exist_is_refused(traced: Traced, choice: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="is neither"):
        traced.install(Packhorse("memory://"), **choice)
