# SPDX-License-Identifier: MIT
"""`JobStore.submit`: no job is lost or stored twice, and a call stores all its jobs or none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US, from_datetime, to_datetime
from packhorse.core.job import (
    Counters,
    JobOptions,
    JobStatus,
    NewJob,
    OnConflict,
    Priority,
    RetryRule,
    UniqueRule,
)
from packhorse.core.keys import KEY_LENGTH_MAX
from packhorse.core.lifecycle import status_at_submit
from packhorse.core.settlement import SettlementKind
from packhorse.errors import ConfigError, JobConflict
from packhorse.stores.requests import JobFilter, QueueSettings
from packhorse.testing.conformance.properties import a_few_examples
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import Trial, Trials

_MINUTE_US = 60 * SECOND_US


class TestSubmitting:
    """Store all of the jobs or none, and answer each in order."""

    def test_each_job_is_answered_in_order(self, trial: Trial) -> None:
        answers = trial.submit(new_job("b"), new_job("c", delay_us=1), new_job("a"))

        assert [(answer.job_id, answer.status) for answer in answers] == [
            ("b", JobStatus.QUEUED),
            ("c", JobStatus.PENDING),
            ("a", JobStatus.QUEUED),
        ]
        assert not any(answer.deduplicated for answer in answers)

    def test_a_call_without_jobs_is_answered_with_nothing(self, trial: Trial) -> None:
        assert trial.submit() == ()

    @pytest.mark.req("S2-22")
    def test_a_large_call_is_stored_whole(self, trial: Trial) -> None:
        jobs = [new_job(f"job-{number}") for number in range(1_500)]

        answers = trial.submit(*jobs)

        assert [answer.job_id for answer in answers] == [job.id for job in jobs]
        assert [job.id for job in trial.claim()] == [job.id for job in jobs]

    @pytest.mark.parametrize("field", ["id", "task", "queue", "tenant", "tags"])
    def test_the_longest_names_are_stored(self, trial: Trial, field: str) -> None:
        text = "".join([chr(0x20000 + 7_919 * at % 40_000) for at in range(KEY_LENGTH_MAX)])
        names: dict[str, Any] = {"id": "job", field: (text,) if field == "tags" else text}
        job = msgspec.structs.replace(new_job("job"), **names)

        trial.submit(job)

        [claimed] = trial.claim(queues=(job.queue,), tasks=(job.task,))
        assert (claimed.id, claimed.task, claimed.queue) == (job.id, job.task, job.queue)
        record = trial.record(job.id)
        assert (record.tenant, record.tags) == (job.tenant, job.tags)

    def test_one_refused_job_leaves_nothing_of_the_call_behind(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))

        with pytest.raises(ConfigError):
            trial.submit(new_job("good"), new_job("bad", queue="mail_dead"), new_job("also_good"))

        assert trial.search() == []

    @pytest.mark.req("S1-24")
    def test_a_job_due_now_is_queued(self, trial: Trial) -> None:
        trial.submit(new_job("now"))

        assert trial.status("now") is JobStatus.QUEUED
        assert trial.record("now").due_us == trial.now_us()

    def test_a_job_due_now_takes_its_place_behind_those_already_ready(self, trial: Trial) -> None:
        trial.submit(new_job("z"))
        trial.submit(new_job("y"), new_job("x"))
        trial.submit(new_job("a"))

        assert [job.id for job in trial.claim()] == ["z", "y", "x", "a"]

    @pytest.mark.req("S1-24")
    def test_a_delayed_job_is_pending_until_its_delay_has_passed(self, trial: Trial) -> None:
        trial.submit(new_job("later", delay_us=_MINUTE_US))

        assert trial.status("later") is JobStatus.PENDING
        assert trial.record("later").due_us == trial.now_us() + _MINUTE_US
        assert trial.claim() == ()

    @pytest.mark.req("S1-23")
    def test_a_scheduled_job_is_pending_until_its_instant(self, trial: Trial) -> None:
        instant_us = trial.now_us() + _MINUTE_US
        trial.submit(new_job("later", scheduled_us=instant_us))

        assert trial.status("later") is JobStatus.PENDING
        assert trial.record("later").due_us == instant_us
        trial.advance_us(_MINUTE_US - 1)
        assert trial.claim() == ()
        trial.advance_us(1)
        assert trial.claim_only().id == "later"

    @pytest.mark.req("S1-23")
    def test_a_job_scheduled_in_the_past_is_queued_at_once(self, trial: Trial) -> None:
        trial.submit(new_job("late", scheduled_us=trial.now_us() - _MINUTE_US))

        assert trial.status("late") is JobStatus.QUEUED
        assert trial.claim_only().id == "late"

    def test_an_instant_beats_a_delay(self, trial: Trial) -> None:
        trial.submit(new_job("now", scheduled_us=trial.now_us(), delay_us=_MINUTE_US))

        assert trial.status("now") is JobStatus.QUEUED

    @a_few_examples
    @given(offset_us=st.integers(-5, 5), delayed=st.booleans())
    def test_the_status_is_what_lifecycle_says(
        self, trials: Trials, offset_us: int, *, delayed: bool
    ) -> None:
        with trials.fresh() as trial:
            now_us = trial.now_us()
            span_us = max(0, offset_us) if delayed else offset_us
            when = {"delay_us": span_us} if delayed else {"scheduled_us": now_us + span_us}

            (answer,) = trial.submit(new_job("job", **when))

            assert answer.status is status_at_submit(now_us + span_us, now_us)
            assert trial.status("job") is answer.status

    @pytest.mark.req("S1-47")
    def test_everything_the_producer_decided_is_kept(self, trial: Trial) -> None:
        job = _with_everything(trial.now_us())

        trial.submit(job)

        record = trial.record(job.id)
        kept = (
            *("id", "task", "queue", "priority", "tenant", "tags", "payload", "deadline_us"),
            *("timeout_us", "options", "trace_id", "upstream_request_id", "created_by"),
        )
        assert {name: getattr(record, name) for name in kept} == {
            name: getattr(job, name) for name in kept
        }

    @pytest.mark.req("S1-47")
    def test_a_new_job_has_no_past(self, trial: Trial) -> None:
        now_us = trial.now_us()
        trial.submit(new_job("new"))

        record = trial.record("new")
        assert (record.created_us, record.updated_us) == (now_us, now_us)
        assert record.counters == Counters()
        assert (record.worker, record.started_us, record.finished_us) == (None, None, None)
        assert (record.dead_reason, record.dead_letter, record.error) == (None, None, None)
        assert (record.result, record.progress, record.parked_us) == (None, None, None)
        assert not record.cancel_requested
        assert not record.result_expired
        assert trial.history("new") == ()

    @pytest.mark.req("S2-7")
    def test_a_known_id_is_left_as_it_is_and_answered_deduplicated(self, trial: Trial) -> None:
        trial.submit(new_job("same", tags=("first",)))
        before = trial.picture("same")
        trial.advance_us(SECOND_US)

        (answer,) = trial.submit(new_job("same", queue="other", delay_us=1))

        assert (answer.job_id, answer.deduplicated) == ("same", True)
        assert answer.status is JobStatus.QUEUED
        assert trial.picture("same") == before
        assert [job.id for job in trial.claim(queues=(QUEUE, "other"))] == ["same"]

    @pytest.mark.parametrize("kind", [SettlementKind.COMPLETED, SettlementKind.DEAD])
    def test_a_finished_job_is_not_submitted_again(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        trial.finish(new_job("same"), kind)
        before = trial.picture("same")

        (answer,) = trial.submit(new_job("same"))

        assert answer.deduplicated
        assert answer.status is trial.status("same")
        assert trial.picture("same") == before
        assert trial.claim() == ()

    def test_an_id_twice_in_one_call_is_one_job(self, trial: Trial) -> None:
        first, second, other = trial.submit(
            new_job("same", tags=("first",)), new_job("same", tags=("second",)), new_job("other")
        )

        assert (first.deduplicated, second.deduplicated, other.deduplicated) == (False, True, False)
        assert trial.record("same").tags == ("first",)
        assert [job.id for job in trial.claim()] == ["same", "other"]

    def test_the_last_date_there_is_can_be_read_again(self, trial: Trial) -> None:
        last = datetime.max.replace(tzinfo=UTC)
        last_us = from_datetime(last)
        trial.submit(new_job("never", scheduled_us=last_us, deadline_us=last_us))

        record = trial.record("never")
        assert to_datetime(record.due_us) == last
        assert to_datetime(record.deadline_us or 0) == last
        assert trial.search() == ["never"]
        assert trial.claim() == ()

    @pytest.mark.parametrize("tags", [(), ("x",)])
    @pytest.mark.parametrize(
        "other",
        [{"task": "other"}, {"tenant": "them"}, {"payload": b'{"number":8}'}, {"payload": b"[]"}],
    )
    def test_a_known_id_of_another_job_is_a_conflict_that_stores_nothing(
        self, trial: Trial, other: dict[str, Any], tags: tuple[str, ...]
    ) -> None:
        trial.submit(new_job("same", payload=b'{"number":7}', tags=tags))
        before = trial.picture("same")
        stranger = new_job("same", **{"payload": b'{"number":7}', "tags": tags, **other})

        for jobs in ([stranger], [new_job("fine"), stranger], [stranger, new_job("fine")]):
            with pytest.raises(JobConflict) as refused:
                trial.submit(*jobs)
            assert refused.value.job_id == "same"
            assert str(7) not in str(refused.value)

        assert trial.search() == ["same"]
        assert trial.picture("same") == before

    def test_one_id_twice_in_a_call_is_one_job_or_a_conflict(self, trial: Trial) -> None:
        with pytest.raises(JobConflict):
            trial.submit(new_job("a", payload=b"{}"), new_job("a", payload=b'{"x":1}'))
        with pytest.raises(JobConflict):
            trial.submit(
                new_job("a", payload=b"{}", tenant="us"), new_job("a", payload=b"{}", tenant="them")
            )

        assert trial.search() == []

    @pytest.mark.parametrize("rule", [None, UniqueRule("k")])
    def test_ids_are_looked_at_before_all_else(self, trial: Trial, rule: UniqueRule | None) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))
        trial.submit(new_job("same", payload=b"{}"))

        with pytest.raises(JobConflict):
            trial.submit(
                new_job("lost", queue="mail_dead", unique=rule), new_job("same", payload=b"[]")
            )

    @pytest.mark.parametrize("tenant", ["", "us"])
    def test_a_known_id_is_the_same_job_in_whatever_order_its_arguments_stand(
        self, trial: Trial, tenant: str
    ) -> None:
        trial.submit(new_job("same", payload=b'{"a":1,"b":{"c":null,"d":[1.5]}}', tenant=tenant))

        again = new_job("same", payload=b'{"b":{"d":[1.5],"c":null},"a":1}', tenant=tenant)
        (answer,) = trial.submit(again)

        assert (answer.job_id, answer.deduplicated) == ("same", True)

    def test_a_job_whose_payload_was_replaced_is_still_known_by_its_id(self, trial: Trial) -> None:
        newest = UniqueRule("k", on_conflict=OnConflict.REPLACE)
        trial.submit(new_job("first", payload=b'{"a":1}', unique=newest))
        trial.submit(new_job("second", payload=b'{"a":2}', unique=newest))

        (answer,) = trial.submit(new_job("first", payload=b'{"a":1}', unique=newest))

        assert (answer.job_id, answer.deduplicated) == ("first", True)
        assert trial.record("first").payload == b'{"a":2}'

    def test_a_known_id_is_found_by_the_tags_it_has_and_by_no_others(self, trial: Trial) -> None:
        trial.submit(new_job("known", tags=("old",)))

        trial.submit(new_job("known", tags=("new",)), new_job("other", tags=("new",)))

        for tag, job_id in (("old", "known"), ("new", "other")):
            page = trial.run(trial.store.inspection.search(JobFilter(tag=tag), limit=10))
            assert [job.id for job in page.jobs] == [job_id]

    def test_submitting_to_a_dead_letter_shelf_is_a_config_error(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", dead_letter="mail_dead"))

        with pytest.raises(ConfigError, match="mail_dead"):
            trial.submit(new_job("lost", queue="mail_dead"))

        assert trial.find("lost") is None

    def test_a_name_that_is_no_shelf_any_more_can_be_submitted_to(self, trial: Trial) -> None:
        trial.declare(QueueSettings("mail", dead_letter="spare"))
        trial.declare(QueueSettings("mail"))

        trial.submit(new_job("fine", queue="spare"))

        assert trial.claim_only(queues=("spare",)).id == "fine"

    def test_a_plan_that_is_not_run_changes_nothing(self, trial: Trial) -> None:
        trial.store.jobs.submit([new_job("never")])

        assert trial.find("never") is None

    def test_a_plan_may_be_run_again(self, trial: Trial) -> None:
        plan = trial.store.jobs.submit([new_job("same")])

        assert [answer.deduplicated for answer in trial.run(plan)] == [False]
        assert [answer.deduplicated for answer in trial.run(plan)] == [True]

    @pytest.mark.parametrize("text", ["ü€😀", "a'b\"c", "%_", "{}:*", "x" * 200, "0"])
    def test_any_text_is_carried_unchanged(self, trial: Trial, text: str) -> None:
        payload = f'{{"to":"{"é😀" * 2_000}"}}'.encode()
        job = new_job(text, queue=text, tenant=text, tags=(text, "b"), payload=payload)

        claimed = trial.take(job)

        assert (claimed.id, claimed.queue, claimed.tenant) == (text, text, text)
        assert claimed.payload.encode() == payload
        assert trial.search(tag=text, queue=text, tenant=text) == [text]


def _with_everything(now_us: int) -> NewJob:
    return NewJob(
        id="all",
        task=TASK,
        payload=b'{"to":"\xc3\xa4"}',
        queue="mail",
        priority=Priority.HIGH,
        tenant="acme",
        tags=("b", "a"),
        scheduled_us=now_us + 7,
        deadline_us=now_us + _MINUTE_US,
        timeout_us=5 * SECOND_US,
        options=JobOptions(retry=RetryRule(max_retries=7, jitter=False), max_crashes=1),
        trace_id="trace",
        upstream_request_id="request",
        created_by="anna",
    )
