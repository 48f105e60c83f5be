# SPDX-License-Identifier: MIT
"""The checker of promises finds each violation, and nothing in an innocent history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from faults.checking.evidence import Evidence, Run, Standing, overlaps, runs_of
from faults.checking.promises import RULES, judge, repeated_effects
from faults.records import Line
from packhorse.core.job import Counters, JobStatus

ONE: Final = Standing("one", JobStatus.COMPLETED, 1, Counters(attempts=1), 200, 1)
# Lost with its worker once, then completed by another.
TWO: Final = Standing("two", JobStatus.COMPLETED, 2, Counters(attempts=2, crashes=1), 900, 2)
RUN: Final = Run("one", 1, 1, 10, 100, 150)
CUT: Final = Run("two", 1, 1, 10, 100)
AGAIN: Final = Run("two", 2, 2, 11, 800, 850)

# Takes its process down each time, and was found out.
POISON: Final = Standing("poison", JobStatus.DEAD, 1, Counters(attempts=1, crashes=1), 300)
# A caller was told in time that it would not count.
CALLED_OFF: Final = Standing("off", JobStatus.CANCELLED, 0, Counters(), 400)

INNOCENT: Final = Evidence(
    submitted=frozenset({"one", "two", "poison", "off"}),
    runs=(RUN, CUT, AGAIN),
    accepted=("one", "two"),
    at_last={"one": ONE, "two": TWO, "poison": POISON, "off": CALLED_OFF},
    guilty=frozenset({"poison"}),
    cancelled=frozenset({"off"}),
    unsure=frozenset({"never stored"}),
    effects=(("one", "one"), ("order", "two")),
    counted={"completed": 2, "dead": 1, "cancelled": 1},
    between=(
        Standing("two", JobStatus.PROCESSING, 1, Counters()),
        Standing("two", JobStatus.PENDING, 1, Counters(attempts=1, crashes=1)),
    ),
)


def changed(standing: Standing, **fields: Any) -> dict[str, Standing]:
    """The final standings with one of them different."""
    different = msgspec.structs.replace(standing, **fields)
    return {**INNOCENT.at_last, standing.job_id: different}


PLANTED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "a job that vanished": (
        "lost",
        {"submitted": INNOCENT.submitted | {"three"}},
    ),
    "a job left behind": ("lost", {"at_last": changed(TWO, status=JobStatus.PENDING)}),
    "a job held for ever": ("lost", {"at_last": changed(TWO, status=JobStatus.PROCESSING)}),
    "a job from nowhere": ("unexpected", {"submitted": INNOCENT.submitted - {"one"}}),
    "a run from nowhere": ("unexpected", {"runs": (*INNOCENT.runs, Run("x", 1, 1, 9, 1, 2))}),
    "a late run from nowhere": ("unexpected", {"late": (Run("x", 1, 1, 9, 1, 2),)}),
    "a submit that seemed to fail, left behind": (
        "left behind",
        {
            "unsure": frozenset({"three"}),
            "at_last": {
                **INNOCENT.at_last,
                "three": Standing("three", JobStatus.QUEUED, 0, Counters()),
            },
        },
    ),
    "one counted that is not there": (
        "miscounted",
        {"counted": {"completed": 2, "dead": 1, "cancelled": 1, "queued": 1}},
    ),
    "one there that is not counted": ("miscounted", {"counted": {"completed": 2, "dead": 1}}),
    "a cancel that did not count": (
        "cancel ignored",
        {"cancelled": frozenset({"off", "one"})},
    ),
    "a poison that goes on": (
        "guilty spared",
        {"at_last": changed(POISON, status=JobStatus.CANCELLED)},
    ),
    "one effect twice": ("effect under a key twice", {"effects": (("one", "one"), ("one", "one"))}),
    "one order charged by two jobs": (
        "effect under a key twice",
        {"effects": (("order", "one"), ("order", "two"))},
    ),
    "a completion without a run": ("never run", {"runs": (RUN, CUT)}),
    "a second completion": ("completed twice", {"accepted": ("one", "two", "one")}),
    "a run after the end": (
        "completed twice",
        {
            "runs": (*INNOCENT.runs, Run("one", 2, 2, 12, 300, 310)),
            "at_last": changed(ONE, fence=2, result_fence=2, counters=Counters(attempts=2)),
        },
    ),
    "an accepted completion undone": (
        "forgotten",
        {"at_last": changed(ONE, status=JobStatus.CANCELLED)},
    ),
    "two runs under one fence": (
        "same fence",
        {"runs": (RUN, CUT, msgspec.structs.replace(CUT, pid=12), AGAIN)},
    ),
    "a lower fence later": (
        "fence fell",
        {"runs": (RUN, msgspec.structs.replace(CUT, started_us=860), AGAIN)},
    ),
    "a fence that was never given": (
        "fence fell",
        {"runs": (RUN, CUT, AGAIN, Run("one", 1, 9, 9, 110))},
    ),
    "an old result that won": ("stale accepted", {"at_last": changed(TWO, result_fence=1)}),
    "an innocent job given up": ("innocent dead", {"at_last": changed(TWO, status=JobStatus.DEAD)}),
    "a counter that fell": (
        "counters fell",
        {"at_last": changed(TWO, counters=Counters(attempts=2))},
    ),
    "a fence that fell between": (
        "counters fell",
        {"between": (Standing("two", JobStatus.PROCESSING, 3, Counters()),)},
    ),
    "a run that was not counted": (
        "counters fell",
        {"at_last": changed(TWO, counters=Counters(attempts=1, crashes=1))},
    ),
}


def test_an_innocent_history_is_clean() -> None:
    verdict = judge(INNOCENT)

    assert verdict.clean
    assert verdict.counts == dict.fromkeys(RULES, 0)


def test_a_rule_that_had_nothing_to_judge_says_so() -> None:
    verdict = judge(INNOCENT)
    nothing = judge(Evidence(frozenset(), (), (), {}))

    assert verdict.unjudged == ["left behind", "stale accepted"]  # nothing of the kind in it
    assert nothing.clean
    assert set(nothing.unjudged) == RULES.keys()


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_violation_is_found_by_its_rule(planted: str) -> None:
    rule, fields = PLANTED[planted]

    verdict = judge(msgspec.structs.replace(INNOCENT, **fields))

    assert not verdict.clean
    assert verdict.counts[rule] == 1


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _ in PLANTED.values()} == RULES.keys()


def test_a_guilty_job_may_be_dead() -> None:
    at_last = changed(TWO, status=JobStatus.DEAD)
    counted = {"completed": 1, "dead": 2, "cancelled": 1}
    evidence = msgspec.structs.replace(INNOCENT, at_last=at_last, accepted=("one",))
    evidence = msgspec.structs.replace(evidence, counted=counted)

    verdict = judge(msgspec.structs.replace(evidence, guilty=frozenset({"poison", "two"})))

    assert verdict.clean


def test_lines_are_paired_into_runs() -> None:
    lines = [
        Line("start", "one", 1, 1, 10, 100),
        Line("start", "two", 1, 1, 10, 100),
        Line("end", "one", 1, 1, 10, 150),
        Line("start", "two", 2, 2, 11, 800),
        Line("completed", "two", 2, 0, 11, 840),
        Line("end", "two", 2, 2, 11, 850),
    ]

    assert runs_of(lines) == [RUN, CUT, AGAIN]


def test_a_run_beside_another_is_an_overlap_unless_its_process_had_died() -> None:
    paused = msgspec.structs.replace(CUT, ended_us=820)

    assert overlaps((RUN, CUT, AGAIN), {10: 500}) == 0
    assert overlaps((RUN, CUT, AGAIN), {10: 810}) == 1
    assert overlaps((RUN, paused, AGAIN), {}) == 1


def test_a_run_that_began_too_late_counts_as_a_run_and_breaks_no_order() -> None:
    late = Run("two", 1, 1, 10, 900, 950)
    evidence = msgspec.structs.replace(INNOCENT, runs=(RUN, AGAIN), late=(late,))

    assert judge(evidence).clean
    assert not judge(msgspec.structs.replace(evidence, runs=(RUN, AGAIN, late), late=())).clean


def test_a_run_goes_on_beside_its_second_successor_too() -> None:
    paused = msgspec.structs.replace(CUT, ended_us=990)
    third = Run("two", 3, 3, 12, 900, 910)

    assert overlaps((paused, AGAIN, third), {}) == 2


def test_effects_on_top_of_the_first_are_repeated() -> None:
    assert repeated_effects({"one": 1, "two": 3}) == 2
    assert repeated_effects({}) == 0
