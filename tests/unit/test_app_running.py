# SPDX-License-Identifier: MIT
"""Running a worker from an app: its queues, its handlers, and what a wire config drives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from packhorse import (
    ConfigError,
    Context,
    JobDead,
    JobStatus,
    Packhorse,
    RetryPolicy,
    ShapeError,
)
from packhorse.core.config import WorkerOptions
from packhorse.events import JobStarted, WorkerStarted
from packhorse.protocol import QueueConfig, TaskRetryPolicy, WorkerConfig, to_wire
from tests.unit.app_support import memory_app


@pytest.fixture
def app() -> Packhorse:
    return memory_app()


def options_of(app: Packhorse, *args: Any, **options: Any) -> WorkerOptions:
    """What a run would be set to."""
    return app._worker_options(args[0] if args else None, options)


def test_a_burst_runs_what_there_is_and_returns(app: Packhorse) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task
    def shout(ctx: Context, text: str, /) -> str:
        return f"{text.upper()} {ctx.job.attempt}"

    sums = [add.enqueue(number, b=1) for number in range(5)]
    shouted = shout.enqueue("hey")

    report = app.run(burst=True)

    assert [job.result(timeout=0) for job in sums] == [1, 2, 3, 4, 5]
    assert shouted.result(timeout=0) == "HEY 1"
    assert (report.succeeded, report.failed) == (6, 0)


@pytest.mark.req("S4-28")
def test_jobs_that_succeed_and_jobs_that_fail_each_end_as_they_should(app: Packhorse) -> None:
    @app.task(retry=RetryPolicy(max_retries=1, initial_delay=0.001))
    def halve(number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number // 2

    even, odd = halve.enqueue(4), halve.enqueue(3)

    app.run(burst=True)

    assert even.result(timeout=0) == 2
    with pytest.raises(JobDead, match="ValueError: odd"):
        odd.result(timeout=0)
    assert [str(attempt.status) for attempt in odd.history()] == ["failed", "failed"]
    assert [attempt.will_retry for attempt in odd.history()] == [True, False]


async def test_a_worker_beside_its_producer_wakes_its_waiters(app: Packhorse) -> None:
    @app.task
    async def double(number: int) -> int:
        return number * 2

    async with asyncio.timeout(20):
        worker = asyncio.create_task(app.arun(handle_signals=False))
        job = await double.aenqueue(21)
        assert await job.aresult() == 42
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker


def test_without_queues_all_the_app_knows_of_are_served(app: Packhorse) -> None:
    app.queue("mail")
    app.task(name="work", queue="slow")(lambda: None)
    heard: list[WorkerStarted] = []
    app.on("worker.started")(heard.append)

    app.run(burst=True)
    app.run(["mail"], burst=True)

    served = ("mail", "slow", "default", "batch")
    assert [started.queues for started in heard] == [served, ("mail",)]


def test_every_option_reaches_the_worker(app: Packhorse) -> None:
    chosen = options_of(
        app,
        ["mail"],
        concurrency=5,
        burst=True,
        max_jobs=7,
        lease="10s",
        poll_interval=0.5,
        default_timeout="1m",
        shutdown_timeout=3,
        stop_grace="1s",
        handle_signals=False,
        name="w",
    )

    assert chosen == WorkerOptions(
        queues=("mail",),
        concurrency=5,
        burst=True,
        max_jobs=7,
        lease_us=10_000_000,
        poll_interval_us=500_000,
        default_timeout_us=60_000_000,
        shutdown_timeout_us=3_000_000,
        stop_grace_us=1_000_000,
        handle_signals=False,
        name="w",
    )
    assert options_of(app) == WorkerOptions(queues=("default", "batch"))


@pytest.mark.parametrize(
    ("args", "options", "words"),
    [
        (([],), {}, "queues is empty"),
        (("mail",), {}, "run(): queues is 'mail'; give a list of texts"),
        ((), {"lease": "soon"}, "run(): lease is 'soon'"),
        ((), {"concurency": 3}, "did you mean 'concurrency'?"),
        ((), {"concurrency": 0}, "concurrency is 0"),
        ((["a"],), {"config": {"name": "w", "queues": ["a"]}}, "config says queues by itself"),
        ((), {"config": {"name": "w", "queues": ["a"]}, "lease": 5}, "config says lease by itself"),
    ],
)
@pytest.mark.req("S1-26")
def test_what_no_worker_could_be_set_to_is_refused(
    app: Packhorse, args: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        app.run(*args, **options)

    assert words in str(raised.value)


@pytest.mark.req("S1-26")
def test_a_wire_configuration_without_queues_fails_at_start(app: Packhorse) -> None:
    with pytest.raises(ShapeError, match=r"\$\.queues"):
        app.run(config={"name": "w", "queues": []})


def test_a_wire_configuration_drives_every_setting_of_the_worker(app: Packhorse) -> None:
    config = WorkerConfig(
        name="wire",
        queues=["mail", "slow"],
        poll_interval_ms=500,
        visibility_timeout_ms=10_000,
        default_timeout_ms=600_000,
        shutdown_timeout_ms=5_000,
    )

    chosen = options_of(app, config=config, burst=True, concurrency=3)

    assert chosen == WorkerOptions(
        name="wire",
        queues=("mail", "slow"),
        poll_interval_us=500_000,
        lease_us=10_000_000,
        default_timeout_us=600_000_000,
        shutdown_timeout_us=5_000_000,
        burst=True,
        concurrency=3,
    )


@pytest.mark.req("S1-28")
def test_wire_tasks_run_by_the_handler_of_their_type_on_the_queues_served(app: Packhorse) -> None:
    seen: list[Any] = []

    async def greet(ctx: Context, payload: Any) -> str:
        seen.append((ctx.job.task, payload))
        return "hello"

    def count(payload: list[int]) -> int:
        return sum(payload)

    config = {"name": "w", "queues": ["mail"], "handlers": {"greet": greet, "count": count}}
    for number, (task_type, payload, queue) in enumerate(
        [
            ("greet", {"any": ["thing"]}, "mail"),
            ("greet", None, "mail"),
            ("count", [1, 2, 3], "mail"),
            ("greet", "elsewhere", "other"),
        ]
    ):
        app.submit({"id": f"t{number}", "type": task_type, "payload": payload, "queue": queue})

    app.run(config=config, burst=True)
    app.run(config=config, burst=True)  # the same handlers again are no conflict

    assert seen == [("greet", {"any": ["thing"]}), ("greet", None)]
    assert [app.job(f"t{number}").result(timeout=0) for number in range(3)] == [*["hello"] * 2, 6]
    assert app.job("t3").status() is JobStatus.QUEUED


@pytest.mark.req("S1-32")
def test_a_tasks_own_retry_policy_wins_over_its_queues_over_the_default(app: Packhorse) -> None:
    def fail(payload: object) -> None:
        raise ValueError(payload)

    config = WorkerConfig(
        name="w",
        queues=["own", "plain"],
        queue_configs=[
            QueueConfig(name="own", default_retry_policy=TaskRetryPolicy(max_retries=0)),
            QueueConfig(name="not_served"),
        ],
        handlers={"fail": fail},
    )
    fast = {"maxRetries": 1, "initialDelayMs": 1, "maxDelayMs": 1}
    task = {"type": "fail", "payload": None}
    app.submit({**task, "id": "by-task", "queue": "own", "retryPolicy": fast})
    app.submit({**task, "id": "by-queue", "queue": "own"})
    app.submit({**task, "id": "by-default", "queue": "plain"})
    attempts: list[str] = []

    @app.on("job.started")
    def note(event: JobStarted) -> None:
        attempts.append(event.job_id)

    app.run(config=config, burst=True, max_jobs=4)

    assert sorted(attempts) == ["by-default", "by-queue", "by-task", "by-task"]
    assert app.job("by-task").status() is JobStatus.DEAD
    assert app.job("by-queue").status() is JobStatus.DEAD
    assert app.job("by-default").status() is JobStatus.FAILED


@pytest.mark.req("S1-27")
def test_configured_queues_are_declared_and_bare_ones_served_with_the_defaults(
    app: Packhorse,
) -> None:
    config = WorkerConfig(
        name="w",
        queues=["served", "bare"],
        queue_configs=[QueueConfig(name="served", priority=4), QueueConfig(name="elsewhere")],
        handlers={"work": lambda payload: payload},
    )
    for queue in ("served", "bare", "elsewhere"):
        app.submit({"id": queue, "type": "work", "payload": queue, "queue": queue})

    app.run(config=config, burst=True)

    assert app.job("served").result(timeout=0) == "served"
    assert app.job("bare").result(timeout=0) == "bare"
    assert app.job("elsewhere").status() is JobStatus.QUEUED
    queues = {queue.name: queue for queue in app.insights.queues()}
    assert (queues["served"].priority, queues["served"].declared) == (4, True)
    assert (queues["bare"].priority, queues["bare"].settings.concurrency) == (0, 5)
    assert (queues["elsewhere"].declared, queues["elsewhere"].depth) == (True, 1)


@pytest.mark.req("S1-30", "S1-31")
@pytest.mark.parametrize(("own_ms", "default_ms"), [(20, 60_000), (None, 20)])
def test_an_attempt_is_bound_by_the_tasks_timeout_else_by_the_workers(
    app: Packhorse, own_ms: int | None, default_ms: int
) -> None:
    async def hang(payload: object) -> None:
        await asyncio.Event().wait()

    own = {} if own_ms is None else {"timeoutMs": own_ms}
    task = {"id": "a", "type": "hang", "payload": None, "retryPolicy": {"maxRetries": 0}, **own}
    job = app.submit(task)

    app.run(
        config={
            "name": "w",
            "queues": ["default"],
            "defaultTimeoutMs": default_ms,
            "handlers": {"hang": hang},
        },
        burst=True,
    )

    (attempt,) = job.history()
    wire = to_wire(attempt)
    assert (wire["status"], wire["error"]["code"]) == ("timeout", "TASK_TIMEOUT")
    assert wire["willRetry"] is False


@pytest.mark.parametrize(
    ("handlers", "words"),
    [
        ({"Bad-Name": lambda payload: None}, "cannot name a task"),
        ({"nothing": lambda: None}, "a handler takes the payload"),
        ({"work": lambda payload: None}, "task 'work' is declared twice"),
    ],
)
def test_a_handler_that_cannot_be_registered_is_refused(
    app: Packhorse, handlers: dict[str, Any], words: str
) -> None:
    app.task(name="work")(lambda: None)

    with pytest.raises(ConfigError) as raised:
        app.run(config={"name": "w", "queues": ["q"], "handlers": handlers}, burst=True)

    assert words in str(raised.value)


def test_middlewares_and_lifespans_of_the_app_reach_its_worker(app: Packhorse) -> None:
    story: list[str] = []

    @app.lifespan
    async def resources(served: Packhorse) -> AsyncIterator[dict[str, str]]:
        assert served is app
        story.append("open")
        yield {"greeting": "hello"}
        story.append("close")

    @app.middleware
    async def around(ctx: Context, proceed: Callable[[], Awaitable[object]]) -> None:
        story.append("before")
        await proceed()
        story.append("after")

    @app.task
    def greet(ctx: Context) -> str:
        story.append("run")
        return str(ctx.state["greeting"])

    job = greet.enqueue()
    app.run(burst=True)

    assert story == ["open", "before", "run", "after", "close"]
    assert job.result(timeout=0) == "hello"


def test_trouble_is_logged_unless_an_observer_hears_of_it(
    app: Packhorse, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def fail() -> None:
        raise ValueError("no good")

    fail.enqueue()
    app.run(burst=True, max_jobs=1)
    assert "fail runs again" in caplog.text

    caplog.clear()
    app.on("*")(lambda event: None)
    fail.enqueue()
    app.run(burst=True, max_jobs=1)
    assert caplog.text == ""
