# SPDX-License-Identifier: MIT
"""Which gates a job has, in which order they are asked, and what each of them says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.job import TERMINAL, JobStatus, RateRule
from packhorse.core.policies.gates import (
    Blocked,
    Gate,
    GateKind,
    GateState,
    admit,
    blocked_by,
    check_on_dead,
    checked_concurrency,
    gates_of,
    has_room,
    holds_line,
    key_pause,
    limit_of,
    rate_gate,
    rule_of,
    tenant_pause,
)
from packhorse.core.policies.rate_limit import granted
from packhorse.errors import ConfigError
from packhorse.stores.requests import QueueSettings, TaskSettings
from packhorse.testing.conformance.samples import new_job

RULE = RateRule(max=2, window_us=64)
PLAIN = QueueSettings("mail")
LIMITED = QueueSettings("mail", concurrency=3, rate=RULE, tenant_rate=RateRule(1, 64))
TASK = TaskSettings("send", concurrency=1, rate=RateRule(5, 64))
BUSY = Gate(GateKind.QUEUE_CONCURRENCY, ("mail",))
RATED = Gate(GateKind.QUEUE_RATE, ("mail",))
LINE = Gate(GateKind.ORDER, ("mail", "", "k"))


def job(**changes: Any) -> Any:
    return new_job("job", queue="mail", task="send", **changes)


def asked(state: GateState, *, weight: int = 1, now_us: int = 1_000) -> Blocked | None:
    return blocked_by(state, job_id="job", weight=weight, now_us=now_us)


# ---------------------------------------------------------------------------------- which gates


def test_a_plain_job_in_a_plain_queue_has_no_gates() -> None:
    assert gates_of(job(), PLAIN, None) == ()
    assert gates_of(job(concurrency_key="c", rate_key="r"), PLAIN, TaskSettings("send")) == ()


def test_gates_are_asked_the_narrow_ones_first() -> None:
    keyed = job(ordering_key="o", concurrency_key="c", rate_key="r", tenant="acme")
    shut = {tenant_pause("mail", "acme"), key_pause("mail", "r"), key_pause("mail", "o")}

    gates = gates_of(keyed, LIMITED, TASK, shut)

    assert gates == (
        Gate(GateKind.PAUSE, ("mail", "tenant", "acme")),
        Gate(GateKind.PAUSE, ("mail", "key", "o")),
        Gate(GateKind.PAUSE, ("mail", "key", "r")),
        Gate(GateKind.ORDER, ("mail", "acme", "o")),
        Gate(GateKind.TASK_CONCURRENCY, ("send", "c")),
        Gate(GateKind.QUEUE_CONCURRENCY, ("mail",)),
        Gate(GateKind.TASK_RATE, ("send", "r")),
        Gate(GateKind.TENANT_RATE, ("mail", "acme")),
        Gate(GateKind.QUEUE_RATE, ("mail",)),
    )
    order = list(GateKind)
    assert [order.index(gate.kind) for gate in gates] == sorted(
        order.index(gate.kind) for gate in gates
    )


def test_jobs_without_a_key_share_the_gates_of_their_task() -> None:
    assert gates_of(job(), PLAIN, TASK) == (
        Gate(GateKind.TASK_CONCURRENCY, ("send",)),
        Gate(GateKind.TASK_RATE, ("send",)),
    )


def test_a_rate_gate_closed_for_a_time_is_there_without_a_limit() -> None:
    shut = {rate_gate(job(rate_key="r"))}

    assert gates_of(job(rate_key="r"), PLAIN, None, shut) == (rate_gate(job(rate_key="r")),)
    assert gates_of(job(rate_key="other"), PLAIN, None, shut) == ()
    assert gates_of(job(), PLAIN, None, shut) == ()


def test_a_key_that_is_used_twice_has_one_gate() -> None:
    shut = {key_pause("mail", "k")}

    assert gates_of(job(concurrency_key="k", rate_key="k"), PLAIN, None, shut) == (
        key_pause("mail", "k"),
    )


def test_each_gate_finds_its_own_limit() -> None:
    found = {
        gate.kind: (limit_of(gate, LIMITED, TASK), rule_of(gate, LIMITED, TASK))
        for gate in gates_of(job(ordering_key="o"), LIMITED, TASK)
    }

    assert found == {
        GateKind.ORDER: (None, None),
        GateKind.TASK_CONCURRENCY: (1, None),
        GateKind.QUEUE_CONCURRENCY: (3, None),
        GateKind.TASK_RATE: (None, RateRule(5, 64)),
        GateKind.TENANT_RATE: (None, RateRule(1, 64)),
        GateKind.QUEUE_RATE: (None, RULE),
    }
    assert rule_of(rate_gate(job()), PLAIN, None) is None
    assert limit_of(Gate(GateKind.TASK_CONCURRENCY, ("send",)), PLAIN, None) is None


# ----------------------------------------------------------------------------- what a gate says


def test_a_gate_that_is_shut_refuses_everybody() -> None:
    gate = key_pause("mail", "k")

    assert asked(GateState(gate, shut=True)) == Blocked(gate)


@pytest.mark.req("S1-21")
@given(st.integers(0, 5), st.integers(1, 5))
def test_a_concurrency_gate_is_open_while_fewer_run_than_may(running: int, limit: int) -> None:
    state = GateState(BUSY, limit=limit, running=running)

    assert (asked(state) is None) == (running < limit) == has_room(running, limit)


def test_a_rate_gate_says_when_time_opens_it() -> None:
    log = granted((), RULE, 2, 1_000)

    assert asked(GateState(RATED, rule=RULE)) is None
    assert asked(GateState(RATED, rule=RULE, log=log)) == Blocked(RATED, 1_064)


def test_a_gate_closed_for_a_time_says_when_both_that_and_its_limit_open() -> None:
    log = granted((), RULE, 2, 1_000)

    assert asked(GateState(RATED, until_us=1_050)) == Blocked(RATED, 1_050)
    assert asked(GateState(RATED, until_us=1_000)) is None
    assert asked(GateState(RATED, until_us=1_050, rule=RULE, log=log)) == Blocked(RATED, 1_064)
    assert asked(GateState(RATED, until_us=1_100, rule=RULE, log=log)) == Blocked(RATED, 1_100)


def test_a_job_heavier_than_a_lowered_limit_is_held_back_and_closes_nothing() -> None:
    refused = asked(GateState(RATED, rule=RULE), weight=3)

    assert refused == Blocked(RATED, None, closes=False)


@pytest.mark.req("S0-24", "S2-24")
def test_only_the_head_of_a_line_may_go_and_others_do_not_close_it() -> None:
    assert asked(GateState(LINE, head="job")) is None
    assert asked(GateState(LINE)) is None
    assert asked(GateState(LINE, head="other")) == Blocked(LINE, closes=False)


def test_the_first_closed_gate_is_the_one_that_refuses() -> None:
    closed = [GateState(BUSY, limit=1, running=1), GateState(RATED, shut=True)]
    free = GateState(Gate(GateKind.QUEUE_CONCURRENCY, ("other",)), limit=1)

    assert admit([free, *closed], job_id="job", weight=1, now_us=0) == Blocked(BUSY)
    assert admit([free], job_id="job", weight=1, now_us=0) is None
    assert admit([], job_id="job", weight=1, now_us=0) is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40))
def test_jobs_let_through_never_exceed_any_limit_they_share(
    events: list[tuple[str, bool]],
) -> None:
    """Two keys with one slot each, in a queue with two; jobs come and end in any order."""
    task = TaskSettings("send", concurrency=1)
    queue = QueueSettings("mail", concurrency=2)
    running: Counter[Gate] = Counter()
    for key, ends in events:
        gates = gates_of(job(concurrency_key=key), queue, task)
        if ends and running[gates[0]]:
            running.subtract(gates)
            continue
        states = [
            GateState(gate, limit=limit_of(gate, queue, task), running=running[gate])
            for gate in gates
        ]
        if admit(states, job_id="job", weight=1, now_us=0) is None:
            running.update(gates)
        assert running[gates[0]] <= 1
        assert running[Gate(GateKind.QUEUE_CONCURRENCY, ("mail",))] <= 2


# ------------------------------------------------------------------------------- lines, checks


@pytest.mark.parametrize("status", JobStatus)
def test_unfinished_jobs_hold_their_line_and_dead_ones_if_told_to(status: JobStatus) -> None:
    assert holds_line(status, dead_holds=False) == (status not in TERMINAL)
    assert holds_line(status, dead_holds=True) == (
        status not in TERMINAL or status is JobStatus.DEAD
    )


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_concurrency_that_lets_nothing_run_is_refused_by_name(limit: Any) -> None:
    with pytest.raises(ConfigError, match=r"concurrency is .*give 1 or more"):
        checked_concurrency(limit, "concurrency")


def test_a_sound_concurrency_is_taken() -> None:
    assert checked_concurrency(1, "concurrency") == 1


def test_an_unknown_choice_for_dead_heads_is_refused() -> None:
    check_on_dead("hold")
    check_on_dead("release")
    with pytest.raises(ConfigError, match=r"on_dead is 'wait'; give 'release'"):
        check_on_dead("wait")
