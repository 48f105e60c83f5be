# SPDX-License-Identifier: MIT
"""The bus: who hears what, and that no observer can do harm."""

from __future__ import annotations

import msgspec
import pytest

from packhorse import Context, Contract, Packhorse, events
from packhorse.errors import ConfigError
from packhorse.events import (
    EVENTS,
    Event,
    EventBus,
    JobCompleted,
    JobEnded,
    JobEvent,
    JobFailed,
    JobStarted,
    ObserverFailed,
    WorkerStopped,
)


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


STARTED = JobStarted(job_id="j", worker="w", worker_id="t", queue="q", task="t", attempt=1)
COMPLETED = JobCompleted(job_id="j", worker="w", status="completed")


@pytest.mark.req("S3-37")
def test_an_observer_hears_the_events_it_asked_for_and_no_others(bus: EventBus) -> None:
    heard: list[Event] = []
    bus.subscribe(JobStarted, heard.append)

    bus.emit(STARTED)
    bus.emit(COMPLETED)

    assert heard == [STARTED]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("job.started", [STARTED]),
        ("job.*", [STARTED, COMPLETED]),
        ("*", [STARTED, COMPLETED]),
        ("worker.*", []),
        (JobEnded, [COMPLETED]),
        (Event, [STARTED, COMPLETED]),
    ],
)
def test_events_are_asked_for_by_class_name_family_or_altogether(
    bus: EventBus, asked: type[Event] | str, told: list[Event]
) -> None:
    heard: list[Event] = []
    bus.subscribe(asked, heard.append)

    bus.emit(STARTED)
    bus.emit(COMPLETED)

    assert heard == told


def test_what_has_no_subscriber_need_not_be_made(bus: EventBus) -> None:
    assert not bus.wants(JobStarted)
    end = bus.subscribe(JobStarted, print)
    assert bus.wants(JobStarted)
    assert not bus.wants(JobCompleted)

    end()

    assert not bus.wants(JobStarted)


def test_ending_one_subscription_leaves_the_others(bus: EventBus) -> None:
    first: list[Event] = []
    second: list[Event] = []
    end = bus.subscribe("job.*", first.append)
    bus.subscribe("job.*", second.append)

    end()
    bus.emit(STARTED)

    assert (first, second) == ([], [STARTED])


@pytest.mark.req("S3-37")
@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1), KeyboardInterrupt()])
def test_an_observer_that_raises_is_told_of_and_the_others_still_hear(
    bus: EventBus, error: BaseException
) -> None:
    heard: list[Event] = []
    failures: list[ObserverFailed] = []

    def broken(event: Event) -> None:
        raise error

    bus.subscribe(JobStarted, broken)
    bus.subscribe(JobStarted, heard.append)
    bus.subscribe(ObserverFailed, failures.append)

    bus.emit(STARTED)

    assert heard == [STARTED]
    (failure,) = failures
    assert (failure.event, failure.job_id) == ("job.started", "j")
    assert failure.error_type == type(error).__name__
    assert "broken" in failure.observer


def test_an_observer_of_failures_that_fails_itself_ends_there(bus: EventBus) -> None:
    def broken(event: Event) -> None:
        raise ValueError

    bus.subscribe("*", broken)

    bus.emit(STARTED)


def test_a_coroutine_cannot_observe(bus: EventBus) -> None:
    async def observer(event: Event) -> None: ...

    with pytest.raises(ConfigError, match="async"):
        bus.subscribe(JobStarted, observer)


def test_an_unknown_event_is_refused_with_a_suggestion(bus: EventBus) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'job\.started'"):
        bus.subscribe("job.startd", print)


def test_every_event_has_a_name_of_its_own_and_is_listed() -> None:
    families = {"Event", "JobEvent", "JobEnded", "EndedBatch", "EndedWorkflow"}
    kinds = [
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, Event) and kind.__name__ not in families
    ]

    assert set(EVENTS.values()) == set(kinds)
    assert len(EVENTS) == len(kinds)
    assert all(name in (events.__doc__ or "") for name in EVENTS)


def test_events_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        STARTED.job_id = "other"  # type: ignore[misc]


@pytest.mark.req("S3-40")
def test_no_event_has_a_place_for_a_payload_or_a_result() -> None:
    for kind in EVENTS.values():
        assert not {"payload", "result", "arguments"} & {
            each.name for each in msgspec.structs.fields(kind)
        }


def test_an_end_says_how_it_ended() -> None:
    event = JobFailed(job_id="j", status="failed", error_code="EXCEPTION", duration_ms=1.5)

    assert (event.status, event.error_code, event.duration_ms) == ("failed", "EXCEPTION", 1.5)
    assert WorkerStopped(processed=1, abandoned=0).name == "worker.stopped"


@pytest.mark.req("X-16", "S0-30", "S4-22")
def test_a_contract_is_told_as_worker_id_and_a_process_as_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Packhorse("memory://")
    told: list[JobEvent] = []

    @app.task(contract=Contract(worker_id="writer"))
    def write(ctx: Context) -> dict[str, str]:
        ctx.log.warning("spoken")
        return {"job": ctx.job.id}

    app.on("job.*")(told.append)
    with caplog.at_level("INFO"):
        done, cancelled = write.enqueue(), write.using(delay="1h").enqueue()
        cancelled.cancel()
        report = app.run(burst=True)

    assert {event.worker_id for event in told} == {"writer"}
    ran = [event for event in told if event.job_id == done.id]
    assert [event.name for event in ran] == ["job.started", "job.completed"]
    assert {event.worker for event in ran} == {report.worker, done.info().worker or report.worker}
    (line,) = [record for record in caplog.records if record.message == "spoken"]
    assert (line.worker, line.worker_id) == (report.worker, "writer")  # type: ignore[attr-defined]
    answer = done.response()
    assert answer is not None
    assert answer.observability.log_fields == {"worker_id": "writer"}
    assert write.contract.document()["worker_id"] == "writer"
    app.close()
