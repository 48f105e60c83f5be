# SPDX-License-Identifier: MIT
"""What a worker writes together and when, what it holds ahead, and what it counts."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Progress
from packhorse.core.policies.attachments import Attaching
from packhorse.core.settlement import SettlementKind, Verdict, counted_as
from packhorse.runtime.worker.attaching import _BATCH_BYTES_MAX, _next_batch
from packhorse.runtime.worker.attempt import Attempt, Stage
from packhorse.runtime.worker.progress import _INTERVAL_S, ProgressWriter
from packhorse.runtime.worker.settler import _FLUSH_DELAY_S, _FLUSH_SIZE, Settler
from packhorse.runtime.worker.slots import LOOK_AHEAD_HELD_S, Slots
from packhorse.runtime.worker.tallies import WorkerCounters
from packhorse.stores.requests import Totals
from tests.worker.support import HandClock


class Timers:
    """An event loop that runs at once what it is given, and only notes what is for later."""

    def __init__(self) -> None:
        self.later: list[float] = []

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        call()

    def call_soon(self, call: Callable[[], None], **_more: object) -> None:
        del call

    def call_later(self, seconds: float, call: Callable[[], None]) -> object:
        self.later.append(seconds)
        return call


class Held:
    """As much of an attempt as these ask for."""

    stage = Stage.RUNNING
    arrived = 0.0
    handler = SimpleNamespace(process=False)


@pytest.mark.parametrize(
    ("count", "idle", "now"),
    [
        (0, True, None),
        (1, True, True),
        (1, False, False),
        (_FLUSH_SIZE - 1, False, False),
        (_FLUSH_SIZE, False, True),
    ],
)
def test_settlements_wait_for_others_unless_they_are_many_or_nothing_runs(
    count: int, *, idle: bool, now: bool | None
) -> None:
    settler: Any = Settler.__new__(Settler)
    settler._queue, settler._due = [object()] * count, asyncio.Event()
    settler._timer, settler._loop = None, Timers()

    settler.flush(at_once=idle)
    settler.flush(at_once=False)  # there is one timer

    assert settler._due.is_set() is bool(now)
    assert settler._loop.later == ([_FLUSH_DELAY_S] if now is False else [])


def test_values_are_written_together_up_to_a_size() -> None:
    half = bytes(_BATCH_BYTES_MAX // 2)
    asked = [Attaching(f"job-{number}", 1, {"value": half}) for number in range(5)]
    waiting = deque((one, Future[bool]()) for one in asked)

    sizes = [len(_next_batch(cast("Any", waiting))) for _ in range(3)]

    assert sizes == [2, 2, 1]


async def test_progress_is_written_at_once_and_then_after_an_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, timers = HandClock(), Timers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    writer = ProgressWriter(cast("Any", None), clock, cast("Any", None), held=())
    attempt = cast("Attempt", Held())

    for written_at in (float("-inf"), 100.0, 99.9, 99.0):
        writer._written_at, writer._scheduled = written_at, False
        writer.note(attempt, Progress(1))
        writer.note(attempt, Progress(2))

    assert timers.later == pytest.approx([0.0, _INTERVAL_S, _INTERVAL_S - 0.1, 0.0])


def test_what_is_held_ahead_goes_back_after_a_while_counted_from_its_claim() -> None:
    clock, released = HandClock(), list[object]()
    slots = Slots(cast("Any", Timers()), clock, 1)
    slots.connect(print, lambda attempt, _: released.append(attempt), print, bool)
    assert slots.give_back_stale(clock.seconds) == math.inf
    attempts = [cast("Attempt", Held()) for _ in range(2)]

    slots.take(attempts[:1])
    clock.seconds += LOOK_AHEAD_HELD_S / 4
    slots.take(attempts[1:])
    assert slots.give_back_stale(clock.seconds) == 0.75 * LOOK_AHEAD_HELD_S
    assert released == []

    clock.seconds += LOOK_AHEAD_HELD_S * 7 / 8
    assert slots.give_back_stale(clock.seconds) == LOOK_AHEAD_HELD_S / 8
    assert released == attempts[:1]


@pytest.mark.parametrize(
    ("kind", "verdict", "counted"),
    [
        (SettlementKind.COMPLETED, Verdict.APPLIED, "succeeded"),
        (SettlementKind.COMPLETED, Verdict.STALE, "stale"),
        (SettlementKind.COMPLETED, Verdict.CANCELLED, "cancelled"),
        (SettlementKind.CANCELLED, Verdict.APPLIED, "cancelled"),
        (SettlementKind.SNOOZED, Verdict.APPLIED, "snoozed"),
        (SettlementKind.LIMITED, Verdict.APPLIED, "limited"),
        (SettlementKind.RELEASED, Verdict.APPLIED, "released"),
    ],
)
def test_each_end_counts_once(kind: SettlementKind, verdict: Verdict, counted: str) -> None:
    counters = WorkerCounters()

    for _ in range(3):
        found = counted_as(cast("Any", SimpleNamespace(kind=kind, ended=True)), verdict)
        assert found is not None
        counters.count(found, timed_out=False)

    counts = {name: getattr(counters, name) for name in WorkerCounters.__slots__}
    assert {name: count for name, count in counts.items() if count} == {counted: 3}


def test_the_store_is_told_what_was_done_and_how_long_that_took() -> None:
    counters = WorkerCounters()
    counters.succeeded, counters.failed, counters.execution_s = 3, 2, 1.5

    assert counters.totals == Totals(3, 2, 3 * SECOND_US // 2)
