# SPDX-License-Identifier: MIT
"""Many dead letters at once: how many are meant, running them again, and removing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from packhorse.cli.render import note
from packhorse.job import JobRecord, JobStatus
from packhorse.stores.protocol import Store
from packhorse.stores.requests import JobFilter, RedriveAnswer

__all__ = [
    "SELECTION_MAX",
    "Selection",
    "none_redriven",
    "purge_selected",
    "redrive_named",
    "redrive_selected",
    "select_dead",
]

#: Dead letters one command works on; the next call takes the rest.
SELECTION_MAX: Final = 100_000
_PAGE: Final = 1_000
#: Jobs removed in one transaction, so that workers get their turn in between.
_PURGE_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Selection:
    """The dead letters that are meant."""

    chosen: JobFilter
    number: int
    more: bool = False  #: there are more than one command works on

    def __str__(self) -> str:
        letters = "dead letter" if self.number == 1 else "dead letters"
        return f"the first {self.number} {letters}" if self.more else f"{self.number} {letters}"


def select_dead(store: Store, chosen: JobFilter) -> Selection:
    """Count the dead letters a filter means."""
    dead = msgspec.structs.replace(chosen, statuses=(JobStatus.DEAD,))
    number = sum(len(page) for page in _pages(store, dead))
    return Selection(dead, min(number, SELECTION_MAX), more=number > SELECTION_MAX)


def redrive_selected(store: Store, selection: Selection) -> Counter[str]:
    """Run them again, no more than were counted; says how often each answer was given."""
    answers: Counter[str] = Counter()
    left = selection.number
    for page in _pages(store, selection.chosen):
        job_ids = [job.id for job in page[:left]]
        answers.update(str(answer) for answer in store.run(store.jobs.redrive(job_ids)))
        left -= len(job_ids)
        if not left:
            break
    return answers


def redrive_named(store: Store, job_ids: Iterable[str], *, dry_run: bool) -> dict[str, int]:
    """Run those again that are dead; how many matched, and how often each answer was given."""
    dead_ids, counts = [], Counter(none_redriven())
    for job_id in dict.fromkeys(job_ids):
        record = store.run(store.inspection.job(job_id))
        if record is None:
            counts["unknown"] += 1
            note(f"{job_id}  not found")
        elif record.status is not JobStatus.DEAD:
            # Running a completed job again is a decision of its own.
            counts["refused"] += 1
            note(f"{job_id}  is {record.status}, not dead; see 'packhorse jobs retry'")
        else:
            dead_ids.append(job_id)
    if not dry_run:
        counts.update(str(answer) for answer in store.run(store.jobs.redrive(dead_ids)))
    return {"matched": len(dead_ids), **counts}


def none_redriven() -> dict[str, int]:
    """Every answer there may be, given not once."""
    return {str(answer): 0 for answer in RedriveAnswer}


def purge_selected(store: Store, selection: Selection) -> int:
    """Remove no more than were announced, even if more have died since; how many it were."""
    left = selection.number
    while left:
        batch = min(left, _PURGE_BATCH)
        removed = store.run(store.jobs.delete(selection.chosen, limit=batch))
        left -= removed
        if removed < batch:
            break
    return selection.number - left


def _pages(store: Store, chosen: JobFilter) -> Iterator[tuple[JobRecord, ...]]:
    """The jobs meant, a page at a time, a page more than one command works on at most.

    The place goes down with every page, so a job that dies again meanwhile is not met twice.
    """
    after: str | None = None
    for _ in range(SELECTION_MAX // _PAGE + 1):
        page = store.run(store.inspection.search(chosen, limit=_PAGE, after=after))
        if page.jobs:
            yield page.jobs
        after = page.after
        if after is None:
            return
