# SPDX-License-Identifier: MIT
"""How far a claim reaches: look-ahead on plain queues, free slots on limited ones, caps kept."""

from __future__ import annotations

import pytest

from packhorse.runtime.worker.claim_policy import QueueCaps, QueueRotation, StoreTime

BOTH = ("mail", "default")
LIMITED = frozenset({"mail"})


def mixed() -> QueueRotation:
    reach = QueueRotation(BOTH)
    reach.set_limited(LIMITED)
    return reach


def looking_ahead(now: float = 0.0) -> QueueRotation:
    """A mixed one whose last claim was filled by the plain queue alone."""
    reach = mixed()
    reach.answered(now, reach.ask(now), full=True, given=["default"])
    return reach


def test_a_worker_of_plain_queues_always_looks_ahead_on_all_of_them() -> None:
    reach = QueueRotation(BOTH)

    asked = reach.ask(0.0)
    whole = reach.answered(0.0, asked, full=False, given=[])

    assert (asked, reach.ahead, whole) == (BOTH, True, True)


def test_limited_queues_are_asked_for_free_slots_in_their_order_of_service() -> None:
    reach = mixed()

    assert reach.ask(0.0) == BOTH
    assert not reach.ahead


def test_while_the_limited_ones_give_nothing_the_plain_ones_are_looked_ahead_on() -> None:
    reach = looking_ahead()

    assert reach.ask(0.1) == ("default",)
    assert reach.ahead


def test_a_limited_job_among_those_given_keeps_the_claims_to_free_slots() -> None:
    reach = mixed()
    reach.answered(0.0, reach.ask(0.0), full=True, given=["default", "mail"])

    assert reach.ask(0.1) == BOTH
    assert not reach.ahead


def test_the_limited_ones_are_asked_again_twice_a_second() -> None:
    reach = looking_ahead()

    assert reach.ask(0.49) == ("default",)
    assert reach.ask(0.5) == BOTH


def test_a_wake_up_of_a_limited_queue_brings_the_claims_back_to_all() -> None:
    reach = looking_ahead()

    reach.woken({"queue:default", "*"})
    assert reach.ask(0.1) == ("default",)

    reach.woken({"queue:mail"})
    assert reach.ask(0.1) == BOTH


def test_plain_queues_that_run_out_do_not_mean_that_there_is_nothing_left() -> None:
    reach = looking_ahead()
    asked = reach.ask(0.1)

    whole = reach.answered(0.1, asked, full=False, given=["default"])

    assert not whole
    assert reach.ask(0.2) == BOTH


def test_where_all_queues_are_limited_nothing_is_ever_held_ahead() -> None:
    reach = QueueRotation(("mail",))
    reach.set_limited(LIMITED)
    reach.answered(0.0, reach.ask(0.0), full=True, given=[])

    assert reach.ask(0.1) == ("mail",)
    assert not reach.ahead


def test_a_queue_in_which_a_limited_job_was_seen_counts_as_limited_for_a_minute() -> None:
    reach = QueueRotation(BOTH)
    reach.seen_limited({"mail"}, 0.0)

    reach.ask(59.0)
    assert not reach.ahead
    assert reach.limited == LIMITED

    reach.ask(60.0)
    assert reach.ahead
    assert not reach.limited


def test_limits_that_were_taken_away_allow_look_ahead_again() -> None:
    reach = mixed()
    reach.set_limited(frozenset())

    assert reach.ask(0.0) == BOTH
    assert reach.ahead


def test_limits_of_queues_that_are_not_served_change_nothing() -> None:
    reach = QueueRotation(("default",))
    reach.set_limited(LIMITED)

    assert reach.ask(0.0) == ("default",)
    assert reach.ahead


def test_a_capped_queue_takes_no_look_ahead() -> None:
    reach = QueueRotation(BOTH, ["mail"])
    reach.set_limited(frozenset())

    assert reach.ask(0.0) == BOTH
    assert not reach.ahead


def test_a_claim_asks_for_no_more_than_fit_into_every_capped_queue() -> None:
    held = {"mail": 7, "reports": 0}
    caps = QueueCaps({"mail": 10, "reports": 5}, held.__getitem__)

    assert caps.within(("mail", "default"), 50) == (("mail", "default"), 3)
    assert caps.within(("mail", "reports"), 50) == (("mail", "reports"), 3)
    assert caps.within(("default",), 50) == (("default",), 50)
    assert caps.within(("mail",), 2) == (("mail",), 2)


def test_a_full_queue_is_left_out_until_it_has_room() -> None:
    held = {"mail": 10}
    caps = QueueCaps({"mail": 10}, held.__getitem__)

    assert caps.within(("mail", "default"), 50) == (("default",), 50)
    assert caps.within(("mail",), 50) == ((), 0)
    assert not caps.freed

    held["mail"] = 9
    assert caps.freed


def test_the_stores_time_is_known_as_exactly_as_its_promptest_answers() -> None:
    clock = StoreTime()
    ahead_us = 1_000_000_000

    prompt = (ahead_us + 10_002_000, 10.0, 10.003)
    stopped_after_the_answer = (ahead_us + 20_001_000, 20.0, 25.0)
    kept_waiting_by_the_store = (ahead_us + 34_999_000, 30.0, 35.0)

    for answer in (prompt, stopped_after_the_answer, kept_waiting_by_the_store):
        clock.read(*answer)

        assert ahead_us - 2_000 <= clock.least_us <= ahead_us <= clock.most_us <= ahead_us + 2_000


def test_a_step_of_the_stores_clock_is_followed_at_once() -> None:
    clock = StoreTime()
    clock.read(1_000_000, 1.0, 1.001)

    clock.read(60_000_000, 2.0, 2.001)

    assert clock.least_us >= 58_000_000 - 1_000
    assert clock.most_us <= 58_000_000


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a"}, ("b", "c", "a")),
        ({"a", "c"}, ("b", "a", "c")),
        ({"a", "b", "c"}, ("a", "b", "c")),
        (set(), ("a", "b", "c")),
    ],
)
def test_queues_just_served_are_asked_after_those_that_were_not(
    given: set[str], expected: tuple[str, ...]
) -> None:
    reach = QueueRotation(("a", "b", "c"))

    reach.answered(0.0, reach.ask(0.0), full=True, given=given)

    assert reach.ask(0.0) == expected


def test_of_two_that_are_never_empty_each_comes_first_every_other_time() -> None:
    reach = QueueRotation(("a", "b", "idle"))
    first = []
    for _ in range(6):
        served = next(name for name in reach.ask(0.0) if name != "idle")
        reach.answered(0.0, reach.ask(0.0), full=True, given={served})
        first.append(served)

    assert first == ["a", "b", "a", "b", "a", "b"]


def test_the_turn_of_queues_is_kept_when_others_become_limited() -> None:
    reach = QueueRotation(("mail", "a", "b"))
    reach.answered(0.0, reach.ask(0.0), full=True, given={"a"})
    reach.set_limited(LIMITED)
    reach.answered(0.0, reach.ask(0.0), full=True, given=[])

    assert reach.ask(0.1) == ("b", "a")
    reach.answered(0.1, reach.ask(0.1), full=True, given={"b"})
    assert reach.ask(0.1) == ("a", "b")
    assert reach.ask(0.5) == ("mail", "a", "b")
