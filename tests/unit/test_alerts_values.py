# SPDX-License-Identifier: MIT
"""What the measures of alerts come to, of what was seen of a store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from packhorse.breaker import BREAKER_KIND
from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus
from packhorse.core.policies.alerts import AlertState
from packhorse.core.policies.records import Put, RecordId
from packhorse.core.schedules import SCHEDULE_KIND
from packhorse.events import EventBus
from packhorse.runtime.services import alerts
from packhorse.runtime.services.alerts import AlertWatch, _failure_rate, _Sight, _value
from packhorse.runtime.services.service import ServiceContext
from packhorse.stores.memory.store import MemoryStore
from packhorse.stores.plan import Plan
from packhorse.stores.requests import Counts, Totals
from packhorse.testing.virtual_clock import VirtualClock
from tests.worker.support import Even

NOW_US = 1_000 * SECOND_US


def worker(name: str, succeeded: int = 0, failed: int = 0, *, live: bool = True) -> Any:
    totals = Totals(succeeded, failed)
    return SimpleNamespace(worker=name, live=live, totals=totals, queues=("mail",))


def sight(*workers: Any, now_us: int = NOW_US, **more: Any) -> _Sight:
    chosen = {"counts": {}, "late_s": 1.5, "breakers": 2, "latency_s": 0.25, **more}
    return _Sight(workers=workers, now_us=now_us, **chosen)


def queue(name: str, ready_us: int | None, **counts: int) -> Counts:
    by_status = {JobStatus(status): count for status, count in counts.items()}
    return Counts(name, by_status, {} if ready_us is None else {0: ready_us})


@pytest.mark.req("S3-38")
@pytest.mark.parametrize(
    ("name", "of", "value"),
    [
        ("oldest_ready", "", 2.5),
        ("oldest_ready", "mail", 1.25),
        ("oldest_ready", "empty", 0.0),
        ("depth", "", 6),
        ("depth", "mail", 4),
        ("dead_letters", "", 7),
        ("dead_letters", "post", 0),
        ("workers", "", 2),
        ("workers", "post", 0),
        ("late_schedules", "", 1.5),
        ("open_breakers", "", 2),
        ("store_latency", "", 0.25),
    ],
)
def test_a_measure_is_of_one_queue_or_of_all(name: str, of: str, value: float) -> None:
    queues = (
        queue("mail", NOW_US - 1_250_000, queued=3, pending=1, dead=7),
        queue("post", NOW_US - 2_500_000, queued=2, processing=9),
        queue("empty", None),
    )
    seen = sight(
        *(worker("a"), worker("b"), worker("gone", live=False)),
        counts={each.queue: each for each in queues},
    )

    assert _value(name, of, seen) == value


@pytest.mark.parametrize(
    ("name", "of", "value"),
    [
        ("dead_letters", "", 2),
        ("depth", "", 3),
        ("oldest_ready", "", 1.0),
        ("dead_letters", "alerts", 8),
        ("dead_letters", "default", 7),
    ],
)
def test_an_alert_on_everything_leaves_out_the_notices_of_alerts(
    name: str, of: str, value: float
) -> None:
    queues = (
        queue("alerts", NOW_US - 9_000_000, queued=4, dead=8),
        queue("default", NOW_US - 1_000_000, queued=4, dead=7),
    )
    seen = sight(
        counts={each.queue: each for each in queues},
        notices={JobStatus.DEAD: 5, JobStatus.QUEUED: 1},
    )

    assert _value(name, of, seen) == value


@pytest.mark.req("S3-38")
def test_the_rate_of_failures_is_of_what_was_done_since() -> None:
    alert, state = cast("Any", SimpleNamespace(over_us=100 * SECOND_US)), AlertState()
    looks = [
        (worker("a", 10, 90),),  # before the first look
        (worker("a", 13, 91),),
        (worker("a", 13, 91), worker("new", 2, 2), worker("gone", 0, 99, live=False)),
        (worker("a", 1, 0), worker("new", 2, 2)),  # one has begun again
        (worker("a", 2, 0), worker("new", 2, 2)),
    ]

    rates = []
    for number, workers in enumerate(looks):
        seen = sight(*workers, now_us=NOW_US + number * SECOND_US)
        state, rate = _failure_rate(alert, state, seen)
        rates.append(rate)

    assert rates == [0.0, 1 / 4, 3 / 8, 3 / 8, 3 / 9]


async def test_a_schedule_is_late_by_the_time_since_it_was_due() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    for name, late_us in (("one", 1_500_000), ("other", 250_000)):
        order = clock.now_us() - late_us
        put = Put(RecordId(SCHEDULE_KIND, "", name), b"{}", 0, order)
        store.run(store.records.change([put]))
    watch = AlertWatch(ServiceContext(store, clock, Even(), EventBus(), "w"), alerts=())

    seen = await watch._sight(clock.now_us(), {"late_schedules"})

    assert seen.late_s == 1.5
    assert (await watch._sight(clock.now_us(), {"depth"})).late_s == 0.0


async def test_the_latency_of_the_store_is_the_time_that_a_count_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    clock.advance(100.0)
    watch = AlertWatch(ServiceContext(store, clock, Even(), EventBus(), "w"), alerts=())
    counts = store.inspection.counts

    def slow() -> Plan[tuple[Counts, ...]]:
        clock.advance(0.25)
        return counts()

    monkeypatch.setattr(store.inspection, "counts", slow)

    seen = await watch._sight(clock.now_us(), {"store_latency"})

    assert seen.latency_s == 0.25


async def test_breakers_that_are_open_are_counted_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    for state in ("closed", "half-open", "open"):
        put = Put(RecordId(BREAKER_KIND, "", state), b"{}", 0)
        store.run(store.records.change([put]))
    monkeypatch.setattr(
        alerts,
        "breaker_info",
        lambda record, _now_us: SimpleNamespace(state=SimpleNamespace(value=record.id.key)),
    )
    watch = AlertWatch(ServiceContext(store, clock, Even(), EventBus(), "w"), alerts=())

    seen = await watch._sight(clock.now_us(), {"open_breakers"})

    assert seen.breakers == 1
