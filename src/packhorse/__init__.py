# SPDX-License-Identifier: MIT
"""Background work for Python that keeps its promises, and lets you check them.

    app         Packhorse: tasks, queues, a store and a worker, put together
    task, call  a declared function, and one call of it
    unique      how a task or a call says that its job must not be there twice
    handle      one submitted job: ask, wait, cancel; `info` is what it tells, and `explaining` why
    tenant      the app as one tenant sees it
    context     what a handler gets; `signals` is what it may answer besides a result
    errors      everything that is raised, in one tree

Everything else, reached by its module: `packhorse.protocol` (the wire shapes), `packhorse.events`
(what can be observed), `packhorse.stores` (stores and their contracts), `packhorse.testing`.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.call import Call
    from packhorse.context import Context
    from packhorse.errors import (
        ConfigError,
        ContractError,
        IdempotencyMismatch,
        JobCancelled,
        JobConflict,
        JobDead,
        JobError,
        JobNotFound,
        PackhorseError,
        PayloadError,
        QueueClosed,
        QueueFull,
        ResultTimeout,
        SchemaOutOfDate,
        ShapeError,
        StoreError,
        StoreUnavailable,
        UsageError,
    )
    from packhorse.explaining import Explanation
    from packhorse.handle import JobHandle
    from packhorse.info import JobInfo
    from packhorse.job import AttemptError, DeadReason, JobStatus, Priority, Progress
    from packhorse.policies.retry import RetryPolicy
    from packhorse.signals import JobSignal, RateLimited, Reject, Retry, Snooze
    from packhorse.task import CoroutineTask, FunctionTask, Task
    from packhorse.tenant import TenantView
    from packhorse.unique import Unique

__all__ = [
    "AttemptError",
    "Call",
    "ConfigError",
    "Context",
    "ContractError",
    "CoroutineTask",
    "DeadReason",
    "Explanation",
    "FunctionTask",
    "IdempotencyMismatch",
    "JobCancelled",
    "JobConflict",
    "JobDead",
    "JobError",
    "JobHandle",
    "JobInfo",
    "JobNotFound",
    "JobSignal",
    "JobStatus",
    "Packhorse",
    "PackhorseError",
    "PayloadError",
    "Priority",
    "Progress",
    "QueueClosed",
    "QueueFull",
    "RateLimited",
    "Reject",
    "ResultTimeout",
    "Retry",
    "RetryPolicy",
    "SchemaOutOfDate",
    "ShapeError",
    "Snooze",
    "StoreError",
    "StoreUnavailable",
    "Task",
    "TenantView",
    "Unique",
    "UsageError",
]

# A name is imported when it is first asked for: `packhorse --help` needs none of them.
_HOMES: Final = MappingProxyType(
    {
        "app": ("Packhorse",),
        "call": ("Call",),
        "context": ("Context",),
        "errors": (
            "ConfigError",
            "ContractError",
            "IdempotencyMismatch",
            "JobCancelled",
            "JobConflict",
            "JobDead",
            "JobError",
            "JobNotFound",
            "PackhorseError",
            "PayloadError",
            "QueueClosed",
            "QueueFull",
            "ResultTimeout",
            "SchemaOutOfDate",
            "ShapeError",
            "StoreError",
            "StoreUnavailable",
            "UsageError",
        ),
        "explaining": ("Explanation",),
        "handle": ("JobHandle",),
        "info": ("JobInfo",),
        "job": ("AttemptError", "DeadReason", "JobStatus", "Priority", "Progress"),
        "policies.retry": ("RetryPolicy",),
        "signals": ("JobSignal", "RateLimited", "Reject", "Retry", "Snooze"),
        "task": ("CoroutineTask", "FunctionTask", "Task"),
        "tenant": ("TenantView",),
        "unique": ("Unique",),
    }
)


if not TYPE_CHECKING:  # who saw it would take any name for one of ours

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(f"packhorse.{home}"), name)
        raise AttributeError(f"module 'packhorse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
