# SPDX-License-Identifier: MIT
"""`core.chunks`: what is kept of the items of a chunk, in parts that every store takes."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.batches import ItemError
from packhorse.core.chunks import ITEM_RESULT_BYTES_MAX, ChunkState, ItemState, KeptItem
from packhorse.core.outcome import MESSAGE_LENGTH_MAX
from packhorse.core.policies.attachments import ATTACHED_MAX, VALUE_BYTES_MAX

#: What a value takes at most of its room, so that it fits encrypted too.
_BYTES_MAX = VALUE_BYTES_MAX * 3 // 4


def _done(index: int, size: int = 1) -> KeptItem:
    return KeptItem(index, ItemState.DONE, msgspec.Raw(b'"' + b"x" * size + b'"'))


def _failed(index: int, length: int = 1) -> KeptItem:
    return KeptItem(index, ItemState.AGAIN, error=ItemError("E", "é" * length, "EXCEPTION"))


def _fits(values: dict[str, bytes]) -> bool:
    return len(values) <= ATTACHED_MAX and all(len(each) <= _BYTES_MAX for each in values.values())


def test_items_that_failed_with_long_messages_fit() -> None:
    state = ChunkState(100, {})
    for index in range(100):
        state.note(_failed(index, MESSAGE_LENGTH_MAX))

    assert _fits(state.taken())
    assert _fits(state.ended())


def test_items_with_large_results_fit_after_they_had_failed() -> None:
    state = ChunkState(50, {})
    for index in range(50):
        state.note(_failed(index))
    for index in range(50):
        state.note(_done(index, ITEM_RESULT_BYTES_MAX - 2))

    assert _fits(state.taken())


def test_the_items_of_the_largest_chunk_fit() -> None:
    state = ChunkState(100_000, {})
    for index in range(100_000):
        state.note(_done(index))

    assert _fits(state.taken())


@given(
    attempts=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.sampled_from([None, 10, 9_000, 20_000]))),
        max_size=4,
    )
)
def test_no_item_that_was_kept_is_lost_by_what_later_attempts_keep(
    attempts: list[list[tuple[int, int | None]]],
) -> None:
    kept: dict[str, bytes] = {}
    known: dict[int, KeptItem] = {}
    for notes in attempts:
        state = ChunkState(10, kept)
        for index, size in notes:
            known[index] = _failed(index) if size is None else _done(index, size)
            state.note(known[index])
        kept |= state.taken()

        assert ChunkState(10, kept).items == known
        assert _fits(kept)
