# SPDX-License-Identifier: MIT
"""Keys kept in order, however many, in whatever order they come and go."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from packhorse.stores.memory.state import Key, SortedKeys

keys = st.tuples(st.integers(0, 20), st.integers(0, 50), st.sampled_from("abc"))


def filled(count: int, step: int = 1) -> SortedKeys:
    """Keys from 0 up, added in steps that mix them well when the step is no divisor."""
    numbers = SortedKeys()
    for n in range(count):
        numbers.add((n * step % count, 0, "id"))
    return numbers


@given(st.lists(keys, unique=True), st.data())
def test_what_was_added_and_not_removed_comes_out_in_order(
    added: list[Key], data: st.DataObject
) -> None:
    index = SortedKeys()
    for key in added:
        index.add(key)
    removed = data.draw(st.lists(st.sampled_from(added), unique=True) if added else st.just([]))
    for key in removed:
        index.remove(key)
    left = sorted(set(added) - set(removed))

    assert list(index) == left
    assert bool(index) is bool(left)
    assert index.first() == (left[0] if left else None)


def test_thousands_of_keys_stay_in_order_while_they_come_and_go() -> None:
    index = filled(5_000, step=7)
    assert [key[0] for key in index] == list(range(5_000))

    for n in range(0, 5_000, 2):
        index.remove((n, 0, "id"))
    assert [key[0] for key in index] == list(range(1, 5_000, 2))

    for n in range(1, 5_000, 2):
        index.remove((n, 0, "id"))
    assert not index


def test_keys_go_in_before_between_and_after_the_others() -> None:
    index = filled(1_200)
    extra: list[Key] = [(-1, 0, "id"), (600, 0, "je"), (9_999, 0, "id")]
    for key in extra:
        index.add(key)

    assert list(index) == sorted([*((n, 0, "id") for n in range(1_200)), *extra])


def test_the_first_few_up_to_a_bound_are_found_without_looking_at_the_rest() -> None:
    index = SortedKeys()
    for n in range(2_000):
        index.add((n, 0, f"job-{n}"))

    assert index.up_to(3, limit=10) == ["job-0", "job-1", "job-2", "job-3"]
    assert index.up_to(1_999, limit=2) == ["job-0", "job-1"]
    assert index.up_to(-1, limit=10) == []
    assert index.up_to(3, limit=-1) == []
    assert list(islice(index, 1)) == [(0, 0, "job-0")]
