# SPDX-License-Identifier: MIT
"""What a worker may be set to."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from packhorse.client.run_options import config_options
from packhorse.core.clock import SECOND_US
from packhorse.core.config import WorkerOptions
from packhorse.core.policies.lease import LEASE_US_DEFAULT
from packhorse.errors import ConfigError
from packhorse.protocol import WorkerConfig


def test_the_defaults_are_those_of_the_protocol_and_the_policies() -> None:
    options = WorkerOptions(queues=("default",))
    wire = WorkerConfig.parse({"name": "w", "queues": ["default"]})

    assert options.lease_us == LEASE_US_DEFAULT == wire.visibility_timeout_ms * 1000
    assert options.poll_interval_us == wire.poll_interval_ms * 1000
    assert options.default_timeout_us == wire.default_timeout_ms * 1000
    assert options.shutdown_timeout_us == wire.shutdown_timeout_ms * 1000


@pytest.mark.req("S1-26")
def test_a_worker_without_queues_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"queues is empty.*name at least one"):
        WorkerOptions(queues=())


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"queues": ("",)}, "queues"),
        ({"queues": "mail"}, "give a list"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 2.5}, "concurrency"),
        ({"concurrency": 10_001}, "concurrency"),
        ({"max_jobs": 0}, "max_jobs"),
        ({"lease_us": 0}, "lease"),
        ({"poll_interval_us": 0}, "poll_interval"),
        ({"default_timeout_us": -1}, "default_timeout"),
        ({"stop_grace_us": 0}, "stop_grace"),
        ({"stop_grace_us": 21 * SECOND_US}, "stop_grace"),
        ({"shutdown_timeout_us": -1}, "shutdown_timeout"),
        ({"process_slots": 0}, "process_slots"),
        ({"recycle_jobs": 0}, "recycle_jobs"),
        ({"recycle_failures": -1}, "recycle_failures"),
        ({"recycle_on": "always"}, "recycle_on is 'always'; give one of fatal, unexpected"),
        ({"recycle_mib": True}, "recycle_mib"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        WorkerOptions(**{"queues": ("default",)} | settings)


def test_a_queue_named_twice_is_served_once_in_its_first_place() -> None:
    assert WorkerOptions(queues=("b", "a", "b")).queues == ("b", "a")


@pytest.mark.req("S1-25", "S1-30", "S1-42", "S1-52", "X-5")
def test_a_wire_configuration_drives_the_worker() -> None:
    config = WorkerConfig.parse(
        {
            "name": "mailer",
            "queues": ["mail", "default"],
            "pollIntervalMs": 500,
            "visibilityTimeoutMs": 15_000,
            "defaultTimeoutMs": 600_000,
            "shutdownTimeoutMs": 5_000,
        }
    )

    chosen = {"concurrency": 7, "burst": True, "max_jobs": 9}
    options = config_options(config, None, chosen)

    assert (options.name, options.queues) == ("mailer", ("mail", "default"))
    assert options.poll_interval_us == SECOND_US // 2
    assert options.lease_us == 15 * SECOND_US
    assert options.default_timeout_us == 600 * SECOND_US
    assert options.shutdown_timeout_us == 5 * SECOND_US
    assert (options.concurrency, options.burst, options.max_jobs) == (7, True, 9)


def test_options_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        WorkerOptions(queues=("default",)).burst = True  # type: ignore[misc]
