# SPDX-License-Identifier: MIT
"""When a process is stuck, alive, in need of its lease kept, and when it is started again."""

from __future__ import annotations

import os

import pytest

from packhorse.errors import ConfigError
from packhorse.runtime.supervisor.child_process import readable_stacks
from packhorse.runtime.supervisor.liveness import (
    ALIVE_SLACK_S,
    IDLE_BLOCKED_S,
    STUCK_SLACK_S,
    WATCH_S,
    ProcessState,
    is_alive,
    needs_renewal,
    restart_delay_s,
    stuck_since,
)
from packhorse.runtime.supervisor.probes import parse_address
from packhorse.runtime.supervisor.shared_memory import Running, SharedMemory, job_key

NOW = 1_000.0
LONG_AGO = 0.0
GRACE = 5.0
LIMIT = GRACE + STUCK_SLACK_S


def running(expires: float, *, place: int = 0) -> Running:
    return Running(place, f"job-{place}", 1, started=expires - 60, expires=expires)


def sight(*jobs: Running, turned_at: float, culprit: int | None = None) -> ProcessState:
    return ProcessState(NOW, LONG_AGO, turned_at, jobs, culprit, GRACE)


def test_a_loop_that_turns_is_left_to_end_its_jobs_itself() -> None:
    assert stuck_since(sight(running(NOW - 100), turned_at=NOW - 0.5)) is None


def test_a_blocked_loop_is_let_be_while_its_job_has_time_left() -> None:
    assert stuck_since(sight(running(NOW + 1), turned_at=NOW - 500)) is None
    assert stuck_since(sight(running(NOW - LIMIT + 1), turned_at=NOW - 500)) is None


@pytest.mark.req("S3-13", "S3-27")
def test_a_loop_blocked_beyond_its_jobs_time_and_grace_is_stuck() -> None:
    expires = NOW - LIMIT

    assert stuck_since(sight(running(expires), turned_at=expires - 1)) == expires


def test_a_known_culprit_with_time_left_is_not_killed_for_another_jobs_sake() -> None:
    impatient, culprit = running(NOW - 50, place=0), running(NOW + 50, place=1)

    assert stuck_since(sight(impatient, culprit, turned_at=NOW - 60, culprit=1)) is None
    assert stuck_since(sight(impatient, culprit, turned_at=NOW - 60)) == NOW - 50


def test_a_loop_that_has_turned_since_its_job_was_to_end_is_not_stuck_for_that_job() -> None:
    assert stuck_since(sight(running(NOW - 100), turned_at=NOW - 50)) is None


def test_a_loop_that_runs_nothing_has_a_minute() -> None:
    assert stuck_since(sight(turned_at=NOW - IDLE_BLOCKED_S)) is None
    assert stuck_since(sight(turned_at=NOW - IDLE_BLOCKED_S - 1)) is not None


def test_a_process_that_still_imports_its_app_is_neither_stuck_nor_dead() -> None:
    assert stuck_since(sight(turned_at=0.0)) is None
    assert is_alive(sight(turned_at=0.0))


def test_a_supervisor_that_was_away_itself_judges_no_child_at_once() -> None:
    back = ProcessState(NOW, NOW - WATCH_S + 1, NOW - 500, (running(NOW - 400),))

    assert stuck_since(back) is None
    assert is_alive(back)


def test_alive_is_a_loop_blocked_no_longer_than_its_jobs_may_take_and_five_seconds() -> None:
    assert is_alive(sight(turned_at=NOW - ALIVE_SLACK_S))
    assert not is_alive(sight(turned_at=NOW - ALIVE_SLACK_S - 1))
    assert is_alive(sight(running(NOW + 200), running(NOW - 100), turned_at=NOW - 300))
    assert not is_alive(sight(running(NOW - ALIVE_SLACK_S - 1), turned_at=NOW - 300))


