# SPDX-License-Identifier: MIT
"""The signal for scalers: demand, workers, and how many are wanted."""

from __future__ import annotations

import pytest

from packhorse import Packhorse
from packhorse.client.scaling import loads, next_scaling, snapshot
from packhorse.core.job import JobStatus
from packhorse.core.policies.autoscale import QUIET_US, Load, ScaleRule, Scaling
from packhorse.stores.requests import Counts
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.app_support import HandWorker, memory_app


@pytest.fixture
def app() -> Packhorse:
    app = memory_app(VirtualClock())
    scale = {"min_workers": 1, "max_workers": 3, "scale_up": 3, "scale_down": 0}
    app.queue("mail", autoscale=scale)  # type: ignore[arg-type]
    app.task(name="send", queue="mail")(lambda: None)
    app.task(name="work")(lambda: None)
    return app


@pytest.mark.req("S2-16")
def test_a_queue_tells_its_demand_and_how_many_workers_it_wants(app: Packhorse) -> None:
    app.tasks["send"].enqueue_many([{}] * 5)
    app.tasks["work"].enqueue()
    HandWorker(app.store, "send", queues=("mail",)).take(2)

    default, mail = app.insights.scaling()

    assert (mail.ready, mail.running, mail.demand) == (3, 2, 5)
    assert (mail.workers, mail.wanted) == (1, 2)
    assert (default.demand, default.workers, default.wanted) == (1, 0, None)


def test_a_scaled_queue_that_is_empty_is_told_of_too(app: Packhorse) -> None:
    (mail,) = app.insights.scaling()

    assert (mail.queue, mail.demand, mail.workers, mail.wanted) == ("mail", 0, 0, 1)


def test_the_rule_is_kept_in_the_store_over_limits_set_by_hand(app: Packhorse) -> None:
    app.tasks["send"].enqueue_many([{}] * 3)
    app.set_limits("mail", concurrency=7)

    (mail,) = Packhorse(store=app.store).insights.scaling()

    assert (mail.ready, mail.wanted) == (3, 2)


def test_another_rule_declared_later_holds(app: Packhorse) -> None:
    app.tasks["send"].enqueue()
    app.queue("mail", autoscale={"min_workers": 3, "max_workers": 3})
    app.tasks["send"].enqueue()

    (mail,) = Packhorse(store=app.store).insights.scaling()

    assert mail.wanted == 3


@pytest.mark.req("S1-49")
def test_a_queue_whose_autoscale_is_off_wants_nothing() -> None:
    app = memory_app()
    app.queue("mail", autoscale={"enabled": False, "scale_up": 20})

    (mail,) = app.insights.scaling()

    assert mail.wanted is None


def counts(queue: str, **numbers: int) -> Counts:
    return Counts(queue, {JobStatus(status): number for status, number in numbers.items()})


def test_rates_are_measured_between_two_looks() -> None:
    queues = ("mail", "idle")
    before = snapshot([counts("mail", queued=10, processing=2, completed=100)], queues, 5.0)
    now = snapshot([counts("mail", queued=14, processing=1, completed=105, dead=1)], queues, 7.0)

    found = loads(before, now, slots=8)

    assert found["mail"] == Load(14, 1, slots=8, arrivals_per_s=4.5, served_per_s=3.0)
    assert found["idle"] == Load(0, 0, slots=8)
    assert loads(None, now, slots=8)["mail"] == Load(14, 1, slots=8)


def test_what_retention_removes_makes_no_rate_negative() -> None:
    before = snapshot([counts("mail", completed=100)], ("mail",), 0.0)
    now = snapshot([counts("mail", completed=40)], ("mail",), 1.0)

    assert loads(before, now, slots=1)["mail"] == Load(0, 0, slots=1)


RULE = ScaleRule(enabled=True, min_workers=1, max_workers=4, scale_up=10, scale_down=1)


@pytest.mark.req("S1-48")
@pytest.mark.parametrize(
    ("ready", "quiet_us", "workers"),
    [
        ({"a": 10, "b": 0}, 0, 3),  # one needs more
        ({"a": 5, "b": 0}, QUIET_US, 2),  # one needs as many
        ({"a": 0, "b": 1}, QUIET_US, 1),  # none needs as many
        ({"a": 0, "b": 1}, QUIET_US - 1, 2),  # too soon for fewer
    ],
)
def test_workers_of_several_queues_are_as_many_as_the_neediest_wants(
    ready: dict[str, int], quiet_us: int, workers: int
) -> None:
    asked = {name: Load(number, 0) for name, number in ready.items()}

    found = next_scaling({"a": RULE, "b": RULE}, asked, Scaling(2, 0), quiet_us)

    assert found.workers == workers
