# SPDX-License-Identifier: MIT
"""What a run is told, what comes out of it, and the file that keeps both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from comparison.judge import Verdict


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How long a run is, and what it is drawn from."""

    seconds: int = 180  #: of the schedule
    drain: int = 420  #: after it, for what has not been completed
    seed: int = 1
    together: int = 8  #: contestants at a time: their jobs sleep, so that they can share a machine


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    verdict: Verdict
    took: float  #: seconds, from the first completed job on
    exits: int  #: workers that left by themselves and were started again
    server: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant's file."""

    name: str
    label: str
    store: str
    recovery: str
    settings: Sequence[str]
    command: str
    versions: str
    schedule: Settings
    trial: Trial
    facts: Mapping[str, str]
