# SPDX-License-Identifier: MIT
"""A worker process that has done enough, or is not well, is replaced; what it runs may finish."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import ConfigError, JobStatus, Packhorse
from packhorse.config import WorkerOptions
from packhorse.job import AttemptError
from packhorse.outcome import Failed, Released, Succeeded, TimedOut
from packhorse.worker.wear import Wear
from tests.supervisor.yard import JOBS, PATIENCE_S, Yard, until

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


@pytest.mark.req("S3-18", "S3-19", "S3-20")
def test_resources_are_built_anew_after_so_many_jobs_and_failures_and_the_unexpected(
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
    replaced("2 attempts in a row have failed")
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
    wear = Wear(WorkerOptions(queues=("default",), recycle_failures=2))

    said = []
    for outcome in (
        failed("ValueError"),
        Succeeded("1"),
        failed("ValueError"),
        Released(started=True),
        TimedOut(AttemptError("Timeout", "too long", "TASK_TIMEOUT")),
    ):
        wear.ended(outcome)
        said.append(wear.verdict(0))

    assert said == [None] * 4 + ["2 attempts in a row have failed"]


@pytest.mark.parametrize("kind", ["MemoryError", "SystemExit", "KeyboardInterrupt", "SystemError"])
def test_after_some_errors_nobody_knows_what_state_the_process_is_in(kind: str) -> None:
    wear = Wear(WorkerOptions(queues=("default",)))
    wear.ended(failed("OSError"))
    assert wear.verdict(10**6) is None

    wear.ended(failed(kind))

    assert wear.verdict(0) == f"a handler ended with {kind}"
    assert wear.swollen(1) is None


@pytest.mark.parametrize("name", ["recycle_jobs", "recycle_failures", "recycle_mib"])
async def test_a_process_that_nobody_would_replace_is_not_told_when_to_be(name: str) -> None:
    app = Packhorse("memory://")
    chosen: dict[str, Any] = {name: 1}

    with pytest.raises(ConfigError, match=f"{name} has a process replaced, and nobody watches"):
        await app.arun(["default"], burst=True, **chosen)
    app.close()
