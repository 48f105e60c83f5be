# SPDX-License-Identifier: MIT
"""The pages of the dashboard, and how each gets its values from the API's handlers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final

import msgspec

from packhorse.client.documents import queue_document
from packhorse.core.access import Permission
from packhorse.core.job import JobStatus
from packhorse.core.text import counted
from packhorse.insights import QueueInfo, WorkerInfo
from packhorse.web import fleet, groups, history, job_page, jobs, operations, schedules
from packhorse.web.calls import ApiAnswer, ApiCall, ApiHandler, EmptyOrder, query_type
from packhorse.web.failures import failure_groups, list_failures, newest_dead
from packhorse.web.graphs import DRAWN_MAX, drawn

_TOP: Final = 5
#: A queue is behind if its oldest ready job has waited longer.
_BEHIND_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class PageRoute:
    """One row of the table of pages."""

    path: str
    title: str
    template: str
    read: ApiHandler
    permission: Permission
    _: KW_ONLY
    fleet: bool = False  #: about all tenants: refused to the token of one tenant
    listed: bool = True  #: in the navigation

    @property
    def query(self) -> type[msgspec.Struct]:
        """The query's type."""
        return query_type(self.read) or EmptyOrder


async def overview(call: ApiCall, query: history.HistoryQuery) -> ApiAnswer:
    """Show at one glance whether all is healthy, what waits and what fails."""
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
            **(await history.overview_parts(call, query)),
        }
    )


def health_sentence(queues: Iterable[QueueInfo], workers: Iterable[WorkerInfo]) -> str:
    """Say in one sentence whether all is well."""
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


async def queues(call: ApiCall, query: history.HistoryQuery) -> ApiAnswer:
    """Show every queue, as it was counted a short while ago."""
    found = [queue_document(queue) for queue in await call.looks.queues()]
    counted_s, more = call.looks.age_s, await history.queue_parts(call, query)
    return ApiAnswer(body={"queues": found, "counted_s": counted_s, **more})


async def operation(call: ApiCall) -> ApiAnswer:
    """Show the progress of an operation."""
    shown = (await operations.read_operation(call)).body
    workers = sum(worker.live for worker in await call.insights.aworkers())
    return ApiAnswer(body={"operation": shown, "workers": workers})


async def match(call: ApiCall, query: operations.MatchQuery) -> ApiAnswer:
    """Show what an operation would change: its dry run."""
    found = (await operations.match_operation(call, query)).body
    return ApiAnswer(body={**found, "needed": operations.needed_for(found["action"])})


async def batch(call: ApiCall, query: groups.FailuresQuery) -> ApiAnswer:
    """Show how far a batch is, and some of the items that failed."""
    shown, failed = await groups.read_batch(call), await groups.batch_failures(call, query)
    return ApiAnswer(body={"batch": shown.body, **failed.body})


async def workflow(call: ApiCall, query: groups.WorkflowQuery) -> ApiAnswer:
    """Show one run of a workflow, as a picture and as a list."""
    body = (await groups.read_workflow(call, query)).body
    return ApiAnswer(body={**body, "drawing": drawn(body["nodes"]), "drawn_max": DRAWN_MAX})


async def tasks(call: ApiCall, query: history.HistoryQuery) -> ApiAnswer:
    """Show the tasks that the app declares, with their contracts."""
    found = call.app.tasks
    rows = [
        {
            "name": name,
            "queue": found[name].definition.queue,
            "contract": found[name].contract.document(),
        }
        for name in sorted(found)
    ]
    return ApiAnswer(body={"tasks": rows, **(await history.task_parts(call, query))})


_fleet: Final = partial(PageRoute, fleet=True)
_hidden: Final = partial(PageRoute, listed=False)

#: The pages, in the order of the navigation.
PAGES: Final = (
    _fleet("/", "Overview", "overview.html", overview, Permission.METRICS_VIEW),
    PageRoute("/jobs", "Jobs", "jobs.html", jobs.list_jobs, Permission.JOBS_VIEW),
    _hidden("/jobs/{id:path}", "Job", "job.html", job_page.job, Permission.JOBS_VIEW),
    PageRoute("/failures", "Failures", "failures.html", list_failures, Permission.JOBS_VIEW),
    PageRoute("/dead", "Dead letters", "dead.html", jobs.dead_letters, Permission.JOBS_VIEW),
    PageRoute(
        "/operations",
        "Operations",
        "operations.html",
        operations.list_operations,
        Permission.JOBS_VIEW,
    ),
    _hidden("/operations/new", "New operation", "match.html", match, Permission.JOBS_VIEW),
    _hidden("/operations/{id}", "Operation", "operation.html", operation, Permission.JOBS_VIEW),
    PageRoute("/batches", "Batches", "batches.html", groups.list_batches, Permission.JOBS_VIEW),
    _hidden("/batches/{id:path}", "Batch", "batch.html", batch, Permission.JOBS_VIEW),
    PageRoute(
        "/workflows", "Workflows", "workflows.html", groups.list_workflows, Permission.JOBS_VIEW
    ),
    _hidden("/workflows/{id:path}", "Workflow", "workflow.html", workflow, Permission.JOBS_VIEW),
    _fleet("/queues", "Queues", "queues.html", queues, Permission.QUEUES_VIEW),
    PageRoute("/tasks", "Tasks", "tasks.html", tasks, Permission.JOBS_VIEW),
    _fleet("/workers", "Workers", "workers.html", fleet.list_workers, Permission.WORKERS_VIEW),
    _fleet(
        "/workers/{id}",
        "Worker",
        "worker.html",
        fleet.worker,
        Permission.WORKERS_VIEW,
        listed=False,
    ),
    _fleet(
        "/schedules",
        "Schedules",
        "schedules.html",
        schedules.list_schedules,
        Permission.SCHEDULES_VIEW,
    ),
    PageRoute("/audit", "Audit", "audit.html", fleet.audit, Permission.AUDIT_VIEW),
)
