# SPDX-License-Identifier: MIT
"""Run one attempt and say what it came to. No store, no clock, no policy.

    decode the arguments -> call the handler -> classify what it returned or raised

Nothing user code does makes these functions raise: its failures are values.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, Final

import msgspec

from packhorse.context import Context
from packhorse.job import DeadReason
from packhorse.outcome import GivenUp, Outcome, Succeeded
from packhorse.worker.attempt import Attempt
from packhorse.worker.failures import (
    as_error_object,
    described,
    ended_by_worker,
    raised,
    returned_error,
)

__all__ = ["Executor"]

_NOTHING: Final = Succeeded("null")
#: Types that cannot be an error object; most results are one of these.
_PLAIN: Final = frozenset({NoneType, bool, int, float, str, bytes, dict, list, tuple})


class Executor:
    """Calls handlers."""

    def __init__(self, make_context: Callable[[Attempt], Context]) -> None:
        self._make_context = make_context

    async def execute(self, attempt: Attempt) -> Outcome:
        """Run a coroutine handler."""
        if attempt.ending is not None:  # told to stop before it began
            return ended_by_worker(attempt, attempt.ending)
        plan = attempt.plan
        try:
            arguments = plan.decode(attempt.job.payload)
        except Exception as error:  # noqa: BLE001 - annotations may run user code
            return _unreadable(attempt, error)
        try:
            if plan.wants_context:
                context = self.context(attempt)
                return _returned(attempt, await plan.call(plan.function, arguments, context))
            return _returned(attempt, await plan.call(plan.function, arguments))
        except BaseException as error:  # noqa: BLE001 - SystemExit fails the job, not the worker
            return _ended(attempt, error)

    def execute_here(self, attempt: Attempt) -> Outcome:
        """Run a plain handler in the calling thread."""
        if attempt.ending is not None:
            return ended_by_worker(attempt, attempt.ending)
        plan = attempt.plan
        try:
            arguments = plan.decode(attempt.job.payload)
        except Exception as error:  # noqa: BLE001 - as above
            return _unreadable(attempt, error)
        try:
            if plan.wants_context:
                context = self.context(attempt)
                return _returned(attempt, plan.call(plan.function, arguments, context))
            return _returned(attempt, plan.call(plan.function, arguments))
        except BaseException as error:  # noqa: BLE001 - as above
            return _ended(attempt, error)

    def context(self, attempt: Attempt) -> Context:
        """The attempt's context; made when first asked for."""
        context = attempt.context
        if context is None:
            context = attempt.context = self._make_context(attempt)
            if attempt.ending is not None:  # told to stop while it was being made
                context.request_cancel()
        return context


def _returned(attempt: Attempt, value: Any) -> Outcome:
    """What a returned value means."""
    if attempt.ending is not None:
        # It was told to stop and ended in its own way: what it made of that does not count.
        return ended_by_worker(attempt, attempt.ending)
    if value is None:
        return _NOTHING
    if type(value) not in _PLAIN and as_error_object(value):
        return returned_error(value)
    try:
        return Succeeded(attempt.plan.encode_result(value))
    except Exception as error:  # noqa: BLE001 - results may be user classes
        return raised(error, code="INVALID_OUTPUT")


def _ended(attempt: Attempt, error: BaseException) -> Outcome:
    """What a raised exception means; a CancelledError only means us when we cancelled."""
    if attempt.ending is not None:
        return ended_by_worker(attempt, attempt.ending)
    return raised(error)


def _unreadable(attempt: Attempt, error: Exception) -> Outcome:
    """Why the arguments could not be read: no JSON object at all, or one that does not fit."""
    if not _is_readable(attempt.job.payload, whole=attempt.plan.whole):
        return GivenUp(DeadReason.UNDECODABLE, described(error, code="UNDECODABLE"))
    return GivenUp(DeadReason.INVALID_REQUEST, described(error, code="INVALID_REQUEST"))


def _is_readable(payload: str, *, whole: bool) -> bool:
    try:
        return isinstance(msgspec.json.decode(payload), dict) or whole
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
