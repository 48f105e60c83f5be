# SPDX-License-Identifier: MIT
"""No more than so much in any window, over all workers, from a log of a few slots per gate.

    window ────────────────────────────────▶
    ├───┼───┼───┼── ... ──┼───┼───┼───┤      slots of ceil(window / 64)
      ▪       ▪▪            ▪                grants, each counted at the end of a slot

A claim says how long after it its jobs may start: its allowance. A grant is counted at the end of
the slot in which its allowance ends, and for a whole window from there. What was granted is never
given back.

So in no window do handlers of more weight than `max` begin. Let g be the instant of a grant and
e >= g + allowance the instant at which it is counted. A grant is made only if it and all that is
counted at e > g - window come to no more than `max`. Take jobs of more weight than `max`, of which
f was granted first and l last: then f was not counted any more at l, g(l) >= e(f) + window. The
worker starts no job before its grant, nor later than `allowance` after it asked for it, which was
before the grant: start(f) <= e(f) and start(l) >= g(l) >= start(f) + window. What could not start
in time goes back unstarted, and its grant is used up in vain.

A grant counts longer than it must by at most window / 64 + allowance * 65 / 64.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from packhorse.core.durations import span_text
from packhorse.core.job import NUMBER_MAX, RateRule
from packhorse.errors import ConfigError

#: Slots in a window; a log holds as many, and the one that is being filled.
SLOTS: Final = 64

#: The longest after a claim that a job with a rate limit may start.
ALLOWANCE_US_MAX: Final = 1_000_000

#: (last microsecond of a slot, weight counted in it), the oldest first; no slot twice.
RateLog = tuple[tuple[int, int], ...]


def slot_end_us(instant_us: int, rule: RateRule) -> int:
    """The last microsecond of the slot an instant falls into."""
    slot_us = -(-rule.window_us // SLOTS)
    return (instant_us // slot_us + 1) * slot_us - 1


def latest_end_us(rule: RateRule, now_us: int) -> int:
    """The latest slot in which a grant of now, or one before, is counted."""
    return slot_end_us(now_us + ALLOWANCE_US_MAX, rule)


def current(log: RateLog, rule: RateRule, now_us: int) -> RateLog:
    """What of a log still counts, in slots of this rule.

    Grants further ahead than any allowance were made before the clock was set back; they count as
    made now. A store writes the log back that it found so, or it would find them ahead again and
    again.
    """
    latest_us = latest_end_us(rule, now_us)
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


def granted(
    log: RateLog, rule: RateRule, weight: int, now_us: int, *, allowance_us: int = 0
) -> RateLog:
    """The log after a grant to a job that starts within `allowance_us`; room is not asked for."""
    counted = dict(current(log, rule, now_us))
    # In steps, so that a log stays small also where the window is short against the allowance.
    step_us = -(-allowance_us // SLOTS) or 1
    start_us = -(-(now_us + allowance_us) // step_us) * step_us
    end_us = min(slot_end_us(start_us, rule), latest_end_us(rule, now_us))
    counted[end_us] = counted.get(end_us, 0) + weight
    return tuple(sorted(counted.items()))


def is_over(log: RateLog, window_us: int, now_us: int) -> bool:
    """Whether no grant of a log counts any more, if no window is longer than this."""
    return all(end_us + window_us <= now_us for end_us, _ in log)


def check_rate(rule: RateRule | None, *, setting: str = "rate_limit") -> None:
    """Refuse a rate that lets nothing start, or has no window; None is no limit."""
    if rule is None:
        return
    if type(rule.max) is not int or not 1 <= rule.max <= NUMBER_MAX:
        raise ConfigError(
            f"{setting} lets {rule.max!r} start; give 1 to {NUMBER_MAX}, or leave it out for "
            "no limit (to stop a queue, pause it)"
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
    if type(weight) is not int or not 1 <= weight <= NUMBER_MAX:
        raise ConfigError(f"weight is {weight!r}; give a whole number from 1 to {NUMBER_MAX}")
    for rule in rules:
        if rule is not None and weight > rule.max:
            raise ConfigError(
                f"weight is {weight}, and its rate limit lets {rule.max} start in "
                f"{span_text(rule.window_us)}: it could never start; nothing was stored: "
                "lower the weight or raise the limit"
            )
