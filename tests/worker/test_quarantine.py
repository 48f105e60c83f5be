# SPDX-License-Identifier: MIT
"""Suspects run alone, and their turns are short."""

from __future__ import annotations

import asyncio
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus
from packhorse.core.lifecycle import rescue
from packhorse.runtime.worker.claim_policy import Mode, Quarantine
from tests.worker.support import Yard, heard, until

RESCUE_WAIT_US = 4 * SECOND_US  #: of a second loss


def suspected() -> Quarantine:
    quarantine = Quarantine()
    quarantine.claimed(Mode.NORMAL, jobs=5, suspects=True)
    return quarantine


def test_without_suspects_all_is_normal() -> None:
    quarantine = Quarantine()
    quarantine.claimed(Mode.NORMAL, jobs=0, suspects=False)

    assert quarantine.mode(0.0, busy=False, idle=True) is Mode.NORMAL
    assert quarantine.next_change(0.0) == inf


def test_an_idle_worker_takes_suspects_at_once() -> None:
    assert suspected().mode(0.0, busy=False, idle=True) is Mode.SUSPECTS


def test_a_busy_worker_lets_its_jobs_finish_first() -> None:
    quarantine = suspected()

    assert quarantine.mode(0.0, busy=True, idle=False) is Mode.NOTHING
    assert quarantine.next_change(0.0) == 2.0
    assert quarantine.mode(1.9, busy=False, idle=False) is Mode.SUSPECTS


def test_jobs_that_do_not_finish_in_time_put_the_turn_off_for_as_long() -> None:
    quarantine = suspected()
    quarantine.mode(0.0, busy=True, idle=False)

    assert quarantine.mode(2.0, busy=True, idle=False) is Mode.NORMAL
    assert quarantine.mode(3.9, busy=True, idle=False) is Mode.NORMAL
    assert quarantine.mode(4.0, busy=True, idle=False) is Mode.NOTHING


def test_each_drain_that_came_to_nothing_makes_the_next_one_twice_as_patient() -> None:
    quarantine = suspected()
    now, drains = 0.0, []

    for _ in range(8):
        mode, change_s = quarantine.mode(now, busy=True, idle=False), quarantine.next_change(now)
        assert change_s is not None
        now += change_s
        if mode is Mode.NOTHING:
            drains.append(change_s)

    # Beside endless work of ten seconds a job, a suspect gets its turn within a minute.
    assert drains == [2.0, 4.0, 8.0, 16.0]
    assert now == 60.0


def test_a_turn_taken_makes_it_impatient_again() -> None:
    quarantine = suspected()
    for now in (0.0, 2.0, 4.0):  # a drain that was too short, and a longer one
        quarantine.mode(now, busy=True, idle=False)

    assert quarantine.next_change(4.0) == 4.0
    assert quarantine.mode(7.0, busy=False, idle=False) is Mode.SUSPECTS
    quarantine.claimed(Mode.SUSPECTS, jobs=1, suspects=True)
    assert quarantine.mode(9.0, busy=False, idle=False) is Mode.NORMAL
    assert quarantine.mode(100.0, busy=True, idle=False) is Mode.NOTHING

    assert quarantine.next_change(100.0) == 2.0


def test_a_busy_worker_goes_on_for_a_while_in_which_another_may_take_the_suspects() -> None:
    quarantine = Quarantine(patience_s=3.0)
    quarantine.claimed(Mode.NORMAL, jobs=5, suspects=True)

    assert quarantine.mode(10.0, busy=True, idle=False) is Mode.NORMAL
    assert quarantine.next_change(11.0) == 2.0
    assert quarantine.mode(12.9, busy=True, idle=False) is Mode.NORMAL
    assert quarantine.mode(13.0, busy=True, idle=False) is Mode.NOTHING


def test_that_while_begins_again_when_other_suspects_are_seen() -> None:
    quarantine = Quarantine(patience_s=3.0)
    for now, waits in ((10.0, True), (12.0, False), (14.0, True)):
        quarantine.claimed(Mode.NORMAL, jobs=5, suspects=waits)
        assert quarantine.mode(now, busy=True, idle=False) is Mode.NORMAL

    assert quarantine.mode(16.9, busy=True, idle=False) is Mode.NORMAL
    assert quarantine.mode(17.0, busy=True, idle=False) is Mode.NOTHING
    idle = Quarantine(patience_s=3.0)
    idle.claimed(Mode.NORMAL, jobs=0, suspects=True)
    assert idle.mode(10.0, busy=False, idle=True) is Mode.SUSPECTS


def test_one_suspect_runs_at_a_time() -> None:
    quarantine = suspected()
    assert quarantine.mode(0.0, busy=False, idle=True) is Mode.SUSPECTS
    quarantine.claimed(Mode.SUSPECTS, jobs=1, suspects=True)

    assert quarantine.mode(0.1, busy=True, idle=False) is Mode.NOTHING
    assert quarantine.mode(0.2, busy=False, idle=False) is Mode.SUSPECTS


def test_a_turn_ends_after_a_second_and_normal_work_goes_on_for_as_long() -> None:
    quarantine = suspected()
    quarantine.mode(0.0, busy=False, idle=False)
    quarantine.claimed(Mode.SUSPECTS, jobs=1, suspects=True)

    assert quarantine.mode(1.5, busy=False, idle=False) is Mode.NORMAL
    assert quarantine.next_change(1.5) == 1.5
    assert quarantine.mode(2.9, busy=False, idle=False) is Mode.NORMAL
    assert quarantine.mode(3.0, busy=False, idle=False) is Mode.SUSPECTS


