# SPDX-License-Identifier: MIT
"""A supervisor's side of a worker process: its messages, its end, and the lease kept for it."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from packhorse.core.clock import SECOND_US, SystemChance
from packhorse.core.policies.lease import trusted_for_us
from packhorse.runtime.supervisor import child_process
from packhorse.runtime.supervisor.child_process import ChildProcess, Death, ProcessSlot
from packhorse.runtime.supervisor.liveness import restart_delay_s
from packhorse.runtime.supervisor.messages import (
    FromChild,
    Hello,
    Left,
    Quiet,
    Report,
    Retire,
    encode,
)
from packhorse.runtime.supervisor.store_client import LeaseKeeper, StoreClient
from packhorse.runtime.supervisor.supervisor import Supervisor
from packhorse.stores.memory.store import MemoryStore
from packhorse.testing.virtual_clock import VirtualClock

#: What a shell needs to find its pipes.
PIPES = "IFS=, read -r up down rest <<END\n$PACKHORSE_SUPERVISOR\nEND\n"
#: It repeats what it is told.
ECHO = f"{PIPES}exec cat </dev/fd/$down >/dev/fd/$up"
#: It says something, and goes on.
WRITE = PIPES + "echo '{}' >/dev/fd/$up; "
HELLO = Hello(
    worker="w1",
    pid=1,
    url=None,
    label="",
    queues=("q",),
    tasks={},
    lease_us=30_500_000,
    concurrency=1,
    version="",
    host="",
    stop_grace_us=0,
    shutdown_timeout_us=0,
    default_timeout_us=0,
)
SAID: tuple[FromChild, ...] = (
    HELLO,
    Report(succeeded=3),
    Retire("old"),
    Left(finished=True),
    Quiet(on=True),
)


def ended(child: ChildProcess, at: float = 5.0) -> Death:
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    death = child.reap(at)
    assert death is not None
    return death


@pytest.fixture
def started() -> Iterator[Callable[[str], ChildProcess]]:
    """Start shells in the place of workers; none outlives the test."""
    children: list[ChildProcess] = []

    def start(script: str) -> ChildProcess:
        children.append(ChildProcess(["/bin/sh", "-c", script]))
        return children[-1]

    yield start
    for child in children:
        if child.death is None:
            child.signal(signal.SIGKILL)
            ended(child)
        child.close()


def test_what_a_process_says_is_known_once_it_is_heard(
    started: Callable[[str], ChildProcess],
) -> None:
    child = started(ECHO)

    os.write(child._writing, b"".join(map(encode, SAID)) + b"no message\n")
    heard = list[Any]()
    while len(heard) < len(SAID):
        select.select([child.reading], [], [])
        heard += child.hear()

    assert tuple(heard) == SAID
    assert child.hello == HELLO
    assert child.report == Report(succeeded=3)
    assert child.retire == "old"
    assert (child.left, child.finished, child.quiet, child.silent) == (True, True, True, False)
    assert child.reap(1.0) is None


def test_a_command_reaches_the_process(started: Callable[[str], ChildProcess]) -> None:
    child = started(ECHO)

    child.tell(Quiet(on=True))

    assert child.quiet
    select.select([child.reading], [], [])
    assert list(child.hear()) == [Quiet(on=True)]


def test_last_messages_are_heard_before_the_end_is_told_once(
    started: Callable[[str], ChildProcess],
) -> None:
    child = started(WRITE.format(encode(Report(failed=2)).decode().strip()) + "exit 3")
    place = child.memory.begin("a-job", 7, 1.0, 60.0)
    settled = child.memory.begin("an-end", 8, 1.0, 60.0)
    assert (place, settled) == (0, 1)
    child.memory.ended(1)
    child.memory.logged("the last words")

    death = ended(child, at=5.0)

    assert child.report.failed == 2
    assert child.silent
    assert child.reap(6.0) is None
    assert (death.exit_code, death.signal, death.at) == (3, None, 5.0)
    assert [each.job_id for each in death.running] == ["a-job"]
    assert [each.job_id for each in death.unsettled] == ["an-end"]
    assert death.how == "exit code 3"
    assert death.out_of_memory is None
    assert not death.from_outside
    assert 0.1 < death.memory_mib < 1_000
    assert death.evidence.endswith("MiB at most; last log line: the last words")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_a_signal_ended_has_no_exit_code(
    started: Callable[[str], ChildProcess], number: signal.Signals
) -> None:
    child = started("exec sleep 600")

    child.signal(number)
    death = ended(child)

    assert (death.exit_code, death.signal) == (None, number)
    assert death.how == f"signal {number.name}"
    assert death.from_outside is (number == signal.SIGKILL)
    child.signal(number)  # it is gone, and its number may be that of another process


@pytest.mark.parametrize(("status", "code", "number"), [(0, 0, None), (256, 1, None), (1, None, 1)])
def test_the_least_codes_and_signals_are_told_apart(
    status: int, code: int | None, number: int | None
) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)

    death = Death.reaped(status, usage, io.BytesIO())

    assert (death.exit_code, death.signal) == (code, number)
    assert death.memory_mib == usage.ru_maxrss / 1024


def test_of_a_kill_for_memory_it_is_not_said_that_it_came_from_outside() -> None:
    killed = Death(None, signal.SIGKILL, 1.0, out_of_memory=True)

    assert not killed.from_outside
    assert killed.how == "signal SIGKILL"
    assert "out of memory" in killed.evidence
    assert not Death(None, signal.SIGKILL, 1.0, out_of_memory=None).from_outside
    assert Death(None, 63, 1.0).how == "signal 63"
    assert killed.attempt_error(9).message.startswith("its process 9 ended while it ran: signal")


def test_the_wait_for_the_next_process_grows_until_one_has_lived_long() -> None:
    slot = ProcessSlot(0)
    waits = [slot.wait_s(1.0, begun=False) for _ in range(4)]

    assert waits == [restart_delay_s(number, begun=False) for number in (1, 2, 3, 4)]
    assert len(set(waits)) == 4
    assert slot.wait_s(10.0, begun=False) == 0.0
    assert slot.quick_deaths == 0


async def test_a_process_that_cannot_be_started_leaves_nothing_behind_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    command = ["/bin/sh", "-c", "exit 0"]
    supervisor = Supervisor(lambda _: command, 2, clock=clock, chance=SystemChance())
    first, second = supervisor.slots
    start, descriptors = subprocess.Popen, open_descriptors()

    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes for now")

    monkeypatch.setattr(subprocess, "Popen", fail)
    supervisor._look()
    assert open_descriptors() == descriptors
    assert (first.child, second.child) == (None, None)
    assert first.start_at == clock.monotonic() + restart_delay_s(1, begun=False)
    assert caplog.text.count("no process can be started for now") == 2
    clock.advance(1.0)
    supervisor._look()
    assert first.start_at == clock.monotonic() + restart_delay_s(2, begun=False)

    monkeypatch.setattr(subprocess, "Popen", start)
    clock.advance(1.0)
    supervisor._look()

    children = supervisor.children
    assert len(children) == 2
    for child in children:
        asyncio.get_running_loop().remove_reader(child.reading)
        ended(child)
        child.close()


def open_descriptors() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


# --------------------------------------------------------------------------------------- leases


class Lease:
    """A worker's lease in a store in memory, and the one who keeps it."""

    def __init__(self, child: ChildProcess, hello: Hello = HELLO) -> None:
        self.clock = VirtualClock()
        self.clock.advance(1_000.0)
        self.memory = child.memory
        self.store = MemoryStore(clock=self.clock)
        self.client = StoreClient("memory://")
        self.client._store = self.store
        self.keeper = LeaseKeeper(child, hello, self.client, self.clock)

    async def looked(self) -> int:
        """Let the keeper look, and end what it begins; how often it has renewed."""
        self.keeper.look()
        if self.keeper._under_way is not None:
            await self.keeper._under_way
        return self.keeper.renewals


