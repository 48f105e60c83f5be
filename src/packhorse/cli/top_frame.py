# SPDX-License-Identifier: MIT
"""The frame of `packhorse top`: read the store, compute rates, and lay out both as lines."""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from packhorse.app import Packhorse
from packhorse.cli.output import age, fitted
from packhorse.cli.queues import queue_state
from packhorse.cli.workers import worker_state
from packhorse.core.clock import SECOND_US, SystemClock, from_datetime
from packhorse.core.job import LOOK_MAX, JobStatus
from packhorse.core.job_info import JobInfo
from packhorse.core.text import counted, printable, short_id
from packhorse.insights import QueueInfo, WorkerInfo
from packhorse.stores.requests import JobFilter

#: Running jobs that are read.
_JOBS_MAX: Final = 100
#: The span that rates are computed over.
_WINDOW_S: Final = 10.0
_LOOKS_MAX: Final = 1_000
#: Lines that are no rows: the summary (up to two), three titles and the space above them.
_OTHER_LINES: Final = 8
_ROWS_MIN: Final = 2
#: Characters of a queue's name that are shown.
_NAME_MAX: Final = 24
_QUEUE_TITLES: Final = (
    *("  QUEUE", "STATE", "WAITING", "READY", "RUNNING", "DONE/S", "DEAD", "OLDEST"),
)
_WORKER_TITLES: Final = ("  WORKER", "STATE", "BUSY", "HOST", "UP", "SEEN", "QUEUES")
_JOB_TITLES: Final = ("  RUNNING", "TASK", "QUEUE", "FOR", "ATTEMPT", "WORKER", "PROGRESS")


@dataclass(frozen=True, slots=True)
class FleetLook:
    """The fleet at one moment."""

    at: float  #: monotonic seconds
    now_us: int
    queues: tuple[QueueInfo, ...]
    workers: tuple[WorkerInfo, ...]
    jobs: tuple[JobInfo, ...]  #: those that run


@dataclass(frozen=True, slots=True)
class FrameRow:
    """A row that can be chosen."""

    kind: str  #: `queue`, `worker` or `job`
    name: str


def look_at_fleet(app: Packhorse) -> FleetLook:
    """Read everything that is shown."""
    clock, view = SystemClock(), app.insights
    running = JobFilter(statuses=(JobStatus.PROCESSING,))
    jobs = view.jobs(running, limit=_JOBS_MAX, most=LOOK_MAX).jobs
    queues = sorted(view.queues(), key=lambda queue: (-queue.depth, queue.name))
    workers = sorted(view.workers(), key=lambda worker: (not worker.live, -worker.running))
    jobs = tuple(sorted(jobs, key=lambda job: (job.started_at or job.created_at, job.id)))
    return FleetLook(clock.monotonic(), clock.now_us(), tuple(queues), tuple(workers), jobs)


class Rates:
    """Jobs per second that ended in each queue, over the last looks."""

    def __init__(self) -> None:
        self._looks = deque[tuple[float, Mapping[str, int]]](maxlen=_LOOKS_MAX)

    def add(self, look: FleetLook) -> None:
        """Add a look. Jobs that retention removed meanwhile are not counted."""
        self._looks.append((look.at, {queue.name: _ended(queue) for queue in look.queues}))
        while len(self._looks) > 2 and look.at - self._looks[1][0] >= _WINDOW_S:  # noqa: PLR2004 - two make a rate
            self._looks.popleft()

    def of(self, queue: str) -> float | None:
        """Return the rate of a queue; None before there are two looks."""
        if len(self._looks) == 1:
            return None
        counts = [ended.get(queue, 0) for _, ended in self._looks]
        span_s = self._looks[-1][0] - self._looks[0][0]
        return sum(max(0, after - before) for before, after in pairwise(counts)) / max(span_s, 1e-6)


def _ended(queue: QueueInfo) -> int:
    return sum(queue.counts.get(status, 0) for status in (JobStatus.COMPLETED, JobStatus.DEAD))


def rows_of(look: FleetLook) -> list[list[FrameRow]]:
    """Return the rows of queues, of workers and of jobs."""
    return [
        [FrameRow("queue", queue.name) for queue in look.queues],
        [FrameRow("worker", worker.id) for worker in look.workers],
        [FrameRow("job", job.id) for job in look.jobs],
    ]


