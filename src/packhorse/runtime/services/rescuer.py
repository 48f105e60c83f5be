# SPDX-License-Identifier: MIT
"""Take jobs from workers that are gone.

A worker counts as gone only when its lease was seen expired twice, some time apart, with no failed
store call between: after an outage every lease looks expired, and the first look must not start a
stampede. The same holds after the store's clock was set forward, which each look finds out by
comparing it with the local clock: then no job is taken before every live worker must have renewed.
See `policies.lease`.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from packhorse.core import lifecycle
from packhorse.core.job import JobRecord
from packhorse.core.lifecycle import Orphan
from packhorse.core.policies.lease import (
    NEVER,
    ClockReading,
    Hold,
    Sighting,
    confirmed,
    overdue,
    read_later_us,
    ripe_at,
    sight,
    sight_holds,
    stepped_us,
)
from packhorse.core.settlement import (
    Counted,
    Settlement,
    Verdict,
    counted_as,
    rescued_before,
)
from packhorse.errors import StoreUnavailable
from packhorse.events import (
    JobCancelled,
    JobCancelling,
    JobRescued,
    about_record,
    cancelled_events,
)
from packhorse.runtime.services.service import Service, ServiceContext
from packhorse.runtime.services.upkeep import DeathReporter
from packhorse.stores.requests import ExpiredLeases

_LOG: Final = logging.getLogger("packhorse.worker")
#: Jobs rescued in one write; a full batch is followed by the next at once.
_BATCH: Final = 200
_TOLD: Final = (JobRescued, JobCancelling, JobCancelled)


class _Unanswered(NamedTuple):
    """Rescues that may have been written, and by when on the store's clock."""

    orphans: Sequence[Orphan]
    settlements: Sequence[Settlement]
    until_us: int


