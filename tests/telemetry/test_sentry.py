# SPDX-License-Identifier: MIT
"""Failures of jobs in Sentry: the real SDK, with a transport that keeps what it would send."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from packhorse import ConfigError, Packhorse, RetryPolicy
from packhorse.telemetry import sentry

SOON = RetryPolicy(max_retries=1, initial_delay="1ms", jitter=False)
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def sent() -> Iterator[list[Any]]:
    """The events that would have gone to Sentry."""
    events: list[Any] = []

    def capture_envelope(_self: object, envelope: Any) -> None:
        if (event := envelope.get_event()) is not None:
            events.append(event)

    kept: Any = type("Kept", (Transport,), {"capture_envelope": capture_envelope})
    sentry_sdk.init(
        dsn="https://key@localhost/1",
        transport=kept,
        default_integrations=False,  # they would change other tests of this process
        integrations=[LoggingIntegration()],
    )
    yield events
    sentry_sdk.get_global_scope().clear()
    sentry_sdk.init()


def failing_app(**options: Any) -> Packhorse:
    app = Packhorse("memory://", **options)

    @app.task(retry=SOON)
    def charge(order: dict[str, Any], password: str = "") -> None:
        noted = {"order": order, "password": password}
        raise ValueError(f"card refused, password={password}, {len(noted)} facts")

    @app.task(retry=RetryPolicy(max_retries=0), timeout="50ms")
    async def endless() -> None:
        import asyncio

        await asyncio.sleep(60)

    return app


def tags(event: Any) -> Any:
    return {name: event["tags"].get(f"packhorse.{name}") for name in ("task", "queue", "tenant")}


def test_each_failed_attempt_is_one_event_with_job_task_tenant_and_trace(sent: list[Any]) -> None:
    app = failing_app()
    sentry.install(app)
    call = app.tasks["charge"].using(tenant="acme", trace_id=TRACE)
    job = call.enqueue({"id": 7})

    app.run(burst=True)

    first, second = sent
    assert tags(first) == {"task": first["transaction"], "queue": "default", "tenant": "acme"}
    about = first["contexts"]["job"]
    assert (about["job_id"], about["tenant"], about["attempt"]) == (job.id, "acme", 1)
    assert first["contexts"]["trace"]["trace_id"] == about["trace_id"] == TRACE
    assert first["contexts"]["trace"]["span_id"] == about["span_id"]
    assert first["exception"]["values"][0]["type"] == "ValueError"
    frames = first["exception"]["values"][0]["stacktrace"]["frames"]
    assert frames[-1]["function"] == "charge"
    assert (first["level"], second["level"]) == ("warning", "error")
    assert second["contexts"]["job"]["attempt"] == 2


def test_each_death_is_one_event_where_that_is_chosen(
    sent: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = failing_app()
    sentry.install(app, each="death")
    app.tasks["charge"].enqueue({"id": 7})
    app.tasks["endless"].enqueue()

    with caplog.at_level(logging.INFO):  # its log lines, at level ERROR, make no second event
        app.run(burst=True)

    assert sorted(event["contexts"]["job"]["reason"] for event in sent) == ["poison_message"] * 2
    assert {event["exception"]["values"][0]["type"] for event in sent} == {"ValueError", "Timeout"}


@pytest.mark.req("S3-40", "S3-41")
def test_neither_arguments_nor_secrets_in_exception_text_are_sent(sent: list[Any]) -> None:
    app = failing_app()
    sentry.install(app)
    app.tasks["charge"].enqueue({"iban": "DE02120300000000202051", "id": 4711}, "hunter2")

    app.run(burst=True)

    assert len(sent) == 2
    assert "[redacted]" in sent[0]["exception"]["values"][0]["value"]
    for secret in ("hunter2", "DE02120300000000202051", "4711"):
        assert secret not in str(_without_source(sent))


def _without_source(value: Any) -> Any:
    """What was sent, without the lines of this file that events show."""
    if isinstance(value, dict):
        lines = ("context_line", "pre_context", "post_context")
        return {name: _without_source(part) for name, part in value.items() if name not in lines}
    return [_without_source(part) for part in value] if isinstance(value, list) else value


def test_local_variables_are_sent_redacted_where_asked_for(sent: list[Any]) -> None:
    app = failing_app(redact=_hidden)
    sentry.install(app, variables=True)
    app.tasks["charge"].enqueue({"id": 4711})

    app.run(burst=True)

    frame = sent[0]["exception"]["values"][0]["stacktrace"]["frames"][-1]
    assert frame["vars"]["order"] == "hidden"


def _hidden(value: Any) -> Any:
    return dict.fromkeys(value, "hidden") if isinstance(value, dict) else value


def test_a_program_that_has_not_set_up_the_sdk_sends_nothing_and_its_jobs_run() -> None:
    sentry_sdk.init()
    app = failing_app()
    sentry.install(app)
    app.tasks["charge"].enqueue({})

    assert app.run(burst=True).failed == 2


def test_a_choice_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither 'attempt' nor 'death'"):
        sentry.install(Packhorse("memory://"), each="job")  # type: ignore[arg-type] # as said
