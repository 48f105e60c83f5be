# SPDX-License-Identifier: MIT
"""Events: one frozen struct per kind, and the bus that passes them to observers.

    worker.started  worker.quiet       worker.resumed  worker.stopping  worker.stopped
    job.started     an attempt began                job.completed   it succeeded, and that is stored
    job.failed      an attempt raised               job.timed_out   it took longer than it may
    job.retried     a retry was scheduled           job.snoozed     the handler asked to wait
    job.dead        given up, with a reason         job.released    given back; costs nothing
    job.limited     a rate limit was met; costs nothing
    job.cancelling  told to stop                    job.cancelled   finished as cancelled
    job.stale       a late write was refused        job.rescued     taken from a worker that is gone
    job.abandoned   its code would not stop, and its slot was freed without it
    lease.lost      lease.regained     store.trouble   store.recovered
    tasks.parked    queue.conflict     task.conflict   queue.filling   queue.starving
    schedule.late   schedule.missed    schedule.refused   schedule.stuck   tick.missed
    loop.blocked    observer.failed    flow.event      flow.trouble    flow.rebuilt
    jobs.spooled    spool.delivered    spool.refused
    batch.completed     batch.failed       batch.cancelled
    workflow.completed  workflow.failed    workflow.cancelled

Observers are plain functions, called where the event happens. That is the worker's event loop, save
for `loop.blocked`, which another thread emits, and `queue.filling`, spool events and ends caused by
a submit or a cancel, which are emitted by the process that did it. No event contains payloads or
results.
"""

from __future__ import annotations

from packhorse.events.bus import EVENTS, EventBus, Observer
from packhorse.events.groups import (
    CancelledBatch,
    CancelledWorkflow,
    CompletedBatch,
    CompletedWorkflow,
    EndedBatch,
    EndedWorkflow,
    FailedBatch,
    FailedWorkflow,
    ScheduleLate,
    ScheduleMissed,
    ScheduleRefused,
    ScheduleStuck,
    TickMissed,
)
from packhorse.events.kinds import (
    Event,
    FlowEvent,
    FlowRebuilt,
    FlowTrouble,
    JobAbandoned,
    JobCancelled,
    JobCancelling,
    JobCompleted,
    JobDead,
    JobEnded,
    JobEvent,
    JobFailed,
    JobLimited,
    JobReleased,
    JobRescued,
    JobRetried,
    JobSnoozed,
    JobsSpooled,
    JobStale,
    JobStarted,
    JobTimedOut,
    LeaseLost,
    LeaseRegained,
    LoopBlocked,
    ObserverFailed,
    QueueConflict,
    QueueFilling,
    QueueStarving,
    SpoolDelivered,
    SpoolRefused,
    StoreRecovered,
    StoreTrouble,
    TaskConflict,
    TasksParked,
    WorkerQuiet,
    WorkerResumed,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
    about_record,
    cancelled_events,
    dead_event,
)

__all__ = [
    "EVENTS",
    "CancelledBatch",
    "CancelledWorkflow",
    "CompletedBatch",
    "CompletedWorkflow",
    "EndedBatch",
    "EndedWorkflow",
    "Event",
    "EventBus",
    "FailedBatch",
    "FailedWorkflow",
    "FlowEvent",
    "FlowRebuilt",
    "FlowTrouble",
    "JobAbandoned",
    "JobCancelled",
    "JobCancelling",
    "JobCompleted",
    "JobDead",
    "JobEnded",
    "JobEvent",
    "JobFailed",
    "JobLimited",
    "JobReleased",
    "JobRescued",
    "JobRetried",
    "JobSnoozed",
    "JobStale",
    "JobStarted",
    "JobTimedOut",
    "JobsSpooled",
    "LeaseLost",
    "LeaseRegained",
    "LoopBlocked",
    "Observer",
    "ObserverFailed",
    "QueueConflict",
    "QueueFilling",
    "QueueStarving",
    "ScheduleLate",
    "ScheduleMissed",
    "ScheduleRefused",
    "ScheduleStuck",
    "SpoolDelivered",
    "SpoolRefused",
    "StoreRecovered",
    "StoreTrouble",
    "TaskConflict",
    "TasksParked",
    "TickMissed",
    "WorkerQuiet",
    "WorkerResumed",
    "WorkerStarted",
    "WorkerStopped",
    "WorkerStopping",
    "about_record",
    "cancelled_events",
    "dead_event",
]
