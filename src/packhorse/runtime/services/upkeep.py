# SPDX-License-Identifier: MIT
"""What every worker and consumer does for its store beside its jobs, in loops of their own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from packhorse.core.clock import SECOND_US, Chance, Clock
from packhorse.core.job import PRIORITY_BY_NAME
from packhorse.errors import PackhorseError, StoreUnavailable
from packhorse.events import EventBus, JobDead, QueueStarving, TasksParked, dead_event
from packhorse.stores.intake import ADMITTED_MAX, Intake
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Counts

#: How long a service waits after an error, at most: its own interval may be a minute.
_AFTER_ERROR_S_MAX: Final = 5.0
#: Between two looks at the intake, once something came through it within so long.
_INTAKE_S: Final = 0.1
_LATELY_S: Final = 60.0
#: Jobs made ready in one write, which queues share; half a batch is followed by the next at once.
_PROMOTED: Final = 1_000
#: Jobs expired, parked or removed in one write: small, so that claims do not wait for it.
_BATCH: Final = 500
#: A deploy that brings the task back within this loses nothing.
PARKED_US_MAX: Final = 3600 * SECOND_US
#: A job that is overtaken by jobs which came so much later is starving.
STARVING_US: Final = 60 * SECOND_US
#: A look that takes long, in a store with millions of jobs or past what an old snapshot keeps of
#: those that have ended, is made so much rarer.
_REST_PER_COST: Final = 200


class Service(Protocol):
    """Something to be done again and again."""

    @property
    def name(self) -> str:
        """What it is called in events."""
        ...

    @property
    def interval_s(self) -> float:
        """How long it usually waits."""
        ...

    async def run_once(self) -> float:
        """Do it once, and say after how many seconds to do it again."""
        ...


@dataclass(frozen=True, slots=True)
class Driver:
    """Run services until they are cancelled; whatever one raises, run it again."""

    sleep: Callable[[float], Awaitable[None]]  #: ends early when the worker stops
    stopped: Callable[[], bool]
    failed: Callable[[str, BaseException], None]
    worked: Callable[[str], None]
    chance: Chance

    async def run(self, service: Service) -> None:
        """Drive one service."""
        await self.sleep(service.interval_s * self.chance.roll())
        while not self.stopped():
            try:
                wait_s = await service.run_once()
            except Exception as error:  # noqa: BLE001 - reported, and tried again
                self.failed(service.name, error)
                wait_s = spread(min(service.interval_s, _AFTER_ERROR_S_MAX), self.chance)
            else:
                self.worked(service.name)
            await self.sleep(wait_s)


def spread(interval_s: float, chance: Chance) -> float:
    """The interval give or take a quarter, so that a fleet does not march in step."""
    return interval_s * (0.75 + 0.5 * chance.roll())


class DeathReporter:
    """Count jobs that upkeep has given up, and emit an event for each."""

    def __init__(
        self,
        store: Store,
        bus: EventBus,
        worker: str,
        *,
        count: Callable[[int], None] = lambda _number: None,
    ) -> None:
        self._store = store
        self._bus = bus
        self._worker = worker
        self._count = count

    async def report(self, job_ids: Sequence[str]) -> None:
        """Report these jobs, save those that were redriven or removed since."""
        self._count(len(job_ids))
        if not self._bus.wants(JobDead):
            return
        for job_id in job_ids:
            record = await self._store.arun(self._store.inspection.job(job_id))
            if record is not None and record.dead_reason is not None:
                self._bus.emit(dead_event(record, worker=self._worker))


class Admitter:
    """Admit what users' transactions ask for: soon while they do, else now and then."""

    name = "admit"
    interval_s = 1.0

    def __init__(
        self, store: Store, clock: Clock, chance: Chance, found: Callable[[], None]
    ) -> None:
        self._store = store
        self._monotonic = clock.monotonic
        self._chance = chance
        self._found = found
        self._seen_at = -math.inf

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
        now = self._monotonic()
        if admitted:
            self._seen_at = now
            self._found()
        if admitted >= ADMITTED_MAX:
            return 0.0
        return spread(
            _INTAKE_S if now < self._seen_at + _LATELY_S else self.interval_s, self._chance
        )

    async def _isolate(self, intake: Intake) -> None:
        """Find the request that cannot be admitted, and give it up: it stops all others."""
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


