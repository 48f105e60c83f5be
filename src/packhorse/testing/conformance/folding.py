# SPDX-License-Identifier: MIT
"""Folding: remove lines of a journal and change records in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import DeadReason, JobStatus, RateRule, UniqueRule
from packhorse.core.policies.journal import (
    KEPT_US,
    LINES_MAX,
    MEMBER_LIFE_US_MAX,
    Group,
    JournalLine,
)
from packhorse.core.policies.records import Add, Put, Record, Remove
from packhorse.core.policies.retention import DAY_US, Retention
from packhorse.core.settlement import SettlementKind
from packhorse.errors import ConfigError, PayloadError
from packhorse.stores.records import Changed, RefusedJob
from packhorse.stores.requests import QueueSettings, RedriveAnswer
from packhorse.testing.conformance.journaling import BATCH, journal, member, told
from packhorse.testing.conformance.samples import new_job, settlement_of
from packhorse.testing.conformance.trial import EVERYTHING, Trial
from packhorse.testing.conformance.words import cancel, heard, limit_queue, limit_rate, redrive

_OTHER: Final = BATCH._replace(run="2")
_HEAD: Final = BATCH.record


class TestJournalGroups:
    """Which groups have lines, and which lines a group has."""

    def test_groups_with_lines_are_named_once_that_of_the_oldest_line_first(
        self, trial: Trial
    ) -> None:
        for name, group in (("a", _OTHER), ("b", BATCH), ("c", _OTHER)):
            trial.finish(member(name, group))

        assert _groups(trial) == (_OTHER, BATCH)
        assert _groups(trial, limit=1) == (_OTHER,)
        assert _groups(trial, limit=0) == ()

    def test_a_group_whose_oldest_lines_are_gone_goes_behind(self, trial: Trial) -> None:
        for name, group in (("a", _OTHER), ("b", BATCH), ("c", _OTHER)):
            trial.finish(member(name, group))

        assert _fold(trial, journal(trial, _OTHER)[:1], group=_OTHER).applied
        assert _groups(trial) == (BATCH, _OTHER)
        assert _fold(trial, journal(trial)).applied
        assert _groups(trial) == (_OTHER,)

    def test_no_more_lines_than_the_limit_are_shown_the_oldest(self, trial: Trial) -> None:
        for name in "abc":
            trial.finish(member(name))
        trial.finish(member("other", _OTHER))

        lines = journal(trial)
        assert [line.job_id for line in lines] == ["a", "b", "c"]
        for limit in range(4):
            plan = trial.store.journal.journal(BATCH, limit=limit)
            assert trial.run(plan) == lines[:limit]

    def test_runs_and_tenants_are_groups_of_their_own(self, trial: Trial) -> None:
        groups = [BATCH, _OTHER, BATCH._replace(tenant=""), BATCH._replace(key="order")]
        for at, group in enumerate(groups):
            trial.finish(member(f"job-{at}", group))

        for at, group in enumerate(groups):
            assert [line.job_id for line in journal(trial, group)] == [f"job-{at}"]


class TestFolding:
    """Remove exactly these lines, and change records with jobs, in one transaction."""

    def test_exactly_the_lines_named_are_removed(self, trial: Trial) -> None:
        for name in "abcd":
            trial.finish(member(name))
        a, b, c, d = journal(trial)

        assert _fold(trial, [c, a]).applied
        assert journal(trial) == (b, d)

    def test_records_and_jobs_go_with_the_lines(self, trial: Trial) -> None:
        trial.finish(member("a"))

        answer = _fold(
            trial, journal(trial), Put(_HEAD, b"1"), Add(_HEAD, {"n": 1}), jobs=[new_job("next")]
        )

        assert (answer.applied, len(answer.versions)) == (True, 2)
        assert (_head(trial).document, _head(trial).counters) == (b"1", {"n": 1})
        assert trial.status("next") is JobStatus.QUEUED
        assert journal(trial) == ()

    def test_where_a_line_is_gone_nothing_is_done_and_told_which(self, trial: Trial) -> None:
        for name in "ab":
            trial.finish(member(name))
        gone, there = journal(trial)
        _fold(trial, [gone])

        answer = _fold(trial, [gone, there], Put(_HEAD, b"1"), jobs=[new_job("next")])

        assert (answer.gone, answer.applied) == ((gone.id,), False)
        assert journal(trial) == (there,)
        assert trial.find("next") is None
        assert trial.run(trial.store.records.record(_HEAD)) is None

    def test_a_line_of_another_group_is_not_there(self, trial: Trial) -> None:
        trial.finish(member("a", _OTHER))
        lines = journal(trial, _OTHER)

        assert _fold(trial, lines).gone == (lines[0].id,)
        assert journal(trial, _OTHER) == lines

    def test_where_a_change_conflicts_no_line_is_removed(self, trial: Trial) -> None:
        trial.finish(member("a"))
        lines = journal(trial)

        answer = _fold(trial, lines, Put(_HEAD, b"1", expected=1), jobs=[new_job("next")])

        assert (answer.conflicts, answer.applied) == ((0,), False)
        assert journal(trial) == lines
        assert trial.find("next") is None

    def test_an_id_is_not_given_again(self, trial: Trial) -> None:
        seen: set[int] = set()
        for name in "abc":
            trial.finish(member(name))
            [line] = journal(trial)
            assert line.id not in seen
            seen.add(line.id)
            _fold(trial, [line])

    def test_a_line_named_twice_is_removed_once(self, trial: Trial) -> None:
        trial.finish(member("a"))
        [line] = journal(trial)

        assert _fold(trial, [line, line]).applied

    def test_a_fold_of_nothing_is_a_change(self, trial: Trial) -> None:
        assert _fold(trial, [], Put(_HEAD, b"1")).applied
        assert _head(trial).document == b"1"

    def test_jobs_pass_a_full_and_a_closed_queue_and_refusals_are_told(self, trial: Trial) -> None:
        limit_queue(trial, max_depth=1)
        trial.finish(member("a"))
        trial.submit(new_job("full"))
        trial.run(trial.store.queues.close_queue("default", closed=True))
        jobs = [new_job("next"), new_job("binary", payload=b"\xff")]

        answer = _fold(trial, journal(trial), jobs=jobs)

        assert trial.status("next") is JobStatus.QUEUED
        assert isinstance(answer.jobs[1], RefusedJob)
        assert journal(trial) == ()

    def test_a_member_that_is_refused_is_a_dead_letter_and_has_its_line(self, trial: Trial) -> None:
        limit_queue(trial, "mail", dead_letter="shelf")
        limit_rate(trial, "queue", RateRule(2, SECOND_US))
        trial.submit(new_job("stranger", payload=b"1"))
        jobs = [
            member("shelved", queue="shelf"),
            member("fine"),
            member("heavy", weight=3, unique=UniqueRule("u")),
            member("binary", payload=b"\xff"),
            member("stranger", payload=b"2"),
            new_job("alone", queue="shelf"),
        ]

        answer = trial.run(trial.store.records.change([Put(_HEAD, b"1")], jobs=jobs))

        refused = [isinstance(one, RefusedJob) for one in answer.jobs]
        assert refused == [True, False, True, True, True, True]
        lost = ("shelved", "heavy", "binary")
        records = [trial.record(name) for name in lost]
        assert {one.dead_reason for one in records} == {DeadReason.REJECTED}
        assert all(one.error is not None and one.error.message for one in records)
        assert [one.payload for one in records] == [jobs[0].payload, jobs[2].payload, b"null"]
        assert sorted(told(trial)) == sorted(
            (name, JobStatus.DEAD, JobStatus.PENDING) for name in lost
        )
        assert trial.status("stranger") is trial.status("fine") is JobStatus.QUEUED
        assert trial.find("alone") is None

        assert redrive(trial, "heavy") is RedriveAnswer.REDRIVEN
        assert told(trial)[-1] == ("heavy", JobStatus.QUEUED, JobStatus.DEAD)

    def test_a_member_that_is_refused_is_a_dead_letter_of_its_queue(self, trial: Trial) -> None:
        kept = Retention(dead_us=SECOND_US)
        trial.declare(QueueSettings("mail", dead_letter="shelf", retention=kept))
        job = member("binary", payload=b"\xff", queue="mail")

        trial.run(trial.store.records.change([Put(_HEAD, b"1")], jobs=[job]))

        assert trial.record("binary").dead_letter == "shelf"
        trial.advance_us(SECOND_US)
        trial.run(trial.store.records.change([Remove(_HEAD)]))
        assert trial.run(trial.store.upkeep.prune(limit=10)) == 1
        assert trial.find("binary") is None

    def test_a_member_may_follow_in_the_same_fold(self, trial: Trial) -> None:
        trial.finish(member("a"))
        _fold(trial, journal(trial), jobs=[member("b")])

        cancel(trial, "b")

        assert told(trial) == [("b", JobStatus.CANCELLED, JobStatus.QUEUED)]

    def test_lines_of_another_store_are_appended(self, trial: Trial) -> None:
        trial.finish(member("a"))
        [line] = journal(trial)
        done = (JobStatus.COMPLETED, JobStatus.PROCESSING)
        carried = JournalLine(line.id, BATCH, "elsewhere", "n", *done, 2**40, 2)

        assert _fold(trial, [line], Put(_HEAD, b"1"), carried=[carried]).applied

        [new] = journal(trial)
        assert new.id != line.id
        assert (new.job_id, new.node, new.status, new.was) == ("elsewhere", "n", *done)
        assert (new.items, new.failed) == (2**40, 2)
        assert _groups(trial) == (BATCH,)

    def test_what_is_beyond_the_bounds_is_refused(self, trial: Trial) -> None:
        store = trial.store.journal
        with pytest.raises(ConfigError):
            store.fold(BATCH, range(LINES_MAX + 1))
        with pytest.raises(PayloadError):
            store.fold(BATCH, (), [Put(_HEAD, b"x" * 70_000)])

    def test_as_many_lines_as_may_be_are_folded_at_once(self, trial: Trial) -> None:
        trial.submit(*(member(f"job-{at}") for at in range(LINES_MAX)))
        claimed = trial.claim(limit=LINES_MAX)
        trial.settle(*(settlement_of(SettlementKind.COMPLETED, job) for job in claimed))

        assert _fold(trial, journal(trial), Put(_HEAD, b"1")).applied
        assert _groups(trial) == ()

    def test_those_who_listen_to_the_kind_are_woken(self, trial: Trial) -> None:
        changes = [Put(_HEAD, b"1")]

        assert heard(trial, "record:batch", lambda store: store.journal.fold(BATCH, (), changes))

    def test_of_many_folds_at_once_each_line_is_taken_once(self, trial: Trial) -> None:
        for name in "abcd":
            trial.finish(member(name))
        trial.run(trial.store.records.change([Put(_HEAD, b"1")]))
        ids = [line.id for line in journal(trial)]

        async def all_at_once() -> list[Changed]:
            wanted = [ids[:2], ids[2:], ids[1:3], ids] * 3
            plans = [
                trial.store.journal.fold(BATCH, each, [Add(_HEAD, {"n": len(each)})])
                for each in wanted
            ]
            return await asyncio.gather(*(trial.arun(plan) for plan in plans))

        trial.play(all_at_once())

        left = len(journal(trial))
        assert _head(trial).counters == {"n": 4 - left}
        assert left < 4


class TestKeptMembers:
    """A member is kept while the record of its group exists, up to a bound."""

    def test_a_member_is_kept_until_the_record_of_its_group_is_gone(self, trial: Trial) -> None:
        trial.run(trial.store.records.change([Put(_HEAD, b"1")]))
        trial.finish(member("a"))
        trial.finish(new_job("plain"))

        trial.advance_us(DAY_US)
        _prune(trial)
        assert trial.find("plain") is None
        assert trial.record("a").result == b'{"sent":true}'
        trial.run(trial.store.records.change([Remove(_HEAD)]))
        trial.advance_us(KEPT_US)
        _prune(trial)
        assert trial.find("a") is None

    def test_a_record_that_has_expired_keeps_no_member(self, trial: Trial) -> None:
        trial.run(trial.store.records.change([Put(_HEAD, b"1", keep_us=DAY_US)]))
        trial.finish(member("a"))

        trial.advance_us(DAY_US)
        _prune(trial)

        assert trial.find("a") is None

    def test_the_record_of_another_run_keeps_no_member(self, trial: Trial) -> None:
        trial.run(trial.store.records.change([Put(_OTHER.record, b"1")]))
        trial.finish(member("a"))

        trial.advance_us(DAY_US)
        _prune(trial)

        assert trial.find("a") is None

    def test_a_member_is_kept_no_longer_than_its_longest_life(self, trial: Trial) -> None:
        trial.run(trial.store.records.change([Put(_HEAD, b"1")]))
        trial.finish(member("a"))

        trial.advance_us(MEMBER_LIFE_US_MAX - 1)
        _prune(trial)
        assert trial.find("a") is not None
        trial.advance_us(KEPT_US)
        _prune(trial)
        assert trial.find("a") is None

    def test_members_that_are_kept_do_not_keep_others_from_being_removed(
        self, trial: Trial
    ) -> None:
        trial.run(trial.store.records.change([Put(_HEAD, b"1")]))
        trial.finish(member("a"))
        trial.finish(new_job("plain"))

        trial.advance_us(DAY_US)
        removed = [_prune(trial, limit=1), _prune(trial, limit=1)]

        assert removed == [0, 1]
        assert trial.find("plain") is None


def _groups(trial: Trial, limit: int = EVERYTHING) -> tuple[Group, ...]:
    return trial.run(trial.store.journal.journal_groups(limit=limit))


def _fold(
    trial: Trial,
    lines: Sequence[JournalLine],
    *changes: Any,
    group: Group = BATCH,
    **more: Any,
) -> Changed:
    ids = [line.id for line in lines]
    return trial.run(trial.store.journal.fold(group, ids, changes, **more))


def _head(trial: Trial) -> Record:
    found = trial.run(trial.store.records.record(_HEAD))
    assert found is not None
    return found


def _prune(trial: Trial, limit: int = EVERYTHING) -> int:
    return trial.run(trial.store.upkeep.prune(limit=limit))
