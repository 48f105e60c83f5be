# SPDX-License-Identifier: MIT
"""For tests of the producer's side: an app in memory, and a worker's work done by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from packhorse import Packhorse
from packhorse.core.clock import Clock
from packhorse.core.job import AttemptError, Job, Progress, RetryRule
from packhorse.core.lifecycle import JobRules, settle
from packhorse.core.outcome import Failed, Outcome, Succeeded
from packhorse.core.settlement import Verdict
from packhorse.stores.memory import MemoryStore
from packhorse.stores.protocol import Store
from packhorse.stores.requests import ClaimRequest, ProgressNote, Renewal

NO_RETRY: Final = JobRules(retry=RetryRule(max_retries=0))


#: The stores a behaviour is shown on, for `app_on`.
STORES: Final = ("memory", "sqlite")


def memory_app(clock: Clock | None = None) -> Packhorse:
    return Packhorse(store=MemoryStore(clock=clock), clock=clock)


def app_on(store: str, folder: Path, clock: Clock | None = None) -> Packhorse:
    """An app on one of `STORES`."""
    if store == "memory":
        return memory_app(clock)
    return Packhorse(f"sqlite:///{folder}/jobs.db", clock=clock)


class HandWorker:
    """Claims and settles as a worker would, one step at a time."""

    def __init__(
        self,
        store: Store,
        *tasks: str,
        queues: tuple[str, ...] = ("default",),
        name: str = "by-hand",
    ) -> None:
        self.store = store
        self.tasks = tasks
        self.queues = queues
        self.name = name

    def claim(self) -> Job:
        """The next job of these queues; there must be one."""
        (job,) = self.take(1)
        return job

    def take(self, limit: int) -> tuple[Job, ...]:
        """So many of the jobs of these queues, or as many as may be given."""
        lease = Renewal(worker=self.name, lease_us=30_000_000, queues=self.queues, tasks=self.tasks)
        self.store.run(self.store.leases.renew(lease))
        request = ClaimRequest(
            worker=self.name,
            queues=self.queues,
            tasks=self.tasks,
            limit=limit,
            default_timeout_us=60_000_000,
        )
        return self.store.run(self.store.jobs.claim(request)).jobs

    def settle(self, job: Job, outcome: Outcome, limits: JobRules | None = None) -> None:
        settlement = settle(job, outcome, limits or JobRules(), roll=0.5)
        (verdict,) = self.store.run(self.store.jobs.settle([settlement]))
        assert verdict in (Verdict.APPLIED, Verdict.CANCELLED)

    def complete(self, result: str = "null", limits: JobRules | None = None) -> Job:
        job = self.claim()
        self.settle(job, Succeeded(result), limits)
        return job

    def fail(self, limits: JobRules | None = None) -> Job:
        job = self.claim()
        error = AttemptError(type="ValueError", message="no good", code="EXCEPTION")
        self.settle(job, Failed(error, kinds=("builtins.ValueError", "builtins.Exception")), limits)
        return job

    def note(self, job: Job, progress: Progress) -> None:
        note = ProgressNote(job_id=job.id, fence=job.fence, progress=progress)
        self.store.run(self.store.jobs.note_progress([note]))
