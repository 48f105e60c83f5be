# SPDX-License-Identifier: MIT
"""Settings of operators override declared ones; and the limits of tasks."""

from __future__ import annotations

from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import RateRule, RetryRule
from packhorse.core.policies.autoscale import ScaleRule
from packhorse.core.policies.retention import Retention
from packhorse.errors import ConfigError
from packhorse.stores.requests import QueueSettings, TaskSettings
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import Trial
from packhorse.testing.conformance.words import (
    SILENCE_S,
    given,
    heard,
    limit_queue,
    queue_state,
    submit,
)

_RATE: Final = RateRule(1, 64 * SECOND_US)
#: Every setting, each different from its default.
_EVERYTHING: Final = QueueSettings(
    QUEUE,
    priority=3,
    dead_letter="shelf",
    retry=RetryRule(max_retries=7, backoff="linear", retry_on=("a.B",)),
    retention=Retention(finished_us=SECOND_US, results_us=None, dead_us=5),
    concurrency=5,
    rate=RateRule(100, 60 * SECOND_US),
    tenant_rate=_RATE,
    max_depth=10,
    on_full="drop",
    soft_depth=8,
    fair=False,
    weights={"acme": 2.5},
    ageing_us=SECOND_US,
    on_dead="hold",
    autoscale=ScaleRule(enabled=True, min_workers=2, max_workers=9, scale_up=50, scale_down=5),
)
_TOPICS: Final = (f"queue:{QUEUE}", f"room:{QUEUE}")

_topics = pytest.mark.parametrize("topic", _TOPICS)


class TestOverriding:
    """Settings of an operator replace every declaration, until the operator ends them."""

    def test_every_setting_is_kept_as_declared_and_as_set(self, trial: Trial) -> None:
        trial.declare(_EVERYTHING)
        assert queue_state(trial).settings == _EVERYTHING

        limit_queue(trial)
        _override(trial, _EVERYTHING)

        assert queue_state(trial).settings == _EVERYTHING
        assert queue_state(trial).overridden

    def test_an_operators_settings_hold_over_later_declarations_until_they_are_ended(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, concurrency=1)
        assert _override(trial, QueueSettings(QUEUE, concurrency=3))

        limit_queue(trial, concurrency=2)
        submit(trial, *"abcd")

        assert given(trial) == ["a", "b", "c"]
        assert _override(trial, None)
        assert queue_state(trial).settings.concurrency == 2
        assert not queue_state(trial).overridden

    def test_setting_says_whether_that_changed_anything(self, trial: Trial) -> None:
        settings = QueueSettings(QUEUE, concurrency=9)

        assert not _override(trial, None)
        assert _override(trial, settings)
        assert not _override(trial, settings)
        assert _override(trial, None)

    def test_a_declaration_under_an_override_is_answered_with_the_one_it_replaced(
        self, trial: Trial
    ) -> None:
        limit_queue(trial, concurrency=1)
        _override(trial, QueueSettings(QUEUE, concurrency=9))

        (replaced,) = trial.declare(QueueSettings(QUEUE, concurrency=2))

        assert replaced == QueueSettings(QUEUE, concurrency=1)

    def test_an_undeclared_queue_can_be_set(self, trial: Trial) -> None:
        _override(trial, QueueSettings(QUEUE, concurrency=3))

        state = queue_state(trial)

        assert (state.declared, state.overridden, state.settings.concurrency) == (False, True, 3)

    def test_queues_that_are_closed_set_or_partly_paused_are_known(self, trial: Trial) -> None:
        queues = trial.store.queues
        trial.run(queues.close_queue("closed", closed=True))
        trial.run(queues.override("set", QueueSettings("set", concurrency=3)))
        trial.run(queues.pause("partly", paused=True, key="k"))

        found = trial.run(queues.queues())

        assert [state.settings.name for state in found] == ["closed", "partly", "set"]
        assert not any(state.declared for state in found)
        trial.submit(new_job(queue="holds"))
        assert [one.settings.name for one in trial.run(queues.queues())][1] == "holds"
        assert trial.run(queues.queues(holding=False)) == found

    def test_a_shelf_that_is_a_queue_is_refused_and_nothing_is_kept(self, trial: Trial) -> None:
        limit_queue(trial)

        with pytest.raises(ConfigError, match="shelf"):
            trial.run(trial.store.queues.override("a", QueueSettings("a", dead_letter=QUEUE)))

        assert [state.settings.name for state in trial.run(trial.store.queues.queues())] == [QUEUE]

    def test_a_shelf_that_was_set_takes_no_jobs(self, trial: Trial) -> None:
        _override(trial, QueueSettings(QUEUE, dead_letter="shelf"))

        with pytest.raises(ConfigError, match="shelf"):
            submit(trial, "a", queue="shelf")

    @_topics
    def test_settings_that_change_wake_workers_and_those_who_wait_for_room(
        self, trial: Trial, topic: str
    ) -> None:
        limit_queue(trial, concurrency=1)
        other = QueueSettings(QUEUE, concurrency=2)

        assert heard(trial, topic, lambda store: store.queues.override(QUEUE, other))
        assert heard(trial, topic, lambda store: store.queues.override(QUEUE, None))
        assert heard(trial, topic, lambda store: store.queues.declare([other]))

    @_topics
    def test_a_declaration_that_changes_nothing_wakes_no_listener(
        self, trial: Trial, topic: str
    ) -> None:
        limit_queue(trial, concurrency=1)
        same = QueueSettings(QUEUE, concurrency=1)

        assert not heard(trial, topic, lambda store: store.queues.declare([same]), SILENCE_S)


class TestTaskLimits:
    """Store the limits of each task; return the limits they replaced if these differ."""

    def test_limits_are_declared_replaced_and_taken_away_again(self, trial: Trial) -> None:
        one, two, none = (TaskSettings(TASK, concurrency=most) for most in (1, 2, None))
        other = TaskSettings("a", rate=_RATE)

        assert _declare(trial, one) == (None,)
        assert _declare(trial, one, other) == (None, None)
        assert _declare(trial, two) == (one,)
        assert trial.run(trial.store.queues.tasks()) == (other, two)
        assert _declare(trial, none) == (two,)
        assert trial.run(trial.store.queues.tasks()) == (other,)

    def test_limits_that_change_wake_the_queues_with_a_ready_job_of_the_task(
        self, trial: Trial
    ) -> None:
        submit(trial, "waiting")
        trial.submit(new_job("other", queue="elsewhere", task="resize"))
        limits = [[TaskSettings(TASK, concurrency=most)] for most in (1, 2)]

        assert heard(trial, _TOPICS[0], lambda store: store.queues.declare_tasks(limits[0]))
        assert not heard(
            trial, "queue:elsewhere", lambda store: store.queues.declare_tasks(limits[1]), SILENCE_S
        )

    def test_limits_that_do_not_change_wake_no_listener(self, trial: Trial) -> None:
        submit(trial, "waiting")
        limits = [TaskSettings(TASK, concurrency=1)]
        _declare(trial, *limits)

        assert not heard(
            trial, _TOPICS[0], lambda store: store.queues.declare_tasks(limits), SILENCE_S
        )


def _override(trial: Trial, settings: QueueSettings | None) -> bool:
    return trial.run(trial.store.queues.override(QUEUE, settings))


def _declare(trial: Trial, *tasks: TaskSettings) -> Any:
    return trial.run(trial.store.queues.declare_tasks(tasks))
