# SPDX-License-Identifier: MIT
"""The services that keep a store in order: every worker and consumer runs them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from packhorse.core.clock import SECOND_US
from packhorse.core.job import PRIORITY_BY_NAME
from packhorse.errors import PackhorseError, StoreUnavailable
from packhorse.events import JobDead, QueueStarving, TasksParked, dead_event
from packhorse.runtime.services.service import REST_PER_COST, Service, ServiceContext
from packhorse.stores.intake import ADMITTED_MAX, Intake
from packhorse.stores.requests import Counts

#: The interval of a transfer that had something to move within the last minute.
_BUSY_S: Final = 0.1
_LATELY_S: Final = 60.0
#: Jobs made ready in one write, which queues share; half a batch is followed by the next at once.
_PROMOTED: Final = 1_000
#: Jobs expired, parked or removed in one write: few, so that claims do not wait for it.
_BATCH: Final = 500
#: How long a job of an unknown task stays parked; a deploy that brings the task back loses nothing.
PARKED_US_MAX: Final = 3600 * SECOND_US
#: A job is starving when jobs that came this much later are started before it.
STARVING_US: Final = 60 * SECOND_US


class DeathReporter:
    """Count jobs that a service has given up, and emit an event for each."""

    def __init__(
        self, context: ServiceContext, *, count: Callable[[int], None] = lambda _number: None
    ) -> None:
        self._context = context
        self._count = count

    async def report(self, job_ids: Sequence[str]) -> None:
        """Report these jobs, except those that were redriven or removed meanwhile."""
        store, bus, worker = self._context.store, self._context.bus, self._context.worker
        self._count(len(job_ids))
        if not bus.wants(JobDead):
            return
        for job_id in job_ids:
            record = await store.arun(store.inspection.job(job_id))
            if record is not None and record.dead_reason is not None:
                bus.emit(dead_event(record, worker=worker))


class Transfer(Service):
    """Move requests from elsewhere into the store: often while some come, else once a second."""

    interval_s = 1.0

    def __init__(self, context: ServiceContext, found: Callable[[], None]) -> None:
        super().__init__(context)
        self._found = found
        self._moved_at = -math.inf

    def _after(self, moved: int) -> float:
        """Return when to look again after so many requests were moved."""
        now = self._monotonic()
        if moved:
            self._moved_at = now
            self._found()
        if moved >= ADMITTED_MAX:
            return 0.0
        return self._wait_s(_BUSY_S if now < self._moved_at + _LATELY_S else None)


class Admitter(Transfer):
    """Admit what users' transactions left in the intake."""

    name = "admit"

    async def run_once(self) -> float:
        """Admit one batch."""
        intake = self._store.intake
        if intake is None:
            return self.interval_s
        try:
            admitted = await self._store.arun(intake.admit())
        except StoreUnavailable:
            raise
        except Exception:
            await self._isolate(intake)
            raise
        return self._after(admitted)

    async def _isolate(self, intake: Intake) -> None:
        """Give up the request that cannot be admitted, since it holds up all others."""
        run = self._store.arun
        for _ in range(ADMITTED_MAX):
            try:
                if not await run(intake.admit(wait=True, limit=1)):
                    return
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - kept with the job, and told by the caller
                try:
                    await run(intake.give_up(repr(error), keep=True))
                except (PackhorseError, ValueError):  # it cannot even be kept
                    await run(intake.give_up(repr(error), keep=False))
                return


class Promoter(Service):
    """Make due jobs ready in queues that no worker claims from; claims do it for the others."""

    name = "promote"
    interval_s = 2.0

    async def run_once(self) -> float:
        """Promote one batch."""
        promoted = await self._store.arun(self._store.upkeep.promote(limit=_PROMOTED))
        return 0.0 if 2 * promoted >= _PROMOTED else self._wait_s()


