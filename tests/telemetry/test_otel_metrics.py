# SPDX-License-Identifier: MIT
"""What is measured of jobs, and which of them are sampled, by the real SDK of OpenTelemetry."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
)

from packhorse import Packhorse
from packhorse.telemetry import otel_metrics
from tests.telemetry.otel_support import Traced, flaky, points_of


@pytest.fixture
def traced() -> Traced:
    return Traced()


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


class Counting(AlwaysOffExemplarFilter):
    """Asked once for each value that is recorded in the public way."""

    asked = 0

    def should_sample(self, *given: Any, **named: Any) -> bool:
        self.asked += 1
        return bool(super().should_sample(*given, **named))


class Keeping(MetricReader):
    """Keeps all that it collects; what is flushed at the end of a worker too."""

    def __init__(self, temporality: AggregationTemporality) -> None:
        super().__init__({Histogram: temporality})
        self.kept: list[Any] = []

    def _receive_metrics(self, metrics_data: Any, *_given: Any, **_named: Any) -> None:
        self.kept.append(metrics_data)

    def shutdown(self, *_given: Any, **_named: Any) -> None:
        pass


@pytest.mark.parametrize("temporality", list(AggregationTemporality)[1:])
def test_values_of_many_attempts_are_recorded_together(temporality: AggregationTemporality) -> None:
    readers = [Keeping(temporality) for _ in range(2)]
    counting = Counting()
    app = Packhorse("memory://")
    traced = Traced(MeterProvider(readers, exemplar_filter=counting))
    traced.install(app)
    work = app.task(name="work")(lambda: None)

    for _ in range(2):
        work.enqueue_many([{}] * 200)
        app.run(burst=True)

    for reader in readers:
        ran = [
            each for data in reader.kept for each in points_of(data, "messaging.process.duration")
        ]
        counts = [each.count for each in ran]
        together = sum(counts) if temporality is AggregationTemporality.DELTA else counts[-1]
        assert together == 400
        assert all(0 < each.min <= each.max <= each.sum for each in ran)
        assert all(sum(each.bucket_counts) == each.count for each in ran)
    assert counting.asked < 200  # of 800 values


def test_values_are_recorded_one_by_one_where_the_histogram_is_not_the_sdks(traced: Traced) -> None:
    plain = traced.meters.get_meter("packhorse").create_histogram("plain")

    class Wrapped:
        def record(self, value: float, labels: Any) -> None:
            plain.record(value, labels)

    wrapping = type("Meter", (), {"create_histogram": lambda *_, **__: Wrapped()})()
    otel_metrics.histogram(wrapping, "plain", "").record([1.0, 2.0, 3.0], {})

    (point,) = traced.points("plain")
    assert (point.count, point.sum) == (3, 6.0)


class Picky(Sampler):
    """Samples attempts of one task, and marks them."""

    def should_sample(self, *given: Any, **named: Any) -> SamplingResult:
        attributes = named.get("attributes") or given[4] or {}
        if attributes.get("messaging.packhorse.task.name") != "kept":
            return SamplingResult(Decision.DROP)
        return SamplingResult(Decision.RECORD_AND_SAMPLE, {**attributes, "picked": True})

    def get_description(self) -> str:
        return "picky"


@pytest.mark.parametrize(
    ("sampler", "kept"),
    [(Picky(), 1), (ParentBased(Picky()), 1), (ALWAYS_OFF, 0), (ParentBasedTraceIdRatio(0), 0)],
)
def test_the_providers_sampler_decides_and_all_attempts_are_measured(
    sampler: Sampler, kept: int
) -> None:
    traced = Traced(sampler=sampler)
    app = Packhorse("memory://")
    traced.install(app)

    def look() -> tuple[bool, bool]:
        span = trace.get_current_span()
        span.set_attribute("seen", True)
        return span.is_recording(), span.get_span_context().trace_flags.sampled

    jobs = [app.task(name=name)(look).enqueue() for name in ("kept", "left")]
    app.run(burst=True)

    assert [job.result() for job in jobs] == [(bool(kept),) * 2, (False,) * 2]
    found = traced.called("process default")
    assert [span.attributes["picked"] for span in found] == [True] * kept
    assert sum(point.value for point in traced.points("messaging.client.consumed.messages")) == 2


@pytest.mark.parametrize(("rate", "trace_link"), [(0.5, "link"), (0.0, "parent"), (1.0, "link")])
def test_samplers_that_go_by_ids_and_parents_are_followed(rate: float, trace_link: str) -> None:
    traced = Traced(sampler=ParentBasedTraceIdRatio(rate))
    web = TracerProvider().get_tracer("web")  # whose spans are all sampled
    app = Packhorse("memory://")
    traced.install(app, trace_link=trace_link)
    with web.start_as_current_span("request"):
        app.task(name="work")(lambda: None).enqueue_many([{}] * 60)

    app.run(burst=True)

    (sent,) = traced.called("send default")
    found = traced.called("process default")
    assert 5 < len(found) < 55 if rate == 0.5 else len(found) == 60
    assert {each.context.span_id for span in found for each in span.links} == {sent.context.span_id}
