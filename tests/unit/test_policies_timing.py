# SPDX-License-Identifier: MIT
"""When schedules fire: intervals, one-shots, cron over changes of the clock, what was missed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, product, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US, from_datetime
from packhorse.core.policies.schedule_times import (
    CATCH_UP_MAX,
    LATE_US,
    CatchUp,
    Timing,
    check_timing,
    due_fires,
    fires_after,
    jittered_us,
    timing_words,
)
from packhorse.errors import ConfigError

MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
ZONES = (
    *("Europe/Berlin", "Europe/London", "America/New_York", "America/Sao_Paulo", "Asia/Kolkata"),
    *("Australia/Lord_Howe", "Pacific/Auckland", "America/St_Johns", "Africa/Casablanca"),
    "Asia/Gaza",
)


def at(text: str) -> int:
    return from_datetime(datetime.fromisoformat(text))


# -------------------------------------------------------------------------------------- intervals


@given(
    every=st.integers(1, 10**12),
    anchor=st.integers(0, 10**16),
    after=st.integers(0, 10**16),
    at_start=st.booleans(),
)
def test_intervals_are_counted_from_their_anchor(
    every: int, anchor: int, after: int, *, at_start: bool
) -> None:
    timing = Timing(every_us=every, at_start=at_start)

    fires = list(islice(fires_after(timing, anchor, after), 3))

    assert fires[0] > after
    assert [fire - fires[0] for fire in fires] == [0, every, 2 * every]
    assert (fires[0] - anchor) % every == 0
    assert fires[0] >= (anchor if at_start else anchor + every)
    assert fires[0] == anchor + (0 if at_start else every) or fires[0] - every <= after


@pytest.mark.req("S4-8")
def test_an_interval_fires_first_after_one_interval() -> None:
    assert next(fires_after(Timing(every_us=HOUR_US), 100, 100)) == 100 + HOUR_US


def test_an_interval_may_fire_at_its_start() -> None:
    assert next(fires_after(Timing(every_us=HOUR_US, at_start=True), 100, 99)) == 100


def test_a_one_shot_fires_once() -> None:
    assert list(fires_after(Timing(at_us=500), 0, 499)) == [500]
    assert list(fires_after(Timing(at_us=500), 0, 500)) == []


# ------------------------------------------------------------------------ cron, against a reference


class Clockwork:
    """Local time of a zone, minute by minute, from its offsets alone."""

    def __init__(self, zone: str, begin: datetime, end: datetime) -> None:
        self.begin, self.end = (int(instant.timestamp()) // 60 for instant in (begin, end))
        info = ZoneInfo(zone)
        self.changes: list[int] = []  #: the minutes in UTC from which an offset holds
        self.offsets: list[int] = []  #: in minutes
        for minute in range(self.begin, self.end, 15):
            offset = datetime.fromtimestamp(minute * 60, info).utcoffset()
            assert offset is not None
            if not self.offsets or offset != timedelta(minutes=self.offsets[-1]):
                self.changes.append(minute)
                self.offsets.append(int(offset.total_seconds()) // 60)

    def minutes(self) -> Iterator[tuple[int, int]]:
        """Every minute in UTC, with the one that clocks on the wall show."""
        for begin, end, offset in zip(
            self.changes, [*self.changes[1:], self.end], self.offsets, strict=True
        ):
            yield from zip(range(begin, end), range(begin + offset, end + offset), strict=True)

    def by_elapsed_time(self, wanted: Wanted) -> Iterator[int]:
        return (minute for minute, local in self.minutes() if wanted.has(local))

    def at_fixed_times(self, wanted: Wanted) -> Iterator[int]:
        """Each local time once: the first time it comes, or when the clock has passed it."""
        last_local = -1
        for minute, local in self.minutes():
            if local > last_local:
                first = local if last_local < 0 else last_local + 1
                if any(map(wanted.has, range(first, local + 1))):
                    yield minute
                last_local = local


class Wanted(NamedTuple):
    """What an expression means, written down a second time."""

    times: frozenset[int]  #: minutes of a day
    day: Callable[[datetime], bool] = lambda _: True

    def has(self, local: int) -> bool:
        if local % 1_440 not in self.times:
            return False
        return self.day(datetime.fromtimestamp(local * 60, UTC))


def times(hours: Iterable[int], minutes: Iterable[int]) -> frozenset[int]:
    return frozenset(hour * 60 + minute for hour, minute in product(hours, minutes))


EXPRESSIONS = {
    "30 1 * * *": Wanted(times([1], [30])),
    "30 2 * * *": Wanted(times([2], [30])),
    "15,45 0,2,3 * * 0": Wanted(times([0, 2, 3], [15, 45]), lambda day: day.weekday() == 6),
    "0 0 31 * *": Wanted(times([0], [0]), lambda day: day.day == 31),
    "7 */3 * * *": Wanted(times(range(0, 24, 3), [7])),
    "*/20 1,2 * * *": Wanted(times([1, 2], [0, 20, 40])),
}


@pytest.mark.parametrize("zone", ZONES)
def test_cron_agrees_with_a_reference_that_goes_minute_by_minute(zone: str) -> None:
    """In the weeks in which clocks are changed somewhere."""
    agrees(zone, datetime(2025, 2, 20, tzinfo=UTC), datetime(2025, 4, 15, tzinfo=UTC))
    agrees(zone, datetime(2025, 9, 25, tzinfo=UTC), datetime(2025, 11, 5, tzinfo=UTC))


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_cron_agrees_with_the_reference_for_four_years(zone: str) -> None:
    agrees(zone, datetime(2025, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC))


def agrees(zone: str, since: datetime, until: datetime) -> None:
    clockwork = Clockwork(zone, since, until)
    begin, end = from_datetime(since), from_datetime(until)
    for expression, wanted in EXPRESSIONS.items():
        minute, hour = expression.split()[:2]
        wildcard = "*" in (minute[0], hour[0])
        expected = (clockwork.by_elapsed_time if wildcard else clockwork.at_fixed_times)(wanted)
        timing = Timing(cron=expression, timezone=zone)

        fires = takewhile(lambda fire: fire < end, fires_after(timing, 0, begin - MINUTE_US))

        assert [fire // MINUTE_US for fire in fires] == list(expected), expression


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("day", ["2026-11-01", "2026-03-08"])
def test_fires_are_the_same_from_wherever_one_looks(expression: str, day: str) -> None:
    timing = Timing(cron=expression, timezone="America/New_York")
    begin = at(f"{day}T00:00+00:00")
    end = begin + 48 * HOUR_US
    known = list(takewhile(lambda fire: fire < end, fires_after(timing, 0, begin)))

    for look in range(begin, end - HOUR_US, 7 * MINUTE_US):
        found = list(takewhile(lambda fire: fire < end, fires_after(timing, 0, look)))
        assert found == [fire for fire in known if fire > look]


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 3 * * *", "at 03:00 every day, Europe/Berlin"),
        ("@daily", "at 00:00 every day, Europe/Berlin"),
        ("*/15 * * * *", "every 15th minute of every hour, Europe/Berlin"),
    ],
)
def test_an_expression_is_said_in_words(cron: str, words: str) -> None:
    assert timing_words(Timing(cron=cron, timezone="Europe/Berlin")) == words


def test_intervals_and_one_shots_are_said_in_words() -> None:
    assert timing_words(Timing(every_us=15 * MINUTE_US)) == "every 15m"
    at_us = at("2027-01-01T09:30:00+00:00")
    assert timing_words(Timing(at_us=at_us)) == "once, at 2027-01-01 09:30:00Z"


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        (Timing(), "one of cron=, every= and at="),
        (Timing(cron="0 3 * * *", every_us=1), "one of cron=, every= and at="),
        (Timing(cron="0 3 * * *", at_start=True), "at_start=True goes with every="),
        (Timing(every_us=99_999), "the shortest interval is 100ms"),
        (Timing(cron="* * * * * *"), "five fields"),
        (Timing(cron="0 0 30 2 *"), "0 0 30 2"),
        (Timing(cron="61 * * * *"), "61"),
        (Timing(cron="0 0 * 2 MON#5" + " " * 300), "313 characters"),
        (Timing(cron="0-59/0 * * * *"), "0-59/0"),
        (Timing(cron="0-99999999999 * * * *"), "0-99999999999"),
        (Timing(cron="0 3 * * *", timezone="Europe/Berlim"), "did you mean 'Europe/Berlin'"),
        (Timing(cron="0 3 * * *", timezone="../../etc/passwd"), "no time zone"),
        (Timing(cron="0 3 * * *", timezone=""), "no time zone"),
    ],
)
def test_what_could_not_fire_is_refused(timing: Timing, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_timing(timing, "schedule 'nightly'")

    assert said in str(refused.value)
    assert "schedule 'nightly'" in str(refused.value)


def test_a_leap_day_is_waited_for() -> None:
    timing = Timing(cron="0 0 29 2 *")
    check_timing(timing, "here")

    fire = next(fires_after(timing, 0, at("2096-03-01T00:00+00:00")))

    assert fire == at("2104-02-29T00:00+00:00")


# ------------------------------------------------------------------------------- what was missed


def hourly(catch_up: CatchUp) -> Timing:
    return Timing(cron="0 * * * *", catch_up=catch_up)


NOON = at("2026-06-01T12:00+00:00")


@pytest.mark.parametrize("catch_up", CatchUp)
def test_a_fire_on_time_is_due_whatever_is_done_with_missed_ones(catch_up: CatchUp) -> None:
    found = due_fires(hourly(catch_up), 0, NOON - HOUR_US, NOON + SECOND_US)

    assert found.fires == (NOON,)
    assert not found.missed
    assert found.next_us == NOON + HOUR_US


@pytest.mark.parametrize(
    ("catch_up", "hours_ago"),
    [(CatchUp.SKIP, []), (CatchUp.LATEST, [0]), (CatchUp.ALL, [4, 3, 2, 1, 0])],
)
def test_missed_fires_are_caught_up_as_asked(catch_up: CatchUp, hours_ago: list[int]) -> None:
    found = due_fires(hourly(catch_up), 0, NOON - 5 * HOUR_US, NOON + LATE_US)

    assert found.fires == tuple(NOON - ago * HOUR_US for ago in hours_ago)
    assert found.missed == 5 - len(hours_ago)
    assert found.last_us == NOON + LATE_US


def test_catching_up_is_bounded_and_takes_the_newest() -> None:
    timing = Timing(cron="* * * * *", catch_up=CatchUp.ALL)

    found = due_fires(timing, 0, NOON - 30 * 24 * HOUR_US, NOON)

    assert len(found.fires) == CATCH_UP_MAX
    assert found.fires[-1] == NOON
    assert found.missed


@pytest.mark.parametrize("late_us", [0, 4])
def test_many_missed_fires_of_an_interval_are_counted_exactly(late_us: int) -> None:
    timing = Timing(every_us=5)

    found = due_fires(timing, 1, 1, 1 + 5 * 17_280 + late_us)

    assert found.fires == (1 + 5 * 17_280,)
    assert found.missed == 17_279


def test_what_is_beyond_the_limit_is_left_for_the_next_look() -> None:
    timing, last = hourly(CatchUp.ALL), NOON - 5 * HOUR_US
    seen: list[int] = []
    while True:
        found = due_fires(timing, 0, last, NOON, limit=2)
        if not found.fires:
            break
        seen += found.fires
        last = found.last_us

    assert seen == [NOON - ago * HOUR_US for ago in (4, 3, 2, 1, 0)]


def test_a_clock_set_back_repeats_nothing() -> None:
    found = due_fires(hourly(CatchUp.ALL), 0, NOON, NOON - 2 * HOUR_US)

    assert found.fires == ()
    assert found.next_us == NOON + HOUR_US


def test_a_yearly_schedule_finds_the_fire_of_months_ago() -> None:
    timing = Timing(cron="0 0 1 1 *")

    found = due_fires(timing, 0, at("2025-06-01T00:00+00:00"), at("2026-06-01T00:00+00:00"))

    assert found.fires == (at("2026-01-01T00:00+00:00"),)


# ------------------------------------------------------------------------------------------ jitter


@given(fire=st.integers(0, 10**16), jitter=st.integers(0, 10**10))
def test_jitter_delays_within_its_bound_and_alike_everywhere(fire: int, jitter: int) -> None:
    timing = Timing(cron="0 3 * * *", jitter_us=jitter)

    starts = jittered_us(timing, "nightly", fire)

    assert fire <= starts <= fire + jitter
    assert starts == jittered_us(timing, "nightly", fire)


def test_jitter_spreads_schedules_of_one_instant() -> None:
    timing = Timing(cron="0 3 * * *", jitter_us=30 * SECOND_US)

    starts = {jittered_us(timing, f"schedule {number}", NOON) for number in range(100)}

    assert len(starts) == 100
    assert max(starts) - min(starts) > 20 * SECOND_US
