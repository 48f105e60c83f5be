# SPDX-License-Identifier: MIT
"""`packhorse worker --autoscale`: how many processes, and how those too many go."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import click
import pytest

from packhorse import ConfigError, JobStatus, Packhorse, StoreUnavailable
from packhorse.cli.autoscale import ENDLESS, Fleet, Scaler, bounded_rules
from packhorse.cli.exits import ExitCode
from packhorse.cli.options import bounds
from packhorse.core.policies.autoscale import QUIET_US, ScaleRule
from packhorse.stores.memory import MemoryStore
from packhorse.testing.virtual_clock import VirtualClock
from tests.cli.project import PATIENCE_S, Project, heard

TERM, INT = signal.SIGTERM, signal.SIGINT
USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2


class Pretended:
    """A process that ends when a test says so."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.heard: list[int] = []
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status

    def send_signal(self, sig: int, /) -> None:
        self.heard.append(sig)


class Yard:
    """A fleet of pretended processes."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.processes: list[Pretended] = []
        self.fleet = Fleet(self._start, self.clock)

    def _start(self) -> Pretended:
        self.processes.append(Pretended(len(self.processes) + 1))
        return self.processes[-1]

    def heard(self) -> list[list[int]]:
        return [process.heard for process in self.processes]


@pytest.fixture
def yard() -> Yard:
    return Yard()


# ------------------------------------------------------------------------------- the processes


def test_processes_are_started_until_there_are_as_many_as_wanted(yard: Yard) -> None:
    yard.fleet.resize(2)
    yard.fleet.resize(3)
    yard.fleet.resize(3)

    assert len(yard.processes) == yard.fleet.working == 3
    assert yard.heard() == [[], [], []]


@pytest.mark.req("S1-51")
def test_the_youngest_are_told_to_drain_once_and_are_never_hurried(yard: Yard) -> None:
    yard.fleet.resize(3)

    yard.fleet.resize(1)
    for _ in range(100):
        yard.clock.advance(3600)
        yard.fleet.reap()
        yard.fleet.resize(1)
        yard.fleet.keep_time(30)

    assert yard.heard() == [[], [TERM], [TERM]]
    assert (yard.fleet.working, yard.fleet.empty) == (1, False)


def test_one_that_drains_is_not_counted_and_another_may_be_started(yard: Yard) -> None:
    yard.fleet.resize(2)
    yard.fleet.resize(1)

    yard.fleet.resize(2)

    assert len(yard.processes) == 3
    yard.processes[1].status = 0
    yard.fleet.reap()
    assert (yard.fleet.working, yard.fleet.exit_code) == (2, 0)


def test_a_stop_reaches_all_and_does_not_hurry_those_that_drain_already(yard: Yard) -> None:
    yard.fleet.resize(2)
    yard.fleet.resize(1)

    yard.fleet.stop(INT)
    yard.fleet.keep_time(30)
    assert yard.heard() == [[INT], [TERM]]

    yard.fleet.stop(INT)
    yard.fleet.keep_time(30)
    assert yard.heard() == [[INT, INT], [TERM, INT]]


def test_those_that_take_too_long_to_stop_are_hurried_and_that_is_no_failure(yard: Yard) -> None:
    yard.fleet.resize(1)
    yard.fleet.stop(TERM)
    yard.fleet.keep_time(30)
    yard.clock.advance(30)

    yard.fleet.keep_time(30)
    yard.processes[0].status = ExitCode.TERMINATED
    yard.fleet.reap()

    assert yard.heard() == [[TERM, TERM]]
    assert (yard.fleet.empty, yard.fleet.exit_code) == (True, 0)


def test_quiet_and_resume_are_handed_on_to_all(yard: Yard) -> None:
    yard.fleet.resize(2)

    yard.fleet.forward(USR1)
    assert yard.fleet.quiet
    yard.fleet.forward(USR2)

    assert not yard.fleet.quiet
    assert yard.heard() == [[USR1, USR2], [USR1, USR2]]


@pytest.mark.parametrize(
    ("signals", "status", "code"),
    [
        ([TERM, TERM], ExitCode.TERMINATED, ExitCode.TERMINATED),
        ([TERM], ExitCode.JOBS_ABANDONED, ExitCode.JOBS_ABANDONED),
        ([TERM], -TERM, ExitCode.OK),  # it was told before it listened
        ([TERM], -signal.SIGKILL, ExitCode.FAILED),
        ([TERM], 0, ExitCode.OK),
    ],
)
def test_the_exit_code_is_that_of_the_process_that_ended_worst(
    yard: Yard, signals: list[int], status: int, code: int
) -> None:
    yard.fleet.resize(1)
    for number in signals:
        yard.fleet.stop(number)
    yard.fleet.keep_time(30)

    yard.processes[0].status = status
    yard.fleet.reap()

    assert yard.fleet.exit_code == code


def test_one_that_dies_is_replaced(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    yard.fleet.resize(1)
    yard.clock.advance(60)
    yard.processes[0].status = -signal.SIGKILL

    yard.fleet.reap()
    yard.fleet.resize(1)

    assert len(yard.processes) == 2
    assert "process 1 ended with signal 9; another one takes its place" in caplog.text


def test_one_that_cannot_even_begin_ends_it_all(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    yard.fleet.resize(2)
    yard.processes[0].status = ExitCode.APP_NOT_LOADED

    yard.fleet.reap()
    yard.fleet.keep_time(30)

    assert yard.fleet.stopping
    assert yard.heard()[1] == [TERM]
    assert yard.fleet.exit_code == ExitCode.APP_NOT_LOADED
    assert "as soon as it had begun; leaving" in caplog.text


# ---------------------------------------------------------------------------------- the scaler


def test_bounds_are_written_with_dots() -> None:
    assert bounds("1..4") == (1, 4)
    for text in ("4", "1-4", "4..1", "0..2", "1..x", "1..999", ".."):
        with pytest.raises(click.BadParameter):
            bounds(text)


def test_a_queues_thresholds_hold_within_the_bounds_of_the_command_line() -> None:
    own = ScaleRule(enabled=True, min_workers=5, max_workers=6, scale_up=3, scale_down=1)

    rules = bounded_rules(("mail", "default"), {"mail": own}, (1, 2))

    assert rules["mail"] == ScaleRule(
        enabled=True, min_workers=1, max_workers=2, scale_up=3, scale_down=1
    )
    assert rules["default"].scale_up == ScaleRule().scale_up


@pytest.mark.req("S1-49")
def test_a_queue_whose_autoscale_is_off_changes_no_number() -> None:
    app = Packhorse("memory://")
    app.task(name="work")(lambda: None)
    app.tasks["work"].enqueue_many([{}] * 500)

    rules = bounded_rules(("default",), {"default": ScaleRule(enabled=False)}, (2, 9))
    scaler = Scaler(app.store, rules, least=2, slots=1, clock=VirtualClock())

    assert rules == {}
    assert [scaler.wanted(), scaler.wanted()] == [2, 2]


@pytest.mark.req("S1-48", "S2-16")
def test_the_number_follows_the_size_of_the_queue_up_at_once_and_down_when_it_is_quiet() -> None:
    clock = VirtualClock()
    app = Packhorse(store=MemoryStore(clock=clock), clock=clock)
    app.task(name="work")(lambda: None)
    rule = ScaleRule(enabled=True, min_workers=1, max_workers=3, scale_up=5, scale_down=0)
    scaler = Scaler(app.store, {"default": rule}, least=1, slots=1, clock=clock)

    def wanted_after(seconds: float) -> int:
        clock.advance(seconds)
        return scaler.wanted()

    assert wanted_after(1) == 1
    jobs = app.tasks["work"].enqueue_many([{}] * 5)
    assert [wanted_after(1) for _ in range(4)] == [2, 3, 3, 3]
    for job in jobs:
        job.cancel()
    assert wanted_after(1) == 3
    quiet_s = QUIET_US / 1_000_000
    assert [wanted_after(quiet_s) for _ in range(4)] == [2, 1, 1, 1]


def test_a_store_that_cannot_be_asked_changes_nothing_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def faults(verb: str, when: str) -> None:
        raise StoreUnavailable("the disk is on fire")

    rule = ScaleRule(enabled=True, min_workers=2, max_workers=3)
    scaler = Scaler(MemoryStore(faults=faults), {"q": rule}, least=2, slots=1, clock=VirtualClock())

    assert [scaler.wanted(), scaler.wanted()] == [2, 2]
    assert caplog.text.count("the disk is on fire") == 1


def test_thresholds_that_contradict_each_other_are_refused_with_their_queue() -> None:
    with pytest.raises(ConfigError, match="queue 'mail': autoscale: scale_down is 5"):
        bounded_rules(
            ("mail",), {"mail": ScaleRule(enabled=True, scale_up=5, scale_down=5)}, (1, 2)
        )


# ------------------------------------------------------------------------------ real processes

#: A worker says when it claims nothing more.
TOLD = """
app.on("worker.quiet")(lambda event: print("quiet", flush=True))
app.on("worker.stopping")(lambda event: print("draining", flush=True))
"""
SCALED = f"""
app.queue("default", autoscale={{"max_workers": 9, "scale_up": 2, "scale_down": 0}})
{TOLD}
"""


def soon(condition: Callable[[], bool]) -> None:
    """Wait until something is so that no signal tells of."""
    for _ in range(PATIENCE_S * 50):
        if condition():
            return
        time.sleep(0.02)
    pytest.fail("it did not happen")


def running(app: Packhorse) -> int:
    return sum(worker.live for worker in app.insights.workers())


@pytest.fixture
def scaled(project: Project) -> Iterator[Packhorse]:
    """The project's app with a queue that wants more workers soon."""
    project.write("jobs.py", (project.folder / "jobs.py").read_text("utf-8") + SCALED)
    app = project.app()
    yield app
    app.close()


