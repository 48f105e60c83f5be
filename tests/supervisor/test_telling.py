# SPDX-License-Identifier: MIT
"""What is told of the jobs of a process that died: as the process itself would have told it."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from packhorse import DeadReason, JobHandle
from packhorse.core.job import Counters, RetryRule
from packhorse.events import (
    Event,
    EventBus,
    JobCancelled,
    JobDead,
    JobReleased,
    JobRetried,
    JobTimedOut,
)
from packhorse.runtime.supervisor.crash_recovery import (
    Cause,
    _job,
    emit_recovered,
    recovered_events,
)
from packhorse.runtime.supervisor.messages import TaskRules
from packhorse.runtime.supervisor.shared_memory import Running
from tests.supervisor.test_crash_recovery import HELLO, WORKER, Scene
from tests.supervisor.yard import Yard


def told(yard: Yard, process: subprocess.Popen[str], job: JobHandle[Any]) -> list[dict[str, Any]]:
    """The lines of the log about what became of a job."""
    lines = [line for line in yard.output(process).splitlines() if line.startswith("{")]
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    follows = ("job.retried", "job.dead")
    return [each for each in found if each.get("event") in follows and each["job_id"] == job.id]


@pytest.mark.req("S4-26")
def test_a_job_that_takes_its_process_down_is_told_as_retried_and_then_as_dead(yard: Yard) -> None:
    parent = yard.worker()
    job = yard.app.tasks["take_down"].enqueue("exit")

    assert yard.finished(job).dead_reason is DeadReason.WORKER_CRASHED
    assert yard.stop(parent) == 0

    first, last = told(yard, parent, job)
    assert (first["event"], first["attempt"], first["level"]) == ("job.retried", 1, "warning")
    assert first["delay_ms"] > 0
    assert re.match(r"take_down runs again in \d+s, crash 1 of 2 after ", first["message"])
    assert (last["event"], last["attempt"], last["level"]) == ("job.dead", 2, "error")
    assert (last["task"], last["queue"]) == ("take_down", "default")
    assert last["reason"] == "worker_crashed"
    assert last["message"].startswith("take_down is dead (worker_crashed) after attempt 2: ")
    assert "exit code 7" in last["message"]
    assert last["trace_id"] == yard.record(job).trace_id


def told_of(scene: Scene, cause: Cause, running: list[Any], **about: Any) -> list[Event]:
    jobs = scene.recover(cause, running, **about)
    return [event for each in jobs for event in recovered_events(each, HELLO)]


def test_a_crash_is_told_with_its_evidence_and_when_the_job_runs_again() -> None:
    scene = Scene(1)

    *_, event = told_of(scene, Cause.CRASH, [(scene.jobs[0], 200.0)])

    assert isinstance(event, JobRetried)
    assert (event.worker, event.job_id, event.task) == (WORKER, "job-0", "work")
    assert (event.attempt, event.reason, event.error_code) == (1, "worker_lost", "WORKER_LOST")
    assert (event.lone_crashes, event.max_crashes, event.retry) == (1, 3, 0)
    assert event.duration_ms == 100_000.0
    assert event.delay_ms > 0
    assert "signal SIGSEGV" in event.error_message


def test_the_delay_of_a_retry_is_told_in_parts_of_milliseconds() -> None:
    scene = Scene(1)
    (job,) = scene.recover(Cause.CRASH, [(scene.jobs[0], 200.0)])
    settlement = msgspec.structs.replace(job.settlement, delay_us=1_500)

    *_, event = recovered_events(replace(job, settlement=settlement), HELLO)

    assert isinstance(event, JobRetried)
    assert event.delay_ms == 1.5


def test_a_crash_beside_other_jobs_is_told_as_a_crash_that_counts_against_none() -> None:
    scene = Scene(2)

    found = told_of(scene, Cause.CRASH, [(job, 200.0) for job in scene.jobs])

    retried = [event for event in found if isinstance(event, JobRetried)]
    assert [(event.lone_crashes, event.max_crashes) for event in retried] == [(0, 3), (0, 3)]


def test_a_job_that_blocked_its_process_is_told_as_a_timeout_and_what_follows_from_it() -> None:
    scene = Scene(1)

    timed_out, dead = told_of(scene, Cause.STUCK, [(scene.jobs[0], 90.0)])

    assert isinstance(timed_out, JobTimedOut)
    assert isinstance(dead, JobDead)
    assert (dead.reason, dead.error_code) == ("poison_message", "TASK_TIMEOUT")


def test_a_timeout_that_leaves_retries_is_told_with_their_number() -> None:
    scene = Scene(1)
    patient = {"work": TaskRules(retry=RetryRule(max_retries=3))}
    hello = msgspec.structs.replace(HELLO, tasks=patient)

    *_, event = told_of(scene, Cause.STUCK, [(scene.jobs[0], 90.0)], hello=hello)

    assert isinstance(event, JobRetried)
    assert (event.retry, event.max_retries, event.reason) == (1, 3, "job_timeout")
    assert (event.lone_crashes, event.max_crashes) == (0, 0)


def test_a_job_is_judged_by_what_the_store_knows_of_it_or_by_its_orphan_alone() -> None:
    scene = Scene(1)
    orphan: Any = SimpleNamespace(job_id="job-0", fence=1, crashes=1, lone_crashes=0)
    record = scene.store.run(scene.store.inspection.job(orphan.job_id))
    assert record is not None
    counted = msgspec.structs.replace(record, counters=Counters(failures=2))

    known, unknown = _job(orphan, counted), _job(orphan, None)

    assert (known.id, known.task, known.failures) == (orphan.job_id, "work", 2)
    assert (unknown.id, unknown.failures) == (orphan.job_id, 0)


def test_a_job_given_back_is_told_only_if_it_had_begun() -> None:
    scene = Scene(3)
    running, ended, _ahead = scene.jobs
    unsettled = (Running(5, ended.id, ended.fence, 0.0, -1.0),)

    found = told_of(scene, Cause.SHUTDOWN, [(running, 200.0)], signal=9, unsettled=unsettled)

    assert {type(event) for event in found} == {JobReleased}
    assert {event.job_id for event in found if isinstance(event, JobReleased)} == {
        *(running.id, ended.id),
    }


def test_a_job_given_back_after_its_deadline_is_told_as_dead() -> None:
    scene = Scene(1, deadline_us=Scene(0).clock.now_us() + 1_000)
    scene.clock.advance(1)

    jobs = scene.recover(Cause.SHUTDOWN, [(scene.jobs[0], 200.0)], signal=9)
    released, dead = recovered_events(jobs[0], HELLO)
    report = emit_recovered(EventBus(), HELLO, jobs)

    assert isinstance(released, JobReleased)
    assert isinstance(dead, JobDead)
    assert dead.reason == "expired"
    assert (report.dead, report.expired, report.failed) == (1, 1, 0)


def test_a_cancelled_job_that_went_with_its_process_is_told_as_cancelled() -> None:
    scene = Scene(1)
    scene.store.run(scene.store.jobs.cancel(scene.jobs[0].id))

    (event,) = told_of(scene, Cause.CRASH, [(scene.jobs[0], 200.0)])

    assert isinstance(event, JobCancelled)
    assert event.status == "cancelled"


def test_a_retry_that_would_come_after_the_deadline_is_told_as_dead() -> None:
    scene = Scene(1, deadline_us=Scene(0).clock.now_us() + 1_000)

    *_, event = told_of(scene, Cause.CRASH, [(scene.jobs[0], 200.0)])

    assert isinstance(event, JobDead)
    assert (event.reason, event.status) == ("expired", "dead")
