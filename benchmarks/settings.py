# SPDX-License-Identifier: MIT
"""How much of everything one run does."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

#: Of the jobs submitted one at a time: fewer, where each waits for a server, and that for a disk.
SINGLES_SHARE: Final[Mapping[str, float]] = MappingProxyType({"postgres": 0.125, "redis": 0.25})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and times; every load of a run is bounded by one of them."""

    rounds: int = 9  #: alternating rounds of everything that is compared
    jobs: int = 20_000  #: drained in one go
    peer_jobs: int = 2_000  #: the same for the peer, whose rate does not depend on it
    singles: int = 4_000  #: submitted one at a time
    many: int = 20_000  #: submitted a thousand at a time
    naps: int = 8_000  #: jobs that sleep, for one process against two
    stepped: int = 10_000  #: jobs with steps, and as many without
    mixed_naps: int = 10_000  #: jobs that sleep for times of all lengths
    large: int = 1_000  #: jobs with large payloads and results
    foreign: int = 300_000  #: jobs of a task that the worker does not know
    shape_seconds: int = 30  #: that jobs arrive at random instants
    pickup_seconds: int = 60  #: at ten jobs a second
    idle_seconds: int = 60
    steady_seconds: int = 600  #: that jobs arrive at one rate, from an empty store
    steady_rate: int = 1_500  #: jobs a second
    backlog_small: int = 1_000
    backlog_large: int = 1_000_000
    blocked_small: int = 100
    blocked_large: int = 100_000  #: jobs behind one busy key, or one exhausted limit
    snapshot_backlog: int = 200_000  #: jobs waiting while another connection holds an old snapshot
    memory_jobs: int = 400_000  #: 0: the growth of memory is not measured


FULL = Settings()
QUICK = Settings(
    rounds=3,
    jobs=8_000,
    peer_jobs=600,
    singles=2_000,
    many=8_000,
    naps=2_400,
    stepped=2_000,
    mixed_naps=5_000,
    large=200,
    foreign=20_000,
    shape_seconds=6,
    pickup_seconds=6,
    idle_seconds=5,
    steady_seconds=30,
    backlog_large=50_000,
    blocked_large=20_000,
    snapshot_backlog=10_000,
    memory_jobs=0,
)
