# SPDX-License-Identifier: MIT
"""What a worker tells its supervisor, and when, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from packhorse.client.registry import Registry
from packhorse.runtime.supervisor.messages import FromChild, Report, Retire
from packhorse.runtime.worker.attempt import Attempt, Stage
from packhorse.runtime.worker.recycling import Recycling, memory_mib
from packhorse.runtime.worker.shutdown import Phase
from packhorse.runtime.worker.supervised import SupervisorReporter
from packhorse.runtime.worker.tallies import Tallies, WorkerCounters
from tests.worker.support import HandClock, worker_options


class Said:
    """The worker's end of the pipe; keeps what is said."""

    memory = None
    counting = False

    def __init__(self) -> None:
        self.messages: list[FromChild] = []

    def send(self, message: FromChild) -> bool:
        self.messages.append(message)
        return True


class Timers:
    """An event loop that only notes what is to be called later."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.later.append((seconds, call))


class Worker:
    """As much of a worker as its reports tell of."""

    def __init__(self, **options: Any) -> None:
        self.clock, self.said, self.loop = HandClock(), Said(), Timers()
        self.phases: list[tuple[Phase, str]] = []
        self.shutdown = SimpleNamespace(
            begun=False,
            quiet=False,
            patient=False,
            advance=lambda phase, why: self.phases.append((phase, why)),
        )
        self.threads = SimpleNamespace(stuck=0, stuck_threads=list)
        counts = dict.fromkeys(
            ("succeeded", "failed", "retried", "dead", "expired", "timed_out"), 0
        )
        self.counters = SimpleNamespace(**counts)
        runtime = SimpleNamespace(
            options=worker_options(**options),
            capacity=10,
            env=SimpleNamespace(registry=Registry()),
            monotonic=self.clock.monotonic,
            loop=self.loop,
            shutdown=self.shutdown,
            counters=self.counters,
            settler=SimpleNamespace(tallies=Tallies(WorkerCounters()), backlog=0),
            slots=SimpleNamespace(started=0, running=0, occupied=0, waiting=()),
            health=SimpleNamespace(failing=()),
            lease=SimpleNamespace(trusted=True),
            heartbeat=SimpleNamespace(loop_blocked=False),
            threads=self.threads,
            stopper=SimpleNamespace(abandoned=0, abandoned_attempts=list),
        )
        self.reporter = SupervisorReporter(cast("Any", self.said), cast("Any", runtime))

    def beats(self, after_s: float = 0.0) -> int:
        """How many messages there are after a beat of the heart."""
        self.clock.seconds += after_s
        self.reporter.beat()
        return len(self.said.messages)


def took(seconds: float) -> Attempt:
    return cast("Attempt", SimpleNamespace(place=None, duration=seconds, begun=True))


def test_a_report_goes_when_something_has_changed_and_after_a_silence() -> None:
    worker = Worker()

    assert worker.beats() == 1
    assert worker.beats(9.5) == 1
    assert worker.beats(0.5) == 2
    worker.counters.failed += 1
    assert worker.beats() == 3
    assert worker.beats() == 3


@pytest.mark.parametrize(("attempts", "p95_ms"), [(100, 96.0), (1, 1.0), (10, 10.0), (3_000, 0.0)])
def test_nineteen_of_twenty_attempts_took_no_longer(attempts: int, p95_ms: float) -> None:
    worker = Worker()
    durations = [0.001 * number for number in range(1, attempts + 1)]
    if attempts > 1_024:  # only the last ones count
        durations = [9.0] * (attempts - 1_024) + [0.0] * 1_024

    worker.reporter.accepted([took(seconds) for seconds in durations])
    worker.beats()

    [report] = worker.said.messages
    assert isinstance(report, Report)
    assert report.p95_duration_ms == p95_ms


@pytest.mark.parametrize("stuck", [0, 1])
def test_a_process_in_which_a_handler_does_not_stop_asks_to_be_replaced_after_the_grace(
    stuck: int,
) -> None:
    worker = Worker(stop_grace_us=5_250_000)
    worker.reporter.expired(cast("Attempt", SimpleNamespace(stage=Stage.ENDED)))
    assert worker.loop.later == []

    worker.reporter.expired(cast("Attempt", SimpleNamespace(stage=Stage.ABANDONED)))
    [(grace_s, call)] = worker.loop.later
    worker.threads.stuck = stuck
    call()
    call()

    said = "1 handler did not stop when told to"
    assert grace_s == 5.25
    assert worker.said.messages == [Retire(said)] * stuck
    assert worker.phases == [(Phase.DRAINING, said)] * stuck
    assert worker.shutdown.patient is bool(stuck)


def test_a_process_is_replaced_for_its_memory_once_it_has_begun_a_job() -> None:
    mib = memory_mib()
    large = Recycling(worker_options(recycle_mib=int(mib / 2)))
    small = Recycling(worker_options(recycle_mib=int(mib * 2)))

    assert 10 < mib < 10_000
    assert large.swollen(0) is None
    assert (large.swollen(1) or "").endswith("MiB in memory")
    assert small.swollen(1) is None
