# SPDX-License-Identifier: MIT
"""When an alert fires and when it is over: pure decisions over what was measured."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

#: Values kept of an alert on growth or a rate, at most one a tenth of its window.
_SAMPLES_MAX: Final = 12
_PARTS: Final = 10

Word = Literal["firing", "cleared"]


class AlertBound(msgspec.Struct, frozen=True):
    """A value is beyond it when it is above, or below."""

    above: bool
    value: float
    inclusive: bool = False

    def is_crossed(self, value: float) -> bool:
        """Whether a value is beyond it."""
        if self.inclusive and value == self.value:
            return True
        return value > self.value if self.above else value < self.value


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """How long a condition must hold, and how long it must be over, in microseconds."""

    bound: AlertBound
    hold_us: int = 0
    clear_us: int = 0
    repeat_us: int | None = None  #: how often it is told again while it lasts


class AlertState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of an alert between two looks."""

    value: float | None = None  #: as it was last measured
    beyond_us: int | None = None  #: since when it is beyond its bound
    firing_us: int | None = None  #: since when it fires
    fine_us: int | None = None  #: since when it is fine again while it fires
    told_us: int | None = None  #: when that was last told
    silent_us: int = 0  #: until when nothing is told
    samples: tuple[tuple[int, tuple[float, ...]], ...] = ()  #: instants and totals, oldest first
    totals: tuple[float, ...] = ()  #: attempts that succeeded and failed, of all workers so far
    seen: dict[str, tuple[int, int]] = {}  #: the same of each worker at the last look

    @property
    def firing(self) -> bool:
        """Whether it fires."""
        return self.firing_us is not None


read_state: Final = msgspec.json.Decoder(AlertState).decode


def judged(
    state: AlertState, rule: AlertRule, value: float | None, now_us: int
) -> tuple[AlertState, Word | None]:
    """The state after a look, and what is to be told; a value that is not known changes nothing."""
    if value is None:
        return state, None
    state = msgspec.structs.replace(state, value=value)
    if rule.bound.is_crossed(value):
        beyond_us = now_us if state.beyond_us is None else state.beyond_us
        state = msgspec.structs.replace(state, beyond_us=beyond_us, fine_us=None)
        if now_us - beyond_us < rule.hold_us:
            return state, None
        if state.firing_us is None:
            state = msgspec.structs.replace(state, firing_us=now_us)
        return _told(state, "firing", now_us) if _is_due(state, rule, now_us) else (state, None)
    state = msgspec.structs.replace(state, beyond_us=None)
    if state.firing_us is None:
        return state, None
    fine_us = now_us if state.fine_us is None else state.fine_us
    state = msgspec.structs.replace(state, fine_us=fine_us)
    if now_us - fine_us < rule.clear_us:
        return state, None
    heard = state.told_us is not None
    state = msgspec.structs.replace(state, firing_us=None, fine_us=None)
    state, word = _told(state, "cleared", now_us)
    # What was never told to fire, since it was silenced, is not told to be over.
    return msgspec.structs.replace(state, told_us=None), word if heard else None


def _is_due(state: AlertState, rule: AlertRule, now_us: int) -> bool:
    if state.told_us is None:
        return True  # it begins, or its silence is over
    return rule.repeat_us is not None and now_us - state.told_us >= rule.repeat_us


def _told(state: AlertState, word: Word, now_us: int) -> tuple[AlertState, Word | None]:
    if now_us < state.silent_us:
        return state, None
    return msgspec.structs.replace(state, told_us=now_us), word


def sampled(
    state: AlertState, totals: tuple[float, ...], window_us: int, now_us: int
) -> AlertState:
    """The state with these totals noted; those before the window are dropped, but the last."""
    samples = list(state.samples)
    if samples and any(now < then for now, then in zip(totals, samples[-1][1], strict=True)):
        samples = []  # some were redriven or removed: what comes from here on is growth
    if not samples or now_us - samples[-1][0] >= window_us // _PARTS:
        samples.append((now_us, totals))
    while len(samples) > 1 and (samples[1][0] <= now_us - window_us or len(samples) > _SAMPLES_MAX):
        samples.pop(0)
    return msgspec.structs.replace(state, samples=tuple(samples))


def grown(state: AlertState, totals: tuple[float, ...]) -> tuple[float, ...] | None:
    """How much each total has risen in the window; None before there is anything to compare."""
    if not state.samples:
        return None
    before = state.samples[0][1]
    return tuple(now - then for now, then in zip(totals, before, strict=True))
