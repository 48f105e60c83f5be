# SPDX-License-Identifier: MIT
"""Circuit breakers: when calls to another system are let through, and when they are not tried.

closed ──so many failures in a window──▶ open ──its time is over──▶ half open: one probe
  ▲                                       ▲                            │      │
  └───────────────────────────────────────┼──────── it succeeds ───────┘      │
                                          └──────── it fails ─────────────────┘
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

#: Failures that a rule may ask for: each is an instant in the breaker's record.
FAILURES_MAX: Final = 1_000
#: A probe that has not ended by then, or within `open_us` if that is longer, is taken for lost.
PROBE_US_MIN: Final = 30_000_000
#: How long others wait for a probe before they look again: a part of `open_us`, at least this.
_LOOK_US_MIN: Final = 1_000_000
_LOOKS: Final = 4


class BreakerPhase(StrEnum):
    """What a breaker does with a call."""

    CLOSED = "closed"  #: lets it through
    OPEN = "open"  #: refuses it
    HALF_OPEN = "half_open"  #: lets one through, to find out


class BreakerRule(msgspec.Struct, frozen=True):
    """When a breaker opens, and for how long."""

    failures: int
    window_us: int
    open_us: int


class BreakerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a breaker; one of which nothing is known is closed."""

    failed_us: tuple[int, ...] = ()  #: the failures of the window, the oldest first
    opened_us: int | None = None
    open_until_us: int | None = None  #: None: it is closed
    probe_until_us: int | None = None  #: a probe runs, and is taken for lost from then on


class Admission(NamedTuple):
    """Whether a call goes through."""

    phase: BreakerPhase  #: half open: as the probe
    retry_us: int = 0  #: of one that is refused: when to try again


def breaker_phase(state: BreakerState, now_us: int) -> BreakerPhase:
    """What the breaker does with calls now."""
    if state.open_until_us is None:
        return BreakerPhase.CLOSED
    return BreakerPhase.OPEN if now_us < state.open_until_us else BreakerPhase.HALF_OPEN


def admission(state: BreakerState, rule: BreakerRule, now_us: int) -> Admission:
    """Whether a call goes through now; while a probe runs, no other does."""
    phase = breaker_phase(state, now_us)
    if phase is BreakerPhase.OPEN:
        return Admission(phase, state.open_until_us or now_us)
    probing_us = state.probe_until_us
    if phase is BreakerPhase.HALF_OPEN and probing_us is not None and now_us < probing_us:
        look_us = max(_LOOK_US_MIN, rule.open_us // _LOOKS)
        return Admission(BreakerPhase.OPEN, min(probing_us, now_us + look_us))
    return Admission(phase)


def call_failed(state: BreakerState, rule: BreakerRule, now_us: int) -> BreakerState | None:
    """The state after a call that was let through has failed; None: it changes nothing.

    A call that began before the breaker opened says nothing new.
    """
    if state.open_until_us is not None:
        return None
    # An instant of a clock that was set back since counts as now.
    recent = [min(each, now_us) for each in state.failed_us if each > now_us - rule.window_us]
    failed_us = (*recent, now_us)[-rule.failures :]
    if len(failed_us) < rule.failures:
        return BreakerState(failed_us)
    return BreakerState(failed_us, opened_us=now_us, open_until_us=now_us + rule.open_us)


def probe_begun(state: BreakerState, rule: BreakerRule, now_us: int) -> BreakerState:
    """The state while a probe runs."""
    until_us = now_us + max(rule.open_us, PROBE_US_MIN)
    return msgspec.structs.replace(state, probe_until_us=until_us)


def probe_ended(
    state: BreakerState, rule: BreakerRule, now_us: int, *, failed: bool
) -> BreakerState:
    """The state after a probe that did not succeed: open again, or free for another probe."""
    if not failed:
        return msgspec.structs.replace(state, probe_until_us=None)
    until_us = now_us + rule.open_us
    return msgspec.structs.replace(state, open_until_us=until_us, probe_until_us=None)
