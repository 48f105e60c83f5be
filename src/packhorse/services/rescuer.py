# SPDX-License-Identifier: MIT
"""Takes jobs from workers that are gone.

A lease counts as gone only when it was seen expired twice, some time apart, with no failed store
call between: after an outage, or a step of the store's clock, everybody's lease looks expired, and
the first look must not start a stampede.
"""

from __future__ import annotations

from typing import Final

from packhorse import lifecycle
from packhorse.clock import SECOND_US, Chance, Clock
from packhorse.events import EventBus, JobRescued
from packhorse.job import JobStatus
from packhorse.lifecycle import Orphan
from packhorse.policies.lease import Sighting, confirmed, sight, suspicion_us
from packhorse.services.service import spread
from packhorse.settlement import Settlement, Verdict
from packhorse.stores.protocol import Store

__all__ = ["Rescuer"]

#: Jobs rescued in one write; a full batch is followed by the next at once.
_BATCH: Final = 200


class Rescuer:
    """Looks for expired leases and overdue holds."""

    name = "rescue"
    interval_s = 0.8  # with its spread at most a second: rescue comes within lease + 5 s

    def __init__(
        self, store: Store, clock: Clock, chance: Chance, bus: EventBus, worker: str
    ) -> None:
        self._store = store
        self._monotonic = clock.monotonic
        self._chance = chance
        self._bus = bus
        self._worker = worker
        self._seen: dict[str, Sighting] = {}  # at most one per worker that holds jobs

    async def run_once(self) -> float:
        """Look once; a failed store call forgets what was seen before it."""
        seen, self._seen = self._seen, {}
        store = self._store
        expired = {
            lease.worker: (lease.expires_us, lease.lease_us)
            for lease in await store.arun(store.leases.expired())
            if lease.worker != self._worker  # its own heartbeat knows better
        }
        now = self._monotonic()
        seen = sight(seen, expired, now)
        orphans = await store.arun(store.leases.orphans(confirmed(seen, now), limit=_BATCH))
        if orphans:
            await self._rescue(orphans)
        self._seen = seen
        return 0.0 if len(orphans) == _BATCH else self._next_look(now)

    async def _rescue(self, orphans: tuple[Orphan, ...]) -> None:
        settlements = [lifecycle.rescue(orphan) for orphan in orphans]
        verdicts = await self._store.arun(self._store.jobs.settle(settlements))
        if not self._bus.wants(JobRescued):
            return
        for orphan, settlement, verdict in zip(orphans, settlements, verdicts, strict=True):
            if verdict is not Verdict.STALE:  # else it ended after all, or somebody was faster
                self._bus.emit(_rescued(orphan, settlement, self._worker))

    def _next_look(self, now: float) -> float:
        """After the usual time, or as soon as a sighting can be confirmed."""
        waits = [
            max(0.0, each.first_seen + suspicion_us(each.lease_us) / SECOND_US - now)
            for each in self._seen.values()
        ]
        usual = spread(self.interval_s, self._chance)
        return min([usual, *(wait for wait in waits if wait > 0)])


def _rescued(orphan: Orphan, settlement: Settlement, worker: str) -> JobRescued:
    return JobRescued(
        job_id=orphan.job_id,
        worker_id=worker,
        lost_worker=orphan.worker,
        crashes=orphan.crashes + 1,
        dead=settlement.status is JobStatus.DEAD,
        delay_ms=settlement.delay_us / 1000,
    )
