# SPDX-License-Identifier: MIT
"""Records: documents with versions, changed all together or not at all."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus
from packhorse.core.policies.journal import Group
from packhorse.core.policies.records import (
    CHANGE_BYTES_MAX,
    CHANGES_MAX,
    COUNTERS_MAX,
    DOCUMENT_BYTES_MAX,
    NAME_BYTES_MAX,
    WRITERS_MAX,
    Add,
    Carry,
    Put,
    Record,
    RecordChange,
    RecordId,
    Remove,
)
from packhorse.errors import ConfigError, PayloadError, StoreCopied
from packhorse.stores.records import Changed, RecordPage
from packhorse.stores.transfer import Copied
from packhorse.testing.conformance.samples import new_job
from packhorse.testing.conformance.trial import EVERYTHING, Trial
from packhorse.testing.conformance.words import heard

_ONE: Final = RecordId("schedule", "acme", "nightly")
_OTHER: Final = RecordId("schedule", "acme", "weekly")
_MOST: Final = 2**63 - 1


class TestRecords:
    """A put stores a document under a version that is never used again."""

    def test_what_was_put_is_there(self, trial: Trial) -> None:
        answer = _change(trial, Put(_ONE, b"[]", order=7, keep_us=SECOND_US))

        found = _record(trial)
        expires_us = trial.now_us() + SECOND_US
        assert found == Record(_ONE, b"[]", answer.versions[0], 7, expires_us)
        assert answer == Changed(trial.now_us(), versions=(found.version,))
        assert answer.applied

    def test_what_was_never_put_is_none(self, trial: Trial) -> None:
        _change(trial, Put(_OTHER, b"{}"))

        assert _find(trial, _ONE) is None

    def test_one_that_has_expired_is_none_and_may_be_put_as_new(self, trial: Trial) -> None:
        _change(trial, Put(_ONE, b"{}", keep_us=SECOND_US), Add(_ONE, {"seen": 1}))
        trial.advance_us(SECOND_US)

        assert _find(trial, _ONE) is None
        assert _change(trial, Put(_ONE, b"new", expected=0)).applied
        assert _record(trial).counters == {}

    def test_the_document_is_opaque_to_the_store(self, trial: Trial) -> None:
        for document in (b"", b"[]", b'{"n":12345678901234567}', bytes(range(256))):
            _change(trial, Put(_ONE, document))
            assert _record(trial).document == document

    @pytest.mark.parametrize("order", [-(2**63), -1, 0, 2**53 + 1, _MOST])
    def test_an_order_is_kept_to_the_last_digit_or_taken_away(
        self, trial: Trial, order: int
    ) -> None:
        _change(trial, Put(_ONE, b"{}", order=order))
        assert _record(trial).order == order
        assert [one.id for one in _page(trial, by_order=True).records] == [_ONE]

        _change(trial, Put(_ONE, b"{}"))
        assert _record(trial).order is None
        assert _page(trial, by_order=True).records == ()

    def test_a_store_that_was_copied_changes_nothing(self, trial: Trial) -> None:
        records, journal, transfer = trial.store.records, trial.store.journal, trial.store.transfer
        group = Group("batch", "acme", "import", "1")
        _change(trial, Put(_ONE, b"before"))
        trial.run(transfer.mark(Copied("there", 1)))

        for change in (Put(_ONE, b"after"), Remove(_ONE), Add(_ONE, {"count": 1})):
            with pytest.raises(StoreCopied, match="there"):
                trial.run(records.change([change], jobs=[new_job("fired")]))
            with pytest.raises(StoreCopied, match="there"):
                trial.run(journal.fold(group, [], [change], jobs=[new_job("folded")]))

        assert (_record(trial).document, _record(trial).counters) == (b"before", {})
        assert trial.run(trial.store.inspection.job("fired")) is None
        trial.run(transfer.mark(Copied("there", 1, under_way=True)))
        with pytest.raises(StoreCopied, match="are being copied to there, since 1970-01-01"):
            trial.run(records.change([Put(_ONE, b"after")]))
        trial.run(transfer.mark(None))
        assert _change(trial, Put(_ONE, b"after")).applied

    def test_a_put_applies_if_the_version_is_as_expected(self, trial: Trial) -> None:
        first = _change(trial, Put(_ONE, b"1", expected=0)).versions[0]
        second = _change(trial, Put(_ONE, b"2", expected=first)).versions[0]

        assert second > first
        assert _change(trial, Put(_ONE, b"3", expected=first)).conflicts == (0,)
        assert _change(trial, Put(_ONE, b"3", expected=0)).conflicts == (0,)
        assert _change(trial, Put(_OTHER, b"3", expected=first)).conflicts == (0,)
        assert (_record(trial).document, _record(trial).version) == (b"2", second)
        assert _change(trial, Put(_ONE, b"4")).applied

    def test_a_record_is_removed_if_the_version_is_as_expected(self, trial: Trial) -> None:
        version = _change(trial, Put(_ONE, b"1", order=1)).versions[0]

        assert _change(trial, Remove(_ONE, expected=version + 1)).conflicts == (0,)
        assert _change(trial, Remove(_ONE, expected=0)).conflicts == (0,)
        assert _change(trial, Remove(_ONE, expected=version)).versions == (0,)
        assert _find(trial, _ONE) is None
        assert _page(trial).records == _page(trial, by_order=True).records == ()
        assert _change(trial, Remove(_ONE)).applied
        assert _change(trial, Remove(_ONE, expected=version)).conflicts == (0,)

    def test_all_changes_apply_or_none_and_the_answer_says_which_conflict(
        self, trial: Trial
    ) -> None:
        _change(trial, Put(_ONE, b"1"))

        answer = _change(
            trial,
            Put(_OTHER, b"2"),
            Put(_ONE, b"3", expected=0),
            Add(_ONE, {"n": 1}),
            Add(RecordId("schedule", "", "none"), {"n": 1}),
        )

        assert answer.conflicts == (1, 3)
        assert (answer.versions, answer.jobs, answer.applied) == ((), (), False)
        assert _find(trial, _OTHER) is None
        assert (_record(trial).document, _record(trial).counters) == (b"1", {})

    def test_changes_of_one_call_see_those_before_them(self, trial: Trial) -> None:
        answer = _change(
            trial, Put(_ONE, b"1", expected=0), Add(_ONE, {"n": 2}), Remove(_ONE), Put(_ONE, b"2")
        )

        assert answer.versions == (_record(trial).version,) * 4
        assert (_record(trial).document, _record(trial).counters) == (b"2", {})

    def test_a_version_is_never_given_twice(self, trial: Trial) -> None:
        seen = set()
        for turn in range(3):
            seen.add(_change(trial, Put(_ONE, b"1", keep_us=SECOND_US)).versions[0])
            seen.add(_change(trial, Put(_ONE, b"2", keep_us=SECOND_US)).versions[0])
            if turn == 1:
                trial.advance_us(SECOND_US)
                trial.run(trial.store.upkeep.prune(limit=EVERYTHING))
                trial.clock.step(-1)
            _change(trial, Remove(_ONE))

        assert len(seen) == 6

    def test_expired_records_are_removed_by_upkeep_and_not_counted(self, trial: Trial) -> None:
        for number in range(3):
            _change(trial, Put(RecordId("k", "", str(number)), b"", order=1, keep_us=SECOND_US))
        _change(trial, Put(_ONE, b"stays", keep_us=2 * SECOND_US))
        trial.advance_us(SECOND_US)

        assert trial.run(trial.store.upkeep.prune(limit=2)) == 0
        assert trial.run(trial.store.upkeep.prune(limit=2)) == 0
        trial.clock.step(-1)  # a record that had only expired would exist again

        assert [one.id for one in _page(trial, kind=None).records] == [_ONE]

    def test_not_before_its_time_nothing_is_done(self, trial: Trial) -> None:
        due_us, job = trial.now_us() + 1, new_job("fire")

        early = trial.run(
            trial.store.records.change([Put(_ONE, b"1")], jobs=[job], not_before=due_us)
        )
        assert (early.early, early.applied, early.now_us) == (True, False, trial.now_us())
        assert (_find(trial, _ONE), trial.find("fire")) == (None, None)

        trial.advance_us(1)
        due = trial.run(
            trial.store.records.change([Put(_ONE, b"1")], jobs=[job], not_before=due_us)
        )
        assert due.applied
        assert trial.status("fire") is JobStatus.QUEUED

    def test_counters_are_added_to_beside_the_document(self, trial: Trial) -> None:
        version = _change(trial, Put(_ONE, b"1"), Add(_ONE, {"done": 2, "failed": 1})).versions[0]
        answer = _change(trial, Add(_ONE, {"done": -5}), Add(_ONE, {"failed": 2**62}))

        found = _record(trial)
        assert found.counters == {"done": -3, "failed": 2**62 + 1}
        assert answer.versions == (version, version)  # an addition leaves the version alone
        _change(trial, Put(_ONE, b"2", expected=version))
        assert _record(trial).counters == found.counters

    def test_a_counter_that_would_leave_64_bits_changes_nothing(self, trial: Trial) -> None:
        _change(trial, Put(_ONE, b"1"), Add(_ONE, {"n": _MOST}))

        with pytest.raises(ConfigError, match="64 bits"):
            _change(trial, Add(_ONE, {"m": 1}), Add(_ONE, {"n": 1}))

        assert _record(trial).counters == {"n": _MOST}

    def test_what_a_writer_counted_once_is_not_counted_again(self, trial: Trial) -> None:
        _change(trial, Put(_ONE, b"1"))
        for number in (1, 2, 2, 1, 3):
            assert _change(trial, Add(_ONE, {"n": number}, writer="w", number=number)).applied
        _change(trial, Add(_ONE, {"n": 10}, writer="v", number=1))

        assert _record(trial).counters == {"n": 16}
        assert _record(trial).writers == {"w": 3, "v": 1}

    def test_the_writer_that_was_silent_longest_is_forgotten(self, trial: Trial) -> None:
        adds = [Add(_ONE, {"n": 1}, writer=str(at), number=1) for at in range(WRITERS_MAX)]
        _change(trial, Put(_ONE, b"1"), *adds, Add(_ONE, {"n": 1}, writer="0", number=2))
        _change(trial, Add(_ONE, {"n": 1}, writer="new", number=1))

        writers = _record(trial).writers
        assert (len(writers), "0" in writers, "1" in writers) == (WRITERS_MAX, True, False)

    def test_a_record_is_carried_as_it_was(self, trial: Trial) -> None:
        record = Record(_ONE, b"1", 2**52, -5, trial.now_us() + 9, {"n": 1}, {"w": 2})

        assert _change(trial, Carry(record)).versions == (2**52,)
        assert _record(trial) == record
        assert _change(trial, Carry(record)).conflicts == (0,)
        _change(trial, Remove(_ONE))
        assert _change(trial, Carry(record)).versions == (2**52 + 1,)  # 2**52 was used before

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ([Put(_ONE, b"x" * (DOCUMENT_BYTES_MAX + 1))], PayloadError),
            ([Remove(_ONE)] * (CHANGES_MAX + 1), ConfigError),
            (
                [Put(_ONE, b"x" * DOCUMENT_BYTES_MAX)] * (CHANGE_BYTES_MAX // DOCUMENT_BYTES_MAX)
                + [Put(_OTHER, b"x")],
                PayloadError,
            ),
            ([Put(_ONE, b"", order=_MOST + 1)], ConfigError),
            ([Put(RecordId("No kind", "", ""), b"")], ConfigError),
            ([Remove(RecordId("k", "", "x" * (NAME_BYTES_MAX + 1)))], ConfigError),
            ([Remove(RecordId("k", "a\x01", ""))], ConfigError),
            ([Remove(RecordId("k", "", "\0"))], ConfigError),
            ([Remove(RecordId("k", "", "\ud800"))], ConfigError),
        ],
        ids=["document", "count", "bytes", "order", "kind", "key", "separator", "nul", "surrogate"],
    )
    def test_what_is_beyond_bounds_is_refused(
        self, trial: Trial, changes: list[RecordChange], error: type[Exception]
    ) -> None:
        with pytest.raises(error):
            _change(trial, *changes)

    def test_what_is_at_its_bounds_is_kept(self, trial: Trial) -> None:
        widest = RecordId("k" * 64, "t" * NAME_BYTES_MAX, "ü" * (NAME_BYTES_MAX // 2))
        counters = {str(at): at for at in range(COUNTERS_MAX)}
        _change(trial, Put(widest, b"x" * DOCUMENT_BYTES_MAX), Add(widest, counters))

        found = _find(trial, widest)
        assert found is not None
        assert (len(found.document), found.counters) == (DOCUMENT_BYTES_MAX, counters)
        with pytest.raises(ConfigError, match="counters"):
            _change(trial, Add(widest, {"one more": 1}))
        many = [Put(RecordId("many", "", str(at)), b"{}") for at in range(CHANGES_MAX)]
        assert _change(trial, *many).applied
        assert len(_page(trial, kind="many").records) == CHANGES_MAX

    @pytest.mark.parametrize("doing", ["put", "add", "remove"])
    def test_those_who_listen_to_the_kind_are_woken(self, trial: Trial, doing: str) -> None:
        _change(trial, Put(_ONE, b"1"))
        changes: dict[str, RecordChange] = {
            "put": Put(_ONE, b"2"),
            "add": Add(_ONE, {"n": 1}),
            "remove": Remove(_ONE),
        }
        change = changes[doing]

        assert heard(trial, "record:schedule", lambda store: store.records.change([change]))

    def test_of_many_at_once_each_counts_and_one_wins_a_version(self, trial: Trial) -> None:
        version = _change(trial, Put(_ONE, b"1")).versions[0]

        async def all_at_once() -> list[Changed]:
            puts = [Put(_ONE, b"%d" % at, expected=version) for at in range(8)]
            changes: list[RecordChange] = [*puts, *[Add(_ONE, {"n": 1})] * 8]
            plans = [trial.store.records.change([change]) for change in changes]
            return await asyncio.gather(*(trial.arun(plan) for plan in plans))

        answers = trial.play(all_at_once())

        assert sum(answer.applied for answer in answers[:8]) == 1
        assert _record(trial).counters == {"n": 8}


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