def test_a_lease_is_kept_only_where_its_worker_is_late() -> None:
    assert not needs_renewal(NOW, renewed_at=0.0, lease_s=30)  # there is none yet
    assert not needs_renewal(NOW, renewed_at=NOW - 14, lease_s=30)
    assert needs_renewal(NOW, renewed_at=NOW - 15, lease_s=30)


def test_each_quick_death_makes_the_next_start_later_up_to_a_bound() -> None:
    delays = [restart_delay_s(number, begun=False) for number in range(12)]

    assert delays[0] == 0.0
    assert delays[1:4] == [0.1, 0.2, 0.4]
    assert delays == sorted(delays)
    assert restart_delay_s(1_000_000, begun=False) == 30.0
    assert restart_delay_s(1_000_000, begun=True) == 2.0


# ------------------------------------------------------------------------------------ the page


@pytest.fixture
def pages() -> tuple[SharedMemory, SharedMemory]:
    """The supervisor's view of a page, and the child's."""
    ours, descriptor = SharedMemory.create()
    theirs = SharedMemory(descriptor)
    os.close(descriptor)
    return ours, theirs


def test_what_one_side_writes_the_other_reads(pages: tuple[SharedMemory, SharedMemory]) -> None:
    parent, child = pages
    child.loop_turned(5.0)
    child.lease_renewed(6.0)
    child.blocked_by(0)
    child.logged("half an é" * 100)
    parent.keep_lease(7.0)
    parent.may_have_lapsed()

    assert (parent.turned_at, parent.renewed_at, parent.culprit) == (5.0, 6.0, 0)
    assert parent.last_log.startswith("half an é")
    assert (child.trusted_until, child.epoch) == (7.0, 1)
    child.blocked_by(None)
    assert parent.culprit is None


def test_the_board_has_each_job_from_its_beginning_to_its_end(
    pages: tuple[SharedMemory, SharedMemory],
) -> None:
    parent, child = pages
    places = [child.begin(f"job-{number}", number, 1.0, 2.0) or 0 for number in range(3)]

    child.ended(places[1])
    child.extend(places[2], 9.0)

    assert parent.running() == [
        Running(0, "job-0", 0, 1.0, 2.0),
        Running(2, "job-2", 2, 1.0, 9.0),
    ]
    assert [each.job_id for each in parent.unsettled()] == ["job-1"]
    child.settled(places[1])
    assert parent.unsettled() == []
    assert child.begin("job-3", 3, 1.0, 2.0) == places[1]  # places are used again


def test_a_job_with_a_long_id_is_recognised_on_the_board(
    pages: tuple[SharedMemory, SharedMemory],
) -> None:
    parent, child = pages
    name = "x" * 200
    child.begin(name, 4, 1.0, 2.0)

    (found,) = parent.running()

    assert (found.job_id, found.fence) == job_key(name, 4)


# ------------------------------------------------------------------------------------ the rest


def test_addresses_are_a_host_and_a_port_or_a_port_alone() -> None:
    assert parse_address("0.0.0.0:80") == ("0.0.0.0", 80)
    assert parse_address("9191") == ("127.0.0.1", 9191)
    assert parse_address("[::1]:9191") == ("::1", 9191)
    for text in ("here", "127.0.0.1:", ":80", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match=r"such as 127\.0\.0\.1:9191"):
            parse_address(text)


def test_of_a_dump_the_threads_in_user_code_are_kept() -> None:
    dump = (
        "Fatal Python error: Segmentation fault\n\n"
        "Thread 0x1 (most recent call first):\n"
        '  File "/lib/python3.11/threading.py", line 331 in wait\n'
        '  File "/site/packhorse/runtime/worker/heartbeat.py", line 141 in _run\n\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "/app/jobs.py", line 22 in take_down\n'
        '  File "/site/packhorse/runtime/worker/executor.py", line 55 in execute\n\n'
        "Extension modules: msgspec._core (total: 1)"
    )

    assert readable_stacks(dump) == (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x2 (most recent call first):\n"
        '  File "/app/jobs.py", line 22 in take_down'
    )
