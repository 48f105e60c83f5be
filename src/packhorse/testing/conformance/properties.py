# SPDX-License-Identifier: MIT
"""How often properties are tried, and the values they are tried with."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

#: Set it to try the state machine longer than a test run has time for.
_MACHINE_EXAMPLES: Final = "PACKHORSE_MACHINE_EXAMPLES"

# One suite is run by many stores, and a store takes the time its disk takes.
_TOLERATED: Final = (
    HealthCheck.differing_executors,
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
)

#: For properties that open a store per example.
a_few_examples: Final = settings(
    max_examples=10, deadline=None, suppress_health_check=_TOLERATED, print_blob=True
)


def machine_settings() -> settings:
    """A short run that fits every test run, or as long a one as the environment asks for.

    The short one is the same each time, so that a change is judged by what it changed; the long one
    looks for what nobody has seen yet.
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