def rows_shown(
    every: Sequence[Sequence[FrameRow]], height: int, chosen: FrameRow | None
) -> list[list[FrameRow]]:
    """Return the rows that fit, the chosen one among them, with a fair share for each table."""
    room, shown = height - _OTHER_LINES, [list[FrameRow]() for _ in every]
    fewest_first = sorted(range(len(every)), key=lambda at: len(every[at]))
    for taken, at in enumerate(fewest_first):
        rows, share = every[at], max(_ROWS_MIN, room // (len(every) - taken))
        first = rows.index(chosen) - share // 2 if chosen in rows else 0
        first = max(0, min(first, len(rows) - share))
        shown[at] = list(rows[first : first + share])
        room -= len(shown[at])
    return shown


def frame_lines(
    look: FleetLook,
    rates: Rates,
    *,
    rows: Sequence[Sequence[FrameRow]],
    width: int | None,
    chosen: FrameRow | None = None,
    colored: bool = False,
) -> list[str]:
    """Return the lines of a frame, without the message below it."""
    lines = [*_summary(look, rates, width)]
    queues = {queue.name: queue for queue in look.queues}
    workers = {worker.id: worker for worker in look.workers}
    jobs = {job.id: job for job in look.jobs}
    tables = (
        (_QUEUE_TITLES, len(queues), [_queue(queues[row.name], rates) for row in rows[0]]),
        (_WORKER_TITLES, len(workers), [_worker(workers[row.name], look) for row in rows[1]]),
        (_JOB_TITLES, len(jobs), [_job(jobs[row.name], look) for row in rows[2]]),
    )
    for shown, (titles, number, cells) in zip(rows, tables, strict=True):
        marked = [
            (_marked(row, chosen, one[0]), *one[1:]) for row, one in zip(shown, cells, strict=True)
        ]
        more = "" if number == len(shown) else f" ({number - len(shown)} more)"
        lines += ["", *fitted((titles[0] + more, *titles[1:]), marked, width, colored=colored)]
    return lines


def _marked(row: FrameRow, chosen: FrameRow | None, text: str) -> str:
    return f"{'>' if row == chosen else ' '} {text}"


def _summary(look: FleetLook, rates: Rates, width: int | None) -> Iterable[str]:
    live = [worker for worker in look.workers if worker.live]
    slots = sum(worker.concurrency for worker in live)
    busy = sum(worker.running for worker in live)
    found = [rates.of(queue.name) for queue in look.queues]
    rate = "" if None in found else f"; {sum(filter(None, found)):.1f} done/s"
    dead = sum(queue.counts.get(JobStatus.DEAD, 0) for queue in look.queues)
    text = (
        f"{counted(len(live), 'worker')}, {busy} of {slots} slots busy{rate}; "
        f"{sum(queue.depth for queue in look.queues)} waiting, {dead} dead"
    )
    return textwrap.wrap(text, width) if width is not None else [text]


def _queue(queue: QueueInfo, rates: Rates) -> tuple[str, ...]:
    rate = rates.of(queue.name)
    counts = [queue.counts.get(each, 0) for each in (JobStatus.QUEUED, JobStatus.PROCESSING)]
    return (
        *(_cut(queue.name), queue_state(queue), str(queue.depth), *map(str, counts)),
        "-" if rate is None else f"{rate:.1f}",
        *(str(queue.counts.get(JobStatus.DEAD, 0)), age(queue.oldest_ready_s)),
    )


def _cut(name: str) -> str:
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"


def _worker(worker: WorkerInfo, look: FleetLook) -> tuple[str, ...]:
    since = [_since(look, moment) for moment in (worker.started_at, worker.renewed_at)]
    busy = f"{worker.running}/{worker.concurrency}"
    queues = ", ".join(worker.queues)
    return (short_id(worker.id), worker_state(worker), busy, worker.host, *since, queues)


def _job(job: JobInfo, look: FleetLook) -> tuple[str, ...]:
    progress = job.progress
    done = "" if progress is None else f"{progress.done:g}"
    if progress is not None and progress.total:
        done = f"{progress.done / progress.total:.0%} {progress.note}"
    worker = "-" if job.worker is None else short_id(job.worker)
    since = _since(look, job.started_at or job.created_at)
    named = (short_id(job.id), job.task, job.queue)
    return (*named, since, str(job.attempts), worker, printable(done))


def _since(look: FleetLook, moment: datetime) -> str:
    return age(max(0.0, (look.now_us - from_datetime(moment)) / SECOND_US))
