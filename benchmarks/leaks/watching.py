# SPDX-License-Identifier: MIT
"""What a process has: memory, file descriptors, threads; and whether that grows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.estimates import slope

#: Growth is told for so many jobs.
PER: Final = 100_000
#: The first jobs warm a process up: up to so many, and at most half of a run. Caches and the
#: allocator settle by then; in a run that is shorter than twice that, memory is told, not judged.
_WARM_JOBS: Final = 100_000
#: What may come and go between two looks: connections that are opened again.
_DESCRIPTORS_SLACK: Final = 8
_GROWTH_MIB_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process."""

    jobs: int
    rss_mib: float
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Findings:
    """What became of it in the course of a run."""

    growth_mib: float  #: for each 100,000 jobs, once it is warm
    descriptors: tuple[int, int]  #: fewest and most
    threads: tuple[int, int]
    warm_after: int  #: jobs
    long_enough: bool  #: to judge memory

    @property
    def flat(self) -> bool:
        fewest, most = self.descriptors
        steady = self.growth_mib <= _GROWTH_MIB_MAX or not self.long_enough
        return steady and most - fewest <= _DESCRIPTORS_SLACK

    @property
    def verdict(self) -> str:
        if not self.flat:
            return "GROWS"
        return "flat" if self.long_enough else "too short a run to judge memory, the rest is flat"


def sample(pid: int, jobs: int) -> Sample:
    """Look at a process after so many jobs."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return Sample(
        jobs=jobs,
        rss_mib=int(_field(status, "VmRSS")) / 1024,
        descriptors=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        threads=int(_field(status, "Threads")),
    )


def judged(samples: Sequence[Sample]) -> Findings:
    """What the samples say, the first ones left out."""
    total = samples[-1].jobs
    warm_after = min(_WARM_JOBS, total // 2)
    warm = [one for one in samples if one.jobs >= warm_after]
    points = [(float(one.jobs), one.rss_mib) for one in warm]
    descriptors = [one.descriptors for one in warm]
    threads = [one.threads for one in warm]
    return Findings(
        growth_mib=slope(points) * PER,
        descriptors=(min(descriptors), max(descriptors)),
        threads=(min(threads), max(threads)),
        warm_after=warm_after,
        long_enough=warm_after == _WARM_JOBS,
    )


def _field(status: str, name: str) -> str:
    found = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the system does not tell {name}; this needs Linux")
    return found[1]
