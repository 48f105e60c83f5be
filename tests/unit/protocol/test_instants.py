# SPDX-License-Identifier: MIT
"""The wire's datetimes: the grammar, and the way to microseconds and back."""

from __future__ import annotations

import re
from calendar import isleap
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packhorse.errors import ShapeError
from packhorse.protocol import (
    BatchProgress,
    Shape,
    Task,
    TaskExecutionResult,
    TaskMetadata,
    instant_us,
    to_wire,
    wire_datetime,
)
from packhorse.protocol.scalars import DATETIME_PATTERN
from tests.unit.protocol.examples import minimal, refusal

INSTANT_FIELDS: list[tuple[type[Shape], str]] = [
    (Task, "scheduledAt"),
    (TaskMetadata, "createdAt"),
    (TaskMetadata, "updatedAt"),
    (TaskExecutionResult, "startedAt"),
    (TaskExecutionResult, "completedAt"),
    (BatchProgress, "startedAt"),
    (BatchProgress, "completedAt"),
]
ACCEPTED = [
    "2026-01-31T09:30Z",
    "2026-01-31T09:30:00Z",
    "2026-01-31T09:30:00.5Z",
    "2026-01-31T09:30:00.123456789012Z",
    "2024-02-29T00:00:00Z",
    "2000-02-29T23:59:59Z",
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999Z",
]
REFUSED = [
    "2026-01-31T09:30:00+00:00",
    "2026-01-31T09:30:00-05:00",
    "2026-01-31T09:30:00+0000",
    "2026-01-31T09:30:00",
    "2026-01-31T09:30:00z",
    "2026-01-31t09:30:00Z",
    "2026-01-31 09:30:00Z",
    "2026-01-31T09:30:00.Z",
    "2026-01-31T09:30:00,5Z",
    "2026-01-31T09:30:00Z\n",
    " 2026-01-31T09:30:00Z",
    "2026-01-31",
    "2026-01-31Z",
    "2026-1-31T09:30:00Z",
    "26-01-31T09:30:00Z",
    "2026-02-30T00:00:00Z",
    "2026-02-29T00:00:00Z",
    "1900-02-29T00:00:00Z",
    "2026-04-31T00:00:00Z",
    "2026-13-01T00:00:00Z",
    "2026-00-01T00:00:00Z",
    "2026-01-00T00:00:00Z",
    "2026-01-32T00:00:00Z",
    "2026-01-31T24:00:00Z",
    "2026-01-31T09:60:00Z",
    "2026-01-31T09:30:60Z",
    "٢٠٢٦-01-31T09:30:00Z",
    "",
    "Z",
]
DATETIMES = st.datetimes(timezones=st.just(UTC))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


@pytest.mark.req("S1-9")
@pytest.mark.parametrize(("shape", "name"), INSTANT_FIELDS)
@pytest.mark.parametrize("text", ACCEPTED)
def test_a_datetime_that_ends_in_z_is_accepted_and_kept_as_written(
    shape: type[Shape], name: str, text: str
) -> None:
    assert to_wire(shape.parse(minimal(shape, **{name: text})))[name] == text


@pytest.mark.req("S1-9")
@pytest.mark.parametrize(("shape", "name"), INSTANT_FIELDS)
@pytest.mark.parametrize("text", REFUSED)
def test_any_other_datetime_is_refused(shape: type[Shape], name: str, text: str) -> None:
    error = refusal(shape, minimal(shape, **{name: text}))
    assert error.path == f"$.{name}"
    assert "ends in Z" in str(error)


@pytest.mark.parametrize("value", [1_769_851_800, EPOCH, True])
def test_an_instant_that_is_not_text_is_refused(value: object) -> None:
    assert refusal(Task, minimal(Task, scheduledAt=value)).path == "$.scheduledAt"


@pytest.mark.parametrize("text", REFUSED)
def test_instant_us_refuses_what_the_shapes_refuse(text: str) -> None:
    with pytest.raises(ShapeError, match="ends in Z"):
        instant_us(text)


@pytest.mark.req("S1-9")
@given(DATETIMES, st.sampled_from(["minutes", "seconds", "milliseconds", "microseconds"]))
def test_every_possible_datetime_is_accepted_at_every_precision(
    moment: datetime, precision: str
) -> None:
    text = moment.isoformat(timespec=precision).replace("+00:00", "Z")
    assert Task.parse(minimal(Task, scheduledAt=text)).scheduled_at == text


@pytest.mark.req("S1-9")
@given(
    year=st.integers(1, 9999),
    month=st.integers(0, 14),
    day=st.integers(0, 33),
    hour=st.integers(0, 26),
)
@example(year=2100, month=2, day=29, hour=0)
@example(year=2400, month=2, day=29, hour=0)
def test_a_date_is_accepted_exactly_when_the_calendar_has_it(
    year: int, month: int, day: int, hour: int
) -> None:
    text = f"{year:04}-{month:02}-{day:02}T{hour:02}:00:00Z"
    try:
        expected = microseconds(datetime(year, month, day, hour, tzinfo=UTC))
    except ValueError:
        with pytest.raises(ShapeError):
            instant_us(text)
    else:
        assert instant_us(text) == expected


@pytest.mark.req("S1-9")
def test_the_29th_of_february_is_accepted_in_leap_years_only() -> None:
    for year in range(10_000):
        text = f"{year:04}-02-29T00:00Z"
        accepted = re.fullmatch(DATETIME_PATTERN, text) is not None
        assert accepted == isleap(year), text


@pytest.mark.req("S1-10")
@given(DATETIMES)
def test_a_written_instant_ends_in_z_is_accepted_and_reads_back_exactly(moment: datetime) -> None:
    text = wire_datetime(microseconds(moment))
    assert text.endswith("Z")
    assert Task.parse(minimal(Task, scheduledAt=text)).scheduled_at == text
    assert instant_us(text) == microseconds(moment)
    assert datetime.fromisoformat(text) == moment


@given(DATETIMES, DATETIMES)
def test_written_instants_sort_as_text_in_the_order_of_time(one: datetime, two: datetime) -> None:
    texts = [wire_datetime(microseconds(moment)) for moment in sorted([one, two])]
    assert texts == sorted(texts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00Z", 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T00:00:00.0000019Z", 1),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1970-01-02T00:00:01.5Z", 86_401_500_000),
        ("0000-03-01T00:00Z", -62_162_035_200_000_000),
    ],
)
def test_instant_us_counts_microseconds_from_the_epoch_and_cuts_finer_digits(
    text: str, expected: int
) -> None:
    assert instant_us(text) == expected


@pytest.mark.parametrize("text", ["0000-02-29T12:00:00.000000Z", "9999-12-31T23:59:59.999999Z"])
def test_the_first_and_the_last_year_of_the_wire_read_back_exactly(text: str) -> None:
    assert wire_datetime(instant_us(text)) == text


@pytest.mark.parametrize("us", [-62_167_219_200_000_001, 253_402_300_800_000_000, 10**30])
def test_an_instant_outside_the_years_of_the_wire_cannot_be_written(us: int) -> None:
    with pytest.raises(ShapeError, match="0000 to 9999"):
        wire_datetime(us)
