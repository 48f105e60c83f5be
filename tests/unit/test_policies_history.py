# SPDX-License-Identifier: MIT
"""Spans in buckets, documents that fit a record, and totals that stay what they are."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.core.policies.history import (
    HistoryPart,
    QueueTotals,
    SpanTotals,
    decode_part,
    decode_series,
    decode_totals,
    encode_part,
    encode_series,
    encode_totals,
    totals_added,
    totals_of,
)
from packhorse.core.policies.records import DOCUMENT_BYTES_MAX
from packhorse.core.policies.series import (
    BOUNDS_S,
    EXPOSED_S,
    OTHER,
    OUTCOMES,
    Series,
    added,
    quantile,
    risen,
)

_BUCKETS = len(BOUNDS_S) + 1
_COUNTS = st.integers(0, 10**6)
_HISTOGRAMS = st.dictionaries(st.integers(0, _BUCKETS - 1), _COUNTS, max_size=4).map(
    lambda used: tuple(used.get(each, 0) for each in range(_BUCKETS))
)


@st.composite
def series(draw: st.DrawFn) -> Series:
    names = st.sampled_from(["a", "b", "c"])
    outcomes = draw(st.lists(_COUNTS, min_size=len(OUTCOMES), max_size=len(OUTCOMES)).map(tuple))
    return Series(
        *(draw(names), draw(names), outcomes, draw(_COUNTS)),
        *(draw(_HISTOGRAMS), 1.5, draw(_HISTOGRAMS), 2.5),
    )


@settings(max_examples=30)
@given(st.lists(series(), min_size=1, max_size=3))
def test_what_was_encoded_comes_back_and_adds_up(found: list[Series]) -> None:
    once = added(found)

    assert set(decode_series(encode_series(once))) == set(once)
    part = HistoryPart(once, SpanTotals(1, (QueueTotals("a", waiting=3, oldest_ms=9),)))
    back = decode_part(encode_part(part))
    assert (set(back.series), back.looked) == (set(once), part.looked)
    totals = totals_of([back])
    assert decode_totals(encode_totals(totals)) == totals
    assert sum(sum(each.outcomes) for each in totals.queues) == sum(
        sum(each.outcomes) for each in found
    )
    twice = totals_added([totals, totals])
    assert [each.waiting for each in twice.queues] == [2 * each.waiting for each in totals.queues]
    assert [each.oldest_ms for each in twice.queues] == [each.oldest_ms for each in totals.queues]
    for each in once:
        (both,) = added([each], [each])
        assert risen(each, both) == each


@given(
    st.lists(st.floats(0.0011, 7_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99])
)
def test_a_percentile_is_right_within_the_width_of_a_bucket(
    spans: list[float], share: float
) -> None:
    buckets = [0] * _BUCKETS
    for span in spans:
        buckets[bisect_left(BOUNDS_S, span)] += 1

    found = quantile(buckets, share)

    exact = sorted(spans)[ceil(len(spans) * share) - 1]
    assert found is not None
    assert exact / 2.5 <= found * 1.000001
    assert found <= exact * 2.5


def test_bounds_rise_by_no_more_than_is_told_and_scrapes_show_some_of_them() -> None:
    ratios = [after / before for before, after in pairwise(BOUNDS_S)]

    assert 1 < min(ratios) <= max(ratios) <= 2.5
    assert set(BOUNDS_S) > EXPOSED_S
    assert quantile((0,) * _BUCKETS, 0.5) is None
    assert quantile((0,) * (_BUCKETS - 1) + (5,), 0.5) == BOUNDS_S[-1]


@pytest.mark.parametrize("length", [10, 500])
def test_however_many_names_there_are_a_document_fits_and_loses_no_attempt(length: int) -> None:
    def named(number: int) -> Series:
        outcomes = (number + 1,) + (0,) * (len(OUTCOMES) - 1)
        return Series(f"{number:0{length}}", "task", outcomes, run=tuple(range(_BUCKETS)))

    many = [named(number) for number in range(1_000)]
    attempts = sum(sum(each.outcomes) for each in many)

    document = encode_series(many)
    kept = decode_series(document)
    totals = encode_totals(totals_of([HistoryPart(tuple(many))]))
    queues = decode_totals(totals).queues

    assert max(len(document), len(totals)) <= DOCUMENT_BYTES_MAX
    assert sum(sum(each.outcomes) for each in kept) == attempts
    assert sum(sum(each.outcomes) for each in queues) == attempts
    assert {each.queue for each in kept} >= {OTHER, f"{999:0{length}}"}
    again = decode_series(encode_series(added(kept, many)))
    assert sum(sum(each.outcomes) for each in again) == 2 * attempts
