# SPDX-License-Identifier: MIT
"""Run again? When? Back-off under a ceiling, with jitter from a roll that is given in."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from packhorse.core.durations import Duration, microseconds
from packhorse.core.job import RetryRule
from packhorse.errors import ConfigError

Backoff = Literal["fixed", "linear", "exponential"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon a failed job runs again.

    `max_retries` counts retries, so a job runs at most `max_retries + 1` times. With `jitter` the
    delay is drawn between half of the computed one and all of it, never above `max_delay`.
    """

    max_retries: int = 3
    backoff: Backoff = "exponential"
    initial_delay: Duration = "1s"
    max_delay: Duration = "60s"
    multiplier: float = 2.0  #: of exponential back-off only
    jitter: bool = True
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    on_timeout: Literal["retry", "dead"] = "retry"
    rule: RetryRule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", _rule(self))


def _rule(policy: RetryPolicy) -> RetryRule:
    """The policy as plain values, refused where it contradicts itself."""
    initial_us = microseconds(policy.initial_delay, setting="initial_delay")
    max_us = microseconds(policy.max_delay, setting="max_delay")
    problems = [
        (
            type(policy.max_retries) is not int or policy.max_retries < 0,
            f"max_retries is {policy.max_retries!r}; give 0 (run once) or more",
        ),
        (
            policy.backoff not in ("fixed", "linear", "exponential"),
            f"backoff is {policy.backoff!r}; give 'fixed', 'linear' or 'exponential'",
        ),
        (
            policy.on_timeout not in ("retry", "dead"),
            f"on_timeout is {policy.on_timeout!r}; give 'retry' or 'dead'",
        ),
        (initial_us <= 0, "initial_delay must be more than zero"),
        (
            initial_us > max_us,
            f"initial_delay ({policy.initial_delay}) is above max_delay ({policy.max_delay})",
        ),
        (
            type(policy.multiplier) not in (int, float)
            or not 0 < policy.multiplier <= sys.float_info.max,
            f"multiplier is {policy.multiplier!r}; give a number above zero",
        ),
    ]
    for wrong, message in problems:
        if wrong:
            raise ConfigError(f"retry policy: {message}")
    return RetryRule(
        max_retries=policy.max_retries,
        backoff=policy.backoff,
        initial_us=initial_us,
        max_us=max_us,
        multiplier=float(policy.multiplier),
        jitter=policy.jitter,
        retry_on=_names(policy.retry_on, "retry_on"),
        give_up_on=_names(policy.give_up_on, "give_up_on"),
        retry_timeouts=policy.on_timeout == "retry",
    )


def _names(kinds: object, setting: str) -> tuple[str, ...]:
    listed = tuple(kinds) if isinstance(kinds, Iterable) else (kinds,)
    if isinstance(kinds, type) or not all(isinstance(kind, type) for kind in listed):
        raise ConfigError(
            f"retry policy: {setting} is {kinds!r}; give a tuple of exception classes, such as "
            "(ConnectionError,)"
        )
    return tuple(qualified_name(kind) for kind in listed)


def qualified_name(kind: type) -> str:
    """The name a class is stored and matched under."""
    return f"{kind.__module__}.{kind.__qualname__}"


def wants_retry(rule: RetryRule, kinds: Sequence[str]) -> bool:
    """Whether an exception of these kinds (its MRO, by name) is one to retry."""
    return any(kind in rule.retry_on for kind in kinds) and not any(
        kind in rule.give_up_on for kind in kinds
    )


def retry_delay_us(rule: RetryRule, retry: int, *, roll: float) -> int:
    """The wait before the `retry`-th retry, from 1; never above the rule's ceiling."""
    delay = min(_raw_delay(rule, retry), rule.max_us)
    if rule.jitter:
        delay *= 0.5 + 0.5 * roll
    return int(delay)


def _raw_delay(rule: RetryRule, retry: int) -> float:
    if rule.backoff == "fixed":
        return rule.initial_us
    if rule.backoff == "linear":
        return rule.initial_us * retry
    try:
        return rule.initial_us * rule.multiplier ** (retry - 1)
    except OverflowError:
        return rule.max_us
