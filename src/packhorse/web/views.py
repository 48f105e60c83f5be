# SPDX-License-Identifier: MIT
"""What the pages of the dashboard show, from what the API answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from packhorse.client.documents import queue_document
from packhorse.core.access import Permission
from packhorse.core.job import JobStatus
from packhorse.core.text import counted
from packhorse.insights import QueueInfo, WorkerInfo
from packhorse.web import fleet, groups, history, job_page, jobs, operations, schedules
from packhorse.web.calls import ApiAnswer, ApiCall, ApiHandler, EmptyOrder
from packhorse.web.failures import FailureQuery, failure_groups, list_failures, newest_dead
from packhorse.web.graphs import DRAWN_MAX, drawn

_TOP: Final = 5
#: A queue whose oldest ready job waits longer is behind.
_BEHIND_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRoute:
    """One row of the table of pages."""

    path: str
    title: str
    template: str
    read: ApiHandler
    permission: Permission
    query: type[msgspec.Struct] = EmptyOrder
    fleet: bool = False
    listed: bool = True  #: in the navigation


async def overview(call: ApiCall) -> ApiAnswer:
    """One look: is it healthy, what waits, what fails."""
    queues, workers = await call.looks.queues(), await call.insights.aworkers()
    groups = failure_groups((await newest_dead(call))["jobs"])
    failing = Counter[str]()
    for group in groups:
        failing[group.task] += group.count
    counts = Counter[str]()
    more = {status.value for queue in queues for status in queue.at_least}
    for queue in queues:
        counts.update({status.value: number for status, number in queue.counts.items()})
    return ApiAnswer(
        body={
            "health": health_sentence(queues, workers),
            "queues": [queue_document(queue) for queue in queues],
            "counts": {status.value: counts[status.value] for status in JobStatus},
            "more": more,
            "failing": failing.most_common(_TOP),
            "workers": sum(worker.live for worker in workers),
            "counted_s": call.looks.age_s,
            "breakers": (await fleet.breakers(call)).body["breakers"],
            **(await history.overview_parts(call)),
        }
    )


def health_sentence(queues: Iterable[QueueInfo], workers: Iterable[WorkerInfo]) -> str:
    """Whether all is well, in one sentence."""
    queues, workers = list(queues), list(workers)
    live = [worker for worker in workers if worker.live]
    served = {name for worker in live if not worker.quiet for name in worker.queues}
    parts: list[str] = []
    for queue in queues:
        waited_s = queue.oldest_ready_s or 0.0
        if queue.paused:
            parts.append(f"{queue.name} is paused")
        elif queue.depth and queue.name not in served:
            parts.append(f"{queue.name} has no worker")
        elif waited_s > _BEHIND_S:
            parts.append(f"{queue.name} is {waited_s / 60:.0f} min behind")
    gone = len(workers) - len(live)
    if gone:
        parts.append(f"{gone} of {len(workers)} workers went without leaving")
    if not parts:
        return f"All is well: {counted(len(queues), 'queue')}, {counted(len(live), 'worker')}."
    return f"{'; '.join(parts)}."


async def queues(call: ApiCall) -> ApiAnswer:
    """Every queue, as it was counted not long ago."""
    found = [queue_document(queue) for queue in await call.looks.queues()]
    counted_s, more = call.looks.age_s, await history.queue_parts(call)
    return ApiAnswer(body={"queues": found, "counted_s": counted_s, **more})


async def operation(call: ApiCall) -> ApiAnswer:
    """How far an operation is."""
    shown = (await operations.read_operation(call)).body
    workers = sum(worker.live for worker in await call.insights.aworkers())
    return ApiAnswer(body={"operation": shown, "workers": workers})


async def match(call: ApiCall) -> ApiAnswer:
    """What an operation would be about: its dry run."""
    found = (await operations.match_operation(call)).body
    return ApiAnswer(body={**found, "needed": operations.needed_for(found["action"])})


async def batch(call: ApiCall) -> ApiAnswer:
    """How far a batch is, and some of the items that failed."""
    shown, failed = await groups.read_batch(call), await groups.batch_failures(call)
    return ApiAnswer(body={"batch": shown.body, **failed.body})


async def workflow(call: ApiCall) -> ApiAnswer:
    """One run of a workflow, as a picture and as a list."""
    body = (await groups.read_workflow(call)).body
    return ApiAnswer(body={**body, "drawing": drawn(body["nodes"]), "drawn_max": DRAWN_MAX})


async def tasks(call: ApiCall) -> ApiAnswer:
    """The tasks that the app declares, with their contracts."""
    found = call.app.tasks
    rows = [
        {
            "name": name,
            "queue": found[name].definition.queue,
            "contract": found[name].contract.document(),
        }
        for name in sorted(found)
    ]
    return ApiAnswer(body={"tasks": rows, **(await history.task_parts(call))})


#: The pages, in the order of the navigation.
PAGES: Final = (
    PageRoute(
        path="/",
        title="Overview",
        template="overview.html",
        read=overview,
        permission=Permission.METRICS_VIEW,
        query=history.HistoryQuery,
        fleet=True,
    ),
    PageRoute(
        path="/jobs",
        title="Jobs",
        template="jobs.html",
        read=jobs.list_jobs,
        permission=Permission.JOBS_VIEW,
        query=jobs.JobsQuery,
    ),
    PageRoute(
        path="/jobs/{id:path}",
        title="Job",
        template="job.html",
        read=job_page.job,
        permission=Permission.JOBS_VIEW,
        listed=False,
    ),
    PageRoute(
        path="/failures",
        title="Failures",
        template="failures.html",
        read=list_failures,
        permission=Permission.JOBS_VIEW,
        query=FailureQuery,
    ),
    PageRoute(
        path="/dead",
        title="Dead letters",
        template="dead.html",
        read=jobs.dead_letters,
        permission=Permission.JOBS_VIEW,
        query=jobs.DeadQuery,
    ),
    PageRoute(
        path="/operations",
        title="Operations",
        template="operations.html",
        read=operations.list_operations,
        permission=Permission.JOBS_VIEW,
    ),
    PageRoute(
        path="/operations/new",
        title="New operation",
        template="match.html",
        read=match,
        permission=Permission.JOBS_VIEW,
        query=operations.MatchQuery,
        listed=False,
    ),
    PageRoute(
        path="/operations/{id}",
        title="Operation",
        template="operation.html",
        read=operation,
        permission=Permission.JOBS_VIEW,
        listed=False,
    ),
    PageRoute(
        path="/batches",
        title="Batches",
        template="batches.html",
        read=groups.list_batches,
        permission=Permission.JOBS_VIEW,
        query=groups.GroupsQuery,
    ),
    PageRoute(
        path="/batches/{id:path}",
        title="Batch",
        template="batch.html",
        read=batch,
        permission=Permission.JOBS_VIEW,
        query=groups.FailuresQuery,
        listed=False,
    ),
    PageRoute(
        path="/workflows",
        title="Workflows",
        template="workflows.html",
        read=groups.list_workflows,
        permission=Permission.JOBS_VIEW,
        query=groups.GroupsQuery,
    ),
    PageRoute(
        path="/workflows/{id:path}",
        title="Workflow",
        template="workflow.html",
        read=workflow,
        permission=Permission.JOBS_VIEW,
        query=groups.WorkflowQuery,
        listed=False,
    ),
    PageRoute(
        path="/queues",
        title="Queues",
        template="queues.html",
        read=queues,
        permission=Permission.QUEUES_VIEW,
        query=history.HistoryQuery,
        fleet=True,
    ),
    PageRoute(
        path="/tasks",
        title="Tasks",
        template="tasks.html",
        read=tasks,
        permission=Permission.JOBS_VIEW,
        query=history.HistoryQuery,
    ),
    PageRoute(
        path="/workers",
        title="Workers",
        template="workers.html",
        read=fleet.list_workers,
        permission=Permission.WORKERS_VIEW,
        fleet=True,
    ),
    PageRoute(
        path="/workers/{id}",
        title="Worker",
        template="worker.html",
        read=fleet.worker,
        permission=Permission.WORKERS_VIEW,
        fleet=True,
        listed=False,
    ),
    PageRoute(
        path="/schedules",
        title="Schedules",
        template="schedules.html",
        read=schedules.list_schedules,
        permission=Permission.SCHEDULES_VIEW,
        fleet=True,
    ),
    PageRoute(
        path="/audit",
        title="Audit",
        template="audit.html",
        read=fleet.audit,
        permission=Permission.AUDIT_VIEW,
        query=fleet.AuditQuery,
    ),
)
