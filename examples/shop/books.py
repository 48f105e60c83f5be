# SPDX-License-Identifier: MIT
"""What the store says about the jobs we submitted. Nothing here is counted by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from packhorse import JobInfo, JobStatus, Packhorse
from packhorse.core.job import TERMINAL, WAITING
from packhorse.insights import PAGE_MAX
from packhorse.stores.requests import JobFilter

#: Pages of jobs read at most; the shop is small.
PAGES_MAX: Final = 20


@dataclass(frozen=True)
class Books:
    """Every job in the store at one moment, and the kind of each that we submitted."""

    jobs: Mapping[str, JobInfo]
    kind_of: Mapping[str, str]

    @property
    def submitted(self) -> int:
        return len(self.kind_of)

    @property
    def missing(self) -> list[str]:
        """Submitted, and not in the store: this must never happen."""
        return [job_id for job_id in self.kind_of if job_id not in self.jobs]

    @property
    def finished(self) -> int:
        return sum(job.status in TERMINAL for job in self._ours())

    @property
    def unfinished(self) -> list[JobInfo]:
        return [job for job in self._ours() if job.status not in TERMINAL]

    @property
    def all_well(self) -> bool:
        """Whether every job submitted is there, and has come to an end."""
        return not self.missing and not self.unfinished

    @property
    def dead(self) -> list[JobInfo]:
        return [job for job in self._ours() if job.status is JobStatus.DEAD]

    @property
    def rescued(self) -> list[JobInfo]:
        """Lost with a killed worker, and given to another one."""
        return [job for job in self._ours() if job.crashes]

    @property
    def reports(self) -> list[JobInfo]:
        """Running jobs that tell how far they are."""
        return [job for job in self._ours() if job.status is JobStatus.PROCESSING and job.progress]

    def by_status(self) -> Counter[JobStatus]:
        return Counter(job.status for job in self._ours())

    def by_kind(self) -> dict[str, Counter[str]]:
        """For each kind in the order of submitting: waiting, running, and how the others ended."""
        rows: dict[str, Counter[str]] = {kind: Counter() for kind in self.kind_of.values()}
        for job in self._ours():
            word = "waiting" if job.status in WAITING else job.status.value
            rows[self.kind_of[job.id]].update((word, "all"))
        return rows

    def starts(self, *kinds: str) -> list[tuple[datetime, str]]:
        """When each job of these kinds was started, with its kind, in that order."""
        return sorted(
            (job.started_at, self.kind_of[job.id])
            for job in self._ours()
            if self.kind_of[job.id] in kinds and job.started_at is not None
        )

    def held_by(self, worker_id: str | None) -> list[JobInfo]:
        """The jobs a worker is running."""
        running = (job for job in self._ours() if job.status is JobStatus.PROCESSING)
        return [job for job in running if job.worker == worker_id]

    def _ours(self) -> list[JobInfo]:
        return [self.jobs[job_id] for job_id in self.kind_of if job_id in self.jobs]


def read_books(app: Packhorse, kind_of: Mapping[str, str]) -> Books:
    """Read every job, a page at a time."""
    jobs: dict[str, JobInfo] = {}
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = app.insights.jobs(JobFilter(), limit=PAGE_MAX, after=after)
        jobs.update((job.id, job) for job in page.jobs)
        after = page.after
        if after is None:
            break
    return Books(jobs, dict(kind_of))


def worker_id(app: Packhorse, pid: int) -> str | None:
    """The id under which the store knows a worker process."""
    return next((worker.id for worker in app.insights.workers() if worker.pid == pid), None)
