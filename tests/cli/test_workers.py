# SPDX-License-Identifier: MIT
"""`packhorse workers quiet` and `resume`: who is told, and who cannot be."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from packhorse import Packhorse
from packhorse.cli.exits import ExitCode
from packhorse.client.worker_signals import QuietOrder, quiet_id, read_quiet
from packhorse.stores.requests import Renewal
from tests.cli.project import PATIENCE_S, Project


def hire(app: Packhorse, worker: str, pid: int) -> None:
    """Let the store believe in a worker on this machine."""
    renewal = Renewal(worker, 60_000_000, host=socket.gethostname(), pid=pid)
    app.store.run(app.store.leases.renew(renewal))


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals this process, which stands for a worker, was sent."""
    numbers: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _frame: numbers.append(got))
        for number in (signal.SIGUSR1, signal.SIGUSR2)
    }
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def ended() -> int:
    """The id of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(PATIENCE_S)
    return process.pid


@pytest.mark.parametrize("command", ["quiet", "resume"])
def test_a_worker_whose_process_has_ended_is_told_of_and_the_others_are_told(
    project: Project, app: Packhorse, heard: list[int], ended: int, command: str
) -> None:
    hire(app, "w-gone", ended)
    hire(app, "w-here", os.getpid())

    result = project.run("workers", command, "--all")

    assert result.exit_code == ExitCode.OK, result.output
    assert heard == [signal.SIGUSR1 if command == "quiet" else signal.SIGUSR2]
    assert "sent to worker w-here" in result.stderr
    assert (
        "worker w-gone is gone: its process has ended; its jobs are rescued when its lease ends"
        in result.stderr
    )


def test_a_named_worker_whose_process_has_ended_is_not_found_but_the_others_are_told(
    project: Project, app: Packhorse, heard: list[int], ended: int
) -> None:
    hire(app, "w-gone", ended)
    hire(app, "w-here", os.getpid())

    result = project.run("workers", "quiet", "w-gone", "w-here")

    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert heard == [signal.SIGUSR1]
    assert "worker w-gone is gone" in result.stderr
    assert "Traceback" not in result.output


def test_no_worker_left_to_be_told_is_nothing_matched(
    project: Project, app: Packhorse, ended: int
) -> None:
    hire(app, "w-gone", ended)

    result = project.run("workers", "quiet", "--all")

    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert "worker w-gone is gone" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process listens for")
def test_a_process_that_has_taken_over_the_number_of_a_dead_one_is_left_alone(
    project: Project, app: Packhorse
) -> None:
    stranger = subprocess.Popen(["sleep", "600"])  # a SIGUSR1 would end it
    try:
        hire(app, "w-gone", stranger.pid)

        result = project.run("workers", "quiet", "w-gone")

        assert result.exit_code == ExitCode.NOTHING_MATCHED
        assert "worker w-gone is gone" in result.stderr
        assert stranger.poll() is None
    finally:
        stranger.kill()
        assert stranger.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_worker_that_cannot_be_signalled_is_told_through_the_store(
    project: Project, app: Packhorse, monkeypatch: pytest.MonkeyPatch, heard: list[int]
) -> None:
    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    hire(app, "w-other", os.getpid())
    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr("packhorse.cli.workers._HEEDED_S", 0.2)

    result = project.run("workers", "quiet", "w-other")

    told = read_quiet(app.store.run(app.store.records.record(quiet_id("w-other"))))
    assert told == QuietOrder(quiet=True, by="packhorse workers")
    assert result.exit_code == ExitCode.NOTHING_MATCHED
    assert "has not heard of it" in result.stderr
    assert heard == []
