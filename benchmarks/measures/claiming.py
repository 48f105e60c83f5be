# SPDX-License-Identifier: MIT
"""Claims and settlements made by hand, as a worker makes them, and the backlogs they meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.bench import Bench, filled
from benchmarks.bounds import Bound
from benchmarks.contestants import Contestant
from benchmarks.measures.shapes import shaped_ours
from benchmarks.settings import Settings
from packhorse.core.job import JobStatus
from packhorse.core.settlement import Settlement, SettlementKind
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Claimed, ClaimRequest, Renewal

_SETTLE_BATCH: Final = 1000
_LEASE_US: Final = 3_600_000_000
_WORKER: Final = "benchmark"
_QUEUES: Final = ("default",)
_NOOP: Final = "noop"
#: A task that the producer of foreign jobs does not know, and jobs of it behind theirs.
_KNOWN: Final = "stamped"
_KNOWN_JOBS: Final = 2000


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a store holds when claims of one task are counted."""

    label: str
    waiting: int
    finished: int = 0
    task: str = _NOOP

    def fill(self, ours: Contestant, folder: Path) -> None:
        """Submit all of it; what is to be finished waits at first."""
        filled(ours, folder, "many", self.waiting + self.finished)
        if self.task == _KNOWN:
            filled(shaped_ours(ours, "one"), folder, "stamped", _KNOWN_JOBS)


def backlogs(bench: Bench, many: int) -> Iterator[Backlog]:
    """Few jobs waiting, many waiting, many finished, few and many of a foreign task waiting."""
    few, foreign = bench.settings.backlog_small, bench.settings.foreign
    yield Backlog(f"{few:,} waiting", few)
    yield Backlog(f"{many:,} waiting", many)
    yield Backlog(f"{many:,} finished", few, many)
    for count in (few, foreign):
        yield Backlog(_foreign(count), count, task=_KNOWN)


def foreign_bound(what: str, measure: str, settings: Settings) -> Bound:
    """Jobs of a task that the worker does not know cost its claims nothing."""
    few, many = settings.backlog_small, settings.foreign
    return Bound(
        says=f"{what} of a claim behind {many:,} jobs of a foreign task against {few:,}",
        measure=measure,
        of=_foreign(many),
        against=_foreign(few),
        at_most=1.3,
    )


def _foreign(count: int) -> str:
    return f"{count:,} of a foreign task"


def join(store: Store, task: str = _NOOP) -> None:
    """Become a worker."""
    store.run(store.leases.renew(Renewal(_WORKER, _LEASE_US, _QUEUES, (task,))))


def claim(store: Store, limit: int, task: str = _NOOP) -> Claimed:
    """Claim so many jobs, all of which must be there."""
    request = ClaimRequest(_WORKER, _QUEUES, (task,), limit, _LEASE_US)
    claimed = store.run(store.jobs.claim(request))
    if len(claimed.jobs) != limit:
        raise RuntimeError(f"a claim of {limit} jobs gave {len(claimed.jobs)}")
    return claimed


def finish(store: Store, count: int) -> None:
    """Run `count` jobs through the store, as a worker would."""
    done = 0
    while done < count:
        jobs = claim(store, min(_SETTLE_BATCH, count - done)).jobs
        ends = [
            Settlement(
                job.id,
                job.fence,
                SettlementKind.COMPLETED,
                JobStatus.COMPLETED,
                result="null",
                keep_us=_LEASE_US,
                result_keep_us=_LEASE_US,
            )
            for job in jobs
        ]
        store.run(store.jobs.settle(ends))
        done += len(jobs)
