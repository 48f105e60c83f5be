# SPDX-License-Identifier: MIT
"""Events for the end of a batch or workflow; emitted again if it ends again after a retry."""

from __future__ import annotations

from packhorse.events.kinds import Event


class EndedBatch(Event, frozen=True, kw_only=True):
    """All jobs of a batch have ended."""

    batch: str
    task: str
    tenant: str
    total: int  #: items
    succeeded: int
    failed: int


class CompletedBatch(EndedBatch, frozen=True, kw_only=True):
    """All its items succeeded."""

    name = "batch.completed"


class FailedBatch(EndedBatch, frozen=True, kw_only=True):
    """Not all its items did."""

    name = "batch.failed"


class CancelledBatch(EndedBatch, frozen=True, kw_only=True):
    """It was cancelled."""

    name = "batch.cancelled"


class EndedWorkflow(Event, frozen=True, kw_only=True):
    """All nodes of a workflow have ended."""

    workflow: str
    run: str
    tenant: str
    nodes: int
    completed: int
    failed: int  #: nodes that ended in another way


class CompletedWorkflow(EndedWorkflow, frozen=True, kw_only=True):
    """All nodes completed, or their failures are ignored."""

    name = "workflow.completed"


class FailedWorkflow(EndedWorkflow, frozen=True, kw_only=True):
    """A node did not complete."""

    name = "workflow.failed"


class CancelledWorkflow(EndedWorkflow, frozen=True, kw_only=True):
    """It was cancelled."""

    name = "workflow.cancelled"
