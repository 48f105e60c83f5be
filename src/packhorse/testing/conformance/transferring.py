# SPDX-License-Identifier: MIT
"""Carry jobs from one store to another: nothing about them changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import (
    IdempotencyRule,
    Job,
    JobStatus,
    OnConflict,
    Priority,
    UniqueRule,
    UniqueScope,
)
from packhorse.core.policies.attachments import Attachments
from packhorse.core.settlement import SettlementKind
from packhorse.errors import ConfigError, QueueClosed
from packhorse.stores.requests import RedriveAnswer
from packhorse.stores.transfer import CarryAnswer, Copied
from packhorse.testing.conformance.journeys import (
    QUEUES,
    Journey,
    colourful,
    journeys,
    lined,
    shown,
    tenanted,
)
from packhorse.testing.conformance.samples import ANNA, QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import EVERYTHING, Trial
from packhorse.testing.conformance.words import (
    complete,
    given,
    heard,
    limit_queue,
    limit_task,
    redrive,
    submit,
)

_CARRIED: Final = CarryAnswer.CARRIED
_DAY_US: Final = 24 * 3600 * SECOND_US
#: More claims than any example needs until nothing is left.
_ROUNDS: Final = 40


class TestTransferring:
    """Carry jobs from the tested store to the reference store, or the other way."""

    @pytest.fixture(params=("out", "in"))
    def journey(self, request: pytest.FixtureRequest, trial: Trial) -> Iterator[Journey]:
        """Yield a transfer between the tested store and the reference store."""
        with journeys(trial, request.param) as journey:
            yield journey

    def test_everything_known_of_a_job_comes_along(self, journey: Journey) -> None:
        colourful(journey.source)

        answers = journey.carry()

        assert set(answers) == {_CARRIED}
        before, after = shown(journey.source), shown(journey.target)
        assert [job.job.id for job in after] == [job.job.id for job in before]
        for mine, theirs in zip(before, after, strict=True):
            assert theirs == mine
        for one in before:
            assert journey.target.picture(one.job.id) == journey.source.picture(one.job.id)
        kept = {one.job.id for one in after if one.attached != Attachments()}
        assert kept == {"attached", "signalled", "scheduled"}

    def test_a_signal_wakes_a_job_that_was_carried_while_it_waited(self, journey: Journey) -> None:
        colourful(journey.source)
        journey.carry()
        target = journey.target

        target.run(target.store.attachments.deliver("signalled", "n", b"1"))

        assert target.record("signalled").due_us == target.now_us()

    def test_the_source_is_left_as_it_was(self, journey: Journey) -> None:
        colourful(journey.source)
        before = shown(journey.source)

        journey.carry()

        assert shown(journey.source) == before

    def test_what_runs_and_what_has_ended_well_stays_where_it_is(self, trial: Trial) -> None:
        trial.finish(new_job("done"))
        trial.finish(new_job("cancelled"), SettlementKind.CANCELLED)
        trial.take(new_job("runs"))
        trial.finish(new_job("dead", queue="other"), SettlementKind.DEAD)
        submit(trial, "waits")

        assert [job.job.id for job in shown(trial)] == ["dead", "waits"]

    @pytest.mark.parametrize("limit", [1, 2, 7])
    def test_pages_of_any_size_hold_each_job_once_in_order_of_submission(
        self, trial: Trial, limit: int
    ) -> None:
        names = [f"job-{number}" for number in range(7)]
        submit(trial, *names)
        redrive(trial, "job-2")

        assert [job.job.id for job in shown(trial, limit)] == names

    @pytest.mark.parametrize("after", ["here", "-1", "9" * 30])
    def test_a_cursor_that_is_none_is_refused(self, trial: Trial, after: str) -> None:
        with pytest.raises(ConfigError, match="after"):
            trial.run(trial.store.transfer.carry_out(after=after, limit=1))

    def test_an_empty_store_has_nothing_to_carry(self, trial: Trial) -> None:
        assert shown(trial) == []
        assert trial.run(trial.store.transfer.carry_in([])) == ()
        assert trial.run(trial.store.transfer.carried([])) == ()

    def test_a_mark_is_kept_until_it_is_forgotten(self, trial: Trial) -> None:
        transfer = trial.store.transfer
        begun = Copied("there", 1, under_way=True)
        marks = [begun, Copied("there", 1), Copied("elsewhere", 2), None]

        assert trial.run(transfer.copied()) is None
        for mark in marks:
            trial.run(transfer.mark(mark))
            assert trial.run(transfer.copied()) == mark

    @pytest.mark.parametrize(
        "options",
        [{}, {"delay_us": 5}, {"tags": ("a",)}, {"tenant": "acme"}, {"ordering_key": "k"}],
        ids=["plain", "delayed", "tagged", "of a tenant", "ordered"],
    )
    @pytest.mark.parametrize("count", [1, 3])
    def test_a_marked_store_takes_no_jobs(
        self, trial: Trial, count: int, options: dict[str, Any]
    ) -> None:
        transfer, jobs = trial.store.transfer, trial.store.jobs
        batch = [new_job(f"job-{number}", **options) for number in range(count)]
        trial.run(jobs.submit([new_job("before")], ids_are_new=True))
        trial.run(transfer.mark(Copied("there", 1)))

        for ids_are_new in (True, False):
            with pytest.raises(QueueClosed):
                trial.run(jobs.submit(batch, ids_are_new=ids_are_new))
        assert [one.job.id for one in shown(trial)] == ["before"]

        trial.run(transfer.mark(None))
        trial.run(jobs.submit(batch, ids_are_new=True))
        assert len(shown(trial)) == count + 1

    def test_chosen_jobs_are_shown_as_they_would_be_carried(self, trial: Trial) -> None:
        submit(trial, "a", "b", "c")
        trial.finish(new_job("done", queue="other"))
        everything = {job.job.id: job for job in shown(trial)}

        found = trial.run(trial.store.transfer.carried(["c", "a", "done", "unknown"]))

        assert found == (everything["a"], everything["c"])

    def test_the_other_store_goes_on_as_this_one_would(self, journey: Journey) -> None:
        colourful(journey.source)
        journey.carry()

        for _ in range(_ROUNDS):
            journey.source.advance_us(3600 * SECOND_US)
            mine, theirs = _round(journey.source), _round(journey.target)
            assert theirs == mine
        left = [one.job.id for one in shown(journey.target) if one.status is not JobStatus.DEAD]
        assert left == ["h2"]  # behind the dead head of its line

    def test_a_second_run_finds_all_of_them_known(self, journey: Journey) -> None:
        colourful(journey.source)
        journey.carry()
        before = shown(journey.target)

        answers = journey.carry()

        assert set(answers) == {CarryAnswer.KNOWN}
        assert shown(journey.target) == before

    def test_a_run_that_was_interrupted_goes_on(self, journey: Journey) -> None:
        colourful(journey.source)
        some = shown(journey.source)[:4]
        journey.target.run(journey.target.store.transfer.carry_in(some))

        answers = journey.carry()

        assert answers[:4] == [CarryAnswer.KNOWN] * 4
        assert set(answers[4:]) == {_CARRIED}
        assert shown(journey.target) == shown(journey.source)

    def test_a_job_that_is_known_stays_as_it_is(self, journey: Journey) -> None:
        submit(journey.source, "job")
        submit(journey.target, "job", payload=b'"mine"', priority=Priority.LOW)
        before = journey.target.picture("job")

        assert journey.carry() == [CarryAnswer.KNOWN]
        assert journey.target.picture("job") == before

    def test_a_job_that_comes_twice_is_carried_once(self, journey: Journey) -> None:
        submit(journey.source, "job")
        (job,) = shown(journey.source)

        answers = journey.target.run(journey.target.store.transfer.carry_in([job, job]))

        assert answers == (_CARRIED, CarryAnswer.KNOWN)
        assert given(journey.target) == ["job"]

    @pytest.mark.parametrize(
        "rules",
        [
            {"unique": UniqueRule("k")},
            {"idempotency": IdempotencyRule("k", digest="d", window_us=_DAY_US)},
        ],
        ids=["unique", "idempotency"],
    )
    def test_a_job_whose_key_another_holds_is_left_out(
        self, journey: Journey, rules: dict[str, object]
    ) -> None:
        submit(journey.source, "first")
        submit(journey.source, "theirs", **rules)
        submit(journey.target, "mine", **rules)

        assert journey.carry() == [_CARRIED, CarryAnswer.CONFLICT]
        assert journey.target.find("theirs") is None
        assert sorted(given(journey.target)) == ["first", "mine"]

    def test_keys_are_taken_along(self, journey: Journey) -> None:
        rule = UniqueRule("k")
        same = IdempotencyRule("i", digest="d", window_us=_DAY_US)
        submit(journey.source, "holder", unique=rule, idempotency=same)
        journey.carry()

        (by_key,) = submit(journey.target, "again", unique=rule)
        (by_call,) = submit(journey.target, "once more", idempotency=same)

        assert (by_key.job_id, by_key.deduplicated) == ("holder", True)
        assert (by_call.job_id, by_call.deduplicated) == ("holder", True)
        assert given(journey.target) == ["holder"]
        complete(journey.target, "holder")
        assert submit(journey.target, "free", unique=rule)[0].deduplicated is False

    def test_a_key_that_was_lost_is_not_taken_back(self, journey: Journey) -> None:
        rule = UniqueRule("k", scope=UniqueScope.UNTIL_STARTED)
        first = journey.source.take(new_job("first", unique=rule))
        submit(journey.source, "second", unique=rule)
        journey.source.end(first, SettlementKind.FAILED)

        assert journey.carry() == [_CARRIED, _CARRIED]
        assert submit(journey.target, "third", unique=rule)[0].job_id == "second"

    def test_a_dead_job_takes_no_key(self, journey: Journey) -> None:
        rule = UniqueRule("k")
        journey.source.finish(new_job("dead", unique=rule), SettlementKind.DEAD)
        submit(journey.target, "mine", unique=rule)

        assert journey.carry() == [_CARRIED]
        assert redrive(journey.target, "dead") is RedriveAnswer.CONFLICT
        assert given(journey.target) == ["mine"]
        complete(journey.target, "mine")
        assert redrive(journey.target, "dead") is RedriveAnswer.REDRIVEN

    def test_a_stashed_job_comes_in_when_its_holder_ends(self, journey: Journey) -> None:
        latest = UniqueRule("k", on_conflict=OnConflict.KEEP_LATEST)
        holder = journey.source.take(new_job("holder", unique=latest))
        submit(journey.source, "stashed", unique=latest, payload=b'"newest"')
        journey.source.end(holder, SettlementKind.FAILED)
        journey.carry()

        journey.source.advance_us(_DAY_US)
        assert given(journey.target) == ["holder"]
        complete(journey.target, "holder")

        assert journey.target.claim_only().payload == '"newest"'

    def test_fences_go_on_from_where_they_were(self, journey: Journey) -> None:
        old = journey.source.take(new_job("job"))
        journey.source.end(old, SettlementKind.FAILED)
        journey.carry()
        journey.source.advance_us(_DAY_US)

        assert journey.target.claim_only().fence == old.fence + 1

    def test_what_becomes_ready_later_stands_behind(self, journey: Journey) -> None:
        submit(journey.source, *(f"job-{number}" for number in range(9)))
        submit(journey.source, "later", delay_us=SECOND_US)
        redrive(journey.source, "later")
        journey.carry()

        submit(journey.target, "new")
        assert given(journey.target) == [*(f"job-{number}" for number in range(9)), "later", "new"]

    def test_a_line_keeps_its_order_with_the_redriven_at_its_tail(self, journey: Journey) -> None:
        lined(journey.source)
        journey.carry(limit=1)
        submit(journey.target, "a4", ordering_key="a")

        for name in ("a2", "a3", "a1", "a4"):
            assert given(journey.target) == [name]
            complete(journey.target, name)

    def test_a_dead_job_holds_its_line_until_it_is_redriven(self, journey: Journey) -> None:
        limit_queue(journey.source, "lines", on_dead="hold")
        lined(journey.source)
        journey.carry()
        lines = ("lines",)

        assert given(journey.target, queues=lines) == []
        assert redrive(journey.target, "h1") is RedriveAnswer.REDRIVEN
        assert given(journey.target, queues=lines) == ["h2"]
        complete(journey.target, "h2")
        assert given(journey.target, queues=lines) == ["h1"]

    def test_tenants_go_on_to_share(self, journey: Journey) -> None:
        for end in (journey.source, journey.target):
            limit_queue(end, "shared", weights={"acme": 2.0})
        tenanted(journey.source)
        journey.carry()
        for end in (journey.source, journey.target):
            submit(end, "n3", queue="shared")
            submit(end, "b-3", "b-4", queue="shared", tenant="beta")
            submit(end, "c-1", queue="shared", tenant="gamma")

        shared: dict[str, Any] = {"queues": ("shared",), "limit": EVERYTHING}
        assert given(journey.target, **shared) == given(journey.source, **shared)

    def test_limits_hold_for_what_was_carried(self, journey: Journey) -> None:
        limit_task(journey.target, concurrency=1)
        limit_queue(journey.target, "narrow", concurrency=2)
        submit(journey.source, "k1", "k2", concurrency_key="k")
        submit(journey.source, "n1", "n2", "n3", queue="narrow", task="other")
        journey.carry(limit=2)
        narrow: dict[str, Any] = {"queues": ("narrow",), "tasks": ("other",)}

        assert given(journey.target) == ["k1"]
        assert given(journey.target, **narrow) == ["n1", "n2"]
        complete(journey.target, "k1")
        complete(journey.target, "n1")
        assert given(journey.target) == ["k2"]
        assert given(journey.target, **narrow) == ["n3"]

    def test_neither_depth_nor_a_closed_queue_refuses(self, journey: Journey) -> None:
        limit_queue(journey.target, max_depth=1)
        journey.target.run(journey.target.store.queues.close_queue(QUEUE, closed=True))
        submit(journey.source, "a", "b", "c")

        assert journey.carry() == [_CARRIED] * 3
        assert journey.target.run(journey.target.store.queues.depth(QUEUE)) == 3
        assert given(journey.target) == ["a", "b", "c"]

    def test_a_job_that_was_set_aside_is_ready(self, journey: Journey) -> None:
        source = journey.source
        submit(source, "job")
        source.renew("narrow", queues=(QUEUE,), tasks=("another",))
        assert source.run(source.store.upkeep.park(after_us=_DAY_US, limit=9)).tasks == (TASK,)

        journey.carry()

        assert journey.target.record("job").parked_us is None
        assert given(journey.target) == ["job"]

    def test_dead_letters_live_as_long_as_they_would_have(self, journey: Journey) -> None:
        journey.source.finish(new_job("dead"), SettlementKind.DEAD)
        (dead,) = shown(journey.source)
        bounded = msgspec.structs.replace(dead, expires_us=journey.source.now_us() + _DAY_US)
        journey.target.run(journey.target.store.transfer.carry_in([bounded]))

        journey.source.advance_us(_DAY_US - 1)
        assert journey.target.run(journey.target.store.upkeep.prune(limit=9)) == 0
        journey.source.advance_us(1)
        assert journey.target.run(journey.target.store.upkeep.prune(limit=9)) == 1

    def test_deadlines_still_end_a_job(self, journey: Journey) -> None:
        submit(journey.source, "job", deadline_us=journey.source.now_us() + SECOND_US)
        journey.carry()
        journey.source.advance_us(SECOND_US)

        assert len(journey.target.run(journey.target.store.upkeep.expire(limit=9))) == 1

    def test_workers_are_woken(self, trial: Trial) -> None:
        with journeys(trial, "in") as journey:
            submit(journey.source, "job")
            jobs = shown(journey.source)
            assert heard(trial, f"queue:{QUEUE}", lambda store: store.transfer.carry_in(jobs))


def _round(trial: Trial) -> list[Job]:
    """Claim all jobs once, and complete them."""
    trial.renew(ANNA)
    claims = (trial.ask(queues=QUEUES, quarantine=alone) for alone in (False, True))
    jobs = [job for claimed in claims for job in claimed.jobs]
    for job in jobs:
        trial.end(job)
    return jobs
