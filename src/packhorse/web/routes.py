# SPDX-License-Identifier: MIT
"""The table of the API's routes: the path, its handler, and the permission it needs.

There is no other: the server is built from it, the OpenAPI document is written from it, and tests
walk it. Handlers say what they take and answer. Longer paths come before shorter ones that would
match them, and names may contain slashes.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from packhorse.core.access import Permission
from packhorse.web import (
    failures,
    fleet,
    groups,
    history,
    job_page,
    jobs,
    notices,
    operations,
    schedules,
    streams,
)
from packhorse.web.calls import ApiRoute

PREFIX: Final = "/api/v1"


_get: Final = partial(ApiRoute, "GET")
_post: Final = partial(ApiRoute, "POST")
#: About all tenants: refused to the token of one tenant.
_fleet_get: Final = partial(ApiRoute, "GET", fleet=True)
_fleet_post: Final = partial(ApiRoute, "POST", fleet=True)
_fleet_patch: Final = partial(ApiRoute, "PATCH", fleet=True)
_fleet_delete: Final = partial(ApiRoute, "DELETE", fleet=True)

_JOB: Final = "/jobs/{id:path}"
_OPERATION: Final = "/operations/{id}"
_BATCH: Final = "/batches/{id:path}"
_WORKFLOW: Final = "/workflows/{id:path}"
_ALERT: Final = "/alerts/{name:path}"
_QUEUE: Final = "/queues/{name:path}"
_SCHEDULE: Final = "/schedules/{name:path}"
_WORKER: Final = "/workers/{id}"

API_ROUTES: Final[tuple[ApiRoute, ...]] = (
    # jobs
    _get("/jobs", jobs.list_jobs, Permission.JOBS_VIEW),
    _post("/jobs", jobs.submit, Permission.JOBS_SUBMIT),
    _get(f"{_JOB}/explain", jobs.explain, Permission.JOBS_VIEW),
    _get(f"{_JOB}/logs", jobs.read_logs, Permission.JOBS_VIEW),
    _get(f"{_JOB}/wait", jobs.wait, Permission.JOBS_VIEW),
    _get(f"{_JOB}/events", streams.job_events, Permission.JOBS_VIEW),
    _post(f"{_JOB}/cancel", jobs.cancel, Permission.JOBS_CANCEL),
    _post(f"{_JOB}/retry", jobs.retry, Permission.JOBS_RETRY),
    _post(f"{_JOB}/redrive", jobs.redrive, Permission.JOBS_RETRY),
    _post(f"{_JOB}/again", job_page.submit_again, Permission.JOBS_SUBMIT),
    _post(f"{_JOB}/approve", jobs.approve, Permission.JOBS_APPROVE),
    _post(f"{_JOB}/decline", jobs.decline, Permission.JOBS_APPROVE),
    _post(f"{_JOB}/signals", jobs.signal, Permission.JOBS_SIGNAL),
    _get(_JOB, jobs.read_job, Permission.JOBS_VIEW),
    _get("/dead-letters", jobs.dead_letters, Permission.JOBS_VIEW),
    _post("/dead-letters/redrive", jobs.redrive_many, Permission.JOBS_RETRY),
    # many jobs at once
    _get("/operations", operations.list_operations, Permission.JOBS_VIEW),
    _post("/operations", operations.begin_operation, Permission.JOBS_BULK),
    _get("/operations/matching", operations.match_operation, Permission.JOBS_VIEW),
    _post(f"{_OPERATION}/stop", operations.stop_operation, Permission.JOBS_BULK),
    _post(f"{_OPERATION}/resume", operations.resume_operation, Permission.JOBS_BULK),
    _get(_OPERATION, operations.read_operation, Permission.JOBS_VIEW),
    _get("/failures", failures.list_failures, Permission.JOBS_VIEW),
    _post("/failures/silence", failures.silence_failure, Permission.ALERTS_SILENCE),
    _post("/failures/unsilence", failures.unsilence_failure, Permission.ALERTS_SILENCE),
    _get("/batches", groups.list_batches, Permission.JOBS_VIEW),
    _get(f"{_BATCH}/failures", groups.batch_failures, Permission.JOBS_VIEW),
    _post(f"{_BATCH}/cancel", groups.cancel_batch, Permission.JOBS_CANCEL),
    _post(f"{_BATCH}/retry", groups.retry_batch, Permission.JOBS_RETRY),
    _get(_BATCH, groups.read_batch, Permission.JOBS_VIEW),
    _get("/workflows", groups.list_workflows, Permission.JOBS_VIEW),
    _post(f"{_WORKFLOW}/cancel", groups.cancel_workflow, Permission.JOBS_CANCEL),
    _post(f"{_WORKFLOW}/retry", groups.retry_workflow, Permission.JOBS_RETRY),
    _get(_WORKFLOW, groups.read_workflow, Permission.JOBS_VIEW),
    # topics and alerts
    _fleet_get("/topics", notices.list_topics, Permission.QUEUES_VIEW),
    _post("/topics/{name:path}/events", notices.publish, Permission.JOBS_SUBMIT),
    _fleet_get("/alerts", notices.list_alerts, Permission.METRICS_VIEW),
    _fleet_post(f"{_ALERT}/silence", notices.silence_alert, Permission.ALERTS_SILENCE),
    _fleet_post(f"{_ALERT}/remove", notices.remove_alert, Permission.ALERTS_EDIT),
    _fleet_post(_ALERT, notices.add_alert, Permission.ALERTS_EDIT),
    # queues
    _fleet_get("/queues", fleet.list_queues, Permission.QUEUES_VIEW),
    _fleet_post(f"{_QUEUE}/pause", fleet.pause_queue, Permission.QUEUES_PAUSE),
    _fleet_post(f"{_QUEUE}/resume", fleet.resume_queue, Permission.QUEUES_PAUSE),
    _fleet_post(f"{_QUEUE}/close", fleet.close_queue, Permission.QUEUES_EDIT),
    _fleet_post(f"{_QUEUE}/open", fleet.open_queue, Permission.QUEUES_EDIT),
    _fleet_patch(f"{_QUEUE}/limits", fleet.set_limits, Permission.QUEUES_EDIT),
    _fleet_delete(f"{_QUEUE}/limits", fleet.unset_limits, Permission.QUEUES_EDIT),
    _fleet_get(_QUEUE, fleet.read_queue, Permission.QUEUES_VIEW),
    # schedules
    _fleet_get("/schedules", schedules.list_schedules, Permission.SCHEDULES_VIEW),
    _fleet_get(f"{_SCHEDULE}/fires", schedules.list_fires, Permission.SCHEDULES_VIEW),
    _fleet_post(f"{_SCHEDULE}/run", schedules.run_schedule, Permission.SCHEDULES_RUN),
    _fleet_post(f"{_SCHEDULE}/pause", schedules.pause_schedule, Permission.SCHEDULES_EDIT),
    _fleet_post(f"{_SCHEDULE}/resume", schedules.resume_schedule, Permission.SCHEDULES_EDIT),
    _fleet_delete(f"{_SCHEDULE}/changes", schedules.restore_schedule, Permission.SCHEDULES_EDIT),
    _fleet_patch(_SCHEDULE, schedules.edit_schedule, Permission.SCHEDULES_EDIT),
    _fleet_get(_SCHEDULE, schedules.read_schedule, Permission.SCHEDULES_VIEW),
    # the fleet
    _fleet_get("/workers", fleet.list_workers, Permission.WORKERS_VIEW),
    _fleet_post(f"{_WORKER}/quiet", fleet.quiet_worker, Permission.WORKERS_QUIET),
    _fleet_post(f"{_WORKER}/resume", fleet.resume_worker, Permission.WORKERS_QUIET),
    _fleet_post(f"{_WORKER}/stacks", fleet.worker_stacks, Permission.WORKERS_STACKS),
    _get("/tasks", fleet.list_tasks, Permission.JOBS_VIEW),
    _get("/tasks/{name:path}", fleet.read_task, Permission.JOBS_VIEW),
    _fleet_get("/stats", fleet.stats, Permission.METRICS_VIEW),
    _fleet_get("/history", history.history, Permission.METRICS_VIEW),
    _fleet_get("/metrics", fleet.metrics, Permission.METRICS_VIEW),
    _fleet_get("/scale", fleet.scale, Permission.METRICS_VIEW),
    _fleet_get("/scale/{name:path}", fleet.scale_of, Permission.METRICS_VIEW),
    _get("/breakers", fleet.breakers, Permission.METRICS_VIEW),
    _fleet_get("/events", streams.fleet_events, Permission.METRICS_VIEW),
    _get("/audit", fleet.audit, Permission.AUDIT_VIEW),
)
