# SPDX-License-Identifier: MIT
"""Jobs that are stored with records are of the trace of who asked for them, by the real SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace

from packhorse import Context, Packhorse
from packhorse.testing import use
from tests.stores.conftest import new_app, store_kind, store_url
from tests.telemetry.otel_support import Traced

__all__ = ["new_app", "store_kind", "store_url"]


@pytest.fixture
def traced() -> Traced:
    return Traced()


def linked(traced: Traced, name: str) -> dict[str, int]:
    """The span that each task's attempts link to; they have one in common."""
    found: dict[str, set[int]] = {}
    for span in traced.called(name):
        task = span.attributes["messaging.packhorse.task.name"]
        found.setdefault(task, set()).update(link.context.span_id for link in span.links)
    assert all(len(each) == 1 for each in found.values()), found
    return {task: min(each) for task, each in found.items()}


def test_nodes_of_a_workflow_link_to_its_start_and_those_added_to_who_added_them(
    new_app: Callable[[], Packhorse], traced: Traced
) -> None:
    app = new_app()
    traced.install(app)
    later = app.task(name="later")(lambda: 3)

    @app.task(name="second")
    def second(ctx: Context, before: int) -> int:
        ctx.flow.add(later.call())
        return before + 1

    flow = app.workflow()
    one = flow.add(app.task(name="first")(lambda: 1).call())
    flow.add(second.call(one.result))
    with traced.tracers.get_tracer("web").start_as_current_span("request") as request:
        flow.start()
    app.run(burst=True)

    start, grown = traced.called("send default")
    attempts = {
        span.attributes["messaging.packhorse.task.name"]: span.context.span_id
        for span in traced.called("process default")
    }
    assert start.kind is trace.SpanKind.PRODUCER
    assert start.parent.span_id == request.get_span_context().span_id
    assert start.attributes["messaging.batch.message_count"] == 2
    assert grown.parent.span_id == attempts["second"]
    assert linked(traced, "process default") == {
        "first": start.context.span_id,
        "second": start.context.span_id,
        "later": grown.context.span_id,
    }


def test_chunks_and_callbacks_of_a_batch_link_to_its_beginning(
    new_app: Callable[[], Packhorse], traced: Traced
) -> None:
    app = new_app()
    traced.install(app)
    told = app.task(name="told")(lambda: None)

    @app.task(name="work")
    def work(_number: int) -> None:
        pass

    batch = app.batch(work, range(6), batch_size=2, queue="bulk", on_complete=told.call())
    app.run(burst=True, queues=("bulk", "default"))

    (sent,) = [span for span in traced.spans.get_finished_spans() if span.name.startswith("send")]
    assert batch.progress().succeeded == 6
    assert "messaging.batch.message_count" not in (sent.attributes or {})
    assert linked(traced, "process bulk") == {"work": sent.context.span_id}
    assert linked(traced, "process default") == {"told": sent.context.span_id}


@pytest.mark.parametrize("aside", [False, True])
async def test_subscribers_link_to_the_publish(traced: Traced, *, aside: bool) -> None:
    app = Packhorse("memory://")
    traced.install(app)
    topic = app.topic("orders")
    for name in ("mail", "stock"):
        topic.subscribe(app.task(name=name)(_heard))

    if aside:
        await topic.apublish({"number": 7})
    else:
        await asyncio.to_thread(topic.publish, {"number": 7})
    await app.arun(burst=True)

    (sent,) = traced.called("send default")
    span_id = sent.context.span_id
    assert sent.attributes["messaging.batch.message_count"] == 2
    assert linked(traced, "process default") == {"mail": span_id, "stock": span_id}
    (counted,) = traced.points("messaging.client.sent.messages")
    assert counted.value == 2


def _heard(number: int) -> Any:
    return number


def test_a_fire_of_a_schedule_is_sent_and_its_attempts_link_to_it(traced: Traced) -> None:
    with use(Packhorse()) as app:
        traced.install(app)
        app.schedule("tick", app.task(name="tick")(lambda: None).call(), every="1m")
        app.run_for("2m30s")

    sends, attempts = traced.called("send default"), traced.called("process default")
    assert len(sends) == len(attempts) == 2
    assert {span.parent for span in sends} == {None}
    for send, attempt in zip(sends, attempts, strict=True):
        assert send.attributes["messaging.message.id"] == attempt.attributes["messaging.message.id"]
        assert [link.context.span_id for link in attempt.links] == [send.context.span_id]
