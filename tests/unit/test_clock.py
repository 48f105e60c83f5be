# SPDX-License-Identifier: MIT
"""Time and chance, the machine's own and the one tests move by hand."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import (
    SECOND_US,
    Clock,
    SystemChance,
    SystemClock,
    from_datetime,
    new_id,
    new_ids,
    to_datetime,
)
from packhorse.testing.virtual_clock import VirtualClock
from tests.support.children import in_threads

YEAR_9999_US = from_datetime(datetime(9999, 12, 31, tzinfo=UTC))


@given(st.integers(-62_135_596_800 * SECOND_US, YEAR_9999_US))
def test_an_instant_survives_as_datetime(instant_us: int) -> None:
    moment = to_datetime(instant_us)

    assert moment.tzinfo is UTC
    assert from_datetime(moment) == instant_us


def test_the_zone_of_a_datetime_does_not_matter() -> None:
    here = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    assert from_datetime(here) == from_datetime(here.astimezone(UTC))
    assert to_datetime(0) == datetime(1970, 1, 1, tzinfo=UTC)


def test_the_system_clock_tells_the_machines_time() -> None:
    clock = SystemClock()
    before_us, before = time.time_ns() // 1000, time.monotonic()

    assert before_us <= clock.now_us() <= time.time_ns() // 1000
    assert before <= clock.monotonic() <= time.monotonic()


def test_chance_lies_between_zero_and_one_and_is_repeated_by_its_seed() -> None:
    rolls = [SystemChance(7).roll() for _ in range(3)]

    assert len(set(rolls)) == 1
    assert all(0 <= SystemChance().roll() < 1 for _ in range(100))


def test_an_id_is_a_version_seven_uuid_made_now() -> None:
    before_ms = time.time_ns() // 1_000_000
    text = new_id()
    after_ms = time.time_ns() // 1_000_000

    value = uuid.UUID(text)
    assert str(value) == text
    assert (value.version, value.variant) == (7, uuid.RFC_4122)
    assert before_ms <= value.int >> 80 <= after_ms


def test_ids_are_unique() -> None:
    assert len({new_id() for _ in range(10_000)}) == 10_000


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A millisecond that does not end: ids differ by chance alone."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)


@pytest.mark.usefixtures("stopped")
def test_ids_of_one_millisecond_are_unique_and_like_any_other() -> None:
    ids = [new_id() for _ in range(10_000)]

    assert len(set(ids)) == len(ids)
    for text in ids:
        value = uuid.UUID(text)
        assert str(value) == text
        assert (value.version, value.variant) == (7, uuid.RFC_4122)
        assert value.int >> 80 == 1_700_000_000_000
    for position in {*range(15, 18), *range(20, 23), *range(24, 36)}:  # where chance is
        assert len({text[position] for text in ids}) == 16
    assert {text[19] for text in ids} == set("89ab")


@pytest.mark.usefixtures("stopped")
def test_threads_that_make_ids_in_one_millisecond_make_different_ones() -> None:
    made: list[list[str]] = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.000_001)
    try:
        in_threads(*[lambda: made.append([new_id() for _ in range(5_000)])] * 4)
    finally:
        sys.setswitchinterval(before)

    assert len({text for ids in made for text in ids}) == 20_000


@pytest.mark.parametrize("count", [0, 1, 2, 4096, 4097, 10_000])
def test_ids_that_are_made_together_are_unique_sorted_and_like_any_other(count: int) -> None:
    ids = new_ids(count)

    assert len(set(ids)) == count
    assert ids == sorted(ids)
    for text in ids:
        value = uuid.UUID(text)
        assert str(value) == text
        assert (value.version, value.variant) == (7, uuid.RFC_4122)


def test_ids_of_two_who_make_them_at_once_differ() -> None:
    made = [made for _ in range(50) for made in new_ids(500)]

    assert len(set(made)) == len(made)


def test_a_virtual_clock_stands_still_until_it_is_advanced() -> None:
    clock = VirtualClock()
    now_us, seconds = clock.now_us(), clock.monotonic()
    assert (clock.now_us(), clock.monotonic()) == (now_us, seconds)

    clock.advance(1.5)

    assert clock.now_us() == now_us + 1_500_000
    assert clock.monotonic() == pytest.approx(seconds + 1.5)


def test_a_virtual_clock_starts_where_it_is_told() -> None:
    clock: Clock = VirtualClock(5)

    assert clock.now_us() == 5


def test_time_does_not_pass_backwards() -> None:
    clock = VirtualClock()

    with pytest.raises(ValueError, match=r"use step\(\)"):
        clock.advance(-1)


def test_a_stepped_clock_moves_its_instant_and_not_its_monotonic_seconds() -> None:
    clock = VirtualClock()
    now_us, seconds = clock.now_us(), clock.monotonic()

    clock.step(-60)

    assert clock.now_us() == now_us - 60 * SECOND_US
    assert clock.monotonic() == seconds


@given(st.lists(st.integers(0, 10**12), max_size=20))
def test_every_microsecond_advanced_is_counted(spans_us: list[int]) -> None:
    clock = VirtualClock(0)
    for span_us in spans_us:
        clock.advance(span_us / SECOND_US)

    assert clock.now_us() == sum(spans_us)


def test_threads_may_advance_one_clock_together() -> None:
    clock = VirtualClock(0)

    def advance_often() -> None:
        for _ in range(500):
            clock.advance(0.001)

    threads = [threading.Thread(target=advance_often) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert clock.now_us() == 8 * 500 * 1_000
