# SPDX-License-Identifier: MIT
"""Records a page at a time, and jobs that are submitted with a change of records."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import IdempotencyRule, JobStatus, RateRule, UniqueRule
from packhorse.core.policies.records import (
    Add,
    Put,
    Record,
    RecordChange,
    RecordId,
)
from packhorse.errors import ConfigError
from packhorse.stores.plan import Plan
from packhorse.stores.records import Changed, RecordPage, RefusedJob
from packhorse.stores.requests import Submitted
from packhorse.testing.conformance.samples import QUEUE, new_job
from packhorse.testing.conformance.trial import EVERYTHING, Trial
from packhorse.testing.conformance.words import given, heard, limit_queue, limit_rate

_ONE: Final = RecordId("schedule", "acme", "nightly")
_OTHER: Final = RecordId("schedule", "acme", "weekly")
_MOST: Final = 2**63 - 1


class TestRecordPages:
    """Records of a kind, a page at a time."""

    def test_records_come_by_kind_tenant_and_key(self, trial: Trial) -> None:
        named = [
            *(RecordId("a", "", "x"), RecordId("a", "", "é"), RecordId("a", "b", "")),
            *(RecordId("a", "b", "a b"), RecordId("a", "bc", "a"), RecordId("ab", "", "")),
        ]
        _change(trial, *(Put(one, b"") for one in reversed(named)))

        assert [one.id for one in _page(trial, kind=None).records] == named
        assert [one.id for one in _page(trial, kind="a").records] == named[:-1]
        assert [one.id for one in _page(trial, kind="a", tenant="b").records] == named[2:4]
        assert [one.id for one in _page(trial, kind="a", tenant="").records] == named[:2]
        assert _page(trial, kind="b").records == ()

    def test_a_page_carries_the_clock_and_where_to_go_on(self, trial: Trial) -> None:
        named = [RecordId("k", "", f"{at:02}") for at in range(5)]
        _change(trial, *(Put(one, b"") for one in named))

        seen, after = [], None
        for size in (2, 2, 1):
            page = _page(trial, kind="k", after=after, limit=2)
            assert (len(page.records), page.now_us) == (size, trial.now_us())
            seen += [one.id for one in page.records]
            after = page.after

        assert (seen, after) == (named, None)
        assert _page(trial, kind="k", limit=0).records == ()

    def test_by_order_only_those_come_that_have_one_by_that_number(self, trial: Trial) -> None:
        orders = {"a": 9, "b": -(2**63), "c": 10, "d": None, "e": 10, "f": _MOST}
        _change(trial, *(Put(_key(key), b"", order=order) for key, order in orders.items()))
        _change(trial, Put(RecordId("other", "", ""), b"", order=0))

        seen, after = "", None
        for _ in range(3):
            page = _page(trial, kind="k", by_order=True, after=after, limit=2)
            seen += "".join(one.id.key for one in page.records)
            after = page.after

        assert (seen, after) == ("bacef", None)

    def test_what_is_due_next_is_the_first_of_a_tenant_or_of_all(self, trial: Trial) -> None:
        _change(
            trial,
            Put(RecordId("k", "beta", "x"), b"", order=1),
            Put(RecordId("k", "acme", "y"), b"", order=2),
        )

        assert _page(trial, kind="k", by_order=True, limit=1).records[0].id.tenant == "beta"
        mine = _page(trial, kind="k", tenant="acme", by_order=True, limit=1)
        assert [one.id.key for one in mine.records] == ["y"]

    def test_those_that_have_expired_are_left_out(self, trial: Trial) -> None:
        _change(trial, *(Put(_key(f"{at:03}"), b"", order=at, keep_us=1) for at in range(100)))
        _change(trial, Put(_key("stays"), b"", order=1000))
        trial.advance_us(1)

        for by_order in (False, True):
            page = _page(trial, kind="k", by_order=by_order, limit=1)
            assert [one.id.key for one in page.records] == ["stays"]
            assert page.after is None

    @pytest.mark.parametrize("after", ["nonsense", f"{'9' * 30}:k"])
    def test_a_place_that_is_none_is_refused(self, trial: Trial, after: str) -> None:
        with pytest.raises(ConfigError, match="no place"):
            _page(trial, kind="k", by_order=True, after=after)


class TestRecordJobs:
    """Jobs that are submitted with a change of records."""

    def test_jobs_are_stored_with_the_change_or_not_at_all(self, trial: Trial) -> None:
        _change(trial, Put(_ONE, b"1"))
        refused = _change(trial, Put(_ONE, b"2", expected=0), jobs=[new_job("a")])
        assert (refused.conflicts, trial.find("a")) == ((0,), None)

        stored = _change(
            trial, Put(_ONE, b"2"), jobs=[new_job("a"), new_job("b", delay_us=SECOND_US)]
        )

        assert stored.jobs == (
            Submitted("a", False, JobStatus.QUEUED),
            Submitted("b", False, JobStatus.PENDING),
        )
        assert given(trial) == ["a"]

    def test_a_job_that_is_known_or_whose_key_is_held_is_answered_by_the_other(
        self, trial: Trial
    ) -> None:
        rule = UniqueRule("u")
        trial.submit(new_job("a"), new_job("holder", unique=rule))

        answer = _change(
            trial,
            Put(_ONE, b"1"),
            jobs=[new_job("a"), new_job("b", unique=rule), new_job("c"), new_job("c")],
        )

        assert [_shown(one) for one in answer.jobs] == [
            ("a", True),
            ("holder", True),
            ("c", False),
            ("c", True),
        ]
        assert trial.find("b") is None

    def test_neither_depth_nor_a_closed_queue_refuses_or_drops_one(self, trial: Trial) -> None:
        limit_queue(trial, "small", max_depth=1)
        limit_queue(trial, "dropping", max_depth=1, on_full="drop")
        trial.run(trial.store.queues.close_queue("closed", closed=True))
        queues = ("small", "small", "dropping", "dropping", "closed")
        jobs = [new_job(f"{queue}-{at}", queue=queue) for at, queue in enumerate(queues)]

        answer = _change(trial, Put(_ONE, b"1"), jobs=jobs)

        assert [_shown(one) for one in answer.jobs] == [(job.id, False) for job in jobs]
        assert {trial.status(job.id) for job in jobs} == {JobStatus.QUEUED}

    def test_what_else_would_refuse_one_is_told_per_job_and_the_others_are_stored(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, "mail", dead_letter="shelf")
        limit_rate(trial, "queue", RateRule(2, SECOND_US))
        rule = IdempotencyRule("i", digest="one", window_us=SECOND_US)
        trial.submit(new_job("known", payload=b"1"), new_job("same", idempotency=rule))
        another = IdempotencyRule("i", digest="another", window_us=SECOND_US)

        answer = _change(
            trial,
            Put(_ONE, b"1"),
            jobs=[
                new_job("shelved", queue="shelf"),
                new_job("heavy", weight=3),
                new_job("mismatch", idempotency=another),
                new_job("known", payload=b"2"),
                new_job("binary", payload=b"\xff"),
                new_job("fine"),
            ],
        )

        codes = [one.code if isinstance(one, RefusedJob) else "" for one in answer.jobs]
        assert codes == [
            *("CONFIG_ERROR", "CONFIG_ERROR", "IDEMPOTENCY_MISMATCH", "JOB_CONFLICT"),
            *("PAYLOAD_ERROR", ""),
        ]
        assert all(one.reason for one in answer.jobs if isinstance(one, RefusedJob))
        assert [one.job_id for one in answer.jobs[:3]] == ["shelved", "heavy", "mismatch"]
        assert (_record(trial).document, trial.status("fine")) == (b"1", JobStatus.QUEUED)
        assert trial.find("shelved") is trial.find("heavy") is trial.find("mismatch") is None

    def test_jobs_of_tenants_and_with_keys_of_their_own_stand_where_a_submit_puts_them(
        self, trial: Trial
    ) -> None:
        jobs = [
            new_job("first", ordering_key="k"),
            new_job("second", ordering_key="k"),
            new_job("tenant", tenant="acme"),
            new_job("expiring", deadline_us=trial.now_us() + 1),
        ]

        _change(trial, Put(_ONE, b"1"), jobs=jobs)

        assert sorted(given(trial)) == ["expiring", "first", "tenant"]

    def test_changes_in_opposite_orders_beside_upkeep_wait_for_each_other(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, "small", max_depth=1)
        named = [_key(str(at)) for at in range(6)]
        _change(trial, *(Put(one, b"", keep_us=1) for one in named))
        trial.advance_us(1)  # upkeep removes them, or they are put again

        def change(turn: int) -> Plan[Changed]:
            order = named if turn % 2 else named[::-1]
            job = new_job(f"job-{turn}", queue="small", unique=UniqueRule(str(turn % 3)))
            puts = [Put(one, b"%d" % turn) for one in order]
            adds = [Add(one, {"n": 1}, writer="w", number=turn) for one in order]
            return trial.store.records.change([*puts, *adds], jobs=[job])

        async def all_at_once() -> list[Changed]:
            upkeep, jobs = trial.store.upkeep, trial.store.jobs
            beside: list[Plan[Any]] = [
                upkeep.prune(limit=9),
                upkeep.promote(limit=9),
                jobs.redrive(["job-0"]),
            ]
            changes = [trial.arun(change(turn)) for turn in range(20)]
            others = [trial.arun(plan) for plan in beside * 5]
            answers = await asyncio.gather(*changes, *others)
            return [one for one in answers if isinstance(one, Changed)]

        answers = trial.play(all_at_once())

        assert [answer.applied for answer in answers] == [True] * 20
        ids = {one.job_id for answer in answers for one in answer.jobs}
        assert len(ids) == 3  # one of each key, which answers for the others

    def test_workers_of_the_queue_are_woken(self, trial: Trial) -> None:
        job = new_job("woken")

        assert heard(trial, f"queue:{QUEUE}", lambda store: store.records.change([], jobs=[job]))


def _shown(answer: Submitted | RefusedJob) -> tuple[str, bool]:
    assert isinstance(answer, Submitted)
    return answer.job_id, answer.deduplicated


def _key(key: str) -> RecordId:
    return RecordId("k", "", key)


def _change(trial: Trial, *changes: RecordChange, **more: Any) -> Changed:
    return trial.run(trial.store.records.change(changes, **more))


def _find(trial: Trial, named: RecordId) -> Record | None:
    return trial.run(trial.store.records.record(named))


def _record(trial: Trial) -> Record:
    found = _find(trial, _ONE)
    assert found is not None
    return found


def _page(trial: Trial, *, kind: str | None = "schedule", **asked: Any) -> RecordPage:
    asked.setdefault("limit", EVERYTHING)
    return trial.run(trial.store.records.records(kind, **asked))
