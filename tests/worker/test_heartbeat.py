# SPDX-License-Identifier: MIT
"""What a heartbeat tells the store, beat by beat: the store looks at all held jobs for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.policies.lease import ASKED_NOW_US
from packhorse.errors import StoreUnavailable
from packhorse.runtime.worker.environment import Environment
from packhorse.runtime.worker.heartbeat import Heartbeat
from packhorse.runtime.worker.slots import Slots
from packhorse.runtime.worker.store_health import StoreHealth
from packhorse.stores.plan import Plan
from packhorse.stores.requests import Renewal, Renewed, Totals
from tests.worker.support import HandClock, Yard

RENEWS_EACH_S = 20


class Deaf:
    """As much of a runtime as a heartbeat asks for; it does nothing about what it hears."""

    env: Environment
    slots: Slots
    health: StoreHealth
    settler = SimpleNamespace(tallies=SimpleNamespace(told=Totals()))

    def on_renewed(self) -> None: ...
    def on_cancelled(self, job_ids: Sequence[str]) -> None: ...
    def on_lease_lost(self) -> None: ...
    def on_lease_regained(self) -> None: ...
    def on_loop_blocked(self, seconds: float) -> None: ...
    def on_beat(self) -> None: ...


class Told(Deaf):
    """Counts how often the lease was told to be lost and regained."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_lease_lost(self) -> None:
        self.calls.append("lost")

    def on_lease_regained(self) -> None:
        self.calls.append("regained")


