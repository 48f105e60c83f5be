# SPDX-License-Identifier: MIT
"""How soon a dead process's jobs went on: who is late, and who is excused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pytest

from faults.checking.evidence import Run
from faults.checking.rescues import (
    STANDS_US,
    WAITS_US,
    Loss,
    Losses,
    excused_us,
    late,
    losses_of,
    ran_late,
    stood_us,
    summary,
    waited_us,
)
from faults.checking.timeline import Step, Timeline

SECOND: Final = 1_000_000
LEASE: Final = 2 * SECOND
IN_TIME: Final = Loss("one", 1, 10 * SECOND, 17 * SECOND, 20 * SECOND)


@pytest.mark.parametrize(
    ("loss", "is_late"),
    [
        (IN_TIME, False),
        (msgspec.structs.replace(IN_TIME, taken_back_us=17 * SECOND + 1), True),
        (msgspec.structs.replace(IN_TIME, taken_back_us=None), True),
        (
            msgspec.structs.replace(IN_TIME, taken_back_us=20 * SECOND, excused_us=3 * SECOND),
            False,
        ),
        (
            msgspec.structs.replace(IN_TIME, taken_back_us=20 * SECOND, excused_us=2 * SECOND),
            True,
        ),
    ],
)
def test_a_loss_is_late_beyond_lease_and_five_seconds(loss: Loss, *, is_late: bool) -> None:
    assert bool(list(late(Losses(LEASE, [loss])))) is is_late


#: A sighting that begins again: a second until the first look, a third of the lease to the next.
AGAIN: Final = LEASE // 3 + SECOND
SLOW: Final = msgspec.structs.replace(IN_TIME, taken_back_us=30 * SECOND)


@pytest.mark.parametrize(
    ("steps", "away", "stalls", "expected"),
    [
        ([], [], [], 0),
        ([], [(5 * SECOND, 9 * SECOND), (31 * SECOND, 40 * SECOND)], [], 0),
        ([], [(12 * SECOND, 14 * SECOND)], [], 2 * SECOND + AGAIN),
        ([], [(5 * SECOND, 11 * SECOND), (29 * SECOND, 40 * SECOND)], [], 2 * (SECOND + AGAIN)),
        ([], [], [(12 * SECOND, 14 * SECOND), (1, 2)], 2 * SECOND),
        ([Step(5 * SECOND, SECOND)], [], [], 0),
        ([Step(12 * SECOND, -SECOND)], [], [], SECOND + AGAIN),
        ([Step(12 * SECOND, SECOND)], [], [], LEASE * 2 // 3 + SECOND),
    ],
)
def test_excused_is_the_time_in_which_no_worker_could_rescue(
    steps: Sequence[Step],
    away: Sequence[tuple[int, int]],
    stalls: Sequence[tuple[int, int]],
    expected: int,
) -> None:
    span = SLOW.died_us, SLOW.taken_back_us
    assert excused_us(span, LEASE, Timeline(steps), away, stalls) == expected


@pytest.mark.parametrize(
    ("suspects", "expected"),
    [
        ([], 0),
        ([(1, 9 * SECOND), (31 * SECOND, 40 * SECOND)], 0),
        ([(1, 11 * SECOND), (29 * SECOND, 40 * SECOND)], 2 * SECOND),
        ([(12 * SECOND, 22 * SECOND)], STANDS_US),
    ],
)
def test_excused_is_a_turn_of_suspects(suspects: Sequence[tuple[int, int]], expected: int) -> None:
    assert stood_us((10 * SECOND, 30 * SECOND), suspects) == expected
    assert stood_us((10 * SECOND, None), suspects) == 0


def test_who_was_never_taken_back_has_no_excuse() -> None:
    away = [(12 * SECOND, 14 * SECOND)]

    assert excused_us((10 * SECOND, None), LEASE, Timeline(), away, []) == 0


def test_losses_are_runs_whose_process_died_before_they_ended() -> None:
    runs = [
        Run("one", 1, 1, 10, 100),
        Run("one", 2, 2, 11, 300),
        Run("one", 3, 3, 12, 900, 950),
        Run("two", 1, 1, 10, 100, 150),  # ended before its process died
        Run("three", 1, 1, 13, 100),  # its process lives
        Run("four", 2, 2, 10, 150),  # it was lost before, with a worker that lives
        Run("five", 1, 1, 10, 160),  # it was given to another one, which died before it began
    ]
    ended_us = {("one", 1): 250, ("one", 2): 500, ("four", 2): 260, ("five", 1): 270}
    lost = {("one", 1): 90, ("one", 2): 290, ("four", 1): 50, ("four", 2): 140}
    lost |= {("five", 1): 150, ("five", 2): 310}

    found = list(losses_of(runs, {10: 200, 11: 400}, ended_us, lost))

    assert found == [
        Loss("one", 1, 200, 250, 290, number=1),
        Loss("one", 2, 400, 500, 900, number=2),
        Loss("four", 2, 200, 260, None, number=2),
        Loss("five", 1, 200, 270, 310, number=1),
    ]


def test_a_loss_tells_how_many_claims_later_its_job_ran_again() -> None:
    runs = [Run("one", 1, 1, 10, 100), Run("one", 2, 4, 11, 900, 950)]

    [found] = losses_of(runs, {10: 200}, {}, {})

    assert found.fences == 3


def test_a_job_runs_again_when_it_is_claimed_again() -> None:
    """The process that its handler wants may have to be started first."""
    runs = [Run("one", 1, 1, 10, 100), Run("one", 2, 2, 11, 900, 950)]
    claimed = {("one", 1): 90, ("one", 2): 400}

    [found] = losses_of(runs, {10: 200}, {("one", 1): 250}, {("one", 1): 90}, claimed)

    assert found == Loss("one", 1, 200, 250, 400, number=1)


LATE: Final = msgspec.structs.replace(IN_TIME, run_again_us=17 * SECOND + 1)


@pytest.mark.parametrize(
    ("loss", "is_late"),
    [
        (msgspec.structs.replace(IN_TIME, run_again_us=17 * SECOND), False),
        (LATE, True),
        (msgspec.structs.replace(LATE, excused_us=9 * SECOND), True),  # that is for the rescue
        (msgspec.structs.replace(LATE, again_excused_us=1), False),
        (msgspec.structs.replace(LATE, number=2), False),
        (msgspec.structs.replace(LATE, bound=True), False),
        (msgspec.structs.replace(LATE, run_again_us=None), True),
        (msgspec.structs.replace(LATE, run_again_us=None, over=True), False),
    ],
)
def test_a_job_runs_again_within_lease_and_five_seconds_of_its_first_loss(
    loss: Loss, *, is_late: bool
) -> None:
    assert bool(list(ran_late(Losses(LEASE, [loss])))) is is_late


def test_a_summary_tells_median_p99_and_the_longest() -> None:
    losses = [
        Loss(str(n), 1, 0, n * SECOND, 2 * n * SECOND, number=1 + n // 100) for n in range(1, 101)
    ]

    told = summary(Losses(LEASE, losses))

    assert told["taken back: number"] == 100
    assert told["taken back: median s"] == 50.5
    assert told["taken back: p99 s"] == 99
    assert told["taken back: max s"] == 100
    assert told["run again after a first loss: max s"] == 198
    assert told["run again after any loss: max s"] == 200


def test_nothing_lost_is_nothing_told() -> None:
    assert summary(Losses(LEASE)) == {}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("its process 17 ended while it ran: signal SIGKILL", WAITS_US),
        ("worker 01a1 was lost while it ran the job", 0),
        ("", 0),
    ],
)
def test_a_loss_that_its_worker_tells_of_is_followed_by_a_wait(message: str, expected: int) -> None:
    assert waited_us(message) == expected
