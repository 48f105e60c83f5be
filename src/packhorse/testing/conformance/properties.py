# SPDX-License-Identifier: MIT
"""How often properties are tried, and the values they are tried with."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

#: Set this variable to run the state machine longer than a usual test run.
_MACHINE_EXAMPLES: Final = "PACKHORSE_MACHINE_EXAMPLES"

# Many stores run this suite, and some wait for their disk, so there is no deadline.
_TOLERATED: Final = (
    HealthCheck.differing_executors,
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
)

#: For properties that open a store per example.
a_few_examples: Final = settings(
    max_examples=10, deadline=None, suppress_health_check=_TOLERATED, print_blob=True
)


def try_machine(kind: Callable[..., RuleBasedStateMachine], *arguments: object) -> None:
    """Try many sequences of the rules of a state machine, made with these arguments."""

    def factory() -> RuleBasedStateMachine:
        return kind(*arguments)

    untyped: Any = factory  # declared as a class, but a function works too
    run_state_machine_as_test(untyped, settings=_machine_settings())


def _machine_settings() -> settings:
    """Return settings for a short run, or for a run as long as the environment asks for.

    The short one is the same each time, so that a failure comes from a change; the long one looks
    for new failures.
    """
    asked = os.environ.get(_MACHINE_EXAMPLES)
    return settings(
        max_examples=int(asked or "6"),
        derandomize=asked is None,
        stateful_step_count=45 if asked is None else 60,
        deadline=None,
        suppress_health_check=_TOLERATED,
        print_blob=True,
    )
