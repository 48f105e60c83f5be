# SPDX-License-Identifier: MIT
"""Tasks of the worker protocol become jobs, under the id and with the wishes they came with."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from packhorse import ConfigError, JobConflict, Packhorse, PayloadError, ShapeError
from packhorse.client.declarations import Declarations
from packhorse.client.registry import Registry
from packhorse.client.wire import checked, wire_job, wire_queues
from packhorse.core.job import JobStatus, Priority, RateRule
from packhorse.core.policies.autoscale import ScaleRule
from packhorse.protocol import (
    UNSET,
    QueueConfig,
    Task,
    TaskMetadata,
    TaskPriority,
    TaskRetryPolicy,
    WorkerConfig,
    to_wire,
)
from tests.unit.app_support import HandWorker, memory_app

#: Nothing is declared of any queue.
NO_QUEUES = Declarations(Registry())

FULL = {
    "id": "task-1",
    "type": "send_email",
    "payload": {"to": "a@example.com"},
    "queue": "mail",
    "priority": "critical",
    "retryPolicy": {"maxRetries": 5, "backoffStrategy": "linear", "initialDelayMs": 250},
    "timeoutMs": 1500,
    "scheduledAt": "2099-01-01T00:00:00.5Z",
    "attempts": 2,
    "status": "failed",
    "metadata": {"createdBy": "ada", "tags": ["a", "b"], "createdAt": "2020-01-01T00:00:00Z"},
}


@pytest.mark.req("X-5", "S0-29")
def test_every_wish_of_a_wire_task_reaches_its_job() -> None:
    job = wire_job(checked(Task, FULL), None, NO_QUEUES)

    assert (job.id, job.task, job.queue) == ("task-1", "send_email", "mail")
    assert msgspec.json.decode(job.payload) == {"to": "a@example.com"}
    assert (job.priority, job.timeout_us) == (Priority.CRITICAL, 1_500_000)
    assert job.scheduled_us == 4_070_908_800_500_000
    assert (job.created_by, job.tags) == ("ada", ("a", "b"))
    assert len(job.trace_id) == 32
    assert job.options is not None
    retry = job.options.retry
    assert retry is not None
    assert (retry.max_retries, retry.backoff, retry.initial_us) == (5, "linear", 250_000)
    assert (retry.max_us, retry.multiplier, retry.jitter) == (60_000_000, 2.0, True)


@pytest.mark.req("S1-63")
async def test_a_job_is_read_back_as_the_task_it_came_as_with_what_has_become_of_it() -> None:
    app = memory_app()
    job = await app.asubmit(FULL)

    task = job.wire()

    assert task == await job.awire()
    assert (task.id, task.type, task.queue) == ("task-1", "send_email", "mail")
    assert task.payload == {"to": "a@example.com"}
    assert (task.priority, task.timeout_ms) == (TaskPriority.CRITICAL, 1500)
    assert to_wire(task)["retryPolicy"] == {
        "maxRetries": 5,
        "backoffStrategy": "linear",
        "initialDelayMs": 250,
        "maxDelayMs": 60_000,
        "backoffMultiplier": 2.0,
    }
    assert to_wire(task)["scheduledAt"] == "2099-01-01T00:00:00.500000Z"
    assert (task.attempts, task.status) == (0, "pending")  # not what the wire said: what is so
    metadata = to_wire(task)["metadata"]
    assert (metadata["createdBy"], metadata["tags"]) == ("ada", ["a", "b"])
    assert metadata["createdAt"] != "2020-01-01T00:00:00Z"
    app.close()


@pytest.mark.req("S1-63")
def test_a_task_that_is_read_back_follows_its_job() -> None:
    app = memory_app()
    worker = HandWorker(app.store, "send_email")
    job = app.submit({"id": "t", "type": "send_email", "payload": None, "queue": "default"})
    created = job.wire()

    running = worker.claim()
    claimed = job.wire()

    assert running.id == "t"
    assert (created.status, created.attempts) == ("queued", 0)
    assert (claimed.status, claimed.attempts) == ("processing", 1)
    assert created.retry_policy is UNSET
    app.close()


def test_what_a_wire_task_leaves_out_follows_the_defaults() -> None:
    job = wire_job(Task(id="t", type="send_email", payload=None), None, NO_QUEUES)

    assert (job.queue, job.priority, job.payload) == ("default", Priority.NORMAL, b"null")
    assert (job.timeout_us, job.scheduled_us, job.options) == (None, None, None)
    assert (job.created_by, job.tags) == (None, ())


def test_a_task_known_here_has_its_arguments_and_limits_checked_here() -> None:
    app = memory_app()

    @app.task(timeout="5s", max_crashes=1, aliases=["post"])
    def send(to: str, times: int = 1) -> None: ...

    known = app.registry.get("post")
    job = wire_job(
        checked(Task, {"id": "t", "type": "post", "payload": {"to": "a"}}), known, NO_QUEUES
    )

    assert (job.task, job.timeout_us) == ("send", 5_000_000)
    assert job.options is not None
    assert job.options.max_crashes == 1
    for payload in ({"to": 1}, {"to": "a", "cc": "b"}, {}, None, [1]):
        with pytest.raises(PayloadError):
            app.submit({"id": "t", "type": "send", "payload": payload})
    assert app.depth("default") == 0


async def test_a_submitted_wire_task_keeps_its_id_and_runs_once() -> None:
    app = memory_app()
    value = msgspec.json.encode(
        {"id": "w", "type": "work", "payload": {"a": 1}, "metadata": {"tags": ["x"]}}
    )

    first = await app.asubmit(value)
    again = await app.asubmit(Task(id="w", type="work", payload={"a": 1}))
    with pytest.raises(JobConflict):
        await app.asubmit(Task(id="w", type="work", payload={"a": 2}))

    assert (first.id, first.deduplicated, again.deduplicated) == ("w", False, True)
    assert HandWorker(app.store, "work").claim().payload == '{"a":1}'
    assert (await first.ainfo()).tags == ("x",)


@pytest.mark.req("S1-23", "S1-24")
def test_a_task_scheduled_for_later_is_pending_and_one_for_the_past_is_queued() -> None:
    app = memory_app()

    def submitted(moment: str) -> JobStatus:
        task = {"id": moment, "type": "work", "payload": None, "scheduledAt": moment}
        return app.submit(task).status()

    assert submitted("2099-01-01T00:00:00Z") is JobStatus.PENDING
    assert submitted("2001-01-01T00:00:00Z") is JobStatus.QUEUED


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"queue": ""}, ConfigError, "queue is ''"),
        ({"id": "a\0b"}, ConfigError, "id is 'a\\x00b'; give a text without NUL"),
        ({"metadata": {"tags": ["\ud800"]}}, ConfigError, "metadata.tags is"),
        ({"metadata": {"createdBy": "\ud800"}}, ConfigError, "metadata.createdBy is"),
        ({"priority": 1}, ShapeError, "$.priority"),
        ({"retryPolicy": {"initialDelayMs": 9, "maxDelayMs": 8}}, ConfigError, "initialDelayMs"),
        ({"payload": {"a": object()}}, PayloadError, "cannot be written as JSON"),
    ],
)
def test_a_wire_task_that_cannot_work_is_refused(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    app = memory_app()

    with pytest.raises(error) as raised:
        app.submit({"id": "t", "type": "work", "payload": None, **change})

    assert words in str(raised.value)


def test_a_configurations_queues_become_settings() -> None:
    config = WorkerConfig(
        name="w",
        queues=["mail"],
        queue_configs=[
            QueueConfig(
                name="mail",
                priority=2,
                dead_letter_queue="mail_dead",
                default_retry_policy=TaskRetryPolicy(max_retries=1),
            ),
            QueueConfig(name="not_served"),
        ],
    )

    mail, other = (declared.settings for declared in wire_queues(checked(WorkerConfig, config)))

    assert (mail.name, mail.priority, mail.dead_letter) == ("mail", 2, "mail_dead")
    assert (mail.fair, other.fair) == (True, True)
    assert mail.retry is not None
    assert mail.retry.max_retries == 1
    assert (other.name, other.retry, other.dead_letter) == ("not_served", None, None)


@pytest.mark.req("S1-21", "S1-22", "S1-49", "X-14")
def test_the_limits_of_a_configuration_become_those_of_the_queue_over_all_workers() -> None:
    queues = [
        {"name": "q", "concurrency": 2, "rateLimit": {"max": 3, "durationMs": 1500}},
        {"name": "scaled", "autoScale": {"enabled": True, "maxWorkers": 4, "scaleUpThreshold": 90}},
        {"name": "still", "autoScale": {"maxWorkers": 4}},
    ]
    config = checked(WorkerConfig, {"name": "w", "queues": ["q", "bare"], "queueConfigs": queues})

    limited, scaled, still, bare = wire_queues(config)

    assert limited.settings.concurrency == 2
    assert limited.settings.rate == RateRule(3, 1_500_000)
    assert scaled.settings.concurrency == 5
    assert scaled.settings.autoscale == ScaleRule(enabled=True, max_workers=4, scale_up=90)
    assert still.settings.autoscale == ScaleRule(enabled=False, max_workers=4)
    assert (bare.settings.name, bare.settings.concurrency) == ("bare", 5)
    assert bare.settings.autoscale is None


def test_a_served_queue_that_is_declared_by_other_means_is_left_as_it_is() -> None:
    config = checked(WorkerConfig, {"name": "w", "queues": ["a", "b"]})

    (only,) = wire_queues(config, known={"a": None})

    assert only.settings.name == "b"


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ({"name": ""}, "queueConfigs[0] ('').name is ''"),
        ({"name": "q", "autoScale": {"minWorkers": 11}}, "minWorkers is 11, above"),
        ({"name": "q", "autoScale": {"scaleDownThreshold": 100}}, "scaleDownThreshold is 100"),
    ],
)
@pytest.mark.req("S1-50")
def test_a_configuration_that_cannot_work_is_refused(queue: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        wire_queues(checked(WorkerConfig, {"name": "w", "queues": ["q"], "queueConfigs": [queue]}))

    assert words in str(raised.value)


def test_metadata_may_be_partly_there() -> None:
    task = Task(
        id="t",
        type="work",
        payload=None,
        priority=TaskPriority.LOW,
        metadata=TaskMetadata(created_by="ada"),
    )

    job = wire_job(checked(Task, task), None, NO_QUEUES)

    assert (job.created_by, job.tags, job.priority) == ("ada", (), Priority.LOW)


def test_the_app_may_be_unknown_to_the_submitter() -> None:
    job = Packhorse("memory://").submit({"id": "t", "type": "elsewhere", "payload": [1, 2]})

    assert job.info().task == "elsewhere"


def test_a_request_may_name_a_worker_that_the_submitter_does_not_know() -> None:
    job = Packhorse("memory://").submit({"worker_id": "elsewhere", "inputs": {"n": 1}})

    assert job.info().task == "elsewhere"
