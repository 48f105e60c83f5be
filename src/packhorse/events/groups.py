# SPDX-License-Identifier: MIT
"""Events of schedules, and of the end of a batch or workflow.

An end is emitted again if it comes again after a retry.
"""

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


class ScheduleMissed(Event, frozen=True, kw_only=True):
    """Fires were missed while no worker looked, and `catch_up` left some out."""

    name = "schedule.missed"
    schedule: str
    catch_up: str
    missed: int = 0  #: how many; of a cron that missed more than a thousand, at least so many


class TickMissed(Event, frozen=True, kw_only=True):
    """The same of a task declared with `app.every`, where it is nothing to worry about."""

    name = "tick.missed"
    schedule: str
    catch_up: str
    missed: int


class ScheduleLate(Event, frozen=True, kw_only=True):
    """A fire was submitted long after it was due."""

    name = "schedule.late"
    schedule: str
    late_s: float


class ScheduleRefused(Event, frozen=True, kw_only=True):
    """The job of a fire was not stored; the schedule goes on."""

    name = "schedule.refused"
    schedule: str
    reason: str


class ScheduleStuck(Event, frozen=True, kw_only=True):
    """A schedule cannot be declared or fired by this worker; the others go on."""

    name = "schedule.stuck"
    schedule: str
    reason: str
