# SPDX-License-Identifier: MIT
"""A worker process that has done enough, or is not well, is replaced; what it runs may finish."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import ConfigError, JobStatus, Packhorse
from packhorse.core.config import WorkerOptions
from packhorse.core.job import AttemptError, RetryRule
from packhorse.core.outcome import Failed, Released, Succeeded, TimedOut
from packhorse.runtime.worker.recycling import Recycling
from tests.supervisor.yard import IN_PROCESSES, JOBS, PATIENCE_S, Yard, until

#: What lives as long as its process.
RESOURCES = """
@app.lifespan
async def resources():
    yield {"made_in": os.getpid()}

@app.task
def made_in(ctx: Context) -> int:
    return ctx.state["made_in"]
"""


@pytest.fixture
def source() -> str:
    """The app with something that lifespan hooks make."""
    return JOBS + RESOURCES


@pytest.mark.req("S3-18", "S3-20")
def test_resources_are_built_again_after_so_many_jobs_and_failures_and_the_unexpected(
    yard: Yard,
) -> None:
    running = yard.app.tasks["linger"].enqueue()
    parent = yard.worker("--recycle-jobs", "4", "--recycle-failures", "2")
    first = yard.begun(running)

    def made() -> int:
        pid: int = yard.app.tasks["made_in"].enqueue().result(timeout=PATIENCE_S)
        return pid

    def fail(kind: str) -> None:
        yard.finished(yard.app.tasks["fail_here"].enqueue(kind))

    def replaced(said: str) -> None:
        until("it to be replaced", lambda: f"is replaced: {said}" in yard.output(parent))

    assert [made() for _ in range(3)] == [first] * 3
    replaced("it has run 4 jobs")
    second = made()
    fail("ValueError")
    fail("ValueError")
    replaced("2 attempts in a row failed")
    third = made()
    fail("MemoryError")
    replaced("a handler ended with MemoryError")
    fourth = made()

    assert len({first, second, third, fourth}) == 4
    assert running.status() is JobStatus.PROCESSING
    yard.go()
    assert running.result(timeout=PATIENCE_S) == first  # it was let finish where it ran
    assert (running.info().releases, running.info().attempts) == (0, 1)
    assert yard.stop(parent) == 0


@pytest.mark.req("S3-20", "S4-12", "S4-14")
def test_one_that_drains_because_it_grew_is_hurried_when_all_is_to_stop_and_that_is_no_failure(
    yard: Yard,
) -> None:
    running = yard.app.tasks["linger"].enqueue()
    parent = yard.worker("--recycle-mib", "1", "--shutdown-timeout", "0.3s")
    old = yard.begun(running)
    until("it to be replaced", lambda: "MiB in memory" in yard.output(parent))
    assert yard.app.tasks["made_in"].enqueue().result(timeout=PATIENCE_S) != old

    assert yard.stop(parent) == 0

    info = running.info()
    assert (info.status, info.attempts, info.releases) == (JobStatus.QUEUED, 1, 1)


def failed(kind: str) -> Failed:
    return Failed(AttemptError(kind, "as asked", "EXCEPTION"), kinds=(f"builtins.{kind}",))


@pytest.mark.req("S3-20")
def test_only_failures_in_a_row_count() -> None:
    wear = Recycling(WorkerOptions(queues=("default",), recycle_failures=2))

    said = []
    for outcome in (
        failed("ValueError"),
        Succeeded("1"),
        failed("ValueError"),
        Released(started=True),
        TimedOut(AttemptError("Timeout", "too long", "TASK_TIMEOUT")),
    ):
        wear.ended(outcome, RetryRule())
        said.append(wear.verdict(0))

    assert said == [None] * 4 + ["2 attempts in a row failed"]


@pytest.mark.parametrize("kind", ["MemoryError", "SystemExit", "KeyboardInterrupt", "SystemError"])
def test_after_some_errors_the_state_of_the_process_is_unknown(kind: str) -> None:
    wear = Recycling(WorkerOptions(queues=("default",)))
    wear.ended(failed("OSError"), RetryRule())
    assert wear.verdict(10**6) is None

    wear.ended(failed(kind), RetryRule(give_up_on=(f"builtins.{kind}",)))

    assert wear.verdict(0) == f"a handler ended with {kind}"
    assert wear.swollen(1) is None


@pytest.mark.req("S3-20")
@pytest.mark.parametrize(
    ("rule", "is_expected"),
    [
        (RetryRule(), False),
        (RetryRule(retry_on=("builtins.OSError",)), True),  # a base class
        (RetryRule(retry_on=("builtins.ValueError",)), False),
        (RetryRule(give_up_on=("builtins.ConnectionError",)), True),
    ],
)
def test_an_exception_that_its_task_does_not_name_is_unexpected(
    rule: RetryRule, *, is_expected: bool
) -> None:
    wear = Recycling(WorkerOptions(queues=("default",), recycle_on="unexpected"))
    kinds = ("builtins.ConnectionError", "builtins.OSError", "builtins.Exception")

    wear.ended(Failed(AttemptError("ConnectionError", "as asked", "EXCEPTION"), kinds=kinds), rule)

    assert (wear.verdict(0) is None) is is_expected


def test_a_retry_that_a_handler_asks_for_is_expected() -> None:
    wear = Recycling(WorkerOptions(queues=("default",), recycle_on="unexpected"))

    wear.ended(Failed(AttemptError("Retry", "later", "RETRY_REQUESTED"), asked=True), RetryRule())

    assert wear.verdict(0) is None


@pytest.mark.req("S3-20")
@pytest.mark.parametrize("source", [JOBS + IN_PROCESSES])
def test_after_any_unexpected_exception_each_kind_of_process_is_replaced(yard: Yard) -> None:
    parent = yard.worker("--recycle-on", "unexpected", "--process-slots", "1")

    def process() -> int:
        pid: int = yard.app.tasks["wait_a_little"].enqueue().result(timeout=PATIENCE_S)
        return pid

    before = process()
    yard.finished(yard.app.tasks["fail"].enqueue())
    assert process() != before
    yard.finished(yard.app.tasks["fail_here"].enqueue("ValueError"))

    said = "is replaced: a handler ended with ValueError"
    until("the worker to be replaced", lambda: said in yard.output(parent))
    assert yard.stop(parent) == 0


@pytest.mark.parametrize("name", ["recycle_jobs", "recycle_failures", "recycle_mib"])
async def test_a_process_without_a_supervisor_is_not_told_when_to_be_replaced(name: str) -> None:
    app = Packhorse("memory://")
    chosen: dict[str, Any] = {name: 1}

    with pytest.raises(ConfigError, match=f"{name} has a process replaced, and this one has no"):
        await app.arun(["default"], burst=True, **chosen)
    app.close()
