# SPDX-License-Identifier: MIT
"""`InspectionStore.search` with a bound: where a search stops, and how the next one continues."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import DeadReason, JobStatus
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import JobFilter, Page
from packhorse.testing.conformance.samples import new_job
from packhorse.testing.conformance.trial import Trial

_ENDS = (
    *(None, SettlementKind.COMPLETED, SettlementKind.DEAD, SettlementKind.FAILED),
    *(SettlementKind.CANCELLED, SettlementKind.RELEASED),
)


class TestBoundedSearch:
    """A bounded search says where it stopped, and the next one continues there."""

    @pytest.mark.req("S2-11")
    @pytest.mark.parametrize(
        "chosen",
        [
            {},
            {"queue": "dead-a"},
            {"task": "rare"},
            {"tenant": "acme"},
            {"tag": "red"},
            {"tag": "red", "statuses": (JobStatus.DEAD,)},
            {"created_by": "none"},
            {"statuses": (JobStatus.DEAD,)},
            {"statuses": (JobStatus.DEAD,), "task": "rare"},
            {"statuses": (JobStatus.DEAD,), "queue": "dead-a"},
            {"dead_reason": DeadReason.REJECTED, "tenant": "acme"},
            {"statuses": (JobStatus.PROCESSING,)},
            {"statuses": (JobStatus.QUEUED,), "task": "rare"},
            {"statuses": (JobStatus.PENDING, JobStatus.FAILED)},
            {"statuses": (JobStatus.PENDING, JobStatus.QUEUED), "queue": "waiting-a"},
            {"statuses": (JobStatus.COMPLETED, JobStatus.DEAD)},
        ],
        ids=str,
    )
    def test_short_looks_find_what_a_long_one_does(
        self, trial: Trial, chosen: dict[str, Any]
    ) -> None:
        fill(trial)
        meant = JobFilter(**chosen)
        whole = [job.id for job in trial.run(trial.store.inspection.search(meant, limit=99)).jobs]

        for limit, most in ((1, 5), (4, 2), (99, 9)):
            pages = list(_pages(trial, meant, limit, most))

            assert [job.id for page in pages for job in page.jobs] == whole, (limit, most)

    def test_a_look_that_ends_early_says_so(self, trial: Trial) -> None:
        trial.submit(new_job("meant", task="rare"), *(new_job() for _ in range(10)))
        search = trial.store.inspection.search

        first = trial.run(search(JobFilter(task="rare"), limit=3, most=6))
        last = trial.run(search(JobFilter(task="rare"), limit=3, most=6, after=first.after))

        assert (first.jobs, first.stopped_after) == ((), 6)
        assert [job.id for job in last.jobs] == ["meant"]
        assert (last.after, last.stopped_after) == (None, None)

    def test_a_bound_that_is_not_reached_changes_nothing(self, trial: Trial) -> None:
        fill(trial)
        search, meant = trial.store.inspection.search, JobFilter(task="rare")

        assert trial.run(search(meant, limit=2, most=500)) == trial.run(search(meant, limit=2))
        assert trial.run(search(meant, limit=99, most=500)) == trial.run(search(meant, limit=99))

    def test_the_newest_dead_are_found_behind_many_others(self, trial: Trial) -> None:
        trial.finish(new_job("dead", queue="a"), SettlementKind.DEAD)
        trial.submit(*(new_job() for _ in range(10)))
        meant = JobFilter(statuses=(JobStatus.DEAD,))

        page = trial.run(trial.store.inspection.search(meant, limit=1, most=3))
        found = [job.id for part in _pages(trial, meant, 1, 3) for job in part.jobs]

        assert found == ["dead"]
        assert page.stopped_after in (None, 3)


def fill(trial: Trial) -> None:
    """Make jobs of every status, some of them rare, in no order."""
    for turn, end in product("abc", _ENDS):
        word = "waiting" if end is None else str(end)
        job = new_job(
            f"{word}-{turn}",
            queue=f"{word}-{turn}",
            task="rare" if turn == "b" else "task",
            tenant="acme" if turn == "c" else "",
            tags=("red",) if turn == "a" else (),
        )
        if end is None:
            trial.submit(job, new_job(f"later-{turn}", delay_us=SECOND_US, queue=job.queue))
        else:
            trial.finish(job, end)
        trial.take(new_job(f"held-{word}-{turn}", queue=f"held-{word}-{turn}"))


def _pages(trial: Trial, chosen: JobFilter, limit: int, most: int) -> Iterator[Page]:
    """Yield all pages; each is full, or the last, or says that the search stopped."""
    after: str | None = None
    for _ in range(200):
        search = trial.store.inspection.search(chosen, limit=limit, after=after, most=most)
        page = trial.run(search)
        assert len(page.jobs) <= limit
        assert (page.stopped_after is not None) == (
            page.after is not None and len(page.jobs) < limit
        )
        yield page
        if page.after is None:
            return
        after = page.after
    raise AssertionError("the pages do not end")