class Rescuer(Service):
    """Look for expired leases and overdue holds.

    `renew` makes this worker renew its lease. It is called when the store's clock was set, or when
    the store says that this lease has expired: other workers may be about to take its jobs. `count`
    is called with the queue, the task and the outcome of each attempt that was lost.
    """

    name = "rescue"
    interval_s = 0.8  # with its spread at most a second: rescue comes within lease + 5 s

    def __init__(
        self,
        context: ServiceContext,
        *,
        deaths: DeathReporter | None = None,
        renew: Callable[[], None] = lambda: None,
        count: Callable[[str, str, Counted], None] = lambda *_: None,
    ) -> None:
        super().__init__(context)
        self._deaths = deaths or DeathReporter(context)
        self._renew = renew
        self._count = count
        self._reading: ClockReading | None = None
        self._stepped_at = NEVER  # on the local clock; only steps forward
        self._seen: dict[str, Sighting] = {}  # at most one per worker that holds jobs
        self._holds: dict[Hold, float] = {}  # at most a batch
        self._held: Counter[str] = Counter()  # how many jobs each worker held, over full batches
        self._unanswered: _Unanswered | None = None
        self._untold: deque[tuple[Orphan, Settlement, Verdict]] = deque()  # at most a batch

    async def run_once(self) -> float:
        """Look once; if a store call fails, forget what was seen before."""
        seen, self._seen = self._seen, {}
        holds, self._holds = self._holds, {}
        await self._tell()
        if (again := self._unanswered) is not None:
            await self._rescue(again.orphans, again.settlements)
        look = await self._look()
        now = self._monotonic()
        expired = {
            lease.worker: (lease.expires_us, lease.lease_us)
            for lease in look.leases
            if lease.worker != self._worker  # the heartbeat of this worker knows better
        }
        if len(expired) < len(look.leases):
            self._renew()
        seen = sight(seen, expired, now)
        gone = confirmed(seen, now, self._stepped_at)
        store = self._store
        orphans = await store.arun(store.leases.orphans(gone, limit=_BATCH))
        passed = [_hold(orphan) for orphan in orphans if orphan.worker not in gone]
        holds = sight_holds(holds, passed, now)
        too_long = overdue(holds, now, self._stepped_at)
        lost = [each for each in orphans if each.worker in gone or _hold(each) in too_long]
        if lost:
            judged = self._judged(lost)
            await self._rescue(judged, [lifecycle.rescue(orphan) for orphan in judged])
        self._seen, self._holds = seen, holds
        return 0.0 if len(lost) == _BATCH else self._next_look(now)

    def _judged(self, lost: Sequence[Orphan]) -> list[Orphan]:
        """Correct `alone`: a worker that held several orphans was running none of them alone."""
        self._held.update(orphan.worker for orphan in lost)
        judged = [
            msgspec.structs.replace(each, alone=each.alone and self._held[each.worker] == 1)
            for each in lost
        ]
        if len(lost) < _BATCH:  # else the next batch may be of the same workers
            self._held.clear()
        return judged

    async def _look(self) -> ExpiredLeases:
        """Read the expired leases, and notice when the store's clock was set."""
        before, asked = self._reading, self._monotonic()
        look = await self._store.arun(self._store.leases.expired())
        answered = self._monotonic()
        self._reading = ClockReading(look.now_us, asked, answered)
        step_us = 0 if before is None else stepped_us(before, self._reading)
        if step_us > 0:
            self._stepped_at = answered
        if step_us:
            self._renew()
        return look

    async def _rescue(self, orphans: Sequence[Orphan], settlements: Sequence[Settlement]) -> None:
        """Settle lost jobs; those that the store does not answer about are sent again."""
        try:
            verdicts = [*await self._store.arun(self._store.jobs.settle(settlements))]
        except StoreUnavailable:
            until_us = read_later_us(self._reading, self._monotonic())
            self._unanswered = _Unanswered(orphans, settlements, until_us)
            raise
        if (before := self._unanswered) is not None:
            for at, settlement in enumerate(settlements):
                if verdicts[at] is Verdict.STALE:
                    verdicts[at] = await self._verdict_before(orphans[at], settlement, before)
            self._unanswered = None
        answered = zip(orphans, settlements, verdicts, strict=True)
        # The others ended after all, or another rescuer was faster.
        self._untold += [each for each in answered if each[2] is not Verdict.STALE]
        await self._tell()

    async def _verdict_before(
        self, orphan: Orphan, settlement: Settlement, before: _Unanswered
    ) -> Verdict:
        """Find out whether a rescue was written though its answer was lost.

        Another rescuer would have written the same words: what is younger than the call is its.
        """
        history = await self._store.arun(self._store.inspection.history(orphan.job_id))
        known = [each for each in history if each.finished_us <= before.until_us]
        return rescued_before(settlement, orphan.worker, known)

    async def _tell(self) -> None:
        """Report rescues; those that the store does not answer about are left for the next run."""
        while self._untold:
            orphan, settlement, verdict = self._untold[0]
            try:
                await self._report(orphan, settlement, verdict)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - the others are reported all the same
                _LOG.warning("the rescue of job %s is not reported: %s", orphan.job_id, error)
            self._untold.popleft()
            if counted_as(settlement, verdict) is Counted.DEAD:
                await self._deaths.report([orphan.job_id])

    async def _report(self, orphan: Orphan, settlement: Settlement, verdict: Verdict) -> None:
        """Count an attempt that was lost, and emit its events, with what the job's record says."""
        record = await self._store.arun(self._store.inspection.job(orphan.job_id))
        if record is None:  # removed meanwhile
            return
        if (counted := counted_as(settlement, verdict)) is not None:
            self._count(record.queue, record.task, counted)
        if not any(self._bus.wants(kind) for kind in _TOLD):
            return
        self._bus.emit(_rescued(orphan, record, settlement, verdict, self._worker))
        if verdict is Verdict.CANCELLED:
            for event in cancelled_events(record, worker=self._worker):
                self._bus.emit(event)

    def _next_look(self, now: float) -> float:
        """Return the usual wait, or a shorter one until a sighting can be confirmed."""
        waits = [ripe_at(each, self._stepped_at) - now for each in self._seen.values()]
        return min([self._wait_s(), *(wait for wait in waits if wait > 0)])


def _hold(orphan: Orphan) -> Hold:
    return orphan.job_id, orphan.fence


def _rescued(
    orphan: Orphan, record: JobRecord, settlement: Settlement, verdict: Verdict, worker: str
) -> JobRescued:
    error = settlement.error
    started_us = orphan.lost_us if record.started_us is None else record.started_us
    return JobRescued(
        **about_record(record, worker=worker),
        status=record.status.value,
        duration_ms=max(0, orphan.lost_us - started_us) / 1000,
        error_code="" if error is None else error.code,
        error_type="" if error is None else error.type,
        error_message="" if error is None else error.message,
        lost_worker=orphan.worker,
        crashes=orphan.crashes + 1,
        dead=counted_as(settlement, verdict) is Counted.DEAD,
        delay_ms=settlement.delay_us / 1000,
    )
