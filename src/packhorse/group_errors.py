# SPDX-License-Identifier: MIT
"""Errors about batches and workflows; of the one tree of `packhorse.errors`."""

from __future__ import annotations

from packhorse.errors import JobError, PackhorseError


class BatchNotFound(PackhorseError):
    """No such batch is visible here: never begun, removed by retention, or of another tenant."""

    code = "BATCH_NOT_FOUND"

    def __init__(self, batch_id: str) -> None:
        super().__init__(
            f"the store holds no batch {batch_id!r}: it was never begun here, has been removed by "
            "retention, or belongs to another tenant; see 'packhorse batches list'"
        )
        self.batch_id = batch_id


class BatchConflict(PackhorseError):
    """The batch refuses the request: sealed, cancelled, filled by others, or with jobs deleted."""

    code = "BATCH_CONFLICT"

    def __init__(self, batch_id: str, problem: str) -> None:
        super().__init__(f"batch {batch_id!r} {problem}")
        self.batch_id = batch_id


class BatchItemFailed(JobError):
    """An item of a batch has failed for good, and its result was asked for."""

    code = "BATCH_ITEM_FAILED"

    def __init__(self, job_id: str, index: int, problem: str) -> None:
        super().__init__(f"item {index} of the batch failed: {problem}", job_id=job_id)
        self.index = index


class WorkflowNotFound(PackhorseError):
    """The store holds no workflow of that name or id, or no longer."""

    code = "WORKFLOW_NOT_FOUND"

    def __init__(self, name: str) -> None:
        super().__init__(f"the store holds no workflow {name!r}; see 'packhorse workflows list'")
        self.name = name


class WorkflowFailed(PackhorseError):
    """The workflow has ended, and the node whose result is asked for did not complete.

    `node` is the one that ended so first, and `state`, `job_id` and `reason` are its own.
    """

    code = "WORKFLOW_FAILED"

    def __init__(
        self,
        name: str,
        *,
        node: str,
        state: str,
        asked: str = "",
        job_id: str = "",
        reason: str = "",
    ) -> None:
        job = f" (job {job_id})" if job_id else ""
        why = f": {reason}" if reason else ""
        if asked not in ("", node):
            why += f", so that {asked!r} is cancelled"
        super().__init__(
            f"workflow {name!r} has no result: its node {node!r} is {state}{job}{why}; see "
            "'packhorse workflows show', and try its dead nodes again with 'packhorse workflows "
            "retry'"
        )
        self.name = name
        self.node = node
        self.state = state
        self.job_id = job_id
        self.reason = reason
