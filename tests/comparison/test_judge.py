# SPDX-License-Identifier: MIT
"""The judge of the comparison counts what is planted in a record, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from comparison.judge import Verdict, judge, read

SECOND = 1_000_000_000


def verdict(*lines: str, held: int = 0) -> Verdict:
    """Judge a record whose times are written in seconds."""
    return judge(read(map(_in_nanoseconds, lines)), held)


def _in_nanoseconds(line: str) -> str:
    return " ".join(_nanoseconds(line.split()))


def _nanoseconds(words: list[str]) -> Iterator[str]:
    """Times are the last word, and in the lines about an end the one before as well."""
    times = 2 if words[0] in {"end", "cut"} else 1
    yield from words[:-times]
    yield from (str(round(float(word) * SECOND)) for word in words[-times:])


def test_a_run_without_faults_counts_nothing() -> None:
    found = verdict("accepted 1 0", "start 1 70 0.5", "end 1 70 0.5 1")

    assert (found.accepted, found.completed, found.missing, found.lost) == (1, 1, 0, 0)
    assert (found.started_again, found.completed_again, found.overlapping) == (0, 0, 0)
    assert (found.interrupted, found.resumed, found.resume_median) == (0, 0, None)
    assert found.longest_wait == 0.5


def test_a_job_that_was_accepted_and_never_completed_is_missing() -> None:
    found = verdict("accepted 1 0", "accepted 2 0", "start 1 70 1", "killed 70 2")

    assert (found.completed, found.missing, found.lost) == (0, 2, 2)


def test_what_the_store_still_holds_is_missing_but_not_lost() -> None:
    found = verdict("accepted 1 0", "accepted 2 0", "accepted 3 0", held=2)

    assert (found.missing, found.held, found.lost) == (3, 2, 1)


def test_a_store_that_holds_more_than_is_missing_has_lost_nothing() -> None:
    found = verdict("accepted 1 0", held=5)

    assert (found.missing, found.lost) == (1, 0)


def test_a_refused_job_is_not_missing() -> None:
    found = verdict("refused 1 0")

    assert (found.accepted, found.refused, found.missing) == (0, 1, 0)


def test_the_time_until_a_killed_job_runs_again_is_measured_from_the_kill() -> None:
    found = verdict(
        *("accepted 1 0", "start 1 70 1", "killed 70 2", "start 1 71 9.5", "end 1 71 9.5 10"),
        *("accepted 2 0", "start 2 70 1", "start 2 71 4", "end 2 71 4 5"),
        *("accepted 3 0", "start 3 70 1", "start 3 71 3", "end 3 71 3 4"),
    )

    assert (found.interrupted, found.resumed) == (3, 3)
    assert (found.resume_median, found.resume_longest) == (2.0, 7.5)
    assert (found.started_again, found.completed_again, found.overlapping) == (3, 0, 0)


def test_a_killed_job_that_never_runs_again_is_counted_as_such() -> None:
    found = verdict("accepted 1 0", "start 1 70 1", "killed 70 2")

    assert (found.interrupted, found.resumed, found.resume_longest) == (1, 0, None)


def test_a_job_that_ended_before_the_kill_was_not_interrupted() -> None:
    found = verdict("accepted 1 0", "start 1 70 1", "end 1 70 1 2", "killed 70 3")

    assert (found.interrupted, found.completed) == (0, 1)


@pytest.mark.parametrize("end", ["end 1 71 2 4", "end 1 71 2 9"], ids=["completed", "running"])
def test_a_kill_interrupts_nothing_that_others_have_in_hand(end: str) -> None:
    found = verdict("accepted 1 0", "start 1 70 1", "start 1 71 2", end, "killed 70 5")

    assert (found.interrupted, found.overlapping, found.completed_again) == (0, 1, 0)


def test_a_process_id_that_is_used_again_is_another_process() -> None:
    found = verdict(
        *("accepted 1 0", "accepted 2 0", "start 1 70 1", "killed 70 2"),
        *("start 2 70 3", "end 2 70 3 4", "start 1 70 5", "killed 70 6"),
        *("start 1 70 8", "end 1 70 8 9"),
    )

    assert (found.interrupted, found.resume_median, found.resume_longest) == (2, 2.5, 3.0)
    assert found.killed_processes == 2


def test_a_paused_attempt_that_returns_after_its_successor_is_a_second_completion() -> None:
    found = verdict(
        *("accepted 1 0", "start 1 70 1", "paused 70 2", "start 1 71 6", "end 1 71 6 7"),
        *("resumed 70 9", "end 1 70 1 9.5"),
    )

    assert (found.started_again, found.completed_again, found.overlapping) == (1, 1, 1)
    assert found.interrupted == 0


def test_an_attempt_that_was_cut_does_not_count_as_completed() -> None:
    found = verdict("accepted 1 0", "start 1 70 1", "cut 1 70 1 2", "start 1 71 3", "end 1 71 3 4")

    assert (found.started_again, found.completed_again, found.overlapping) == (1, 0, 0)


def test_attempts_one_after_the_other_do_not_overlap() -> None:
    found = verdict("accepted 1 0", "start 1 70 1", "end 1 70 1 2", "start 1 71 2", "end 1 71 2 3")

    assert (found.completed_again, found.overlapping) == (1, 0)


def test_a_line_that_is_none_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="no line of a record"):
        read(["start 1 70"])
