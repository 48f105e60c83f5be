# SPDX-License-Identifier: MIT
"""What this process has declared of queues and tasks, and how much of it the store has heard.

Declarations are told to the store before the first submit or run, and again when there are new
ones. Producers tell the limits of the tasks that have some; workers tell of every task, so that a
limit which is no longer declared is forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packhorse.policies.autoscale import ScaleRule
from packhorse.policies.retention import DAY_US, Retention
from packhorse.registry import Registry, TaskDefinition, check_window
from packhorse.stores.requests import QueueSettings, TaskSettings

__all__ = ["Declarations", "QueueDeclaration", "changed_tasks", "task_settings"]


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """What was declared of a queue: for the store, and for this process alone."""

    settings: QueueSettings
    wait_us: int | None = None  #: how long a submit waits for room; None is the default


class Declarations:
    """Queues by name, and which of them and of the tasks the store knows; safe between threads."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._queues: dict[str, QueueDeclaration] = {}
        #: The registry's `news` of which the store has heard all; asked at every submit.
        self.told = 0

    def add(self, declaration: QueueDeclaration) -> None:
        """Take a queue in; a later declaration of the same name replaces it."""
        settings = declaration.settings
        for task in self._registry.tasks:
            if task.queue == settings.name:
                _check_window(task, settings)
        with self._lock:
            self._queues[settings.name] = declaration
            self._registry.note_news()

    @property
    def queues(self) -> dict[str, QueueSettings]:
        """What the store is told of each queue, by name."""
        return {name: declared.settings for name, declared in self._queues.items()}

    @property
    def scales(self) -> dict[str, ScaleRule]:
        """The queues whose workers are to follow their size."""
        found = ((name, settings.autoscale) for name, settings in self.queues.items())
        return {name: scale for name, scale in found if scale is not None}

    def wait_us(self, queue: str) -> int | None:
        """How long a submit to this queue waits for room, if anything was said about that."""
        declared = self._queues.get(queue)
        return None if declared is None else declared.wait_us

    def check(self, task: TaskDefinition) -> None:
        """Refuse a task that contradicts what is declared of its queue."""
        declared = self._queues.get(task.queue)
        if declared is not None:
            _check_window(task, declared.settings)

    def idempotency_window_us(self, task: TaskDefinition, queue: str, chosen_us: int | None) -> int:
        """How long a key of this task's jobs in this queue holds after the submit."""
        declared = self._queues.get(queue)
        kept_us = _result_keep_us(task, None if declared is None else declared.settings)
        window_us = task.idempotency_window_us if chosen_us is None else chosen_us
        if window_us is None:
            return DAY_US if kept_us is None else min(DAY_US, kept_us)
        check_window(window_us, kept_us, f"task {task.name} in queue {queue!r}: ")
        return window_us

    # --------------------------------------------------------------- what the store has to hear

    def check_all(self) -> None:
        """Refuse tasks that contradict their queues, now that all are declared."""
        for task in self._registry.tasks:
            declared = self._queues.get(task.queue)
            _check_window(task, None if declared is None else declared.settings)

    def limits(self, *, everything: bool) -> tuple[TaskSettings, ...]:
        """The limits of tasks; with `everything`, of those too that have none."""
        return tuple(
            settings
            for task in self._registry.tasks
            if everything or task.limited
            for settings in task_settings(task)
        )

    def renew_lock(self) -> None:
        """In a forked child: some thread of the parent may have held it."""
        self._lock = threading.Lock()


def task_settings(task: TaskDefinition) -> tuple[TaskSettings, ...]:
    """A task's limits; jobs that wait under an older name have the same."""
    return tuple(
        TaskSettings(name, concurrency=task.concurrency, rate=task.rate)
        for name in (task.name, *task.aliases)
    )


def changed_tasks(
    told: Iterable[TaskSettings], known: Iterable[TaskSettings]
) -> tuple[TaskSettings, ...]:
    """Those the store does not know so; a task it has never heard of has no limits."""
    held: Mapping[str, TaskSettings] = {settings.name: settings for settings in known}
    return tuple(one for one in told if held.get(one.name, TaskSettings(one.name)) != one)


def _check_window(task: TaskDefinition, settings: QueueSettings | None) -> None:
    if task.idempotency_window_us is not None:
        where = f"task {task.name} in queue {task.queue!r}: "
        check_window(task.idempotency_window_us, _result_keep_us(task, settings), where)


def _result_keep_us(task: TaskDefinition, settings: QueueSettings | None) -> int | None:
    """How long a result of this task is kept, in a queue that is set so."""
    if task.result_keep_us is not None:
        return task.result_keep_us
    retention = None if settings is None else settings.retention
    return (retention or Retention()).results_us
