# SPDX-License-Identifier: MIT
"""No more than so much in any window, over all workers, from a log of a few slots per gate.

    window ────────────────────────────────▶
    ├───┼───┼───┼── ... ──┼───┼───┼───┤      slots of ceil(window / 64)
      ▪       ▪▪            ▪                grants, each counted as if made at its slot's end

A grant counts until a whole window after the last microsecond of its slot. So it never counts too
short, and at most window / 64 too long. What was granted is never given back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from packhorse.durations import seconds_text
from packhorse.errors import ConfigError
from packhorse.job import RateRule

__all__ = [
    "SLOTS",
    "RateLog",
    "check_rate",
    "check_weight",
    "current",
    "granted",
    "is_over",
    "next_free_us",
    "slot_end_us",
]

#: Slots in a window; a log holds as many, and the one that is being filled.
SLOTS: Final = 64

#: (last microsecond of a slot, weight granted in it), the oldest first; no slot twice.
RateLog = tuple[tuple[int, int], ...]


def slot_end_us(instant_us: int, rule: RateRule) -> int:
    """The last microsecond of the slot an instant falls into."""
    slot_us = -(-rule.window_us // SLOTS)
    return (instant_us // slot_us + 1) * slot_us - 1


def current(log: RateLog, rule: RateRule, now_us: int) -> RateLog:
    """What of a log still counts, in slots of this rule.

    Grants that seem to lie ahead were made before the clock was set back; they count as made now.
    A store writes the log back that it found so, or it would find them ahead again and again.
    """
    latest_us = slot_end_us(now_us, rule)
    slots: dict[int, int] = {}
    for end_us, weight in log:
        end_now_us = min(slot_end_us(end_us, rule), latest_us)
        if end_now_us + rule.window_us > now_us:
            slots[end_now_us] = slots.get(end_now_us, 0) + weight
    return tuple(slots.items())


def next_free_us(log: RateLog, rule: RateRule, weight: int, now_us: int) -> int | None:
    """The first instant, from now on, at which so much may be granted if nothing else is.

    `now_us` itself when there is room; None when there never is, since `weight` is above the
    rule's `max`.
    """
    if weight > rule.max:
        return None
    counted = current(log, rule, now_us)
    used = sum(each for _, each in counted)
    free_us = now_us
    for end_us, freed in counted:
        if used + weight <= rule.max:
            break
        free_us = end_us + rule.window_us
        used -= freed
    return free_us


def granted(log: RateLog, rule: RateRule, weight: int, now_us: int) -> RateLog:
    """The log after a grant; whether there was room is not asked."""
    counted = dict(current(log, rule, now_us))
    end_us = slot_end_us(now_us, rule)
    counted[end_us] = counted.get(end_us, 0) + weight
    return tuple(counted.items())


def is_over(log: RateLog, window_us: int, now_us: int) -> bool:
    """Whether no grant of a log counts any more, if no window is longer than this."""
    return all(end_us + window_us <= now_us for end_us, _ in log)


def check_rate(rule: RateRule | None, *, setting: str = "rate_limit") -> None:
    """Refuse a rate that lets nothing start, or has no window; None is no limit."""
    if rule is None:
        return
    if type(rule.max) is not int or rule.max < 1:
        raise ConfigError(
            f"{setting} lets {rule.max!r} start; give 1 or more, or leave it out for no limit "
            "(to stop a queue, pause it)"
        )
    if type(rule.window_us) is not int or rule.window_us < 1:
        raise ConfigError(
            f"{setting} has a window of {rule.window_us!r} microseconds; give a span longer than "
            'zero, such as (100, "60s")'
        )


def check_weight(weight: int, rules: Iterable[RateRule | None] = ()) -> None:
    """Refuse a weight that means nothing, or that one of the job's rate limits could never let in.

    Checked at every submit against the limits of the moment.
    """
    if type(weight) is not int or weight < 1:
        raise ConfigError(f"weight is {weight!r}; give a whole number from 1 up")
    for rule in rules:
        if rule is not None and weight > rule.max:
            raise ConfigError(
                f"weight is {weight}, and its rate limit lets {rule.max} start in "
                f"{seconds_text(rule.window_us)}: it could never start; nothing was stored: "
                "lower the weight or raise the limit"
            )
