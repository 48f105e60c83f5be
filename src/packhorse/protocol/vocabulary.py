# SPDX-License-Identifier: MIT
"""The words of the protocol: its enums, and the constrained scalars its shapes are made of."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, Self

from msgspec import Meta

from packhorse.protocol.instants import DATETIME_EXPECTED, DATETIME_PATTERN
from packhorse.protocol.reading import parse, parse_json

__all__ = [
    "TASK_PRIORITY_VALUES",
    "AnyInteger",
    "BackoffStrategy",
    "BatchStatus",
    "Count",
    "Instant",
    "Positive",
    "TaskPriority",
    "TaskStatus",
    "TypeName",
    "WireEnum",
]


class WireEnum(StrEnum):
    """A closed, case-sensitive set of words."""

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return the member written as `value`, or raise ShapeError naming the allowed words."""
        return parse(cls, value)

    @classmethod
    def parse_json(cls, data: str | bytes) -> Self:
        """Return the member that the JSON text `data` holds, or raise ShapeError."""
        return parse_json(cls, data)


class TaskPriority(WireEnum):
    """How urgent a task is; `TASK_PRIORITY_VALUES` gives the order."""

    CRITICAL = "critical"  # must execute immediately
    HIGH = "high"  # execute soon
    NORMAL = "normal"  # the default
    LOW = "low"  # execute when resources are available
    BACKGROUND = "background"  # execute during low-traffic periods


#: Lower runs first.
TASK_PRIORITY_VALUES: Final[Mapping[str, int]] = MappingProxyType(
    {
        TaskPriority.CRITICAL: 0,
        TaskPriority.HIGH: 1,
        TaskPriority.NORMAL: 2,
        TaskPriority.LOW: 3,
        TaskPriority.BACKGROUND: 4,
    }
)


class TaskStatus(WireEnum):
    """Where a task is in its life."""

    PENDING = "pending"  # waiting to be processed
    QUEUED = "queued"  # in its queue, ready for a worker
    PROCESSING = "processing"  # being executed
    COMPLETED = "completed"  # finished successfully
    FAILED = "failed"  # failed, may be retried
    CANCELLED = "cancelled"  # cancelled by hand
    TIMEOUT = "timeout"  # exceeded its execution timeout
    DEAD = "dead"  # moved to the dead letters


class BatchStatus(WireEnum):
    """Where a batch is in its life; `running` exists here and not among the task statuses."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class BackoffStrategy(WireEnum):
    """How the delay grows from one retry to the next."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


# Beyond this, a JSON reader that keeps numbers as doubles would read another integer.
_MAX_SAFE_INTEGER: Final = 2**53 - 1

AnyInteger = Annotated[int, Meta(ge=-_MAX_SAFE_INTEGER, le=_MAX_SAFE_INTEGER)]
Count = Annotated[int, Meta(ge=0, le=_MAX_SAFE_INTEGER)]
Positive = Annotated[int, Meta(ge=1, le=_MAX_SAFE_INTEGER)]

TypeName = Annotated[
    str,
    Meta(
        pattern="^[a-z_][a-z0-9_]*$",
        extra={
            "expected": "lower-case letters, digits and underscores, not beginning with a digit "
            "(^[a-z_][a-z0-9_]*$)"
        },
    ),
]

#: Kept as the text it came in, whatever its precision; `instant_us` reads it.
Instant = Annotated[
    str,
    Meta(
        pattern=DATETIME_PATTERN,
        extra={"expected": DATETIME_EXPECTED},
        extra_json_schema={"format": "date-time"},
    ),
]
