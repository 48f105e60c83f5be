# SPDX-License-Identifier: MIT
"""One plan's look at the state: what it may change, what time it is, and whom it wakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from packhorse.stores.memory.rows import JobRow
from packhorse.stores.memory.state import State
from packhorse.stores.plan import Plan, Steps, Wake

__all__ = ["Access", "plan"]

T = TypeVar("T")


class Access:
    """The state, locked, at one instant."""

    def __init__(self, state: State, now_us: int) -> None:
        self.state = state
        self.now_us = now_us
        self.wakes: dict[str, None] = {}  # in order, each once

    def wake(self, topic: str) -> None:
        """Wake whoever listens to `topic`, once the plan is done."""
        self.wakes[topic] = None

    def wake_queue(self, row: JobRow) -> None:
        """Wake the workers of a job's queue."""
        self.wake(f"queue:{row.new.queue}")

    def wake_task(self, task: str) -> None:
        """Wake the workers of every queue in which a job of this task is ready."""
        for queue, name in (*self.state.ready, *self.state.suspects):
            if name == task:
                self.wake(f"queue:{queue}")

    def wake_room(self, row: JobRow) -> None:
        """Wake whoever waits for room in a job's queue, if that has a limit."""
        if self.state.settings(row.new.queue).max_depth is not None:
            self.wake(f"room:{row.new.queue}")

    def visible(self, job_id: str, tenant: str | None) -> JobRow | None:
        """The job, unless it is another tenant's; None sees all tenants."""
        row = self.state.jobs.get(job_id)
        return row if row is not None and tenant in (None, row.new.tenant) else None

    def rows(self, job_ids: list[str]) -> list[JobRow]:
        """The jobs of these ids, which are there."""
        return [self.state.jobs[job_id] for job_id in job_ids]

    def lease_gone(self, worker: str | None) -> bool:
        """Whether a worker is unknown, or its lease has run out."""
        known = self.state.workers.get(worker or "")
        return known is None or not known.live(self.now_us)


def plan(verb: str, work: Callable[[Access], T], *, writes: bool = True) -> Plan[T]:
    """A verb whose whole work is one function of the locked state."""

    def steps() -> Steps[T]:
        access: Access = yield
        answer = work(access)
        for topic in access.wakes:
            yield Wake(topic)
        return answer

    return Plan(verb, steps, writes=writes)
