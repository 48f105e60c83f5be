# SPDX-License-Identifier: MIT
"""Unchecked creation, and settings that contradict each other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from packhorse.errors import ConfigError
from packhorse.protocol import (
    AutoScale,
    BatchTask,
    QueueConfig,
    Shape,
    Task,
    TaskRetryPolicy,
    WorkerConfig,
    check_settings,
)
from tests.unit.protocol.examples import MINIMAL, minimal

TOO_MANY = {"minWorkers": 5, "maxWorkers": 2}
SAME_THRESHOLD = {"scaleUpThreshold": 50, "scaleDownThreshold": 50}
CROSSED_THRESHOLDS = {"scaleUpThreshold": 50, "scaleDownThreshold": 60}
CROSSED_DELAYS = {"initialDelayMs": 5000, "maxDelayMs": 4999}

CONTRADICTIONS: list[tuple[type[Shape], Mapping[str, object], str]] = [
    (AutoScale, TOO_MANY, "$.minWorkers is 5"),
    (AutoScale, SAME_THRESHOLD, "$.scaleDownThreshold is 50"),
    (TaskRetryPolicy, CROSSED_DELAYS, "$.initialDelayMs is 5000"),
    (Task, minimal(Task, retryPolicy=CROSSED_DELAYS), "$.retryPolicy.initialDelayMs is 5000"),
    (
        QueueConfig,
        minimal(QueueConfig, defaultRetryPolicy=CROSSED_DELAYS),
        "$.defaultRetryPolicy.initialDelayMs is 5000",
    ),
    (
        QueueConfig,
        minimal(QueueConfig, autoScale=CROSSED_THRESHOLDS),
        "$.autoScale.scaleDownThreshold is 60",
    ),
    (
        WorkerConfig,
        minimal(WorkerConfig, queueConfigs=[{"name": "a"}, {"name": "b", "autoScale": TOO_MANY}]),
        "$.queueConfigs[1].autoScale.minWorkers is 5",
    ),
]


@pytest.mark.req("S1-14")
@pytest.mark.parametrize("shape", [Task, QueueConfig, WorkerConfig, BatchTask])
@pytest.mark.parametrize("value", [{"not": "checked"}, None, "", ["queues"]])
def test_create_returns_its_argument_unchanged_and_unchecked(
    shape: type[Shape], value: object
) -> None:
    assert shape.create(value) is value


@pytest.mark.req("S1-50")
@pytest.mark.parametrize(("shape", "wire", "words"), CONTRADICTIONS)
def test_a_contradiction_is_parsed_as_upstream_does_and_refused_by_check_settings(
    shape: type[Shape], wire: Mapping[str, object], words: str
) -> None:
    parsed = shape.parse(wire)
    with pytest.raises(ConfigError) as caught:
        check_settings(parsed)
    assert words in str(caught.value)
    assert ": lower " in str(caught.value) or "; lower " in str(caught.value)


@pytest.mark.req("S1-50")
@pytest.mark.parametrize(
    "value",
    [
        TaskRetryPolicy(initial_delay_ms=5000, max_delay_ms=5000),
        AutoScale(min_workers=3, max_workers=3),
        AutoScale(scale_down_threshold=99, scale_up_threshold=100),
    ],
)
def test_settings_that_just_fit_together_pass(value: Shape) -> None:
    check_settings(value)


@pytest.mark.parametrize("shape", MINIMAL)
def test_the_defaults_of_every_shape_fit_together(shape: type[Shape]) -> None:
    check_settings(shape.parse(minimal(shape)))