class Beats:
    """A heartbeat without its thread, and what each of its renewals said is held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        yard, self.clock = Yard(), HandClock()
        self.store, self.store_clock = yard.store, yard.store_clock
        self.told: list[bool] = []
        self.asked_us: list[int] = []
        self.wire_s = 0.0  #: how long a renewal is under way
        self.store_is_away = False
        renew = yard.store.leases.renew

        def note(renewal: Renewal) -> Plan[Renewed]:
            self.told.append(renewal.held is not None)
            self.asked_us.append(renewal.asked_us)
            if self.store_is_away:
                raise StoreUnavailable("away")
            self.clock.seconds += self.wire_s
            self.store_clock.ahead_us += round(self.wire_s * SECOND_US)
            return renew(renewal)

        monkeypatch.setattr(yard.store.leases, "renew", note)
        env = Environment(store=yard.store, registry=yard.registry, clock=self.clock)
        slots = Slots(asyncio.get_running_loop(), self.clock, 5)
        renewal = Renewal("w", 3 * RENEWS_EACH_S * SECOND_US)
        health = StoreHealth(yard.bus, self.clock, "w")
        self.listener = Told()
        self.listener.env, self.listener.slots, self.listener.health = env, slots, health
        self.heartbeat = Heartbeat(cast("Any", self.listener), renewal)

    def beat(self, *, after_s: float = 0.0) -> float:
        self.clock.seconds += after_s
        return self.heartbeat.run_once()


@pytest.fixture
async def beats(monkeypatch: pytest.MonkeyPatch) -> Beats:
    return Beats(monkeypatch)


async def test_what_is_held_is_told_once_a_minute_not_with_each_renewal(beats: Beats) -> None:
    beats.beat()
    for _ in range(6):
        beats.beat(after_s=RENEWS_EACH_S)

    assert beats.told == [True, False, False, True, False, False, True]


async def test_what_is_held_is_told_at_once_when_an_answer_was_lost(beats: Beats) -> None:
    beats.beat()
    beats.heartbeat.must_tell = True
    beats.heartbeat.renew_now()

    beats.beat(after_s=1)
    beats.beat(after_s=RENEWS_EACH_S)

    assert beats.told == [True, True, False]
    assert not beats.heartbeat.must_tell


async def test_it_is_told_soon_after_the_claim_that_stood_in_its_way(beats: Beats) -> None:
    beats.beat()
    beats.heartbeat.must_tell = True
    beats.heartbeat.renew_now()
    beats.heartbeat.claim_lock.acquire()
    beats.beat()
    beats.heartbeat.claim_lock.release()

    beats.beat(after_s=0.02)

    assert beats.told == [True, False, True]


@pytest.mark.parametrize("what_fails", ["the renewal itself", "what follows it"])
@pytest.mark.parametrize("found_by", ["the renewal", "a claim"])
async def test_a_lapse_is_not_forgotten_when_the_renewal_that_finds_it_fails(
    beats: Beats, monkeypatch: pytest.MonkeyPatch, what_fails: str, found_by: str
) -> None:
    """The store has renewed it by then, so that the next renewal finds nothing."""
    beats.beat()
    lease, run, calls = beats.heartbeat.lease, beats.store.run, list[object]()
    epoch = lease.epoch
    assert not lease.lost_since(epoch)
    beats.store.run(beats.store.leases.leave("w"))
    if found_by == "a claim":
        beats.heartbeat.must_renew()
    else:
        beats.clock.seconds += 3 * RENEWS_EACH_S

    def fail_once(plan: Plan[object]) -> object:
        answer = run(plan)
        calls.append(answer)
        if len(calls) == (1 if what_fails == "the renewal itself" else 2):
            raise StoreUnavailable("the answer is lost")
        return answer

    monkeypatch.setattr(beats.store, "run", fail_once)
    beats.beat()
    beats.beat(after_s=RENEWS_EACH_S)

    assert lease.trusted
    assert lease.lost_since(epoch)
    found = [each.lapsed for each in calls if isinstance(each, Renewed)]
    assert found == [True, False]


async def test_a_lease_that_is_found_gone_is_renewed_once_at_once_and_then_with_pauses(
    beats: Beats,
) -> None:
    beats.beat()
    beats.store_is_away = True
    beats.heartbeat.lease.epoch += 1  # as a supervisor says it that found the lease gone

    rests = [beats.beat(after_s=1), beats.beat(), beats.beat()]

    assert rests[0] == 0
    assert all(rest > 0 for rest in rests[1:])
    assert len(beats.told) == 2


async def test_a_renewal_says_what_the_stores_clock_was_when_it_was_asked_for(
    beats: Beats,
) -> None:
    beats.beat()
    first = beats.heartbeat._reading

    beats.beat(after_s=RENEWS_EACH_S)

    assert first is not None
    assert beats.asked_us == [ASKED_NOW_US, first.store_us + RENEWS_EACH_S * SECOND_US]


async def test_a_worker_whose_renewal_came_too_late_renews_again_before_it_trusts_the_lease(
    beats: Beats,
) -> None:
    """The store, or the wire to it, stood still for longer than the lease."""
    beats.beat()
    epoch = beats.heartbeat.lease.epoch
    beats.wire_s = 3 * RENEWS_EACH_S

    assert beats.beat(after_s=RENEWS_EACH_S) == 0
    assert not beats.heartbeat.lease.trusted
    beats.wire_s = 0
    assert beats.beat() > 0

    [worker] = beats.store.run(beats.store.leases.workers())
    assert worker.live
    assert beats.heartbeat.lease.trusted
    assert beats.heartbeat.lease.lost_since(epoch)


@pytest.mark.parametrize("step_s", [RENEWS_EACH_S, 10 * RENEWS_EACH_S])
async def test_a_lease_is_whole_again_at_once_after_the_stores_clock_was_set_forward(
    beats: Beats, step_s: int
) -> None:
    """What was counted from the clock as it was before is too short by the step."""
    beats.beat()
    beats.listener.calls.clear()
    beats.clock.seconds += RENEWS_EACH_S
    beats.store_clock.ahead_us += (RENEWS_EACH_S + step_s) * SECOND_US

    assert beats.beat() == 0
    beats.beat()

    [worker] = beats.store.run(beats.store.leases.workers())
    assert worker.expires_us - beats.store_clock.now_us() > (3 * RENEWS_EACH_S - 1) * SECOND_US
    assert beats.heartbeat.lease.trusted
    await asyncio.sleep(0)
    lapsed = step_s >= 2 * RENEWS_EACH_S
    assert beats.listener.calls == ["lost", "regained"] * lapsed
