# SPDX-License-Identifier: MIT
"""What a consumer is set to: checked when it is made; a refusal names setting and fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packhorse.config import WorkerOptions
from packhorse.durations import Duration, microseconds
from packhorse.errors import ConfigError
from packhorse.options import text_tuple
from packhorse.stores.requests import EVERY_TASK

__all__ = ["ConsumerSettings", "consumer_settings"]


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Which jobs it fetches, and for how long they are its own."""

    options: WorkerOptions
    tasks: tuple[str, ...]  #: `*` is every task


def consumer_settings(
    queues: Iterable[str],
    tasks: Iterable[str] | None,
    *,
    lease: Duration,
    default_timeout: Duration,
) -> ConsumerSettings:
    """The arguments of `app.consumer(...)` as a consumer takes them."""
    named = (EVERY_TASK,) if tasks is None else text_tuple(tasks, "consumer(): tasks")
    if not named:
        raise ConfigError(
            "consumer(): tasks is empty, so nothing would ever be fetched; name some, or leave it "
            "out for every task"
        )
    options = WorkerOptions(
        queues=text_tuple(queues, "consumer(): queues"),
        lease_us=microseconds(lease, setting="consumer(): lease"),
        default_timeout_us=microseconds(default_timeout, setting="consumer(): default_timeout"),
    )
    return ConsumerSettings(options, named)
