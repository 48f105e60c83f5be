# SPDX-License-Identifier: MIT
"""The store's clock is set: no live worker is taken for gone, and the dead are still found."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.policies.lease import (
    LEASE_US_DEFAULT,
    NEVER,
    ClockReading,
    Hold,
    Sighting,
    confirmed,
    overdue,
    patience_us,
    renew_interval_us,
    sight,
    sight_holds,
    stepped_us,
)

#: What a rescuer rests between two looks, at least and at most.
LOOK_S = (0.6, 1.0)
#: When a dead worker is found at the latest, after its lease.
FOUND_S = 5.0

spans = st.floats(0, 30, allow_nan=False)
steps = st.integers(-(10**12), 10**12)
leases = st.integers(SECOND_US, 40 * SECOND_US)


def reading(
    read_at: float, *, set_by_us: int = 0, early: float = 0, late: float = 0
) -> ClockReading:
    """A store that started when we did; its clock is read between asking and answering."""
    store_us = 10**15 + round(read_at * SECOND_US) + set_by_us
    return ClockReading(store_us, asked=read_at - early, answered=read_at + late)


@given(st.lists(spans, min_size=6, max_size=6))
def test_a_clock_that_is_not_set_is_never_thought_set_however_slow_its_answers(
    times: list[float],
) -> None:
    between, first, second, third, fourth, began = times
    before = reading(began, early=first, late=second)
    after = reading(began + second + between + third, early=third, late=fourth)

    assert stepped_us(before, after) == 0


@given(st.lists(spans, min_size=5, max_size=5), steps)
def test_a_step_is_told_with_its_sign_and_never_as_more_than_it_was(
    times: list[float], step_us: int
) -> None:
    between, first, second, third, fourth = times
    before = reading(100.0, early=first, late=second)
    after = reading(100.0 + second + between + third, set_by_us=step_us, early=third, late=fourth)

    told_us = stepped_us(before, after)

    unsure_us = sum(times[1:]) * SECOND_US + 2
    assert abs(told_us) <= abs(step_us) + 2
    assert told_us * step_us >= 0
    if abs(step_us) - unsure_us > SECOND_US // 4:
        assert abs(step_us) - abs(told_us) <= unsure_us


@pytest.mark.parametrize("step_us", [249_000, -249_000, 0])
def test_clocks_that_run_a_little_apart_were_not_set(step_us: int) -> None:
    assert stepped_us(reading(1.0), reading(2.0, set_by_us=step_us)) == 0


@given(leases)
def test_after_a_step_a_worker_and_its_supervisor_may_renew_late(lease_us: int) -> None:
    assert patience_us(lease_us) >= renew_interval_us(lease_us) + lease_us // 6
    assert patience_us(lease_us) >= lease_us // 2


@dataclass
class World:
    """A worker, a rescuer that looks at it, and a store whose clock is set now and then."""

    lease_us: int
    set_at: dict[float, int]
    known: dict[str, Sighting] = field(default_factory=dict)
    last: ClockReading | None = None
    stepped_at: float = NEVER

    def store_us(self, now: float) -> int:
        ahead_us = sum(step_us for at, step_us in self.set_at.items() if at <= now)
        return 10**15 + round(now * SECOND_US) + ahead_us

    def look(self, now: float, renewed_at: float) -> bool:
        """What `Rescuer.run_once` does; says whether it takes the worker for gone."""
        store_us = self.store_us(now)
        current = ClockReading(store_us, asked=now, answered=now)
        if self.last is not None and stepped_us(self.last, current) > 0:
            self.stepped_at = now
        self.last = current
        expires_us = self.store_us(renewed_at) + self.lease_us
        expired = {"anna": (expires_us, self.lease_us)} if expires_us <= store_us else {}
        self.known = sight(self.known, expired, now)
        return bool(confirmed(self.known, now, self.stepped_at))


looks = st.lists(st.floats(*LOOK_S), min_size=80, max_size=80)


@given(
    leases,
    looks,
    st.dictionaries(st.floats(2, 40), steps, max_size=3),
    st.floats(0, 1),
    st.floats(0, 1 / 6, exclude_max=True),
)
@example(LEASE_US_DEFAULT, [0.8] * 80, {10.5: 10 * LEASE_US_DEFAULT}, 0.0, 0.1)
def test_no_step_makes_a_worker_that_lives_look_gone(
    lease_us: int, pauses: list[float], set_at: dict[float, int], phase: float, late: float
) -> None:
    world = World(lease_us, set_at)
    every_s = renew_interval_us(lease_us) / SECOND_US
    now, renewed_at = 0.0, -phase * every_s
    for pause in pauses:
        now += pause
        while renewed_at + every_s * (1 + 3 * late) <= now:
            renewed_at += every_s * (1 + 3 * late)

        assert not world.look(now, renewed_at)


@given(leases, looks, st.floats(0, 1))
def test_a_worker_that_dies_is_found_in_time(
    lease_us: int, pauses: list[float], first: float
) -> None:
    world, now = World(lease_us, {}), first
    for pause in pauses:
        if world.look(now, renewed_at=0.0):
            assert now >= lease_us / SECOND_US
            return
        now += pause
        assert now <= lease_us / SECOND_US + FOUND_S
    raise AssertionError("it was not found at all")


@given(leases, looks, st.floats(2, 40), st.integers(0, 10**12))
def test_a_step_forward_delays_the_finding_of_a_dead_worker_by_its_patience_at_most(
    lease_us: int, pauses: list[float], at: float, step_us: int
) -> None:
    world, now = World(lease_us, {at: step_us}), 0.0
    latest = max(lease_us / SECOND_US, at + patience_us(lease_us) / SECOND_US)
    for pause in pauses:
        if world.look(now, renewed_at=0.0):
            break
        now += pause
        assert now <= latest + FOUND_S


def test_a_hold_is_overdue_when_seen_so_twice_three_seconds_apart() -> None:
    hold: Hold = ("job", 1)

    first = sight_holds({}, [hold], 10.0)
    assert overdue(first, 12.9) == frozenset()
    assert overdue(sight_holds(first, [hold], 13.0), 13.0) == {hold}


def test_a_hold_no_longer_passed_or_under_another_fence_is_seen_again() -> None:
    first = sight_holds({}, [("job", 1), ("other", 1)], 10.0)

    second = sight_holds(first, [("job", 2)], 13.0)

    assert second == {("job", 2): 13.0}
    assert overdue(second, 13.0) == frozenset()


def test_no_hold_is_overdue_until_its_holder_must_have_renewed_after_a_step() -> None:
    known = sight_holds({}, [("job", 1)], 10.0)
    patience_s = patience_us(LEASE_US_DEFAULT) / SECOND_US

    assert overdue(known, 10.0 + patience_s - 0.1, stepped_at=10.0) == frozenset()
    assert overdue(known, 10.0 + patience_s, stepped_at=10.0) == {("job", 1)}
