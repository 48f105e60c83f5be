# SPDX-License-Identifier: MIT
"""Log lines of a consumer: those of every event, with the names its callers know as a field."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from packhorse import logs
from packhorse.clock import Clock
from packhorse.events import EventBus

__all__ = ["LOGGER", "attach"]

LOGGER: Final = "packhorse.consumer"

#: What a record's `log_name` is, by its event.
_LOG_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "job.started": "job_fetched",
        "job.completed": "job_completed",
        "job.retried": "job_retried",
        "job.failed": "job_failed",
        "job.timed_out": "job_failed",
        "job.dead": "job_failed",
        "job.released": "job_released",
    }
)


def attach(bus: EventBus, clock: Clock) -> Callable[[], None]:
    """Log what happens on a bus; returns what ends it."""
    logger = logging.getLogger(LOGGER)
    logger.addFilter(_name)
    detach = logs.attach(bus, logger, clock=clock)

    def end() -> None:
        detach()
        logger.removeFilter(_name)

    return end


def _name(record: logging.LogRecord) -> bool:
    name = _LOG_NAMES.get(getattr(record, "event", ""))
    if name is not None and isinstance(record, logs.EventRecord):
        record.fields["log_name"] = name
        record.__dict__["log_name"] = name
    return True
