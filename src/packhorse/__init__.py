# SPDX-License-Identifier: MIT
"""Background work for Python that keeps its promises, and lets you check them.

    app         Packhorse: tasks, queues, a store and a worker, put together
    task, call  a declared function, and one call of it
    router      tasks that a package declares without knowing the app
    workflows   work that depends on other work: nodes, and `shapes`: chains, calls side by side
    unique      how a task or a call says that its job must not be there twice
    handle      one submitted job: ask, wait, cancel; `core.job_info` is what it tells
    client      the producer's side; `core` has the rules, `runtime` the workers
    contract    what a task promises: inputs, outputs, limits; derived where it is not written
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
    __version__: str
    from packhorse.app import Packhorse
    from packhorse.batches.handle import Batch
    from packhorse.call import Call
    from packhorse.client.encryption import Encryption
    from packhorse.client.tenant import TenantView
    from packhorse.context import Context
    from packhorse.contract import Contract
    from packhorse.core.job import AttemptError, DeadReason, JobStatus, Priority, Progress
    from packhorse.core.job_info import Explanation, JobInfo
    from packhorse.core.policies.retry import RetryPolicy
    from packhorse.core.steps import StepInfo
    from packhorse.errors import (
        ArtifactError,
        BudgetExceeded,
        ConfigError,
        ContractError,
        IdempotencyMismatch,
        JobCancelled,
        JobConflict,
        JobDead,
        JobError,
        JobNotFound,
        KeyUnavailable,
        PackhorseError,
        PayloadError,
        QueueClosed,
        QueueFull,
        ResultTimeout,
        ScheduleNotFound,
        SchemaOutOfDate,
        ShapeError,
        StepMismatch,
        StepRefused,
        StepTimeout,
        StoreCopied,
        StoreError,
        StoreRefused,
        StoreUnavailable,
        TenantRequired,
        ToolNotAllowed,
        ToolNotFound,
        TransactionRefused,
        UsageError,
        WaitTimeout,
    )
    from packhorse.group_errors import (
        BatchConflict,
        BatchItemFailed,
        BatchNotFound,
        WorkflowFailed,
        WorkflowNotFound,
    )
    from packhorse.handle import JobHandle
    from packhorse.router import Router
    from packhorse.signals import (
        BreakerOpen,
        JobSignal,
        NeedsHuman,
        RateLimited,
        Reject,
        Retry,
        Snooze,
    )
    from packhorse.task import CoroutineTask, FunctionTask, Task
    from packhorse.unique import Unique
    from packhorse.workflows.graph import Node
    from packhorse.workflows.handle import Workflow
    from packhorse.workflows.shapes import chain, gather

__all__ = [
    "ArtifactError",
    "AttemptError",
    "Batch",
    "BatchConflict",
    "BatchItemFailed",
    "BatchNotFound",
    "BreakerOpen",
    "BudgetExceeded",
    "Call",
    "ConfigError",
    "Context",
    "Contract",
    "ContractError",
    "CoroutineTask",
    "DeadReason",
    "Encryption",
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
    "KeyUnavailable",
    "NeedsHuman",
    "Node",
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
    "Router",
    "ScheduleNotFound",
    "SchemaOutOfDate",
    "ShapeError",
    "Snooze",
    "StepInfo",
    "StepMismatch",
    "StepRefused",
    "StepTimeout",
    "StoreCopied",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "Task",
    "TenantRequired",
    "TenantView",
    "ToolNotAllowed",
    "ToolNotFound",
    "TransactionRefused",
    "Unique",
    "UsageError",
    "WaitTimeout",
    "Workflow",
    "WorkflowFailed",
    "WorkflowNotFound",
    "chain",
    "gather",
]

# A name is imported when it is first asked for: `packhorse --help` needs none of them.
_HOMES: Final = MappingProxyType(
    {
        "Packhorse": "app",
        "Batch": "batches.handle",
        "Call": "call",
        "Encryption": "client.encryption",
        "TenantView": "client.tenant",
        "Context": "context",
        "Contract": "contract",
        **dict.fromkeys(("Explanation", "JobInfo"), "core.job_info"),
        **dict.fromkeys(
            ("AttemptError", "DeadReason", "JobStatus", "Priority", "Progress"), "core.job"
        ),
        "RetryPolicy": "core.policies.retry",
        "StepInfo": "core.steps",
        "JobHandle": "handle",
        "Router": "router",
        **dict.fromkeys(("CoroutineTask", "FunctionTask", "Task"), "task"),
        "Unique": "unique",
        "Node": "workflows.graph",
        "Workflow": "workflows.handle",
        **dict.fromkeys(("chain", "gather"), "workflows.shapes"),
    }
)
#: The homes of all other names: errors, and what a handler may answer.
_ERRORS: Final = ("errors", "group_errors", "signals")

if not TYPE_CHECKING:  # who saw it would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return import_module("packhorse.version").installed_version()
        for home in [_HOMES[name]] if name in _HOMES else _ERRORS if name in __all__ else ():
            module = import_module(f"packhorse.{home}")
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(f"module 'packhorse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
