# SPDX-License-Identifier: MIT
"""The figures of worker processes, of supervisors, and of a fleet: added up, and as `/metrics`."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import msgspec
import pytest

from packhorse.core.job import JobStatus
from packhorse.core.policies.series import BOUNDS_S, OUTCOMES, Series
from packhorse.runtime.supervisor import fleet
from packhorse.runtime.supervisor.exposition import Figures, exposition
from packhorse.runtime.supervisor.fleet import FleetFigures, SupervisorReport
from packhorse.runtime.supervisor.messages import READ_FROM_CHILD, Report, encode
from packhorse.stores.requests import Counts

#: Every figure differs from every other, and from the sum of any two.
PAST = Report(succeeded=1, failed=2, retried=4, dead=8, expired=64, timed_out=16, abandoned=32)
LIVING = Report(
    succeeded=100,
    failed=200,
    retried=400,
    dead=800,
    expired=6400,
    timed_out=1600,
    abandoned=3,
    p95_duration_ms=12.5,
    running=3,
    ahead=5,
    unsettled=7,
    slots=4,
)
#: Says what it has to say into the pipe to its parent, and lives until its input ends.
SUPERVISOR = (
    "import os, sys; os.write(int(os.environ['PACKHORSE_FLEET']), bytes.fromhex(sys.argv[1]));"
    "os.close(int(os.environ['PACKHORSE_FLEET']))"
)
NOTHING = Figures(past=(), living=(), processes=0, restarts=0)
PATIENCE_S = 20.0


def exposed(figures: Figures) -> dict[str, float]:
    lines = exposition(figures).splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name.removeprefix("packhorse_"): float(value) for name, _, value in samples}


@pytest.mark.req("S0-31", "S4-23")
def test_metrics_are_the_sums_of_living_and_past_processes() -> None:
    other = msgspec.structs.replace(LIVING, p95_duration_ms=80.0)
    figures = Figures(past=(PAST, PAST), living=(LIVING, other), processes=9, restarts=11)

    shown = exposed(figures)

    assert {name: value for name, value in shown.items() if "{" not in name} == {
        "success_count": 202,
        "failure_count": 404,
        "retry_count": 808,
        "dead_count": 1616,
        "expired_count": 12928,
        "timeout_count": 3232,
        "p95_duration_ms": 80.0,
        "processes": 9,
        "process_restarts": 11,
        "running_jobs": 6,
        "slots": 8,
        "saturation_ratio": 0.75,
        "ahead_jobs": 10,
        "unsettled_jobs": 14,
        "stuck_handlers": 6,
    }


def test_what_is_not_known_is_not_shown() -> None:
    shown = exposed(Figures(past=(), living=(Report(),), processes=1, restarts=0))

    assert "p95_duration_ms" not in shown
    assert "saturation_ratio" not in shown
    assert shown["success_count"] == 0
    assert exposition(NOTHING).endswith("\n")


def test_attempts_are_shown_by_queue_and_task_and_buckets_add_up() -> None:
    outcomes = tuple(5 if name == "success" else 0 for name in OUTCOMES)
    buckets = tuple(2 if bound in (0.005, 10.0) else 0 for bound in BOUNDS_S)
    series = Series('"q"', "t", outcomes, 6, (*buckets, 1), 1.25, (*buckets, 3), 2.5)
    living = msgspec.structs.replace(LIVING, series=(series,))

    shown = exposed(replace(NOTHING, living=(living,)))

    of = r'queue="\"q\"",task="t"'
    assert shown[f'attempts_total{{{of},outcome="success"}}'] == 5
    assert shown[f'attempts_total{{{of},outcome="dead"}}'] == 0
    assert f'attempts_total{{{of},outcome="snoozed"}}' not in shown
    assert shown[f"attempt_timeouts_total{{{of}}}"] == 6
    assert shown[f'job_run_seconds_bucket{{{of},le="0.005"}}'] == 2
    assert shown[f'job_run_seconds_bucket{{{of},le="10"}}'] == 4
    assert shown[f'job_run_seconds_bucket{{{of},le="+Inf"}}'] == 5
    assert shown[f"job_run_seconds_count{{{of}}}"] == 5
    assert shown[f"job_run_seconds_sum{{{of}}}"] == 1.25
    assert shown[f"job_wait_seconds_count{{{of}}}"] == 7
    assert f'job_run_seconds_bucket{{{of},le="0.001"}}' not in shown


def test_queues_are_shown_by_state_with_the_age_of_the_oldest_ready_job() -> None:
    by_status = {JobStatus.QUEUED: 3, JobStatus.PENDING: 2, JobStatus.PROCESSING: 4}
    held = Counts("mail", by_status, {0: 1_000_000})

    shown = exposed(replace(NOTHING, queues=(held, Counts("idle", {})), now_us=3_500_000))

    assert shown['queue_jobs{queue="mail",state="queued"}'] == 3
    assert shown['queue_jobs{queue="mail",state="processing"}'] == 4
    assert shown['queue_depth{queue="mail"}'] == 5
    assert shown['queue_oldest_ready_seconds{queue="mail"}'] == 2.5
    assert shown['queue_oldest_ready_seconds{queue="idle"}'] == 0


def test_a_report_goes_through_the_pipe_and_adds_to_that_of_earlier_processes() -> None:
    line = encode(LIVING)

    assert line.endswith(b"\n")
    assert READ_FROM_CHILD.decode(line) == LIVING
    assert LIVING.after(PAST) == Report(
        succeeded=101, failed=202, retried=404, dead=808, expired=6464, timed_out=1616, abandoned=35
    )


def test_processes_of_a_supervisor_are_told_as_one() -> None:
    quiet = Report(running=1, slots=2, ahead=3, unsettled=4, trouble="claim", quiet=True)

    told = fleet._together([LIVING, quiet])

    assert (told.succeeded, told.failed, told.dead) == (100, 200, 800)
    assert (told.running, told.slots, told.ahead, told.unsettled) == (4, 6, 8, 11)
    assert (told.p95_duration_ms, told.trouble, told.quiet) == (12.5, "claim", False)
    assert fleet._together([quiet, quiet]).quiet
    assert not fleet._together([]).quiet


def test_a_fleet_adds_up_its_supervisors_and_keeps_what_those_did_that_ended() -> None:
    figures = FleetFigures()

    for restarts in (2, 3):
        told = SupervisorReport(past=PAST, living=LIVING, processes=4, restarts=restarts)
        line = (msgspec.json.encode(told) + b"\nno report\n").hex()
        process = figures.start([sys.executable, "-S", "-c", SUPERVISOR, line])
        process.wait(PATIENCE_S)
        for thread in threading.enumerate():
            if thread.name == f"packhorse-fleet-{process.pid}":
                thread.join(PATIENCE_S)

    ended = figures.figures()
    assert figures.by_process() == {}
    assert (ended.restarts, ended.processes) == (5, 0)
    assert ended.past[0] == LIVING.after(PAST).after(LIVING.after(PAST))
    figures._living[1] = SupervisorReport(PAST, LIVING, processes=4, restarts=7)
    together = figures.figures()
    assert (together.restarts, together.processes) == (12, 4)
    assert list(together.living) == [LIVING]
