# SPDX-License-Identifier: MIT
"""What the store's clock showed, by the machine's: exact while it is not stepped."""

from __future__ import annotations

from typing import Final

from faults.checking.timeline import Step, Timeline

SECOND: Final = 1_000_000
#: One second ahead from 100 s on, half a second back from 200 s on.
STEPPED: Final = Timeline([Step(100 * SECOND, SECOND), Step(200 * SECOND, -SECOND // 2)])


def test_without_steps_both_clocks_agree() -> None:
    time = Timeline()

    assert time.earliest(5) == time.latest(5) == 5
    assert not time.doubtful(5)
    assert time.moves_us(0, 10) == []


def test_between_steps_there_is_no_doubt() -> None:
    assert STEPPED.earliest(50 * SECOND) == STEPPED.latest(50 * SECOND) == 50 * SECOND
    assert STEPPED.earliest(150 * SECOND) == STEPPED.latest(150 * SECOND) == 149 * SECOND
    assert STEPPED.latest(300 * SECOND) == 300 * SECOND + SECOND // 2


def test_what_came_twice_has_an_earliest_and_a_latest_moment() -> None:
    twice = 200 * SECOND

    assert STEPPED.doubtful(twice)
    assert STEPPED.earliest(twice) == 199 * SECOND
    assert STEPPED.latest(twice) == 200 * SECOND + SECOND // 2


def test_what_a_step_ahead_left_out_was_at_the_step() -> None:
    left_out = 100 * SECOND + SECOND // 2

    assert STEPPED.earliest(left_out) == STEPPED.latest(left_out) == 100 * SECOND


def test_the_moves_of_a_time_are_those_that_lie_in_it() -> None:
    assert STEPPED.moves_us(0, 150 * SECOND) == [SECOND]
    assert STEPPED.moves_us(150 * SECOND, 250 * SECOND) == [-SECOND * 3 // 2]
    assert STEPPED.moves_us(0, 250 * SECOND) == [SECOND, -SECOND * 3 // 2]
