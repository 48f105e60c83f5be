# SPDX-License-Identifier: MIT
"""Records of a kind read as one, however many pages they take."""

from __future__ import annotations

from packhorse.core.generators import drive
from packhorse.core.policies.records import Put, RecordId
from packhorse.stores.records import all_records, store_clock
from tests.unit.memory_trial import memory_trial

MANY = 501  # more than a page


def test_all_records_of_a_kind_are_read_and_no_others() -> None:
    store = memory_trial().store
    own = [Put(RecordId("alert", "", f"{number:04}"), b"{}") for number in range(MANY)]
    store.run(store.records.change([*own, Put(RecordId("alerts", "", "another"), b"{}")]))

    page = drive(all_records(store.records, "alert"), store.run)

    assert [record.id for record in page.records] == [put.id for put in own]
    assert page.after is None


def test_the_clock_of_a_store_is_read_where_it_holds_nothing() -> None:
    trial = memory_trial()

    told = drive(store_clock(trial.store.records), trial.store.run)

    assert told == trial.store.run(trial.store.records.records("alert", limit=1)).now_us > 0
