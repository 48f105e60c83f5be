# SPDX-License-Identifier: MIT
"""From what producers wrote down to what may be stored: also of those that died in mid-submit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

import msgspec

from faults.collecting import _asked, _unsure
from faults.producer import Answer
from faults.records import Line

_clock: Final = count(1)


def line(event: str, job_id: str, answer: Answer | None = None) -> Line:
    note = "" if answer is None else msgspec.json.encode(answer).decode()
    return Line(event, job_id, 0, 0, 9, next(_clock), note)


def submit(job_id: str, *, key: str, holder: str = "") -> Iterator[Line]:
    """A submit that was answered, with the job itself or with one that was there before."""
    yield line("asking", job_id, Answer("charged", 0, key))
    known = bool(holder)
    yield line("submitted", holder or job_id, Answer("charged", 0, key, deduplicated=known))
    if known:
        yield line("not stored", job_id)


def cut_off(job_id: str, *, key: str) -> Iterator[Line]:
    """A submit whose producer died before it knew the answer."""
    yield line("asking", job_id, Answer("charged", 0, key))


def test_what_was_asked_for_and_not_answered_may_be_stored() -> None:
    lines = [*submit("told", key="a"), *submit("known", key="a", holder="told")]
    lines += [line("asking", "refused", Answer("narrow", 0)), line("not stored", "refused")]

    assert _unsure([*lines, *cut_off("cut off", key="b")]) == {"cut off"}


def test_the_key_of_a_job_whose_producer_died_is_known_though_others_were_answered_with_it() -> (
    None
):
    lines = [*cut_off("cut off", key="a"), *submit("later", key="a", holder="cut off")]

    stored = {one.job_id: one.key for one in _asked(lines) if not one.deduplicated}

    assert stored == {"cut off": "a"}
    assert _unsure(lines) == frozenset()  # a producer was told that it is there
