# SPDX-License-Identifier: MIT
"""What happens to queues, and to what was declared of them and of tasks."""

from __future__ import annotations

from packhorse.events.event import Event

__all__ = [
    "QueueConflict",
    "QueueFilling",
    "QueueStarving",
    "TaskConflict",
    "TasksParked",
]


class TasksParked(Event, frozen=True, kw_only=True):
    """Ready jobs were set aside because no live worker knows their tasks."""

    name = "tasks.parked"

    tasks: tuple[str, ...]


class QueueConflict(Event, frozen=True, kw_only=True):
    """A queue was declared differently before; the new declaration stands."""

    name = "queue.conflict"

    queue: str
    before: str
    now: str


class TaskConflict(Event, frozen=True, kw_only=True):
    """The limits of a task were declared differently before; the new declaration stands."""

    name = "task.conflict"

    task: str
    before: str
    now: str


class QueueFilling(Event, frozen=True, kw_only=True):
    """A submit has found as many jobs waiting as the queue's soft depth; told once a crossing."""

    name = "queue.filling"

    queue: str
    depth: int
    soft_depth: int
    max_depth: int | None = None


class QueueStarving(Event, frozen=True, kw_only=True):
    """A ready job has long been overtaken by such as came later; told once until it is over."""

    name = "queue.starving"

    queue: str
    waited_s: float  #: how long the longest-waiting ready job has waited
    priority: str  #: of those that were started meanwhile, the least important seen