@pytest.fixture
def lease(started: Callable[[str], ChildProcess]) -> Iterator[Lease]:
    made = Lease(started("exec sleep 600"))
    yield made
    made.client.close()


async def test_a_lease_is_kept_for_a_process_that_does_not_renew_it(lease: Lease) -> None:
    assert await lease.looked() == 0  # it has no lease yet

    lease.memory.lease_renewed(1_000.0)
    lease.clock.advance(15.0)
    assert await lease.looked() == 0

    lease.clock.advance(0.25)
    assert await lease.looked() == 1
    assert lease.memory.trusted_until == 1_015.25 + trusted_for_us(HELLO.lease_us) / SECOND_US
    assert await lease.looked() == 1  # the next is due half a lease later
    [worker] = lease.store.run(lease.store.leases.workers())
    assert worker.worker == "w1"


async def test_a_lease_may_have_lapsed_once_it_is_as_old_as_it_is_long(lease: Lease) -> None:
    lease.memory.lease_renewed(1_000.0)
    lease.clock.advance(29.0)
    await lease.looked()
    first = lease.memory.epoch

    lease.clock.advance(31.0)
    assert await lease.looked() == 2

    assert lease.memory.epoch == first + 2  # told before the store was asked, and by the store


async def test_of_a_process_that_died_no_lease_is_kept(
    started: Callable[[str], ChildProcess],
) -> None:
    child = started("exit 0")
    lease = Lease(child)
    lease.memory.lease_renewed(1_000.0)
    lease.clock.advance(20.0)
    ended(child)

    assert await lease.looked() == 0
    assert lease.memory.trusted_until == 0
    lease.client.close()


def test_on_macos_the_peak_of_memory_is_told_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "child_process_on_macos"
    spec = spec_from_file_location(name, child_process.__file__)
    assert spec is not None
    assert spec.loader is not None
    there = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, there)
    monkeypatch.setattr(sys, "platform", "darwin")
    spec.loader.exec_module(there)
    usage = resource.getrusage(resource.RUSAGE_SELF)

    death = there.Death.reaped(0, usage, io.BytesIO())

    assert death.memory_mib == usage.ru_maxrss / 1024**2
