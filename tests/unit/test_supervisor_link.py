# SPDX-License-Identifier: MIT
"""The worker's end of the pipes to its supervisor, and what a probe says of the other end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from packhorse.errors import StoreUnavailable
from packhorse.runtime.supervisor import fleet, posix, probes
from packhorse.runtime.supervisor.link import SupervisorLink
from packhorse.runtime.supervisor.messages import NoSuspects, Quiet, Report, Retire, encode
from packhorse.runtime.supervisor.probes import not_ready, status_document
from packhorse.runtime.supervisor.shared_memory import SharedMemory
from packhorse.runtime.supervisor.supervisor import Supervisor
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.test_supervisor_stopping import Watch, watch
from tests.worker.support import PATIENCE_S, Even, until

__all__ = ["watch"]  # pytest finds the fixture here


class Pipes:
    """A worker's link, and the supervisor's ends of its pipes."""

    def __init__(self) -> None:
        self.up, up = os.pipe()
        down, self.down = os.pipe()
        shared, memory = SharedMemory.create()
        self.link = SupervisorLink(up=up, down=down, memory=memory, faults=os.dup(up))
        self.shared = shared
        self._theirs = (up, down)

    def close(self) -> None:
        for descriptor in (self.up, self.down, *self._theirs):
            os.close(descriptor)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    made.close()


def test_commands_that_come_in_pieces_are_obeyed(
    pipes: Pipes, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *called: killed.append(called))
    chunks = iter([b"no command\n", *_split(encode(Quiet(on=True)) + encode(NoSuspects())), b""])
    monkeypatch.setattr(os, "read", lambda *_: next(chunks))
    told: list[bool] = []
    pipes.link.on_quiet(told.append)
    assert told == []

    pipes.link._listen()

    assert told == [True]
    assert not pipes.link.takes_suspects
    assert killed == [(os.getpid(), signal.SIGKILL)]  # it ends with its supervisor
    pipes.link.on_quiet(told.append)
    assert told == [True, True]  # who asks later hears it at once


def _split(text: bytes) -> list[bytes]:
    return [text[at : at + 7] for at in range(0, len(text), 7)]


def test_while_the_pipe_is_full_reports_are_dropped_and_nothing_else(pipes: Pipes) -> None:
    long = Retire("x" * 30_000)
    sent = 0
    while not pipes.link._unsent:
        assert pipes.link.send(long)
        sent += 1

    assert not pipes.link.send(Report(succeeded=1))
    assert pipes.link.send(Retire("the last"))
    text = b""
    while pipes.link._unsent:
        text += os.read(pipes.up, 1 << 20)
        pipes.link._flush()
    text += os.read(pipes.up, 1 << 20)

    assert text.endswith(encode(Retire("the last")))
    assert text.count(encode(long)) == sent
    assert b'"succeeded":1' not in text


# --------------------------------------------------------------------------------------- probes


@pytest.mark.parametrize(
    ("reports", "quiet", "reason"),
    [
        ([], False, "no process has begun yet"),
        ([Report(lease=True)], True, "quiet"),
        ([Report(lease=True)], False, None),
        ([Report(lease=False)], False, "no process has a lease"),
        ([Report(lease=True, trouble="claim")], False, "the store fails at claim"),
    ],
)
async def test_it_is_told_why_no_jobs_are_claimed(
    watch: Watch, reports: list[Report], reason: str | None, *, quiet: bool
) -> None:
    watch.child.quiet = quiet
    if reports:
        watch.child.report = reports[0]
    else:
        watch.child.hello = None

    assert not_ready(watch.supervisor) == reason
    watch.supervisor.stop(signal.SIGTERM)
    assert not_ready(watch.supervisor) == "stopping"


async def test_the_status_of_a_process_tells_how_long_things_take(watch: Watch) -> None:
    watch.child.started_at = 949.5
    watch.child.memory.begin("a-job", 7, 990.5, 1_030.25)
    watch.clock.advance(2.0)

    [told] = status_document(watch.supervisor)["processes"]

    assert (told["upS"], told["loopTurnedS"], told["seat"], told["draining"]) == (52.5, 2, 0, False)
    assert told["running"] == [{"jobId": "a-job", "fence": 7, "runningS": 11.5, "leftS": 28.2}]


async def test_leases_are_looked_after_at_each_look(watch: Watch) -> None:
    looks: list[int] = []

    class Keeper:
        renewals = 3

        def look(self) -> None:
            looks.append(1)

    keepers: dict[Any, Any] = watch.supervisor._keepers
    keepers[watch.child] = Keeper()
    watch.look()
    watch.look(1.0)

    assert looks == [1, 1]
    assert watch.supervisor.renewals(watch.child) == 3


# ---------------------------------------------------------------------------------------- fleet


async def test_a_supervisor_tells_its_parent_what_has_changed_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "_EVERY_S", 0.001)
    reading, writing = os.pipe()
    supervisor = Supervisor(lambda _: (), 0, clock=VirtualClock(), chance=Even())
    lines: list[bytes] = []
    with os.fdopen(reading, "rb") as file:
        reader = threading.Thread(target=lambda: lines.extend(file))
        reader.start()
        async with fleet.reporting(supervisor, {fleet._VARIABLE: str(writing)}):
            await until(lambda: lines)
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert len(lines) == 1
            supervisor.past = Report(succeeded=5)
            await until(lambda: len(lines) == 2)
        await asyncio.to_thread(reader.join, PATIENCE_S)

    told = [msgspec.json.decode(line) for line in lines]
    assert len(told) == 3
    assert told[1] == told[2] != told[0]


async def test_queues_that_cannot_be_counted_are_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ask(_question: object) -> None:
        raise StoreUnavailable("it is away")

    supervisor: Any = SimpleNamespace(
        store_client=SimpleNamespace(ask=ask), hello=SimpleNamespace(queues=("mail",))
    )

    with caplog.at_level("WARNING", "packhorse"):
        found = await probes._counts(supervisor)

    assert found == ()
    assert "the queues could not be counted: it is away" in caplog.text


# ---------------------------------------------------------------------------------------- posix


def test_a_child_is_reaped_once_it_has_ended() -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as child:
        assert not posix.reaped(child.pid)

        posix.kill_all([child.pid])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

        assert posix.reaped(child.pid)
        assert posix.reaped(child.pid)  # it is gone
        child.returncode = 0


def test_a_hangup_that_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for handler, handled in ((signal.SIG_IGN, False), (signal.SIG_DFL, True)):
        monkeypatch.setattr(signal, "getsignal", lambda _, found=handler: found)
        assert (signal.SIGHUP in posix.stop_signals()) is handled
        assert {signal.SIGTERM, signal.SIGINT} <= set(posix.stop_signals())


@pytest.mark.skipif(sys.platform != "linux", reason="only the kernel of Linux does so")
def test_a_process_that_is_to_die_with_its_parent_asks_the_kernel_to_kill_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(posix, "_prctl", lambda option, value: asked.append((option, value)))

    posix.die_with_parent()

    assert asked == [(posix._PR_SET_PDEATHSIG, signal.SIGKILL)]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux lets processes adopt")
def test_a_process_that_adopts_orphans_says_so() -> None:
    before = posix.adopts_orphans()
    posix._prctl(posix._PR_SET_CHILD_SUBREAPER, 0)
    try:
        assert not posix.adopts_orphans()
        posix.adopt_orphans()
        assert posix.adopts_orphans()
    finally:
        posix._prctl(posix._PR_SET_CHILD_SUBREAPER, int(before))