@pytest.mark.req("S1-48", "S2-16")
def test_more_processes_are_started_while_jobs_wait_and_all_stop_together(
    project: Project, scaled: Packhorse, processes: list[subprocess.Popen[str]]
) -> None:
    command = ("worker", "--autoscale", "1..2", "-c", "1")
    process = project.start(*command)
    processes.append(process)
    soon(lambda: running(scaled) == 1)
    process.send_signal(USR1)
    heard(process.stdout, "quiet")
    process.send_signal(USR2)

    jobs = scaled.tasks["linger"].enqueue_many([{}] * 4)
    for _ in range(2):  # each process has begun one; what is only held goes back when it ends
        heard(process.stdout, "lingering")
    process.send_signal(TERM)
    project.write("go", "")
    _, errors = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0, errors
    messages = [json.loads(line)["message"] for line in errors.splitlines()]
    assert "worker processes: 1 running, 2 wanted" in messages
    assert [job.status() for job in jobs].count(JobStatus.COMPLETED) >= 2
    assert {job.info().attempts for job in jobs} <= {0, 1}


@pytest.mark.req("S1-51")
def test_a_process_that_is_no_longer_wanted_finishes_the_job_it_runs(
    project: Project, app: Packhorse, processes: list[subprocess.Popen[str]]
) -> None:
    command = ("worker", "-c", "1", "--shutdown-timeout", ENDLESS, "--log-level", "error")

    def start() -> subprocess.Popen[str]:
        processes.append(project.start(*command))
        return processes[-1]

    project.write("jobs.py", (project.folder / "jobs.py").read_text("utf-8") + TOLD)
    job = app.tasks["linger"].enqueue()
    fleet = Fleet(start, VirtualClock())
    fleet.resize(1)
    heard(processes[0].stdout, "lingering")

    fleet.resize(0)
    heard(processes[0].stdout, "draining")
    project.write("go", "")

    assert processes[0].wait(PATIENCE_S) == 0
    assert (job.status(), job.info().attempts, job.info().releases) == (JobStatus.COMPLETED, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--autoscale", "3..1"), "the fewest first"),
        (("--autoscale", "1..2", "--burst"), "leave --processes and --burst out"),
        (("--autoscale", "1..2", "-p", "3"), "leave --processes and --burst out"),
        (("--autoscale", "1..2", "--reload"), "leave --reload and"),
    ],
)
def test_an_autoscale_that_cannot_work_is_refused(
    project: Project, arguments: tuple[str, ...], problem: str
) -> None:
    result = project.run("worker", *arguments)

    assert result.exit_code == ExitCode.USAGE
    assert problem in result.stderr


def test_memory_cannot_be_shared_between_processes(project: Project) -> None:
    project.write("jobs.py", "from packhorse import Packhorse\napp = Packhorse('memory://')\n")

    result = project.run("worker", "jobs:app", "--autoscale", "1..2")

    assert result.exit_code == ExitCode.USAGE
    assert "processes cannot share its work" in result.stderr
