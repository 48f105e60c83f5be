# SPDX-License-Identifier: MIT
"""Write a job's result to a result store of the user's own, before the job is completed.

The result is attached to the job first. If the result store is down, the next attempt only writes,
and does not call the handler again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from packhorse.core.clock import SystemChance
from packhorse.core.job import RetryRule
from packhorse.core.outcome import Outcome, Snoozed, Succeeded, attempt_error
from packhorse.core.policies.attachments import VALUE_BYTES_MAX
from packhorse.core.policies.retry import retry_delay_us
from packhorse.core.text import text_of
from packhorse.steps.calls import Calls, Invoke

if TYPE_CHECKING:
    from packhorse.steps.runner import StepRunner

_NAME: Final = "result"
_CHANCE: Final = SystemChance()


class _KeptResult(msgspec.Struct, frozen=True):
    """A result that is attached to its job until it has been written elsewhere."""

    parts: int
    tries: int = 0  #: that failed


def kept_result(values: Mapping[str, bytes]) -> str | None:
    """Return the result that an earlier attempt could not write."""
    head = _head(values)
    if head is None:
        return None
    return b"".join(values[f"{_NAME}:{at}"] for at in range(head.parts)).decode()


async def published(
    runner: StepRunner,
    calls: Calls,
    job: object,
    done: Succeeded,
    tool: Callable[..., Any],
    *,
    rule: RetryRule,
) -> Outcome:
    """Write the result, then complete the job; if that fails, try again later."""
    head = None if runner.kept is None else _head(runner.kept.values)
    if head is None:
        text = done.result.encode()
        begins = range(0, len(text), VALUE_BYTES_MAX)
        parts = {f"{_NAME}:{at}": text[begin:][:VALUE_BYTES_MAX] for at, begin in enumerate(begins)}
        head = _KeptResult(len(parts))
        await runner.keep(calls, {**parts, _NAME: msgspec.json.encode(head)})
    result = msgspec.json.decode(done.result)
    try:
        await calls.invoke(Invoke("write_result_store", tool, (job, result), None))
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises
        head = msgspec.structs.replace(head, tries=head.tries + 1)
        await runner.keep(calls, {_NAME: msgspec.json.encode(head)})
        kind = type(error).__name__
        told = attempt_error(
            kind,
            f"its result was not written, and is kept until it is: {text_of(error)}",
            "RESULT_STORE_UNAVAILABLE",
            reason="result_store_unavailable",
        )
        delay_us = retry_delay_us(rule, head.tries, roll=_CHANCE.roll())
        return Snoozed(delay_us, counts=False, error=told)
    return done


def blocking(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a tool in a thread, also if it is a coroutine function."""
    if not inspect.iscoroutinefunction(tool):
        return tool
    import asyncio  # noqa: PLC0415 - code that only submits does not pay for it

    return lambda *args: asyncio.run(tool(*args))


def _head(values: Mapping[str, bytes]) -> _KeptResult | None:
    kept = values.get(_NAME)
    return None if kept is None else msgspec.json.decode(kept, type=_KeptResult)


# Known before threads decode them: two that decode the first one at once crash in msgspec.
msgspec.json.Decoder(_KeptResult)
