# SPDX-License-Identifier: MIT
"""`QueueStore`: settings, pauses and depths of queues."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import WAITING, JobStatus, RetryRule
from packhorse.core.policies.retention import Retention
from packhorse.core.settlement import Verdict
from packhorse.errors import ConfigError
from packhorse.stores.requests import QueueSettings, QueueState
from packhorse.testing.conformance.cancelling import bring_to
from packhorse.testing.conformance.samples import QUEUE, new_job
from packhorse.testing.conformance.trial import Trial

_FULL = QueueSettings(
    "mail",
    priority=3,
    dead_letter="mail_dead",
    retry=RetryRule(max_retries=7, backoff="linear", retry_on=("a.B",)),
    retention=Retention(finished_us=SECOND_US, results_us=None, dead_us=5),
)


class TestQueues:
    """Store each declaration; return the one it replaced if that differs."""

    def test_a_declaration_is_kept_whole(self, trial: Trial) -> None:
        assert trial.declare(_FULL) == (None,)

        assert _queues(trial) == (QueueState(_FULL, paused=False, declared=True),)

    def test_the_same_declaration_again_replaces_nothing(self, trial: Trial) -> None:
        trial.declare(_FULL)

        assert trial.declare(_FULL) == (None,)

    def test_a_declaration_that_differs_is_answered_with_the_one_it_replaced(
        self, trial: Trial
    ) -> None:
        trial.declare(_FULL, QueueSettings("other"))
        newer = QueueSettings("mail", priority=1)

        assert trial.declare(QueueSettings("other"), newer) == (None, _FULL)

        assert [state.settings for state in _queues(trial)] == [newer, QueueSettings("other")]

    def test_declaring_nothing_is_answered_with_nothing(self, trial: Trial) -> None:
        assert trial.declare() == ()

    @pytest.mark.parametrize(
        "declarations",
        [
            (QueueSettings("other"), QueueSettings("mail_dead")),
            (QueueSettings("other", dead_letter="mail"),),
            (QueueSettings("other", dead_letter="fine"), QueueSettings("fine")),
            (QueueSettings("same", dead_letter="same"),),
        ],
        ids=["a queue named like a shelf", "a shelf named like a queue", "in one call", "itself"],
    )
    def test_a_shelf_that_is_a_queue_is_a_config_error_and_nothing_is_kept(
        self, trial: Trial, declarations: tuple[QueueSettings, ...]
    ) -> None:
        trial.declare(_FULL)
        before = _queues(trial)

        with pytest.raises(ConfigError):
            trial.declare(*declarations)

        assert _queues(trial) == before

    def test_two_queues_may_share_a_shelf(self, trial: Trial) -> None:
        trial.declare(_FULL, QueueSettings("other", dead_letter="mail_dead"))

        assert len(_queues(trial)) == 2

    def test_pausing_says_whether_that_changed_anything(self, trial: Trial) -> None:
        trial.declare(QueueSettings(QUEUE))

        assert trial.pause(QUEUE)
        assert not trial.pause(QUEUE)
        assert trial.pause(QUEUE, paused=False)
        assert not trial.pause(QUEUE, paused=False)

    def test_an_undeclared_queue_can_be_paused(self, trial: Trial) -> None:
        assert trial.pause("later")

        trial.submit(new_job("job", queue="later"))
        assert trial.claim(queues=("later",)) == ()
        (state,) = _queues(trial)
        assert (state.settings, state.paused) == (QueueSettings("later"), True)

    def test_a_declaration_does_not_resume_a_paused_queue(self, trial: Trial) -> None:
        trial.pause("mail")
        trial.declare(_FULL)

        assert _queues(trial) == (QueueState(_FULL, paused=True, declared=True),)

    def test_running_jobs_of_a_paused_queue_go_on(self, trial: Trial) -> None:
        job = trial.take()
        trial.pause()

        assert trial.end(job) is Verdict.APPLIED
        assert trial.status(job.id) is JobStatus.COMPLETED

    def test_a_paused_queue_takes_jobs(self, trial: Trial) -> None:
        trial.pause()
        trial.submit(new_job("job"))

        assert trial.status("job") is JobStatus.QUEUED

    def test_every_queue_declared_paused_or_holding_a_job_is_shown_by_name(
        self, trial: Trial
    ) -> None:
        trial.submit(new_job(queue="zebra"))
        trial.finish(new_job(queue="finished"))
        trial.pause("paused")
        trial.declare(QueueSettings("declared"))

        shown = {state.settings.name: state for state in _queues(trial)}

        assert list(shown) == ["declared", "finished", "paused", "zebra"]
        assert [name for name, state in shown.items() if state.declared] == ["declared"]
        assert [name for name, state in shown.items() if state.paused] == ["paused"]


class TestDepth:
    """Pending + queued + failed + timeout."""

    @pytest.mark.req("S2-14")
    @pytest.mark.parametrize("status", JobStatus)
    def test_waiting_jobs_count_and_others_do_not(self, trial: Trial, status: JobStatus) -> None:
        bring_to(trial, status, "job")

        assert _depth(trial) == (1 if status in WAITING else 0)

    def test_only_the_queue_asked_for_is_counted(self, trial: Trial) -> None:
        trial.submit(new_job(), new_job(delay_us=SECOND_US), new_job(queue="other"))

        assert (_depth(trial), _depth(trial, "other"), _depth(trial, "none")) == (2, 1, 0)


def _queues(trial: Trial) -> tuple[QueueState, ...]:
    return trial.run(trial.store.queues.queues())


def _depth(trial: Trial, queue: str = QUEUE) -> int:
    return trial.run(trial.store.queues.depth(queue))