def test_beside_a_suspect_that_takes_long_normal_work_goes_on() -> None:
    quarantine = suspected()
    quarantine.mode(0.0, busy=False, idle=True)
    quarantine.claimed(Mode.SUSPECTS, jobs=1, suspects=True, crashes=2)

    assert quarantine.mode(0.1, busy=True, idle=False) is Mode.NOTHING
    assert quarantine.next_change(0.1) == 2.0
    assert quarantine.is_open
    assert quarantine.mode(2.1, busy=True, idle=False) is Mode.NORMAL
    assert not quarantine.is_open


def test_with_every_loss_a_suspect_is_left_alone_for_twice_as_long() -> None:
    alone_s = []
    for crashes in (2, 3, 4, 8, 40):
        quarantine = suspected()
        quarantine.mode(0.0, busy=False, idle=True)
        quarantine.claimed(Mode.SUSPECTS, jobs=1, suspects=True, crashes=crashes)
        quarantine.mode(0.0, busy=True, idle=False)
        alone_s.append(quarantine.next_change(0.0))

    assert alone_s == [2.0, 4.0, 8.0, 128.0, 600.0]


def test_a_turn_ends_when_no_suspect_is_left() -> None:
    quarantine = suspected()
    quarantine.mode(0.0, busy=False, idle=True)
    quarantine.claimed(Mode.SUSPECTS, jobs=0, suspects=True)

    assert quarantine.mode(0.1, busy=False, idle=True) is Mode.NORMAL


def lose(yard: Yard, task: str) -> None:
    """Have the only job lost with two workers that die: a suspect, and due in some seconds."""
    for worker in ("dead", "dead too"):
        yard.store_clock.ahead_us += RESCUE_WAIT_US
        yard.claim_by_hand(worker, task, lease_us=50_000)
        yard.store_clock.ahead_us += SECOND_US
        orphans = yard.do(yard.store.leases.orphans([worker], limit=1))
        yard.do(yard.store.jobs.settle([rescue(orphan) for orphan in orphans]))


async def test_a_suspect_runs_with_nothing_beside_it() -> None:
    yard = Yard()
    running, beside = 0, []

    async def work(name: str) -> None:
        nonlocal running
        running += 1
        await asyncio.sleep(0.005)
        if name == "suspect":
            beside.append(running)
        running -= 1

    yard.task(work)
    suspect = yard.submit("work", {"name": "suspect"})
    lose(yard, "work")
    yard.store_clock.ahead_us += RESCUE_WAIT_US
    jobs = [yard.submit("work", {"name": "other"}) for _ in range(50)]

    await yard.burst(concurrency=5)

    assert beside == [1]
    assert {yard.status(job_id) for job_id in [suspect, *jobs]} == {JobStatus.COMPLETED}


async def test_normal_work_goes_on_while_a_suspect_waits_for_a_long_job() -> None:
    yard = Yard()
    began, go_on = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        began.set()
        await go_on.wait()

    async def short() -> None: ...

    yard.task(long)
    yard.task(short)
    suspect = yard.submit("short")
    lose(yard, "short")
    async with yard.running():
        yard.submit("long")
        await heard(began)
        yard.store_clock.ahead_us += RESCUE_WAIT_US
        await until(lambda: yard.status(suspect) is JobStatus.QUEUED)
        other = yard.submit("short")
        await until(lambda: yard.status(other) is JobStatus.COMPLETED)
        go_on.set()
        await until(lambda: yard.status(suspect) is JobStatus.COMPLETED)


async def test_a_long_suspect_does_not_keep_other_jobs_waiting_to_its_end() -> None:
    yard = Yard()
    began, go_on = asyncio.Event(), asyncio.Event()

    async def long() -> None:
        began.set()
        await go_on.wait()

    async def short() -> None: ...

    yard.task(long)
    yard.task(short)
    suspect = yard.submit("long")
    lose(yard, "long")
    yard.store_clock.ahead_us += RESCUE_WAIT_US
    async with yard.running():
        await heard(began)
        others = [yard.submit("short") for _ in range(3)]
        await until(lambda: all(yard.status(job) is JobStatus.COMPLETED for job in others))
        assert yard.status(suspect) is JobStatus.PROCESSING
        go_on.set()
        await until(lambda: yard.status(suspect) is JobStatus.COMPLETED)


@given(
    st.lists(
        st.tuples(
            *(st.sampled_from([Mode.NORMAL, Mode.SUSPECTS]), st.booleans(), st.integers(0, 1)),
            *(st.booleans(), st.floats(0.0, 5.0)),
        )
    )
)
def test_while_it_is_idle_nothing_but_a_suspect_changes_what_may_be_claimed(
    claims: list[tuple[Mode, bool, int, bool, float]],
) -> None:
    quarantine, now = Quarantine(patience_s=1.0), 0.0
    for claimed, suspects, jobs, busy, passes_s in claims:
        mode = quarantine.mode(now, busy=busy, idle=not busy)
        if mode is not Mode.NOTHING:
            quarantine.claimed(claimed, jobs=jobs, suspects=suspects)
        now += passes_s

        if quarantine.idle:
            assert quarantine.next_change(now) == inf
            assert quarantine.mode(now, busy=busy, idle=True) is Mode.NORMAL
            assert not quarantine.is_open
