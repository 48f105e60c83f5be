# SPDX-License-Identifier: MIT
"""What is left to do when a handler is through: keep a question, write a result elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from packhorse.context import Context
from packhorse.core.job import DeadReason
from packhorse.core.outcome import GivenUp, Outcome, Snoozed, Succeeded, attempt_error
from packhorse.core.responses import with_outputs
from packhorse.runtime.worker.attempt import Attempt
from packhorse.runtime.worker.plans import limits_of
from packhorse.steps.calls import Work
from packhorse.steps.publishing import blocking, published


def within_budget(attempt: Attempt, context: Context, outcome: Outcome) -> Outcome:
    """What an attempt comes to that has spent too much, whatever its handler made of that."""
    if attempt.ending is not None or not context.overspent:
        return outcome
    told = context.steps.spending.exceeded()
    error = attempt_error(
        type(told).__name__, str(told), told.code, reason="exception:BudgetExceeded"
    )
    if isinstance(outcome, Succeeded):
        error = with_outputs(error, msgspec.json.decode(outcome.result))
    return GivenUp(DeadReason.REJECTED, error)


def rest_of(
    attempt: Attempt,
    outcome: Outcome,
    context_of: Callable[[Attempt], Context],
    *,
    threaded: bool = False,
) -> Work[Outcome] | None:
    """The work that is left; mostly none."""
    tool = attempt.plan.write_result
    if tool is not None and isinstance(outcome, Succeeded):
        rule, context = limits_of(attempt.job, attempt.plan).retry, context_of(attempt)
        tool = blocking(tool) if threaded else tool
        return published(context.steps, context.job, outcome, tool, rule)
    if isinstance(outcome, Snoozed) and outcome.asks:
        return context_of(attempt).steps.ask(outcome)
    return None
