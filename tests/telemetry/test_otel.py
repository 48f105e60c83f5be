# SPDX-License-Identifier: MIT
"""Traces and metrics of jobs: the real SDK of OpenTelemetry, with its exporters in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import (
    Sampler,
    SamplingResult,
)

from packhorse import ConfigError, Context, Packhorse, RetryPolicy
from packhorse.telemetry import otel
from tests.stores.conftest import new_app, store_kind, store_url
from tests.telemetry.otel_support import Traced, flaky

__all__ = ["new_app", "store_kind", "store_url"]


@pytest.fixture
def traced() -> Traced:
    return Traced()


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


def test_no_span_has_the_text_of_what_a_step_or_a_submit_raised(traced: Traced) -> None:
    app = Packhorse("memory://")
    traced.install(app)
    secret = "password=hunter2"

    @app.task(retry=RetryPolicy(max_retries=0))
    def charge(ctx: Context) -> None:
        def fail() -> None:
            raise ValueError(secret)

        ctx.step("card", fail)

    def items() -> Iterator[dict[str, str]]:
        yield {}
        raise ValueError(secret)

    charge.enqueue()
    app.run(burst=True)
    with pytest.raises(ValueError, match="hunter2"):
        charge.map(items())

    (step,) = traced.called("step card")
    *_, sent = traced.called("send default")
    for span in (step, sent):
        assert span.status.status_code is trace.StatusCode.ERROR
        assert span.status.description is None
        assert span.attributes["error.type"] == "ValueError"
    assert "hunter2" not in "".join(
        str(span.to_json()) for span in traced.spans.get_finished_spans()
    )


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


@pytest.mark.parametrize("threaded", [False, True])
def test_a_handler_writes_to_its_span_and_its_own_spans_are_children(
    traced: Traced, *, threaded: bool
) -> None:
    app = Packhorse("memory://")
    traced.install(app)

    def work() -> bool:
        span = trace.get_current_span()
        span.set_attribute("order", 7)
        with traced.tracers.get_tracer("mine").start_as_current_span("query"):
            trace.get_current_span().set_attribute("rows", 1)
        span.set_attributes({"tags": ["a", "b"]})
        span.add_event("found", {"rows": 1})
        span.record_exception(KeyError("left out"))
        span.set_attribute("late", True)
        return span.is_recording()

    async def awork() -> bool:
        return work()

    job = (app.task(name="work")(work) if threaded else app.task(name="work")(awork)).enqueue()
    app.run(burst=True)

    (span,) = traced.called("process default")
    (query,) = traced.called("query")
    assert job.result() is True
    assert query.parent.span_id == span.context.span_id
    assert query.context.trace_id == span.context.trace_id
    assert (span.attributes["order"], span.attributes["late"]) == (7, True)
    assert span.attributes["tags"] == ("a", "b")
    assert span.attributes["messaging.packhorse.job.outcome"] == "succeeded"
    assert [event.name for event in span.events] == ["found", "exception"]
    assert span.start_time <= query.start_time <= query.end_time <= span.end_time
    assert (span.resource, span.instrumentation_scope.name) == (query.resource, "packhorse")


class Noting(SpanProcessor):
    """A processor that reads and writes spans that start."""

    def __init__(self) -> None:
        self.started: list[Any] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.started.append((span.name, span.kind, span.attributes["messaging.system"]))
        customer = baggage.get_baggage("customer", parent_context)
        span.set_attribute("customer", str(customer))


def test_processors_hear_of_a_span_at_its_start_and_may_write_to_it(traced: Traced) -> None:
    app = Packhorse("memory://")
    noting = Noting()
    traced.tracers.add_span_processor(noting)
    traced.install(app, trace_link="parent")
    token = context.attach(baggage.set_baggage("customer", "acme"))
    app.task(name="work")(lambda: None).enqueue()
    context.detach(token)

    app.run(burst=True)

    (span,) = traced.called("process default")
    assert span.attributes["customer"] == "acme"
    assert ("process default", trace.SpanKind.CONSUMER, "packhorse") in noting.started


def test_limits_of_the_provider_cut_what_spans_have() -> None:
    traced = Traced(span_limits=SpanLimits(max_span_attribute_length=3))
    app = Packhorse("memory://")
    traced.install(app)
    app.task(name="work", queue="long-name")(lambda: None).enqueue()

    app.run(burst=True)

    (span,) = traced.called("process long-name")
    assert span.attributes["messaging.destination.name"] == "lon"


class Foreign(trace.TracerProvider):
    """A provider that is not the SDK's."""

    def __init__(self, tracers: TracerProvider) -> None:
        self._tracers = tracers

    def get_tracer(self, *given: Any, **named: Any) -> Any:
        tracer = self._tracers.get_tracer(*given, **named)
        return type("Wrapped", (), {"__getattr__": lambda _, name: getattr(tracer, name)})()


def test_a_tracer_of_another_kind_starts_spans_itself(traced: Traced) -> None:
    app = Packhorse("memory://")
    otel.install(app, tracer_provider=Foreign(traced.tracers))
    flaky(app).enqueue()

    app.run(burst=True)

    first, second = traced.called("process mail")
    assert first.status.status_code is trace.StatusCode.ERROR
    assert second.attributes["messaging.packhorse.job.attempt"] == 2


class Broken(Sampler):
    """A sampler that fails."""

    def should_sample(self, *_given: Any, **_named: Any) -> SamplingResult:
        raise RuntimeError("no rules")

    def get_description(self) -> str:
        return "broken"


def test_a_sampler_that_fails_is_told_of_and_harms_no_job() -> None:
    traced = Traced()
    app = Packhorse("memory://")
    traced.install(app)
    job = app.task(name="work")(lambda: 7).enqueue()
    told: list[Any] = []
    app.on("observer.failed")(told.append)
    traced.tracers.get_tracer("packhorse")
    for tracer in traced.tracers._tracers.values():  # it broke after the start
        tracer.sampler = Broken()

    app.run(burst=True)

    assert job.result() == 7
    assert [event.error_message for event in told] == ["no rules"]


def test_middlewares_run_in_the_span_of_the_attempt(traced: Traced) -> None:
    app = Packhorse("memory://")
    traced.install(app)

    @app.middleware
    async def note(_ctx: Context, proceed: Any) -> None:
        trace.get_current_span().set_attribute("noted", True)
        await proceed()

    app.task(name="work")(lambda: None).enqueue()
    app.run(burst=True)

    (span,) = traced.called("process default")
    assert span.attributes["noted"] is True


_APART = """
from opentelemetry import trace
from packhorse import Packhorse
from packhorse.telemetry import otel
app = Packhorse({url!r})
otel.install(app)

@app.task(name="work", executor="process")
def work():
    found = trace.get_current_span().get_span_context()
    return [found.trace_id, found.span_id]
"""


def test_a_handler_in_a_process_goes_on_in_the_span_of_its_attempt(
    traced: Traced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apart_app.py").write_text(_APART.format(url=f"sqlite:///{tmp_path}/jobs.db"))
    monkeypatch.syspath_prepend(str(tmp_path))
    import apart_app  # type: ignore[import-not-found]  # written above

    app: Packhorse = apart_app.app
    app._instruments.clear()
    traced.install(app)
    job = app.tasks["work"].enqueue()

    app.run(burst=True)

    (span,) = traced.called("process default")
    assert job.result() == [span.context.trace_id, span.context.span_id]


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
