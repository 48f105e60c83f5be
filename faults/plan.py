# SPDX-License-Identifier: MIT
"""What a run does."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """What to do."""

    store: str  #: `sqlite`, `postgres`, `redis`, or `redis-everysec`
    faults: int
    seed: int = 1
    lease_s: float = 2.0
    layout: str = "sspp"  #: workers: `s` under a supervisor, `p` without
    producers: int = 2
    peace_s: float = 0.8  #: between two faults, on average
    only: tuple[str, ...] = ()  #: kinds of fault whose name has one of these in it; all if none
