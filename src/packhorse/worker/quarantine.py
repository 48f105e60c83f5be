# SPDX-License-Identifier: MIT
"""When suspects get their turn: jobs that were lost with a worker, and may have taken it down.

A suspect runs alone, so that if it kills this worker too, it is known to be the one. That costs
everybody else, so turns are short:

    normal ──suspects wait──▶ draining ──nothing runs──▶ turn ──1 s, or none left──▶ normal
       ▲                          │
       └──── 2 s were not enough ─┘        and normal work goes on for at least as long as it stood

Where the jobs that run are longer than that, each drain that came to nothing makes the next one
twice as patient, so that no suspect waits for ever beside endless long work.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["Mode", "Quarantine"]

#: How long running jobs may keep a turn from beginning, at first and at most.
_DRAIN_S, _DRAIN_S_MAX = 2.0, 600.0
#: How long a turn goes on taking suspects.
_TURN_S: Final = 1.0


class Mode(Enum):
    """What may be claimed now."""

    NORMAL = "normal"
    NOTHING = "nothing"  #: wait for what is running
    SUSPECTS = "suspects"  #: one, to run alone


class _State(Enum):
    NORMAL = "normal"
    DRAINING = "draining"
    TURN = "turn"


class Quarantine:
    """Decides from what is told; reads no clock."""

    def __init__(self) -> None:
        self._state = _State.NORMAL
        self._waiting = False
        self._stood_since = 0.0
        self._turn_since = 0.0
        self._normal_until = 0.0
        self._drain_s = _DRAIN_S

    def claimed(self, mode: Mode, *, jobs: int, suspects: bool) -> None:
        """What a claim came to."""
        self._waiting = suspects and (mode is Mode.NORMAL or jobs > 0)

    def mode(self, now: float, *, busy: bool, idle: bool) -> Mode:
        """What to claim; `busy` while anything runs, `idle` when other work was not to be had."""
        if self._state is _State.NORMAL:
            if not self._waiting or (now < self._normal_until and not idle):
                return Mode.NORMAL
            self._state, self._stood_since = _State.DRAINING, now
        if self._state is _State.DRAINING:
            if busy:
                return self._keep_draining(now)
            self._state, self._turn_since, self._drain_s = _State.TURN, now, _DRAIN_S
        if busy:
            return Mode.NOTHING
        if self._waiting and now - self._turn_since < _TURN_S:
            return Mode.SUSPECTS
        return self._back_to_normal(now)

    @property
    def stands(self) -> bool:
        """Whether a suspect has the turn or is about to: nothing else may begin."""
        return self._state is not _State.NORMAL

    def next_change(self, now: float) -> float | None:
        """How long until `mode` may differ by time alone."""
        if self._state is _State.DRAINING:
            return max(0.0, self._stood_since + self._drain_s - now)
        if self._state is _State.NORMAL and self._waiting:
            return max(0.0, self._normal_until - now)
        return None

    def _keep_draining(self, now: float) -> Mode:
        if now - self._stood_since < self._drain_s:
            return Mode.NOTHING
        self._drain_s = min(2 * self._drain_s, _DRAIN_S_MAX)
        return self._back_to_normal(now)

    def _back_to_normal(self, now: float) -> Mode:
        self._state = _State.NORMAL
        self._normal_until = now + (now - self._stood_since)
        return Mode.NORMAL
