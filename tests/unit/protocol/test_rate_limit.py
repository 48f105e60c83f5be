# SPDX-License-Identifier: MIT
"""The window of a rate limit: two names, never silently dropped."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.errors import ShapeError
from packhorse.protocol import QueueConfig, RateLimit, json_schema, to_wire
from tests.unit.protocol.examples import minimal, refusal


def queue(**rate_limit: Any) -> dict[str, Any]:
    return minimal(QueueConfig, rateLimit=rate_limit)


@pytest.mark.req("S1-15")
@pytest.mark.parametrize("name", ["duration", "durationMs"])
def test_the_window_is_accepted_under_either_name_and_written_under_the_same(name: str) -> None:
    config = QueueConfig.parse(queue(max=100, **{name: 60_000}))
    assert config.rate_limit
    assert config.rate_limit.window_ms == 60_000
    assert to_wire(config)["rateLimit"] == {"max": 100, name: 60_000}


@pytest.mark.req("S1-15")
def test_duration_keeps_its_meaning_where_the_later_upstream_version_refuses_it() -> None:
    # Upstream refuses the old name so that no limit is lost unseen; here none is lost.
    assert RateLimit.parse({"max": 1, "duration": 5}).window_ms == 5


@pytest.mark.req("S1-16")
@pytest.mark.parametrize("name", ["window", "windowMs", "duration_ms", "per", "Duration"])
def test_a_window_under_another_name_is_an_error_that_gives_both_names(name: str) -> None:
    error = refusal(QueueConfig, queue(max=100, **{name: 60_000}))
    assert error.path == f"$.rateLimit.{name}"
    assert "duration, durationMs" in str(error)


@pytest.mark.req("S1-16")
def test_a_second_window_under_another_name_is_an_error_too() -> None:
    error = refusal(QueueConfig, queue(max=100, duration=60_000, windowMs=1000))
    assert error.path == "$.rateLimit.windowMs"


@pytest.mark.req("S1-16")
def test_a_rate_limit_without_a_window_is_an_error_that_gives_both_names() -> None:
    error = refusal(QueueConfig, queue(max=100))
    assert error.path == "$.rateLimit"
    assert "duration or durationMs" in str(error)


@pytest.mark.req("S1-16")
def test_two_windows_that_differ_are_an_error_that_gives_both_names() -> None:
    error = refusal(QueueConfig, queue(max=100, duration=60_000, durationMs=1000))
    assert error.path == "$.rateLimit"
    assert "duration is 60000 and durationMs is 1000" in str(error)


def test_the_same_window_twice_is_accepted() -> None:
    assert RateLimit.parse({"max": 1, "duration": 5, "durationMs": 5}).window_ms == 5


def test_an_unchecked_rate_limit_without_a_window_does_not_read_as_no_limit() -> None:
    with pytest.raises(ShapeError, match="window is missing"):
        _ = RateLimit(max=1).window_ms


def test_the_json_schema_asks_for_one_of_the_two_names_and_no_other() -> None:
    schema = json_schema(QueueConfig)["$defs"]["RateLimit"]
    assert schema["additionalProperties"] is False
    assert schema["anyOf"] == [{"required": ["duration"]}, {"required": ["durationMs"]}]
