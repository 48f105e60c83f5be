# SPDX-License-Identifier: MIT
"""Finished members of a group: not deleted before it ends, carried with it, and run once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import TERMINAL, IdempotencyRule, JobStatus, UniqueRule
from packhorse.core.policies.attachments import Attaching
from packhorse.core.policies.journal import WORKFLOW_KIND, Group
from packhorse.core.policies.records import Put, Remove
from packhorse.core.settlement import SettlementKind
from packhorse.stores.requests import JobFilter, RedriveAnswer
from packhorse.stores.transfer import CarryAnswer
from packhorse.testing.conformance.journaling import BATCH, journal, member
from packhorse.testing.conformance.journeys import Journey, journeys, shown
from packhorse.testing.conformance.samples import new_job
from packhorse.testing.conformance.trial import EVERYTHING, Trial
from packhorse.testing.conformance.words import cancel, redrive

_FLOW = Group(WORKFLOW_KIND, "", "order-17", "1")
_ENDS = (SettlementKind.COMPLETED, SettlementKind.CANCELLED, SettlementKind.DEAD)


class TestFinishedMembers:
    """What others of the group may still need of them stays."""

    @pytest.fixture(params=("out", "in"))
    def journey(self, request: pytest.FixtureRequest, trial: Trial) -> Iterator[Journey]:
        """Yield a transfer between the tested store and the reference store."""
        with journeys(trial, request.param) as journey:
            yield journey

    @pytest.mark.parametrize("kind", _ENDS)
    def test_no_member_is_deleted_before_its_group_has_ended(
        self, trial: Trial, kind: SettlementKind
    ) -> None:
        _put(trial)
        trial.finish(member("spared"), kind)
        trial.finish(new_job("plain"), kind)
        trial.finish(member("other", BATCH._replace(run="2")), kind)

        assert _delete(trial) == 2
        assert trial.search() == ["spared"]

    def test_members_of_a_group_that_has_ended_are_deleted(self, trial: Trial) -> None:
        _put(trial)
        trial.finish(member("job"))
        assert _delete(trial) == 0

        _put(trial, keep_us=SECOND_US)  # the record of a group that ended expires

        assert _delete(trial) == 1

    def test_members_of_a_group_that_is_gone_are_deleted(self, trial: Trial) -> None:
        _put(trial)
        trial.finish(member("job"))
        trial.run(trial.store.records.change([Remove(BATCH.record)]))

        assert _delete(trial) == 1

    def test_members_that_are_spared_do_not_keep_others_from_being_deleted(
        self, trial: Trial
    ) -> None:
        _put(trial)
        for name in "abc":
            trial.finish(member(name))
            trial.finish(new_job(f"plain-{name}"))

        assert [_delete(trial, limit=2), _delete(trial, limit=2)] == [2, 1]
        assert trial.search() == ["c", "b", "a"]

    def test_a_node_that_has_completed_does_not_run_again(self, trial: Trial) -> None:
        trial.finish(member("done", _FLOW))
        trial.finish(member("dead", _FLOW), SettlementKind.DEAD)
        trial.submit(member("cancelled", _FLOW))
        cancel(trial, "cancelled")

        answers = [redrive(trial, name) for name in ("done", "dead", "cancelled")]

        assert answers == [RedriveAnswer.REFUSED, *[RedriveAnswer.REDRIVEN] * 2]
        assert trial.status("done") is JobStatus.COMPLETED

    @pytest.mark.parametrize("keep_us", [None, 100 * SECOND_US])
    def test_members_are_carried_with_their_results_while_their_group_is_there(
        self, journey: Journey, keep_us: int | None
    ) -> None:
        _put(journey.source, keep_us)
        for kind in _ENDS:
            journey.source.finish(member(f"was-{kind}"), kind)
        journey.source.finish(new_job("plain"))
        journey.source.finish(member("of another", BATCH._replace(run="2")))

        answers = journey.carry(limit=1)
        _put(journey.target, keep_us)

        before = shown(journey.source)
        assert answers == [CarryAnswer.CARRIED] * len(_ENDS)
        assert shown(journey.target) == before
        assert [one.result is not None for one in before] == [True, False, False]
        for one in before:
            assert journey.target.picture(one.job.id) == journey.source.picture(one.job.id)
        ids = [one.job.id for one in before]
        arrived = journey.target.run(journey.target.store.transfer.carried(ids))
        assert arrived == tuple(before)

    def test_members_of_every_kind_are_carried_as_they_ended(self, journey: Journey) -> None:
        source = journey.source
        _put(source)
        once = IdempotencyRule("i", digest="d", window_us=SECOND_US * 3600)
        ends: dict[str, dict[str, Any]] = {
            "unbegun": {"delay_us": SECOND_US},
            "ordered": {"ordering_key": "line"},
            "tenant's": {"tenant": "acme", "tags": ("red",), "weight": 2},
            "keyed": {"unique": UniqueRule("k"), "idempotency": once},
        }
        source.submit(*(member(name, **options) for name, options in ends.items()))
        cancel(source, "unbegun")
        for job in source.claim(limit=EVERYTHING):
            source.run(source.store.attachments.attach([Attaching(job.id, job.fence, {"n": b"1"})]))
            source.end(job)
        assert {source.status(name) for name in ends} == {JobStatus.CANCELLED, JobStatus.COMPLETED}

        assert journey.carry() == [CarryAnswer.CARRIED] * len(ends)
        _put(journey.target)

        assert shown(journey.target) == shown(source)
        for name in ends:
            assert journey.target.picture(name) == source.picture(name)
        (again,) = journey.target.submit(new_job("again", idempotency=once))
        (free,) = journey.target.submit(new_job("free", unique=UniqueRule("k")))
        assert (again.job_id, free.job_id) == ("keyed", "free")

    def test_members_that_were_carried_end_no_second_time(self, journey: Journey) -> None:
        _put(journey.source)
        journey.source.finish(member("done"))
        journey.carry()

        assert journal(journey.target) == ()
        assert journey.target.claim() == ()
        assert journey.target.run(journey.target.store.queues.depth("default")) == 0

    def test_members_that_were_carried_live_as_long_as_they_would_have(
        self, journey: Journey
    ) -> None:
        _put(journey.source)
        journey.source.finish(member("done"))
        (before,) = shown(journey.source)
        journey.carry()
        assert before.expires_us is not None

        journey.source.advance_us(before.expires_us - journey.source.now_us() - 1)
        assert _prune(journey.target) == 0
        journey.source.advance_us(1)
        assert _prune(journey.target) == 1
        assert journey.target.find("done") is None

    def test_a_batch_member_that_was_carried_can_run_again(self, journey: Journey) -> None:
        _put(journey.source)
        journey.source.finish(member("done"))
        journey.carry()

        assert redrive(journey.target, "done") is RedriveAnswer.REDRIVEN
        (line,) = journal(journey.target)
        assert (line.status, line.was) == (JobStatus.QUEUED, JobStatus.COMPLETED)
        assert [job.id for job in journey.target.claim()] == ["done"]

    def test_the_end_of_a_job_that_runs_again_is_carried_in_its_history(
        self, journey: Journey
    ) -> None:
        journey.source.finish(new_job("again"))
        redrive(journey.source, "again")

        journey.carry()

        assert len(journey.target.history("again")) == 1
        assert journey.target.picture("again") == journey.source.picture("again")


def _put(trial: Trial, keep_us: int | None = None) -> None:
    trial.run(trial.store.records.change([Put(BATCH.record, b"1", keep_us=keep_us)]))


def _delete(trial: Trial, limit: int = EVERYTHING) -> int:
    chosen = JobFilter(statuses=tuple(TERMINAL))
    return trial.run(trial.store.jobs.delete(chosen, limit=limit)).removed


def _prune(trial: Trial) -> int:
    return trial.run(trial.store.upkeep.prune(limit=EVERYTHING))