class Expirer(Service):
    """Give up waiting jobs whose deadline has passed; claims do not start them either."""

    name = "expire"
    interval_s = 5.0

    def __init__(self, context: ServiceContext, deaths: DeathReporter) -> None:
        super().__init__(context)
        self._deaths = deaths

    async def run_once(self) -> float:
        """Expire one batch."""
        expired = await self._store.arun(self._store.upkeep.expire(limit=_BATCH))
        await self._deaths.report(expired)
        return 0.0 if len(expired) >= _BATCH else self._wait_s()


class Parker(Service):
    """Park jobs whose task no live worker knows, and give them up after an hour."""

    name = "park"
    interval_s = 5.0

    def __init__(self, context: ServiceContext, deaths: DeathReporter) -> None:
        super().__init__(context)
        self._deaths = deaths

    async def run_once(self) -> float:
        """Park one batch, and report the tasks that became unknown."""
        plan = self._store.upkeep.park(after_us=PARKED_US_MAX, limit=_BATCH)
        began = self._monotonic()
        parked = await self._store.arun(plan)
        took_s = self._monotonic() - began
        if parked.tasks:
            self._bus.emit(TasksParked(worker=self._worker, tasks=tuple(sorted(parked.tasks))))
        await self._deaths.report(parked.dead)
        return max(self._wait_s(), took_s * REST_PER_COST)


class Pruner(Service):
    """Remove jobs and results whose retention has passed."""

    name = "prune"
    interval_s = 30.0

    async def run_once(self) -> float:
        """Prune one batch."""
        pruned = await self._store.arun(self._store.upkeep.prune(limit=_BATCH))
        return 0.0 if pruned >= _BATCH else self._wait_s()


class Served(NamedTuple):
    """Of the lowest-ranked jobs in the claims of a queue, the one that was ready for longest."""

    ready_us: int
    priority: int
    now_us: int  #: the store's clock at the last of these claims


class Starvation(Service):
    """Report a queue whose longest-waiting ready job is overtaken by jobs that came later.

    Strict priorities starve low ones under endless high load; `ageing` prevents that. The fetcher
    notes the lowest-ranked job of each claim. If even that one became ready a minute after the job
    that has waited longest, the latter is being overtaken. Queues in which keys or tenants may hold
    back single jobs are not judged: there a long wait proves nothing.
    """

    name = "starvation"
    interval_s = 15.0

    def __init__(self, context: ServiceContext, *, served: dict[str, Served]) -> None:
        super().__init__(context)
        self._left_out: frozenset[str] = frozenset()
        self._served = served  # by queue; the fetcher writes it, and every look clears it
        self._starving: set[str] = set()  # queues that were reported, until they recover

    def leave_out(self, queues: frozenset[str]) -> None:
        """Do not judge queues in which some jobs may be held back while others start."""
        self._left_out = queues

    async def run_once(self) -> float:
        """Compare the longest wait in each queue with the jobs claimed from it."""
        served = self._served.copy()
        self._served.clear()
        usual_s = self._wait_s()
        if not served:
            return usual_s
        counts, took_s = await self._counts()
        for each in counts:
            if each.queue in served:
                self._judge(each, served[each.queue])
        return max(usual_s, took_s * REST_PER_COST)

    def _judge(self, counts: Counts, served: Served) -> None:
        since_us = counts.oldest_ready_us
        starving = since_us is not None and served.ready_us - since_us >= STARVING_US
        if not starving or counts.queue in self._left_out:
            self._starving.discard(counts.queue)
        elif since_us is not None and counts.queue not in self._starving:
            self._starving.add(counts.queue)
            self._bus.emit(
                QueueStarving(
                    worker=self._worker,
                    queue=counts.queue,
                    waited_s=(served.now_us - since_us) / SECOND_US,
                    priority=_priority_name(served.priority),
                )
            )


def _priority_name(level: int) -> str:
    return next((name for name, number in PRIORITY_BY_NAME.items() if number == level), str(level))
