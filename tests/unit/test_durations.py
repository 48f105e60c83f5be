# SPDX-License-Identifier: MIT
"""Spans of time as people write them."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.durations import microseconds, positive_microseconds, span_text
from packhorse.errors import ConfigError

CENTURY_S = 100 * 366 * 86_400


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (30, 30),
        (1.5, 1.5),
        (0, 0),
        ("30", 30),
        ("+1.5", 1.5),
        (".5", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5_400),
        ("1h 30m", 5_400),
        ("  1H\t30 M ", 5_400),
        ("1.5h", 5_400),
        ("2d", 172_800),
        ("250ms", 0.25),
        ("1m250ms", 60.25),
        ("1d2h3m4s5ms", 93_784.005),
        (timedelta(minutes=5), 300),
        (CENTURY_S, CENTURY_S),
    ],
)
def test_a_span_is_read_as_people_write_it(written: Any, seconds: float) -> None:
    assert microseconds(written) == round(seconds * 1_000_000)


@pytest.mark.parametrize(
    "written",
    [
        *("", "  ", "s", "soon", "5 apples", "30s30s", "5m5h", "1 5", "3 0s", "1m s", "5sec"),
        *("1e3", "1_000", "nan", "inf", "٣s", "1,5s", "--5", None, True, b"30s", Decimal(5), [30]),
    ],
)
def test_what_is_no_span_is_refused_with_the_name_of_the_setting(written: Any) -> None:
    with pytest.raises(ConfigError, match=r"timeout is .*; give seconds as a number"):
        microseconds(written, setting="timeout")


@pytest.mark.parametrize(
    "written",
    [
        *(-1, -0.001, "-5", timedelta(seconds=-1), float("nan"), float("inf"), -float("inf")),
        *(CENTURY_S + 1, 10**400, "9" * 400, "9" * 400 + "s", timedelta.max),
    ],
)
def test_a_span_outside_a_century_is_refused(written: Any) -> None:
    with pytest.raises(ConfigError, match=r"delay is .*; give a span from 0 to a hundred years"):
        microseconds(written, setting="delay")


@given(st.integers(0, CENTURY_S * 1_000_000))
def test_a_span_in_microseconds_survives_as_timedelta_and_as_seconds(span_us: int) -> None:
    assert microseconds(timedelta(microseconds=span_us)) == span_us
    assert microseconds(span_us / 1_000_000) == span_us


@given(*(st.integers(0, 1_000) for _ in range(5)))
def test_the_parts_of_a_text_add_up(
    days: int, hours: int, minutes: int, seconds: int, milliseconds: int
) -> None:
    written = f"{days}d{hours}h{minutes}m{seconds}s{milliseconds}ms"
    span = timedelta(
        days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
    )

    assert microseconds(written) == span // timedelta(microseconds=1)


@given(st.text())
def test_any_text_is_read_or_refused_and_nothing_else(written: str) -> None:
    with contextlib.suppress(ConfigError):
        assert microseconds(written) >= 0


@pytest.mark.parametrize("nothing", [0, "0s", 1e-9, timedelta(0)])
def test_a_span_that_must_last_is_refused_when_it_is_zero(nothing: Any) -> None:
    with pytest.raises(ConfigError, match=r"lease is .*; give a span longer than zero"):
        positive_microseconds(nothing, setting="lease")


def test_a_span_that_must_last_is_taken_when_it_does() -> None:
    assert positive_microseconds("1ms") == 1_000


@pytest.mark.parametrize(
    ("span_us", "text"),
    [
        (0, "0s"),
        (250, "0.25ms"),
        (1_500_000, "1.5s"),
        (30_000_000, "30s"),
        (3_595_000_000, "59m 55s"),
        (3_600_000_000, "1h"),
        (93_784_900_000, "1d 2h 3m 5s"),
    ],
)
def test_a_span_is_shown_in_its_units(span_us: int, text: str) -> None:
    assert span_text(span_us) == text
