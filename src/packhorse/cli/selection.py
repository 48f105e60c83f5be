# SPDX-License-Identifier: MIT
"""Many dead letters at once: how many are meant, and running them again a page at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from packhorse.job import JobRecord, JobStatus
from packhorse.stores.protocol import Store
from packhorse.stores.requests import JobFilter

__all__ = ["SELECTION_MAX", "Selection", "redrive_selected", "select_dead"]

#: Dead letters one command works on; the next call takes the rest.
SELECTION_MAX: Final = 100_000
_PAGE: Final = 1_000


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
