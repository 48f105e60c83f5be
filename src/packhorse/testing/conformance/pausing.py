# SPDX-License-Identifier: MIT
"""Pausing a queue, a key or a tenant, and closing a queue, while work goes on."""

from __future__ import annotations

from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.errors import ConfigError, QueueClosed
from packhorse.testing.conformance.samples import ANNA, QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.conformance.words import (
    SILENCE_S,
    given,
    heard,
    limit_task,
    queue_state,
    redrive,
    submit,
)

_QUEUE_TOPIC: Final = f"queue:{QUEUE}"

_fields = pytest.mark.parametrize("field", ["ordering_key", "concurrency_key", "rate_key"])
_tenants = pytest.mark.parametrize("tenant", ["", "acme"], ids=["no tenant", "acme"])
_parts = pytest.mark.parametrize("part", [{}, {"key": "k"}, {"tenant": "t"}], ids=str)


class TestPausing:
    """Stop or continue to hand out jobs of a queue, all or some."""

    @_fields
    def test_jobs_of_a_paused_key_are_not_given_out_until_it_is_resumed(
        self, trial: Trial, field: str
    ) -> None:
        submit(trial, "held", **{field: "k"})
        submit(trial, "free", **{field: "other"})
        submit(trial, "keyless")

        assert _pause(trial, key="k")

        assert given(trial) == ["free", "keyless"]
        assert _pause(trial, paused=False, key="k")
        assert given(trial) == ["held"]

    @_tenants
    def test_jobs_of_a_paused_tenant_are_not_given_out_until_it_is_resumed(
        self, trial: Trial, tenant: str
    ) -> None:
        submit(trial, "held", tenant=tenant)
        submit(trial, "free", tenant="other")

        assert _pause(trial, tenant=tenant)

        assert given(trial) == ["free"]
        assert _pause(trial, paused=False, tenant=tenant)
        assert given(trial) == ["held"]

    @_parts
    def test_pausing_says_whether_that_changed_anything(
        self, trial: Trial, part: dict[str, Any]
    ) -> None:
        assert not _pause(trial, paused=False, **part)
        assert _pause(trial, **part)
        assert not _pause(trial, **part)
        assert _pause(trial, paused=False, **part)

    @_parts
    def test_resuming_wakes_workers_if_something_was_paused(
        self, trial: Trial, part: dict[str, Any]
    ) -> None:
        _pause(trial, **part)

        assert heard(
            trial, _QUEUE_TOPIC, lambda store: store.queues.pause(QUEUE, paused=False, **part)
        )
        assert not heard(
            trial,
            _QUEUE_TOPIC,
            lambda store: store.queues.pause(QUEUE, paused=False, **part),
            SILENCE_S,
        )

    @_parts
    def test_running_jobs_go_on(self, trial: Trial, part: dict[str, Any]) -> None:
        job = trial.take(new_job("a", tenant="t", rate_key="k"))

        _pause(trial, **part)

        assert trial.end(job) is Verdict.APPLIED

    def test_jobs_that_come_while_their_key_is_paused_wait(self, trial: Trial) -> None:
        _pause(trial, key="k")

        submit(trial, "held", rate_key="k")
        submit(trial, "due later", rate_key="k", delay_us=SECOND_US)
        trial.advance_us(SECOND_US)

        assert given(trial) == []
        assert trial.status("due later") is JobStatus.QUEUED

    def test_a_key_is_paused_in_one_queue(self, trial: Trial) -> None:
        submit(trial, "here", rate_key="k")
        submit(trial, "there", rate_key="k", queue="elsewhere")

        _pause(trial, key="k")

        assert given(trial, queues=(QUEUE, "elsewhere")) == ["there"]

    def test_a_job_held_by_two_pauses_waits_for_both(self, trial: Trial) -> None:
        submit(trial, "a", tenant="t", rate_key="k", ordering_key="o")
        parts: list[dict[str, Any]] = [{"key": "k"}, {"tenant": "t"}, {}]
        for part in [*parts, {"key": "o"}]:
            _pause(trial, **part)

        for part in parts:
            _pause(trial, paused=False, **part)
            assert given(trial) == []
        _pause(trial, paused=False, key="o")

        assert given(trial) == ["a"]

    def test_a_paused_job_burns_nothing_and_says_nothing_of_time(self, trial: Trial) -> None:
        submit(trial, "a", rate_key="k")
        _pause(trial, key="k")
        before = trial.picture("a")
        trial.renew()

        assert trial.ask().next_due_us is None
        assert trial.picture("a") == before

    def test_a_paused_key_uses_up_no_slot_of_others(self, trial: Trial) -> None:
        limit_task(trial, concurrency=1)
        submit(trial, "held", ordering_key="k", concurrency_key="c")
        submit(trial, "free", concurrency_key="c")
        _pause(trial, key="k")

        assert given(trial) == ["free"]

    def test_a_key_and_a_tenant_are_not_paused_together(self, trial: Trial) -> None:
        with pytest.raises(ConfigError, match="call once for each"):
            _pause(trial, key="k", tenant="t")

    def test_a_claim_makes_nothing_ready_in_a_paused_queue(self, trial: Trial) -> None:
        for job_id, queue in (("here", QUEUE), ("there", "mail")):
            trial.submit(new_job(job_id, queue=queue, delay_us=SECOND_US))
        trial.run(trial.store.queues.pause("mail", paused=True))
        trial.advance_us(SECOND_US)

        assert [job.id for job in trial.claim(queues=(QUEUE, "mail"))] == ["here"]
        assert trial.status("there") is JobStatus.PENDING

    def test_what_is_paused_is_shown(self, trial: Trial) -> None:
        for key in ("l", "k"):
            _pause(trial, key=key)
        _pause(trial, tenant="t")

        state = queue_state(trial)

        assert (state.paused, state.paused_keys, state.paused_tenants) == (
            False,
            ("k", "l"),
            ("t",),
        )

    @_parts
    def test_what_is_paused_keeps_no_burst_worker(self, trial: Trial, part: dict[str, Any]) -> None:
        submit(trial, "a", tenant="t", rate_key="k")
        _pause(trial, **part)

        assert not trial.run(trial.store.inspection.outlook(ANNA, (QUEUE,), (TASK,))).ready