class Promoter:
    """Make due jobs ready; claims do that for the queues they serve, this for the rest."""

    name = "promote"
    interval_s = 2.0

    def __init__(self, store: Store, chance: Chance) -> None:
        self._store = store
        self._chance = chance

    async def run_once(self) -> float:
        """Promote one batch."""
        promoted = await self._store.arun(self._store.upkeep.promote(limit=_PROMOTED))
        return 0.0 if 2 * promoted >= _PROMOTED else spread(self.interval_s, self._chance)


class Expirer:
    """Give up waiting jobs whose deadline has passed; no claim starts them before that either."""

    name = "expire"
    interval_s = 5.0

    def __init__(self, store: Store, chance: Chance, deaths: DeathReporter) -> None:
        self._store = store
        self._chance = chance
        self._deaths = deaths

    async def run_once(self) -> float:
        """Expire one batch."""
        expired = await self._store.arun(self._store.upkeep.expire(limit=_BATCH))
        await self._deaths.report(expired)
        return 0.0 if len(expired) >= _BATCH else spread(self.interval_s, self._chance)


class Parker:
    """Park jobs whose task no live worker knows, and give them up after a time."""

    name = "park"
    interval_s = 5.0

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        bus: EventBus,
        worker: str,
        *,
        deaths: DeathReporter,
    ) -> None:
        self._store = store
        self._monotonic = clock.monotonic
        self._chance = chance
        self._bus = bus
        self._worker = worker
        self._deaths = deaths

    async def run_once(self) -> float:
        """Park one batch, and name the tasks that are new among them."""
        plan = self._store.upkeep.park(after_us=PARKED_US_MAX, limit=_BATCH)
        began = self._monotonic()
        parked = await self._store.arun(plan)
        took_s = self._monotonic() - began
        if parked.tasks:
            self._bus.emit(TasksParked(worker=self._worker, tasks=tuple(sorted(parked.tasks))))
        await self._deaths.report(parked.dead)
        return max(spread(self.interval_s, self._chance), took_s * _REST_PER_COST)


class Pruner:
    """Remove records and results whose lifetime has passed."""

    name = "prune"
    interval_s = 30.0

    def __init__(self, store: Store, chance: Chance) -> None:
        self._store = store
        self._chance = chance

    async def run_once(self) -> float:
        """Prune one batch."""
        pruned = await self._store.arun(self._store.upkeep.prune(limit=_BATCH))
        return 0.0 if pruned >= _BATCH else spread(self.interval_s, self._chance)


class Served(NamedTuple):
    """Of the jobs that ranked lowest in the claims of a queue, the one ready for longest."""

    ready_us: int
    priority: int
    now_us: int  #: the store's clock at the last of these claims


class Starvation:
    """Report a ready job that waits long while jobs which came later are started.

    Strict priorities starve the low ones under endless high load; `ageing` prevents that. Of each
    claim the job that ranked lowest is noted. Where even that one became ready a minute after the
    one that has waited longest, the latter is being overtaken. Queues in which keys or tenants may
    hold single jobs back are left out: there a long wait proves nothing.
    """

    name = "starvation"
    interval_s = 15.0

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        bus: EventBus,
        worker: str,
        *,
        served: dict[str, Served],
    ) -> None:
        self._store = store
        self._monotonic = clock.monotonic
        self._chance = chance
        self._bus = bus
        self._worker = worker
        self._left_out: frozenset[str] = frozenset()
        self._served = served  # by queue; who claims writes it, and every look clears it
        self._told: set[str] = set()  # queues that are starving, as far as was told

    def leave_out(self, queues: frozenset[str]) -> None:
        """Do not judge queues in which some jobs may be held back while others go."""
        self._left_out = queues

    async def run_once(self) -> float:
        """Look whether a job waits much longer than those that were claimed."""
        served = self._served.copy()
        self._served.clear()
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

    def _judge(self, counts: Counts, served: Served) -> None:
        since_us = counts.oldest_ready_us
        starving = since_us is not None and served.ready_us - since_us >= STARVING_US
        if not starving or counts.queue in self._left_out:
            self._told.discard(counts.queue)
        elif since_us is not None and counts.queue not in self._told:
            self._told.add(counts.queue)
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
