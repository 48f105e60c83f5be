# SPDX-License-Identifier: MIT
"""`JobStore.delete`: finished jobs that match a filter are removed, in bounded steps."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.job import TERMINAL, DeadReason, JobStatus
from packhorse.core.settlement import SettlementKind
from packhorse.errors import ConfigError
from packhorse.stores.requests import JobFilter, QueueSettings
from packhorse.testing.conformance.cancelling import bring_to
from packhorse.testing.conformance.samples import new_job
from packhorse.testing.conformance.searching import fill
from packhorse.testing.conformance.trial import EVERYTHING, Trial


class TestDeleting:
    """Remove finished jobs that match the filter, with their history."""

    @pytest.mark.parametrize("status", JobStatus)
    def test_only_finished_jobs_are_removed(self, trial: Trial, status: JobStatus) -> None:
        bring_to(trial, status, "job")

        removed = _delete(trial)

        assert removed == (1 if status in TERMINAL else 0)
        assert (trial.find("job") is None) is (status in TERMINAL)

    def test_the_history_goes_too(self, trial: Trial) -> None:
        trial.finish(new_job("job"))
        _delete(trial)
        trial.submit(new_job("job"))

        assert trial.history("job") == ()

    def test_no_more_than_the_limit_is_removed_oldest_first(self, trial: Trial) -> None:
        for name in ("z", "a", "m"):
            trial.finish(new_job(name))
            trial.advance_us(1)

        assert _delete(trial, limit=2) == 2
        assert trial.search() == ["m"]

    @pytest.mark.parametrize(
        "chosen",
        [
            JobFilter(queue="mail"),
            JobFilter(task="resize"),
            JobFilter(statuses=(JobStatus.DEAD,)),
            JobFilter(tenant="acme"),
            JobFilter(tag="red"),
            JobFilter(created_by="anna"),
            JobFilter(dead_reason=DeadReason.REJECTED),
            JobFilter(dead_letter="mail_dead"),
            JobFilter(id_part="meant"),
        ],
    )
    def test_only_what_the_filter_means_is_removed(self, trial: Trial, chosen: JobFilter) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))
        meant = new_job(
            "meant",
            queue="mail",
            task="resize",
            tenant="acme",
            tags=("blue", "red"),
            created_by="anna",
        )
        trial.finish(meant, SettlementKind.DEAD)
        trial.finish(new_job("other", tags=("reddish",)))

        assert _delete(trial, chosen) == 1
        assert trial.search() == ["other"]

    @pytest.mark.parametrize(
        "chosen",
        [
            {},
            {"task": "rare"},
            {"tag": "red"},
            {"statuses": (JobStatus.DEAD,)},
            {"statuses": (JobStatus.DEAD,), "queue": "dead-a"},
            {"dead_reason": DeadReason.REJECTED, "tenant": "acme"},
            {"statuses": (JobStatus.COMPLETED, JobStatus.CANCELLED)},
        ],
        ids=str,
    )
    @pytest.mark.parametrize(("limit", "most"), [(1, 5), (4, 2)])
    def test_short_looks_remove_what_a_long_one_would(
        self, trial: Trial, chosen: dict[str, Any], limit: int, most: int
    ) -> None:
        fill(trial)
        meant = JobFilter(**chosen)
        found = trial.run(trial.store.inspection.search(meant, limit=99)).jobs
        doomed = [job.id for job in reversed(found) if job.status in TERMINAL]
        others = [job_id for job_id in trial.search() if job_id not in doomed]

        gone, left, after = list[str](), trial.search(), None
        for _ in range(200):
            delete = trial.store.jobs.delete(meant, limit=limit, after=after, most=most)
            part = trial.run(delete)
            before, left = left, trial.search()
            gone += [job_id for job_id in reversed(before) if job_id not in left]
            assert part.removed <= limit
            after = part.after
            if after is None:
                break

        assert (gone, left, after) == (doomed, others, None)

    def test_a_look_that_removes_nothing_ends_and_says_where_to_go_on(self, trial: Trial) -> None:
        for number in range(7):
            trial.finish(new_job(f"other-{number}"))
        trial.finish(new_job("meant", task="rare"))
        delete = trial.store.jobs.delete

        first = trial.run(delete(JobFilter(task="rare"), limit=3, most=4))
        last = trial.run(delete(JobFilter(task="rare"), limit=3, most=4, after=first.after))

        assert (first.removed, first.after is not None) == (0, True)
        assert last.removed == 1

    def test_a_place_that_is_none_is_refused(self, trial: Trial) -> None:
        with pytest.raises(ConfigError):
            trial.run(trial.store.jobs.delete(JobFilter(), limit=1, after="nowhere"))


def _delete(trial: Trial, chosen: JobFilter | None = None, limit: int = EVERYTHING) -> int:
    return trial.run(trial.store.jobs.delete(chosen or JobFilter(), limit=limit)).removed
