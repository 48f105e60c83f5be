# SPDX-License-Identifier: MIT
"""Makes starvation visible: a ready job that waits long while such as came later are started.

Strict priorities starve the low ones under endless high load. Whoever does not want that gives the
queue `ageing`; everybody else is told. From each claim the last job is noted, the one that
ranked lowest. Where even those became ready a minute after the one that has waited longest, for a
whole look, it is being overtaken. Queues in which a key or a tenant of its own may hold somebody
back are left out: there waiting long proves nothing, and `packhorse explain` says more.
"""

from __future__ import annotations

import asyncio
from typing import Final

from packhorse.clock import SECOND_US, Chance, Clock
from packhorse.events import EventBus, QueueStarving
from packhorse.job import PRIORITY_BY_NAME, Job
from packhorse.services.service import spread
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Counts

__all__ = ["STARVING_US", "Starvation"]

#: Who is overtaken by those that came so much later is starving.
STARVING_US: Final = 60 * SECOND_US
#: A look that takes long, in a store with millions of jobs, is made so much rarer.
_REST_PER_COST: Final = 200


class Starvation:
    """A service; a worker that claims nothing does not look."""

    name = "starvation"
    interval_s = 15.0

    def __init__(
        self, store: Store, clock: Clock, chance: Chance, bus: EventBus, worker: str
    ) -> None:
        self._store = store
        self._monotonic = clock.monotonic
        self._chance = chance
        self._bus = bus
        self._worker = worker
        self._left_out: frozenset[str] = frozenset()
        self._served: dict[str, Job] = {}  # per queue, of those noted the one ready for longest
        self._now_us = 0  # the store's clock at the last claim
        self._told: set[str] = set()  # queues that are starving, as far as was told

    def leave_out(self, queues: frozenset[str]) -> None:
        """Do not judge these, where some may be held back while others are let through."""
        self._left_out = queues

    def served(self, job: Job, now_us: int) -> None:
        """The job that ranked lowest among those one claim brought. Once per claim."""
        self._now_us = now_us
        known = self._served.get(job.queue)
        if known is None or job.ready_us < known.ready_us:
            self._served[job.queue] = job

    async def run_once(self) -> float:
        """Look once whether somebody waits much longer than those who were served."""
        served, self._served = self._served, {}
        usual_s = spread(self.interval_s, self._chance)
        if not served:
            return usual_s
        began = self._monotonic()
        # In a thread: it may take a while, and on the loop's own runner it would hold up claims.
        counts = await asyncio.to_thread(self._read)
        took_s = self._monotonic() - began
        for each in counts:
            if each.queue in served:
                self._judge(each, served[each.queue])
        return max(usual_s, took_s * _REST_PER_COST)

    def _read(self) -> tuple[Counts, ...]:
        return self._store.run(self._store.inspection.counts())

    def _judge(self, counts: Counts, served: Job) -> None:
        since_us = counts.oldest_ready_us
        starving = since_us is not None and served.ready_us - since_us >= STARVING_US
        if not starving or counts.queue in self._left_out:
            self._told.discard(counts.queue)
        elif since_us is not None and counts.queue not in self._told:
            self._told.add(counts.queue)
            self._bus.emit(
                QueueStarving(
                    worker_id=self._worker,
                    queue=counts.queue,
                    waited_s=(self._now_us - since_us) / SECOND_US,
                    priority=_priority_name(served.priority),
                )
            )


def _priority_name(level: int) -> str:
    return next((name for name, number in PRIORITY_BY_NAME.items() if number == level), str(level))
