# SPDX-License-Identifier: MIT
"""The checker of limits finds each violation it is there for, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest

from faults.checking.contest import (
    Asked,
    Contest,
    Facts,
    Limits,
    Span,
    begun_in_a_window,
    begun_in_time,
    begun_too_late,
    claimed_at_once,
    granted_in_a_window,
    stale,
)
from faults.checking.evidence import Run
from faults.checking.limits import RULES, judge
from packhorse.core.job import JobStatus

LIMITS: Final = Limits(
    queue_concurrency={"capped": 1},
    task_concurrency={"keyed": 1},
    queue_rate={"rated": (3, 100)},
    tenant_rate={"tenants": (1, 100)},
    task_rate={"called": (1, 100)},
    max_depth={"narrow": 2},
    unique=frozenset({"single"}),
    throttle_us={"throttled": 100},
    idempotent=frozenset({"charged"}),
    closed_us={"called": 300},
)


NOT_WAITED: Final = "limit not waited for"


def job(name: str, task: str, *times: int, **fields: Any) -> Facts:
    """A job that was admitted, then started and ended as often as there are times for."""
    created_us, *rest = times
    spans = [
        Span(number + 1, start, end)
        for number, (start, end) in enumerate(zip(rest[::2], rest[1::2], strict=True))
    ]
    known = {"finished_us": rest[-1] if rest else None, "queue": task, **fields}
    return Facts(name, task, created_us=created_us, spans=spans, **known)


def asked(name: str, task: str, asked_us: int, answered_us: int, **fields: Any) -> Asked:
    return Asked(task, asked_us, answered_us, job_id=name, **fields)


#: Each limit is used up, and none is broken.
JOBS: Final = (
    job("capped-1", "capped", 0, 10, 20),
    job("capped-2", "capped", 0, 20, 30),
    job("keyed-1", "keyed", 0, 10, 20, concurrency_key="a"),
    job("keyed-2", "keyed", 0, 10, 20, concurrency_key="b"),
    job("rated-1", "rated", 0, 10, 20, weight=2),
    job("rated-2", "rated", 0, 11, 20),
    job("rated-3", "rated", 0, 110, 120),
    job("tenants-1", "tenants", 0, 10, 20, tenant="a"),
    job("tenants-2", "tenants", 0, 10, 20, tenant="b"),
    # Met a limit elsewhere, waited for it, and then ran.
    job("called-1", "called", 0, 10, 20, 320, 330, rate_key="a"),
    job("called-2", "called", 0, 30, 40, rate_key="b"),
    # Failed once, then done; the other waits for that.
    job("line-1", "ordered", 0, 10, 20, 40, 50, ordering_key="a"),
    job("line-2", "ordered", 1, 50, 60, ordering_key="a"),
    job("line-3", "ordered", 1, 5, 9, ordering_key="b"),
    job("narrow-1", "narrow", 0, 10, 20),
    job("narrow-2", "narrow", 1, 20, 30),
    job("narrow-3", "narrow", 12, 30, 40),
    job("single-1", "single", 0, 10, 20),
    job("single-2", "single", 20, 30, 40),
    job("throttled-1", "throttled", 0, 10, 20),
    job("throttled-2", "throttled", 100, 110, 120),
    job("charged-1", "charged", 0, 10, 20),
)
RUNS: Final = (
    Run("capped-1", 1, 1, 7, 11, 19),
    Run("capped-2", 1, 1, 8, 21, 29),
    Run("line-1", 1, 1, 7, 11, 19),
    Run("line-1", 2, 2, 7, 41, 49),
    Run("line-2", 1, 1, 7, 51, 59),
    Run("rated-1", 1, 1, 7, 12, 19),
    Run("rated-2", 1, 1, 7, 13, 19),
    Run("rated-3", 1, 1, 7, 112, 119),
)


def begun_at(at_us: int) -> tuple[Run, ...]:
    """The first two of the rate, which began as late as this."""
    return tuple(Run(f"rated-{number}", 1, 1, 7, at_us, at_us + 9) for number in (1, 2))


ASKED: Final = (
    asked("single-1", "single", 0, 1, key="a"),
    asked("single-1", "single", 5, 6, key="a", deduplicated=True),
    asked("single-2", "single", 20, 21, key="a"),
    asked("throttled-1", "throttled", 0, 1, key="a"),
    asked("throttled-1", "throttled", 50, 51, key="a", deduplicated=True),
    asked("throttled-2", "throttled", 100, 101, key="a"),
    asked("charged-1", "charged", 0, 1, key="a"),
    asked("charged-1", "charged", 70, 71, key="a", deduplicated=True),
    asked("", "narrow", 4, 5),
    asked("", "narrow", 41, 42, count=3),
)
INNOCENT: Final = Contest(LIMITS, JOBS, RUNS, ASKED, frozenset({("called-1", 1)}))


def with_jobs(*jobs: Facts) -> Mapping[str, Any]:
    """The innocent jobs with some in place of those of the same name, and others after them."""
    by_name = {each.job_id: each for each in jobs}
    known = {each.job_id for each in JOBS}
    kept = [by_name.get(each.job_id, each) for each in JOBS]
    return {"jobs": (*kept, *(each for each in jobs if each.job_id not in known))}


PLANTED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "one too many of a queue": (
        "too many claimed",
        with_jobs(job("capped-2", "capped", 0, 19, 30)),
    ),
    "one too many of a key": (
        "too many claimed",
        with_jobs(job("keyed-2", "keyed", 0, 15, 25, concurrency_key="a")),
    ),
    "two handlers side by side": (
        "too many running",
        {"runs": (Run("capped-1", 1, 1, 7, 11, 19), Run("capped-2", 1, 1, 8, 18, 29))},
    ),
    "one killed and one beside it": (
        "too many running",
        {"runs": (Run("capped-1", 1, 1, 7, 11), Run("capped-2", 1, 1, 8, 19, 29))},
    ),
    "too much weight in a window": (
        "too many granted",
        with_jobs(job("rated-3", "rated", 0, 109, 120)),
    ),
    "a tenant over its rate": (
        "too many granted",
        with_jobs(job("tenants-2", "tenants", 0, 50, 60, tenant="a")),
    ),
    "a retry that was not counted": (
        "too many granted",
        with_jobs(job("called-2", "called", 0, 500, 510, 550, 560, rate_key="b")),
    ),
    "handlers that began late, in the window of the next": (
        "too many begun",
        {"runs": (*RUNS[:5], *begun_at(45), RUNS[7])},
    ),
    "a key that was not waited for": (
        NOT_WAITED,
        with_jobs(job("called-1", "called", 0, 10, 20, 319, 330, rate_key="a")),
    ),
    "an overtaken retry": (
        "out of order",
        with_jobs(job("line-2", "ordered", 1, 30, 60, ordering_key="a")),
    ),
    "a line that went on before its head": (
        "out of order",
        with_jobs(
            job("line-1", "ordered", 0, 10, 20, ordering_key="a", finished_us=None),
        ),
    ),
    "a handler that began too early": (
        "out of order",
        {"runs": (*RUNS[:4], Run("line-2", 1, 1, 7, 45, 59), *RUNS[5:])},
    ),
    "one too many waiting": ("too deep", with_jobs(job("narrow-3", "narrow", 8, 30, 40))),
    "a failed one not counted as waiting": (
        "too deep",
        with_jobs(job("narrow-1", "narrow", 0, 5, 6, 20, 25), job("narrow-3", "narrow", 7, 30, 40)),
    ),
    "refused for nothing": (
        "refused with room",
        {"asked": (*ASKED, asked("", "narrow", 40, 41))},
    ),
    "several refused for nothing": (
        "refused with room",
        {"asked": (*ASKED, asked("", "narrow", 41, 42, count=2))},
    ),
    "two of a unique key": ("not unique", with_jobs(job("single-2", "single", 19, 30, 40))),
    "two in a window": (
        "not throttled",
        with_jobs(job("throttled-2", "throttled", 99, 110, 120)),
    ),
    "one order charged twice": (
        "not idempotent",
        {
            **with_jobs(job("charged-2", "charged", 70, 80, 90)),
            "asked": (*ASKED, asked("charged-2", "charged", 70, 71, key="a")),
        },
    ),
    "another job as an answer": (
        "wrong holder",
        {"asked": (*ASKED, asked("single-2", "single", 30, 31, key="b", deduplicated=True))},
    ),
    "an answer from the future": (
        "wrong holder",
        {"asked": (*ASKED, asked("single-2", "single", 18, 19, key="a", deduplicated=True))},
    ),
}


def test_an_innocent_contest_is_clean() -> None:
    verdict = judge(INNOCENT)

    assert verdict.clean, verdict.findings
    assert verdict.counts == dict.fromkeys(RULES, 0)


def test_a_rule_that_had_nothing_to_judge_says_so() -> None:
    nothing = judge(msgspec.structs.replace(INNOCENT, jobs=(), runs=(), asked=()))

    assert judge(INNOCENT).cases.keys() == RULES.keys()
    assert "out of order" not in judge(INNOCENT).unjudged
    assert {"out of order", "wrong holder", "too many running"} <= set(nothing.unjudged)


def test_a_run_that_was_stopped_before_its_first_line_is_not_held_against_a_rate() -> None:
    late_us = 1_000_200
    runs = (*RUNS[:5], Run("rated-1", 1, 1, 7, late_us, late_us + 9), *RUNS[6:])
    jobs = with_jobs(
        job("rated-1", "rated", 0, 10, late_us + 20, weight=2),
        job("rated-3", "rated", 0, late_us - 90, late_us, weight=2),
    )
    begun = Run("rated-3", 1, 1, 7, late_us - 80, late_us - 1)

    verdict = judge(msgspec.structs.replace(INNOCENT, runs=(*runs[:-1], begun), **jobs))

    assert verdict.clean, verdict.findings


def test_a_first_line_that_comes_a_little_late_is_not_held_against_a_rate() -> None:
    runs = (*RUNS[:5], *begun_at(RUNS[7].started_us - 80), RUNS[7])

    verdict = judge(msgspec.structs.replace(INNOCENT, runs=runs))

    assert verdict.clean, verdict.findings


@pytest.mark.parametrize(("step_us", "clean"), [(40, True), (5, False)])
def test_a_run_granted_by_the_clock_of_before_a_step_is_not_held_against_a_rate(
    step_us: int,
    clean: bool,  # noqa: FBT001 - a column of the table above
) -> None:
    runs = (*RUNS[:5], *begun_at(45), RUNS[7])

    verdict = judge(msgspec.structs.replace(INNOCENT, runs=runs, steps_us=[step_us]))

    assert verdict.clean is clean, verdict.findings


def test_the_innocent_contest_uses_up_every_limit() -> None:
    uses = [*claimed_at_once(INNOCENT), *granted_in_a_window(INNOCENT)]
    uses += begun_in_a_window(INNOCENT)[:1]  # only of the first rate the runs are known

    assert {use.most - use.limit for use in uses} == {0}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_violation_is_found_by_its_rule(planted: str) -> None:
    rule, fields = PLANTED[planted]

    verdict = judge(msgspec.structs.replace(INNOCENT, **fields))

    assert verdict.counts[rule] >= 1, verdict.findings


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _ in PLANTED.values()} == RULES.keys()


def test_what_a_handler_did_after_its_job_was_taken_from_it_is_no_violation_but_counted() -> None:
    went_on = (Run("capped-1", 1, 1, 7, 11, 28), Run("capped-2", 1, 1, 8, 21, 29))
    contest = msgspec.structs.replace(INNOCENT, runs=went_on)

    assert judge(contest).clean
    assert stale(contest) == 1
    assert stale(INNOCENT) == 0


def test_who_met_a_limit_and_died_before_he_could_say_so_closes_nothing() -> None:
    soon = job("called-1", "called", 0, 10, 20, 150, 160, rate_key="a")
    told = msgspec.structs.replace(INNOCENT, **with_jobs(soon))
    unheard = msgspec.structs.replace(told, pushed_back=frozenset())

    assert judge(told).counts[NOT_WAITED] == 1
    assert judge(unheard).counts[NOT_WAITED] == 0


def test_what_began_after_its_job_was_taken_from_it_is_told_apart() -> None:
    late = Run("capped-1", 1, 1, 7, 25, 28)
    contest = msgspec.structs.replace(INNOCENT, runs=(late, RUNS[1]))

    assert judge(contest).clean
    assert begun_in_time(contest) == [RUNS[1]]
    assert begun_too_late(contest) == 1


def test_a_claim_given_back_without_a_trace_is_not_held_against_the_queue() -> None:
    known = job("narrow-3", "narrow", 8, 30, 40)
    hidden = job("narrow-1", "narrow", 0, 10, 20, hidden=1)

    assert not judge(msgspec.structs.replace(INNOCENT, **with_jobs(known))).clean
    assert judge(msgspec.structs.replace(INNOCENT, **with_jobs(hidden, known))).clean


def test_who_may_have_waited_when_the_clock_was_set_may_have_filled_the_queue() -> None:
    refused = msgspec.structs.replace(INNOCENT, asked=(asked("", "narrow", 100, 101),))
    doubtful = [
        msgspec.structs.replace(each, doubtful=True, hidden=1)
        for each in JOBS
        if each.queue == "narrow"
    ]

    assert judge(refused).counts["refused with room"] == 1
    assert judge(msgspec.structs.replace(refused, **with_jobs(*doubtful))).clean


def test_dead_and_cancelled_jobs_hold_no_window() -> None:
    dead = job("throttled-1", "throttled", 0, 10, 20, status=JobStatus.DEAD)
    soon = job("throttled-2", "throttled", 50, 110, 120)

    assert judge(msgspec.structs.replace(INNOCENT, **with_jobs(dead, soon))).clean


@pytest.mark.parametrize(
    ("planted", "step_us"),
    [
        ("too much weight in a window", 60),
        ("a tenant over its rate", 30),
        ("a key that was not waited for", 100),
        ("two in a window", 50),
    ],
)
def test_no_window_spans_a_step_of_the_stores_clock(planted: str, step_us: int) -> None:
    rule, fields = PLANTED[planted]
    contest = msgspec.structs.replace(INNOCENT, **fields)

    assert judge(contest).counts[rule] >= 1
    assert judge(msgspec.structs.replace(contest, steps_us=(step_us,))).counts[rule] == 0
    assert judge(msgspec.structs.replace(contest, steps_us=(5_000,))).counts[rule] >= 1


def test_a_grant_about_whose_moment_there_is_doubt_is_not_held_against_the_rate() -> None:
    soon = job("rated-3", "rated", 0, 109, 120)
    doubtful = [msgspec.structs.replace(span, doubtful=True) for span in soon.spans]

    contest = msgspec.structs.replace(
        INNOCENT, **with_jobs(msgspec.structs.replace(soon, spans=doubtful))
    )

    assert judge(contest).clean


@pytest.mark.parametrize("number", [0, 1])
def test_a_key_closed_or_met_at_a_doubtful_moment_is_not_held_against_a_job(number: int) -> None:
    soon = job("called-1", "called", 0, 10, 20, 150, 160, rate_key="a")
    spans = list(soon.spans)
    spans[number] = msgspec.structs.replace(spans[number], doubtful=True)
    doubtful = with_jobs(msgspec.structs.replace(soon, spans=spans))

    assert judge(msgspec.structs.replace(INNOCENT, **with_jobs(soon))).counts[NOT_WAITED] == 1
    assert judge(msgspec.structs.replace(INNOCENT, **doubtful)).counts[NOT_WAITED] == 0


def test_nothing_is_said_about_late_runs_where_the_stores_clock_was_set_back() -> None:
    late = Run("capped-1", 1, 1, 7, 25, 28)
    known = job("capped-1", "capped", 0, 10, 20)
    doubtful = [msgspec.structs.replace(span, doubtful=True) for span in known.spans]
    jobs = with_jobs(msgspec.structs.replace(known, spans=doubtful, doubtful=True))

    contest = msgspec.structs.replace(INNOCENT, runs=(late,), **jobs)

    assert begun_too_late(contest) == 0
    assert stale(contest) == 0