class TestClosing:
    """Refuse or accept new jobs; jobs in the queue still run."""

    def test_a_closed_queue_refuses_new_jobs_and_stores_nothing_of_the_call(
        self, trial: Trial
    ) -> None:
        assert _close(trial)

        with pytest.raises(QueueClosed) as refused:
            trial.submit(new_job("fine", queue="other"), new_job("new"))

        assert refused.value.queue == QUEUE
        assert trial.search() == []

    def test_closing_says_whether_that_changed_anything(self, trial: Trial) -> None:
        assert not _close(trial, closed=False)
        assert _close(trial)
        assert not _close(trial)
        assert queue_state(trial).closed
        assert _close(trial, closed=False)

    def test_an_opened_queue_takes_jobs_again(self, trial: Trial) -> None:
        _close(trial)
        _close(trial, closed=False)

        assert not submit(trial, "new")[0].deduplicated

    def test_a_known_id_is_answered(self, trial: Trial) -> None:
        submit(trial, "old")
        _close(trial)

        assert submit(trial, "old")[0].deduplicated

    def test_what_is_there_goes_on_with_its_retries_and_redrives(self, trial: Trial) -> None:
        submit(trial, "old")
        _close(trial)

        job = trial.claim_only()
        trial.end(job, SettlementKind.FAILED)
        trial.advance_us(60 * SECOND_US)
        trial.end(trial.claim_only(), SettlementKind.DEAD)
        redrive(trial, "old")

        assert given(trial) == ["old"]

    def test_other_queues_are_open(self, trial: Trial) -> None:
        _close(trial)

        submit(trial, "a", queue="other")

        assert given(trial, queues=("other",)) == ["a"]

    def test_a_declaration_does_not_open_a_closed_queue(self, trial: Trial) -> None:
        _close(trial)
        trial.declare(queue_state(trial).settings)

        assert queue_state(trial).closed


def _pause(trial: Trial, *, paused: bool = True, **part: str) -> bool:
    return trial.run(trial.store.queues.pause(QUEUE, paused=paused, **part))


def _close(trial: Trial, *, closed: bool = True) -> bool:
    return trial.run(trial.store.queues.close_queue(QUEUE, closed=closed))
