# SPDX-License-Identifier: MIT
"""When a worker renews, how long it trusts its lease, and when the lease counts as gone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US
from packhorse.core.policies.lease import (
    ASKED_NOW_US,
    LEASE_US_DEFAULT,
    ClockReading,
    Sighting,
    confirmed,
    read_later_us,
    renew_interval_us,
    renewed_until_us,
    sight,
    suspicion_us,
    trusted_for_us,
)

leases = st.integers(1, 10**12)


@given(leases)
def test_two_renewals_may_fail_before_the_lease_is_gone(lease_us: int) -> None:
    assert 3 * renew_interval_us(lease_us) <= lease_us


@given(leases)
def test_a_holder_trusts_its_lease_for_less_than_the_store_does(lease_us: int) -> None:
    assert renew_interval_us(lease_us) <= trusted_for_us(lease_us) <= lease_us


def test_a_default_lease_is_renewed_every_ten_seconds_and_doubted_for_three() -> None:
    assert renew_interval_us(LEASE_US_DEFAULT) == 10 * SECOND_US
    assert trusted_for_us(LEASE_US_DEFAULT) == 27 * SECOND_US
    assert suspicion_us(LEASE_US_DEFAULT) == 3 * SECOND_US


def test_a_short_lease_is_doubted_for_a_third_of_itself() -> None:
    assert suspicion_us(3 * SECOND_US) == SECOND_US


def test_a_lease_counts_as_gone_when_seen_expired_twice_far_enough_apart() -> None:
    expired = {"anna": (100, LEASE_US_DEFAULT)}

    first = sight({}, expired, 10.0)
    assert confirmed(first, 10.0) == ()
    again = sight(first, expired, 12.0)
    assert confirmed(again, 12.0) == ()
    assert again == first, "the first look is the one that counts"
    assert confirmed(sight(again, expired, 13.0), 13.0) == ("anna",)


def test_a_lease_renewed_in_between_is_doubted_again() -> None:
    first = sight({}, {"anna": (100, LEASE_US_DEFAULT)}, 10.0)

    second = sight(first, {"anna": (200, LEASE_US_DEFAULT)}, 20.0)

    assert confirmed(second, 20.0) == ()
    assert second["anna"].first_seen == 20.0


def test_a_lease_no_longer_expired_is_forgotten() -> None:
    first = sight({}, {"anna": (100, LEASE_US_DEFAULT), "ben": (100, LEASE_US_DEFAULT)}, 10.0)

    second = sight(first, {"ben": (100, LEASE_US_DEFAULT)}, 20.0)

    assert list(second) == ["ben"]
    assert confirmed(second, 20.0) == ("ben",)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.floats(0, 5)), min_size=1, max_size=10)
)
def test_no_death_is_confirmed_before_the_whole_suspicion_has_passed_unbroken(
    looks: list[tuple[bool, int, float]],
) -> None:
    known: dict[str, Sighting] = {}
    now, since, before = 0.0, 0.0, None
    for is_expired, expires_us, pause in looks:
        now += pause
        seen = expires_us if is_expired else None
        since = now if seen is None or seen != before else since
        before = seen
        known = sight(known, {} if seen is None else {"anna": (seen, LEASE_US_DEFAULT)}, now)

        gone = confirmed(known, now)

        assert gone == (("anna",) if seen is not None and now - since >= 3 else ())


def test_a_confirmation_waits_as_long_as_each_lease_says() -> None:
    known = {
        "quick": Sighting("quick", 0, 3 * SECOND_US, first_seen=0.0),
        "slow": Sighting("slow", 0, 30 * SECOND_US, first_seen=0.0),
    }

    assert confirmed(known, 1.0) == ("quick",)
    assert confirmed(known, 3.0) == ("quick", "slow")


@pytest.mark.parametrize("lease_us", [1, 2, 3])
def test_the_shortest_leases_need_no_waiting(lease_us: int) -> None:
    assert suspicion_us(lease_us) <= 1


instants_us = st.integers(min_value=0, max_value=10**16)
lengths_us = st.integers(min_value=1, max_value=3600 * SECOND_US)


@given(instants_us, lengths_us, instants_us | st.just(ASKED_NOW_US), st.none() | instants_us)
def test_a_renewed_lease_lasts_from_its_asking_and_never_longer_than_from_now(
    now_us: int, lease_us: int, asked_us: int, before_us: int | None
) -> None:
    until_us = renewed_until_us(now_us, lease_us, asked_us, before_us)

    assert until_us <= now_us + lease_us
    assert until_us >= min(now_us, asked_us) + lease_us
    assert before_us is None or until_us >= min(before_us, now_us + lease_us)
    assert until_us in {now_us + lease_us, asked_us + lease_us, before_us}


@given(instants_us, lengths_us, st.none() | instants_us)
def test_a_renewal_that_does_not_say_when_it_was_asked_for_counts_from_now(
    now_us: int, lease_us: int, before_us: int | None
) -> None:
    unread = read_later_us(None, 5.0)

    assert renewed_until_us(now_us, lease_us, unread, before_us) == now_us + lease_us


def test_a_clock_that_was_read_is_taken_for_no_earlier_than_it_is() -> None:
    reading = ClockReading(100 * SECOND_US, asked=7.0, answered=9.0)

    assert read_later_us(reading, 17.0) == 110 * SECOND_US
