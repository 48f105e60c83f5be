# SPDX-License-Identifier: MIT
"""The part of the table of routes that is about many jobs at once, topics and alerts."""

from __future__ import annotations

from functools import partial
from typing import Final

from packhorse.core.access import Permission
from packhorse.web import failures, groups, notices, operations
from packhorse.web.calls import ApiRoute, EmptyOrder

_GET: Final = partial(ApiRoute, method="GET")
_POST: Final = partial(ApiRoute, method="POST", body=EmptyOrder)
_BATCH: Final = "/batches/{id:path}"
_WORKFLOW: Final = "/workflows/{id:path}"
_OPERATION: Final = "/operations/{id}"

#: Each with the permission it needs; what is done to a group is done to its jobs.
GROUP_ROUTES: Final[tuple[ApiRoute, ...]] = (
    _GET(
        path="/operations",
        handler=operations.list_operations,
        permission=Permission.JOBS_VIEW,
        summary="List operations over many jobs",
        answer="OperationList",
    ),
    _POST(
        path="/operations",
        handler=operations.begin_operation,
        permission=Permission.JOBS_BULK,
        summary="Do one thing to all jobs that fit",
        answer="Operation",
        body=operations.OperationOrder,
        status=202,
    ),
    _GET(
        path="/operations/matching",
        handler=operations.match_operation,
        permission=Permission.JOBS_VIEW,
        summary="Count the jobs of an operation before it begins",
        answer="MatchedJobs",
        query=operations.MatchQuery,
    ),
    _POST(
        path=f"{_OPERATION}/stop",
        handler=operations.stop_operation,
        permission=Permission.JOBS_BULK,
        summary="Stop an operation",
        answer="Operation",
    ),
    _POST(
        path=f"{_OPERATION}/resume",
        handler=operations.resume_operation,
        permission=Permission.JOBS_BULK,
        summary="Go on with an operation",
        answer="Operation",
    ),
    _GET(
        path=_OPERATION,
        handler=operations.read_operation,
        permission=Permission.JOBS_VIEW,
        summary="Show how far an operation is",
        answer="Operation",
    ),
    _GET(
        path="/failures",
        handler=failures.list_failures,
        permission=Permission.JOBS_VIEW,
        summary="Group the newest dead letters by task, error and place",
        answer="FailureList",
        query=failures.FailureQuery,
    ),
    _POST(
        path="/failures/silence",
        handler=failures.silence_failure,
        permission=Permission.ALERTS_SILENCE,
        summary="Hide a group of failures",
        answer="SilencedFailure",
        body=failures.FailureSilenceOrder,
    ),
    _POST(
        path="/failures/unsilence",
        handler=failures.unsilence_failure,
        permission=Permission.ALERTS_SILENCE,
        summary="Show a group of failures again",
        answer="SilencedFailure",
        body=failures.FailureOrder,
    ),
    _GET(
        path="/batches",
        handler=groups.list_batches,
        permission=Permission.JOBS_VIEW,
        summary="List batches",
        answer="BatchPage",
        query=groups.GroupsQuery,
    ),
    _GET(
        path=f"{_BATCH}/failures",
        handler=groups.batch_failures,
        permission=Permission.JOBS_VIEW,
        summary="List items of a batch that failed",
        answer="BatchFailurePage",
        query=groups.FailuresQuery,
    ),
    _POST(
        path=f"{_BATCH}/cancel",
        handler=groups.cancel_batch,
        permission=Permission.JOBS_CANCEL,
        summary="End a batch",
        answer="CancelledBatch",
    ),
    _POST(
        path=f"{_BATCH}/retry",
        handler=groups.retry_batch,
        permission=Permission.JOBS_RETRY,
        summary="Run the items again that failed",
        answer="RetriedBatch",
    ),
    _GET(
        path=_BATCH,
        handler=groups.read_batch,
        permission=Permission.JOBS_VIEW,
        summary="Show how far a batch is",
        answer="Batch",
    ),
    _GET(
        path="/workflows",
        handler=groups.list_workflows,
        permission=Permission.JOBS_VIEW,
        summary="List workflows",
        answer="WorkflowPage",
        query=groups.GroupsQuery,
    ),
    _POST(
        path=f"{_WORKFLOW}/cancel",
        handler=groups.cancel_workflow,
        permission=Permission.JOBS_CANCEL,
        summary="Cancel a workflow",
        answer="Workflow",
        query=groups.WorkflowQuery,
    ),
    _POST(
        path=f"{_WORKFLOW}/retry",
        handler=groups.retry_workflow,
        permission=Permission.JOBS_RETRY,
        summary="Try again what failed in a workflow",
        answer="RetriedWorkflow",
        query=groups.WorkflowQuery,
    ),
    _GET(
        path=_WORKFLOW,
        handler=groups.read_workflow,
        permission=Permission.JOBS_VIEW,
        summary="Show a workflow and its nodes",
        answer="WholeWorkflow",
        query=groups.WorkflowQuery,
    ),
    _GET(
        path="/topics",
        handler=notices.list_topics,
        permission=Permission.QUEUES_VIEW,
        summary="List topics and their subscribers",
        answer="TopicList",
        fleet=True,
    ),
    _POST(
        path="/topics/{name:path}/events",
        handler=notices.publish,
        permission=Permission.JOBS_SUBMIT,
        summary="Publish an event",
        answer="PublishedEvent",
        body=notices.EventOrder,
        status=201,
    ),
    _GET(
        path="/alerts",
        handler=notices.list_alerts,
        permission=Permission.METRICS_VIEW,
        summary="List alerts",
        answer="AlertList",
        fleet=True,
    ),
    _POST(
        path="/alerts/{name:path}/silence",
        handler=notices.silence_alert,
        permission=Permission.ALERTS_SILENCE,
        summary="Tell nothing of an alert for a while",
        answer="Alert",
        body=notices.SilenceOrder,
        fleet=True,
    ),
    _POST(
        path="/alerts/{name:path}/remove",
        handler=notices.remove_alert,
        permission=Permission.ALERTS_EDIT,
        summary="Remove a rule that was written down",
        answer="Alert",
        fleet=True,
    ),
    _POST(
        path="/alerts/{name:path}",
        handler=notices.add_alert,
        permission=Permission.ALERTS_EDIT,
        summary="Write a rule down, or change it",
        answer="Alert",
        body=notices.AlertOrder,
        fleet=True,
    ),
)
