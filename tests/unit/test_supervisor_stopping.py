# SPDX-License-Identifier: MIT
"""When a supervisor signals its processes, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.runtime.supervisor.child_process import ChildProcess
from packhorse.runtime.supervisor.supervisor import (
    _LEAVING_S,
    _PARTING_S,
    EXIT_ABANDONED,
    EXIT_FAILED,
    Supervisor,
)
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.test_supervisor_children import HELLO
from tests.worker.support import Even

TIMEOUT_S, GRACE_S = 30.5, 5.25
PATIENT = msgspec.structs.replace(
    HELLO,
    shutdown_timeout_us=int(TIMEOUT_S * SECOND_US),
    stop_grace_us=int(GRACE_S * SECOND_US),
)
SLEEP = ("/bin/sh", "-c", "exec sleep 600")
#: Little, but as much as a look at a process may come too early or too late.
BIT_S = 0.125


class Told(ChildProcess):
    """A process that does nothing, and notes its signals instead of getting them."""

    def __init__(self) -> None:
        super().__init__(SLEEP)
        self.hello = PATIENT
        self.signals: list[int] = []

    def signal(self, number: int) -> None:
        self.signals.append(number)


class Watch:
    """A supervisor of one such process."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.clock.advance(1_000.0)
        self.commands: list[bool] = []
        self.supervisor = Supervisor(self._command, 1, clock=self.clock, chance=Even())
        self.child = Told()
        self.child.memory.loop_turned(self.clock.monotonic())
        self.supervisor.slots[0].child = self.child
        self.supervisor.hello = PATIENT

    def _command(self, *first: bool) -> tuple[str, ...]:
        self.commands.extend(first)
        return SLEEP

    def look(self, after_s: float = 0.0) -> list[int]:
        """What the process has been told once the supervisor has looked."""
        self.clock.advance(after_s)
        self.child.memory.loop_turned(self.clock.monotonic())
        self.supervisor._look()
        return self.child.signals

    def end(self, number: int) -> None:
        """Let it die of a signal."""
        os.kill(self.child.pid, number)
        os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)
        self.supervisor._look()


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    made = Watch()
    yield made
    for child in made.supervisor.children:
        asyncio.get_running_loop().remove_reader(child.reading)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        child.reap(0.0)
        child.close()


async def test_one_that_does_not_stop_in_time_is_killed_once_and_not_sooner(watch: Watch) -> None:
    watch.supervisor.stop(signal.SIGTERM)

    assert watch.look() == [signal.SIGTERM]
    assert watch.look(TIMEOUT_S + GRACE_S + _PARTING_S - BIT_S) == [signal.SIGTERM]
    assert watch.look(BIT_S) == [signal.SIGTERM, signal.SIGKILL]
    assert watch.look(BIT_S) == [signal.SIGTERM, signal.SIGKILL]
    watch.end(signal.SIGKILL)
    assert watch.supervisor._exit_code() == EXIT_ABANDONED


async def test_a_second_signal_leaves_less_time_and_a_third_one_least(watch: Watch) -> None:
    stop, kill = signal.SIGTERM, signal.SIGKILL
    watch.supervisor.stop(stop)
    watch.look(10.0)

    watch.supervisor.stop(stop)
    assert watch.look(GRACE_S + _PARTING_S - BIT_S) == [stop] * 2

    watch.supervisor.stop(stop)
    assert watch.look() == [stop] * 3
    assert watch.look(BIT_S) == [stop] * 3 + [kill]


async def test_after_a_third_signal_little_time_is_left(watch: Watch) -> None:
    for _ in range(3):
        watch.supervisor.stop(signal.SIGTERM)

    assert watch.look(_LEAVING_S - BIT_S) == [signal.SIGTERM] * 3
    assert watch.look(BIT_S) == [signal.SIGTERM] * 3 + [signal.SIGKILL]


async def test_one_that_is_being_replaced_is_hurried_once_its_time_to_stop_is_over(
    watch: Watch,
) -> None:
    watch.child.retire = "it has run 4 jobs"
    watch.supervisor.slots[0].start_at = float("inf")
    watch.look()
    assert watch.supervisor.leaving == [watch.child]

    watch.look(100.0)  # it drains without a limit while the others go on
    watch.supervisor.stop(signal.SIGTERM)

    assert watch.look(TIMEOUT_S - BIT_S) == []
    assert watch.look(BIT_S) == [signal.SIGTERM]
    assert watch.look(BIT_S) == [signal.SIGTERM]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, EXIT_FAILED)])
async def test_one_that_dies_of_the_stop_signal_is_no_failure(
    watch: Watch, number: int, code: int
) -> None:
    watch.supervisor.stop(signal.SIGTERM)
    watch.look()
    watch.child.left = True

    watch.end(number)

    assert watch.supervisor.children == []
    assert watch.supervisor._exit_code() == code


async def test_a_supervisor_that_was_away_itself_has_not_watched_meanwhile(watch: Watch) -> None:
    watch.look()
    watch.look(1.0)
    assert watch.supervisor.watched_since == 1_000.0

    watch.look(10.0)

    assert watch.supervisor.watched_since == 1_011.0


async def test_looks_come_every_second_more_often_for_a_short_lease_and_when_one_is_due(
    watch: Watch,
) -> None:
    supervisor = watch.supervisor
    assert supervisor._look_s() == 1.0

    supervisor.hello = msgspec.structs.replace(HELLO, lease_us=3 * SECOND_US)
    assert supervisor._look_s() == 0.5

    supervisor.slots[0].start_at = watch.clock.monotonic() + 0.25
    assert supervisor._look_s() == 0.25


async def test_the_first_process_alone_is_told_that_it_is_the_first(watch: Watch) -> None:
    watch.supervisor.replace_all("asked")
    watch.look()
    assert watch.commands == [True]

    watch.clock.advance(60.0)  # or the next would have to wait
    watch.supervisor.replace_all("asked")
    watch.look()

    assert watch.commands == [True, False]


async def test_the_connection_to_the_store_is_closed_at_the_end() -> None:
    closed: list[bool] = []
    supervisor = Supervisor(lambda *_first: SLEEP, 0, clock=VirtualClock(), chance=Even())
    client = SimpleNamespace(close=lambda: closed.append(True))
    supervisor.store_client = cast("Any", client)
    supervisor.stop(signal.SIGTERM)

    await supervisor.run()

    assert closed == [True]


async def test_a_process_that_has_not_said_its_grace_has_five_seconds(watch: Watch) -> None:
    watch.child.hello = None

    assert watch.supervisor.state_of(watch.child).grace_s == 5.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets limits of another process")
async def test_a_process_that_is_aborted_leaves_no_image_of_its_memory(watch: Watch) -> None:
    watch.child.abort()

    assert watch.child.signals == [signal.SIGABRT]
    assert resource.prlimit(watch.child.pid, resource.RLIMIT_CORE)[0] == 0
