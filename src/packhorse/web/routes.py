# SPDX-License-Identifier: MIT
"""The table of the API's routes, each with the permission it needs.

Those of batches, workflows, topics and alerts stand in `group_routes` and are part of it. There is
no other: the server is built from it, the OpenAPI document is written from it, and a test
walks it. Paths with more in them come before those they would fit, and names may contain slashes.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from packhorse.core.access import Permission
from packhorse.web import fleet, history, job_page, jobs, schedules, streams
from packhorse.web.calls import ApiRoute, EmptyOrder
from packhorse.web.group_routes import GROUP_ROUTES

PREFIX: Final = "/api/v1"

_GET: Final = partial(ApiRoute, method="GET")
_POST: Final = partial(ApiRoute, method="POST", body=EmptyOrder)
#: About all tenants.
_FLEET_GET: Final = partial(_GET, fleet=True)
_FLEET_POST: Final = partial(_POST, fleet=True)
_LOOK: Final = partial(_GET, permission=Permission.JOBS_VIEW)
_JOB: Final = "/jobs/{id:path}"
_QUEUE: Final = "/queues/{name:path}"
_SCHEDULE: Final = "/schedules/{name:path}"

_JOBS: Final = (
    _GET(
        path="/jobs",
        handler=jobs.list_jobs,
        permission=Permission.JOBS_VIEW,
        summary="List jobs, the newest first",
        answer="JobPage",
        query=jobs.JobsQuery,
    ),
    _POST(
        path="/jobs",
        handler=jobs.submit,
        permission=Permission.JOBS_SUBMIT,
        summary="Submit a call",
        answer="SubmittedJob",
        body=jobs.SubmitOrder,
        status=201,
    ),
    _LOOK(
        path=f"{_JOB}/explain",
        handler=jobs.explain,
        summary="Tell why a job is not running",
        answer="Explanation",
    ),
    _LOOK(
        path=f"{_JOB}/logs",
        handler=jobs.read_logs,
        summary="Tell what a job's handler logged",
        answer="JobLogs",
    ),
    _LOOK(
        path=f"{_JOB}/wait",
        handler=jobs.wait,
        summary="Wait until a job has finished",
        answer="WaitedJob",
        query=jobs.WaitQuery,
    ),
    _LOOK(
        path=f"{_JOB}/events",
        handler=streams.job_events,
        summary="Follow a job until it has finished",
        answer="",
        media="text/event-stream",
    ),
    _POST(
        path=f"{_JOB}/cancel",
        handler=jobs.cancel,
        permission=Permission.JOBS_CANCEL,
        summary="Cancel a job",
        answer="ActedJob",
    ),
    _POST(
        path=f"{_JOB}/retry",
        handler=jobs.retry,
        permission=Permission.JOBS_RETRY,
        summary="Run a finished job again, or a waiting one now",
        answer="ActedJob",
        body=jobs.RetryOrder,
    ),
    _POST(
        path=f"{_JOB}/redrive",
        handler=jobs.redrive,
        permission=Permission.JOBS_RETRY,
        summary="Run a dead job again",
        answer="ActedJob",
        body=jobs.RetryOrder,
    ),
    _POST(
        path=f"{_JOB}/again",
        handler=job_page.submit_again,
        permission=Permission.JOBS_SUBMIT,
        summary="Submit a job's call again as a new job",
        answer="SubmittedJob",
        body=job_page.AgainOrder,
        status=201,
    ),
    _POST(
        path=f"{_JOB}/approve",
        handler=jobs.approve,
        permission=Permission.JOBS_APPROVE,
        summary="Let a job go on that needs a person",
        answer="ActedJob",
        body=jobs.DecisionOrder,
    ),
    _POST(
        path=f"{_JOB}/decline",
        handler=jobs.decline,
        permission=Permission.JOBS_APPROVE,
        summary="End a job that needs a person",
        answer="ActedJob",
        body=jobs.DecisionOrder,
    ),
    _POST(
        path=f"{_JOB}/signals",
        handler=jobs.signal,
        permission=Permission.JOBS_SIGNAL,
        summary="Send a job a signal",
        answer="ActedJob",
        body=jobs.SignalOrder,
    ),
    _GET(
        path=_JOB,
        handler=jobs.read_job,
        permission=Permission.JOBS_VIEW,
        summary="Show one job",
        answer="WholeJob",
        query=jobs.JobQuery,
    ),
    _GET(
        path="/dead-letters",
        handler=jobs.dead_letters,
        permission=Permission.JOBS_VIEW,
        summary="List dead letters",
        answer="JobPage",
        query=jobs.DeadQuery,
    ),
    _POST(
        path="/dead-letters/redrive",
        handler=jobs.redrive_many,
        permission=Permission.JOBS_RETRY,
        summary="Run dead letters again that fit",
        answer="Redriven",
        body=jobs.RedriveOrder,
    ),
)

_QUEUES: Final = (
    _FLEET_GET(
        path="/queues",
        handler=fleet.list_queues,
        permission=Permission.QUEUES_VIEW,
        summary="List queues",
        answer="QueueList",
    ),
    _FLEET_POST(
        path=f"{_QUEUE}/pause",
        handler=fleet.pause_queue,
        permission=Permission.QUEUES_PAUSE,
        summary="Stop giving out a queue's jobs",
        answer="ChangedQueue",
        body=fleet.PartOrder,
    ),
    _FLEET_POST(
        path=f"{_QUEUE}/resume",
        handler=fleet.resume_queue,
        permission=Permission.QUEUES_PAUSE,
        summary="Give out a queue's jobs again",
        answer="ChangedQueue",
        body=fleet.PartOrder,
    ),
    _FLEET_POST(
        path=f"{_QUEUE}/close",
        handler=fleet.close_queue,
        permission=Permission.QUEUES_EDIT,
        summary="Take no new jobs for a queue",
        answer="ChangedQueue",
    ),
    _FLEET_POST(
        path=f"{_QUEUE}/open",
        handler=fleet.open_queue,
        permission=Permission.QUEUES_EDIT,
        summary="Take new jobs for a queue again",
        answer="ChangedQueue",
    ),
    ApiRoute(
        method="PATCH",
        path=f"{_QUEUE}/limits",
        handler=fleet.set_limits,
        permission=Permission.QUEUES_EDIT,
        summary="Set limits of a queue",
        answer="ChangedQueue",
        body=fleet.LimitsOrder,
        fleet=True,
    ),
    ApiRoute(
        method="DELETE",
        path=f"{_QUEUE}/limits",
        handler=fleet.unset_limits,
        permission=Permission.QUEUES_EDIT,
        summary="End what was set of a queue",
        answer="ChangedQueue",
        fleet=True,
    ),
    _FLEET_GET(
        path=_QUEUE,
        handler=fleet.read_queue,
        permission=Permission.QUEUES_VIEW,
        summary="Show one queue",
        answer="Queue",
    ),
)

_SCHEDULES: Final = (
    _FLEET_GET(
        path="/schedules",
        handler=schedules.list_schedules,
        permission=Permission.SCHEDULES_VIEW,
        summary="List schedules",
        answer="ScheduleList",
    ),
    _FLEET_GET(
        path=f"{_SCHEDULE}/fires",
        handler=schedules.list_fires,
        permission=Permission.SCHEDULES_VIEW,
        summary="List the next fires of a schedule",
        answer="Fires",
        query=schedules.FiresQuery,
    ),
    _FLEET_POST(
        path=f"{_SCHEDULE}/run",
        handler=schedules.run_schedule,
        permission=Permission.SCHEDULES_RUN,
        summary="Submit a schedule's call now",
        answer="FiredSchedule",
        status=201,
    ),
    _FLEET_POST(
        path=f"{_SCHEDULE}/pause",
        handler=schedules.pause_schedule,
        permission=Permission.SCHEDULES_EDIT,
        summary="Let a schedule fire no more",
        answer="Schedule",
    ),
    _FLEET_POST(
        path=f"{_SCHEDULE}/resume",
        handler=schedules.resume_schedule,
        permission=Permission.SCHEDULES_EDIT,
        summary="Let a schedule fire again",
        answer="Schedule",
    ),
    ApiRoute(
        method="DELETE",
        path=f"{_SCHEDULE}/changes",
        handler=schedules.restore_schedule,
        permission=Permission.SCHEDULES_EDIT,
        summary="Let a schedule fire as declared again",
        answer="Schedule",
        fleet=True,
    ),
    ApiRoute(
        method="PATCH",
        path=_SCHEDULE,
        handler=schedules.edit_schedule,
        permission=Permission.SCHEDULES_EDIT,
        summary="Change when a schedule fires",
        answer="Schedule",
        body=schedules.ScheduleChange,
        fleet=True,
    ),
    _FLEET_GET(
        path=_SCHEDULE,
        handler=schedules.read_schedule,
        permission=Permission.SCHEDULES_VIEW,
        summary="Show one schedule",
        answer="Schedule",
    ),
)

_FLEET: Final = (
    _FLEET_GET(
        path="/workers",
        handler=fleet.list_workers,
        permission=Permission.WORKERS_VIEW,
        summary="List workers",
        answer="WorkerList",
    ),
    _FLEET_POST(
        path="/workers/{id}/quiet",
        handler=fleet.quiet_worker,
        permission=Permission.WORKERS_QUIET,
        summary="Have a worker claim nothing more",
        answer="ToldWorker",
        status=202,
    ),
    _FLEET_POST(
        path="/workers/{id}/resume",
        handler=fleet.resume_worker,
        permission=Permission.WORKERS_QUIET,
        summary="Have a worker claim again",
        answer="ToldWorker",
        status=202,
    ),
    _FLEET_POST(
        path="/workers/{id}/stacks",
        handler=fleet.worker_stacks,
        permission=Permission.WORKERS_STACKS,
        summary="Ask a worker where its handlers are",
        answer="WorkerStacks",
    ),
    _GET(
        path="/tasks",
        handler=fleet.list_tasks,
        permission=Permission.JOBS_VIEW,
        summary="List tasks",
        answer="TaskList",
    ),
    _GET(
        path="/tasks/{name:path}",
        handler=fleet.read_task,
        permission=Permission.JOBS_VIEW,
        summary="Show a task and its contract",
        answer="DeclaredTask",
    ),
    _FLEET_GET(
        path="/stats",
        handler=fleet.stats,
        permission=Permission.METRICS_VIEW,
        summary="Count what was done and what waits",
        answer="WorkerStats",
    ),
    _FLEET_GET(
        path="/history",
        handler=history.history,
        permission=Permission.METRICS_VIEW,
        summary="What was done and what waited over time",
        answer="History",
        query=history.HistoryQuery,
    ),
    _FLEET_GET(
        path="/metrics",
        handler=fleet.metrics,
        permission=Permission.METRICS_VIEW,
        summary="Depths and ages, for Prometheus",
        answer="",
        media="text/plain",
    ),
    _FLEET_GET(
        path="/scale",
        handler=fleet.scale,
        permission=Permission.METRICS_VIEW,
        summary="The load of every queue, for scalers",
        answer="ScaleList",
    ),
    _FLEET_GET(
        path="/scale/{name:path}",
        handler=fleet.scale_of,
        permission=Permission.METRICS_VIEW,
        summary="The load of one queue, for scalers",
        answer="ScaleSignal",
    ),
    _GET(
        path="/breakers",
        handler=fleet.breakers,
        permission=Permission.METRICS_VIEW,
        summary="List circuit breakers",
        answer="BreakerList",
    ),
    _FLEET_GET(
        path="/events",
        handler=streams.fleet_events,
        permission=Permission.METRICS_VIEW,
        summary="Follow what the queues hold",
        answer="",
        media="text/event-stream",
    ),
    _GET(
        path="/audit",
        handler=fleet.audit,
        permission=Permission.AUDIT_VIEW,
        summary="List what was done through the web",
        answer="AuditPage",
        query=fleet.AuditQuery,
    ),
)

#: Capabilities to come add a tuple of their own here.
API_ROUTES: Final[tuple[ApiRoute, ...]] = (
    *(*_JOBS, *GROUP_ROUTES),
    *(*_QUEUES, *_SCHEDULES, *_FLEET),
)
