# SPDX-License-Identifier: MIT
"""The rule of floors: what claims walk past, and how long a job may wait below one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final

import msgspec
import psycopg
import pytest

from packhorse.core.job import AttemptError
from packhorse.core.lifecycle import JobRules, settle
from packhorse.core.outcome import Crashed
from packhorse.core.settlement import SettlementKind
from packhorse.stores.postgres.floors import (
    FLOOR_TOPIC,
    LAG_S,
    PIECE_S,
    REST_S_MAX,
    SWEEP_EVERY_S,
    SWEEP_REST,
    Floor,
    FloorLook,
)
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.postgres.wakeups import short
from packhorse.stores.requests import QueueSettings
from packhorse.stores.sql.rows import RANK_PER_PRIORITY
from packhorse.testing.conformance.samples import QUEUE, new_job, settlement_of
from tests.stores.postgres.support import (
    claiming,
    entries_read,
    postgres_store,
    renewing,
    submitting,
)

#: Longer than a floor needs to rise, shorter than the time between two looks from the front.
_STEP_S: Final = 2 * LAG_S
_BATCH: Final = 50
_ROUNDS: Final = 4
_FRONT: Final = [-1]
#: So long that no claim of a test looks from the front a second time unasked.
_LONG_S: Final = 0.5
#: Threads that claim, and the queues that each of them finds.
_LEARNERS: Final = 4
_LEARNT: Final = 200


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.tick = 0.0  #: how much passes between two looks at it

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class Trial:
    """A floor of one queue, and claims from it."""

    def __init__(self) -> None:
        self.time = Hands()
        self.floor = Floor(self.time)
        self.claim()  # the first looks from the front

    def claim(
        self, *places: int, filled: bool = False, took_s: float = 0.0, later_s: float = _STEP_S
    ) -> list[int]:
        """A claim that is handed these places; says from where it looked."""
        look = self.floor.begin()
        return self.look(look, *places, filled=filled, took_s=took_s, later_s=later_s)

    def look(
        self, look: FloorLook, *places: int, filled: bool, took_s: float, later_s: float
    ) -> list[int]:
        ranges: list[int] = self.floor.ranges([QUEUE], look)["places"]
        self.time.now += took_s
        handed = [(QUEUE, 2 * RANK_PER_PRIORITY, place) for place in places]
        self.floor.learn(look, handed, queues=[QUEUE], filled=filled)
        self.time.now += later_s
        return ranges if ranges == _FRONT else ranges[2:3]


def test_a_floor_rises_after_unfilled_claims_too() -> None:
    trial = Trial()

    assert [trial.claim(5), trial.claim(9), trial.claim(), trial.claim()] == [
        _FRONT,
        [-1],
        [5],
        [9],
    ]


def test_a_floor_never_rises_over_what_was_handed_out_a_moment_ago() -> None:
    trial = Trial()
    trial.claim(5, later_s=LAG_S / 2)
    trial.claim(9, later_s=LAG_S / 4)  # these began too soon to say anything
    trial.claim(12)

    assert trial.claim() == _FRONT  # this one looks once more where 5 was passed

    assert trial.claim() == [5]


def test_a_filled_claim_raises_no_floor_over_its_last_job() -> None:
    trial = Trial()
    trial.claim(5)
    trial.claim(30)
    trial.claim(7, filled=True)  # it began below, and went no further

    assert trial.claim() == [7]


@pytest.mark.parametrize("filled", [True, False])
def test_a_claim_looks_from_the_front_every_second_whether_filled_or_not(filled: bool) -> None:  # noqa: FBT001 - a case
    trial = Trial()
    begun = trial.time.now
    fronts = []
    for place in range(30):
        at = trial.time.now
        if trial.claim(place, filled=filled) == _FRONT:
            fronts.append(at - begun)

    gaps = [later - earlier for earlier, later in pairwise(fronts[2:])]
    assert len(gaps) > 3
    assert max(gaps) <= SWEEP_EVERY_S + _STEP_S + 0.001
    assert min(gaps) >= SWEEP_EVERY_S - 0.001


def test_a_floor_goes_down_to_where_a_filled_look_from_the_front_ended() -> None:
    trial = Trial()
    trial.claim(50)
    trial.claim(60)
    assert trial.claim() == [50]
    trial.floor.forget()

    assert trial.claim(20, filled=True) == _FRONT  # there is more behind it

    assert trial.claim() == [20]


def test_looks_from_the_front_rest_in_proportion_to_what_they_take() -> None:
    trial = Trial()
    trial.claim(5)
    trial.time.now += SWEEP_EVERY_S
    assert trial.claim(6, took_s=0.1, later_s=0.0) == _FRONT

    trial.time.now += 0.1 * SWEEP_REST - 2 * _STEP_S
    look = trial.floor.begin()
    assert look.piece is None
    assert trial.floor.again(look) is None
    trial.time.now += 2 * _STEP_S

    assert trial.floor.begin().piece is not None


def test_no_rest_is_longer_than_half_a_minute_though_the_server_stood_still() -> None:
    trial = Trial()
    trial.claim(5)
    trial.time.now += SWEEP_EVERY_S
    assert trial.claim(6, took_s=3.0, later_s=0.0) == _FRONT
    while trial.floor.begin().piece is not None:  # it was divided, as if that would have helped
        trial.claim(took_s=0.0, later_s=0.0)

    trial.time.now += REST_S_MAX - _STEP_S
    assert trial.floor.begin().piece is None
    trial.time.now += _STEP_S

    assert trial.floor.begin().piece is not None


def test_a_claim_that_found_nothing_looks_from_the_front() -> None:
    trial = Trial()
    trial.claim(5)
    look = trial.floor.begin()

    again = trial.floor.again(look)

    assert again is not None
    assert trial.look(again, filled=False, took_s=0.0, later_s=0.0) == _FRONT
    assert trial.floor.again(look) is None


class Ground(Trial):
    """Dead rows at many places, each of which takes a claim some time to walk past."""

    row_s: Final = 1e-6
    claim_s: Final = 0.003

    def __init__(self, *, dead_from: int, dead_to: int) -> None:
        self.dead = range(dead_from, dead_to)
        super().__init__()

    def walk(self, *, later_s: float = 0.01) -> tuple[float, list[tuple[int, int]]]:
        """A claim that is given the newest job; how long it walked, and past which places."""
        look = self.floor.begin()
        asked = self.floor.ranges([QUEUE], look)
        starts, highs, ends = asked["places"], asked["highs"], asked["ends"]
        ranges = [
            (start, min(end, self.dead.stop))
            for start, high, end in zip(starts, highs, ends, strict=True)
            if high // RANK_PER_PRIORITY == 2 or len(starts) == 1
        ]
        walked_s = self.row_s * sum(
            len(range(max(start + 1, self.dead.start), min(end + 1, self.dead.stop)))
            for start, end in ranges
        )
        self.dead = range(self.dead.start, self.dead.stop + 1)
        newest = self.dead.stop - 1
        took_s = self.claim_s + walked_s
        self.look(look, newest, filled=False, took_s=took_s, later_s=later_s)
        return walked_s, ranges


@pytest.mark.parametrize("dead_from", [0, 900_000_000])
def test_no_claim_walks_past_more_than_a_piece_of_the_dead_rows_once_a_sweep_knows_them(
    dead_from: int,
) -> None:
    ground = Ground(dead_from=dead_from, dead_to=dead_from + 500_000)
    learning_s = 8 * SWEEP_REST * 0.5
    until_s = ground.time.now + learning_s
    while ground.time.now < until_s:
        ground.walk(later_s=0.1)
    until_s = ground.time.now + 2 * SWEEP_REST * 0.5
    walks = []
    while ground.time.now < until_s:
        walks.append(ground.walk(later_s=0.1))

    assert max(walked_s for walked_s, _ in walks) <= 3 * PIECE_S
    covered = sorted(ranges[0] for _, ranges in walks if len(ranges) > 1)
    assert covered[0][0] == -1
    assert all(start <= end for (_, end), (start, _) in pairwise(covered))


def test_pieces_are_joined_again_when_the_dead_rows_are_gone() -> None:
    ground = Ground(dead_from=0, dead_to=500_000)
    until_s = ground.time.now + 3 * SWEEP_REST * 0.5
    while ground.time.now < until_s:
        ground.walk(later_s=0.1)
    ground.dead = range(ground.dead.stop, ground.dead.stop)
    until_s = ground.time.now + SWEEP_REST * 0.5
    while ground.time.now < until_s:
        ground.walk(later_s=0.1)

    begun_s = ground.time.now
    while ground.floor.begin().piece != (-1, 2**63 - 1):
        ground.walk(later_s=0.1)
        assert ground.time.now < begun_s + 2 * SWEEP_EVERY_S


def test_a_claim_that_finds_nothing_goes_on_through_all_pieces() -> None:
    ground = Ground(dead_from=0, dead_to=500_000)
    for _ in range(3):
        ground.walk(later_s=SWEEP_REST)
    first = ground.floor.begin()
    look: FloorLook | None = first
    pieces = []
    while look is not None:
        assert look.piece is not None
        pieces.append(look.piece)
        ground.look(look, filled=False, took_s=ground.claim_s, later_s=0.0)
        look = ground.floor.again(first)

    assert len(pieces) > 2
    assert (pieces[0][0], pieces[-1][1]) == (-1, 2**63 - 1)
    assert all(end == start for (_, end), (start, _) in pairwise(pieces))


# --------------------------------------------------------------------------------- on a real server


@pytest.fixture
def time() -> Hands:
    return Hands()


@pytest.fixture
def store(url: str, time: Hands) -> Iterator[PostgresStore]:
    opened = postgres_store(url)
    opened.jobs.floors._time = time
    opened.run(opened.leases.renew(renewing()))
    yield opened
    opened.close()


def claimed(store: PostgresStore, time: Hands, limit: int) -> list[str]:
    jobs = store.run(store.jobs.claim(claiming(limit=limit))).jobs
    store.run(store.jobs.settle([settlement_of(SettlementKind.COMPLETED, job) for job in jobs]))
    time.now += _STEP_S
    return [job.id for job in jobs]


@pytest.mark.parametrize("after", ["a moment", "a while"])
def test_a_job_that_commits_late_does_not_wait_for_the_backlog(
    url: str, store: PostgresStore, time: Hands, after: str
) -> None:
    store.run(submitting(store, "late"))
    with psycopg.connect(PostgresSettings.from_url(url).conninfo) as held:
        # Locked, as a row is not seen yet; its number is lower than those of all others.
        name = f'"{store._settings.schema}".jobs'
        held.execute(f"update {name} set awaited = awaited where id = 'late'".encode())
        store.run(store.jobs.submit([new_job() for _ in range(20 * _BATCH)]))
        rounds = 1 if after == "a moment" else _ROUNDS
        for _ in range(rounds):
            time.now -= _STEP_S if after == "a moment" else 0
            assert "late" not in claimed(store, time, _BATCH)

    found = [name for _ in range(rounds + 4) for name in claimed(store, time, _BATCH)]

    within_s = LAG_S if after == "a moment" else SWEEP_EVERY_S + _STEP_S
    assert "late" in found[: _BATCH * (1 + round(within_s / _STEP_S))]


@pytest.mark.parametrize("concurrency", [None, 1_000])
def test_others_are_told_when_a_lost_job_is_ready_again_in_its_old_place(
    url: str, store: PostgresStore, concurrency: int | None
) -> None:
    store.run(store.queues.declare([QueueSettings(QUEUE, concurrency=concurrency)]))
    store.run(submitting(store, "lost"))
    [job] = store.run(store.jobs.claim(claiming())).jobs
    crash = Crashed(AttemptError("ProcessDied", "killed", code="PROCESS_CRASHED"))
    lost = settle(job, crash, JobRules(), roll=0.5)
    assert lost.keep_place
    store.run(store.jobs.settle([msgspec.structs.replace(lost, delay_us=0)]))
    promoter = postgres_store(url)

    with psycopg.connect(store._settings.conninfo, autocommit=True) as listening:
        listening.execute(f'listen "{store._channel}"'.encode())
        [again] = promoter.run(promoter.jobs.claim(claiming())).jobs
        promoter.close()
        told = [notice.payload.split() for notice in listening.notifies(timeout=0.2)]

    assert again.id == "lost"
    assert [short(FLOOR_TOPIC)] in told


def test_claims_under_an_old_snapshot_read_no_more_the_longer_it_lasts(
    url: str, store: PostgresStore, time: Hands
) -> None:
    time.tick = _LONG_S
    with psycopg.connect(PostgresSettings.from_url(url).conninfo) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from pg_class")
        _work(store, time)
        first = _read_by(url, store, lambda: _work(store, time))
        for _ in range(5):
            _work(store, time)

        last = _read_by(url, store, lambda: _work(store, time))

    assert last <= 1.5 * first


def _work(store: PostgresStore, time: Hands) -> None:
    """Rounds of claims that are not filled, as a worker makes that keeps up."""
    for _ in range(_ROUNDS):
        store.run(store.jobs.submit([new_job() for _ in range(_BATCH)]))
        assert len(claimed(store, time, 2 * _BATCH)) == _BATCH


def _read_by(url: str, store: PostgresStore, work: Any) -> int:
    """How many entries of the index of lanes some work reads."""
    before = entries_read(url, store, "lanes")
    work()
    return entries_read(url, store, "lanes") - before


def test_claims_in_several_threads_learn_about_new_queues_at_the_same_time() -> None:
    hands = Hands()
    hands.tick = 2 * LAG_S  # every look lets the floors rise, from a copy of all places
    floor = Floor(hands)

    def learn(thread: int) -> None:
        for number in range(_LEARNT):
            queue = f"{thread}-{number}"
            handed = [(queue, 0, number)]
            floor.learn(floor.begin(), handed, queues=(queue,), filled=False)

    switching_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(_LEARNERS) as threads:
            learners = [threads.submit(learn, thread) for thread in range(_LEARNERS)]
            for learner in learners:
                learner.result()
    finally:
        sys.setswitchinterval(switching_s)
