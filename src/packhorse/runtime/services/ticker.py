# SPDX-License-Identifier: MIT
"""Fires schedules: every worker looks, one at a time is on duty, and record versions decide.

What a worker declares it writes when it starts, and again from time to time, so that the store
knows that it is still declared. A fire is one `change`: the schedule moves on and its job is
submitted, or neither. So two workers that believe to be on duty cannot fire twice, and one that
dies in between leaves the fire to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from packhorse.core.clock import SECOND_US, Chance, Clock
from packhorse.core.policies.records import Put, Record, RecordId
from packhorse.core.schedules import (
    RETIRED_KEPT_US,
    SCHEDULE_KIND,
    SEEN_EVERY_US,
    Fired,
    Release,
    ScheduleDeclaration,
    ScheduleDocument,
    declared,
    fired,
    is_forgotten,
    read_schedule,
    refused,
    retired,
    schedule_id,
    written_schedule,
)
from packhorse.events import EventBus, ScheduleLate, ScheduleMissed, ScheduleRefused
from packhorse.runtime.services.upkeep import spread
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RecordPage, RefusedJob

__all__ = ["Ticker"]

#: A worker on duty says so again before this has passed, or another one takes over.
_DUTY_US: Final = 10 * SECOND_US
#: How long one that is not on duty waits for the one that is.
_OFF_DUTY_S: Final = 1.0
#: Workers of a release say that it lives; without that, declarations of others hold.
_RELEASE_US: Final = 180 * SECOND_US
_RELEASE_EVERY_S: Final = 60.0
#: A fire submitted so long after it was due is reported.
_REPORTED_LATE_US: Final = 30 * SECOND_US
_PAGE: Final = 100
#: Schedules written in one change: few, since one conflict makes it run again.
_TOGETHER: Final = 50


class Ticker:
    """Declares the schedules of its app, and fires those that are due."""

    name = "schedules"
    interval_s = 5.0

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        bus: EventBus,
        worker: str,
        *,
        schedules: Sequence[ScheduleDeclaration] = (),
        release: str = "",
    ) -> None:
        self._store = store
        self._monotonic = clock.monotonic
        self._chance = chance
        self._bus = bus
        self._worker = worker
        self._declarations = schedules
        self._release = RecordId("release", "", release[:400])
        self._renew_at = self._declare_at = float("-inf")
        self._duty_until = float("-inf")

    async def run_once(self) -> float:
        """Declare if that is due, fire what is due, and say when the next fire is."""
        now = self._monotonic()
        if self._declarations and now >= self._renew_at:
            release = await self._renew_release()
            if now >= self._declare_at:
                await self._declare(release)
                self._declare_at = now + SEEN_EVERY_US / SECOND_US
            self._renew_at = now + _RELEASE_EVERY_S
        page = await self._due_next()
        due = [record for record in page.records if _order(record) <= page.now_us]
        if due and not await self._is_on_duty():
            return spread(_OFF_DUTY_S, self._chance)
        moved = False
        for begin in range(0, len(due), _TOGETHER):
            moved |= await self._fire(due[begin : begin + _TOGETHER], page.now_us)
        if due:
            return 0.0 if moved else spread(_OFF_DUTY_S, self._chance)
        if not page.records:
            return spread(self.interval_s, self._chance)
        wait_s = (_order(page.records[0]) - page.now_us) / SECOND_US
        return min(wait_s, spread(self.interval_s, self._chance))

    async def _due_next(self) -> RecordPage:
        records = self._store.records
        return await self._store.arun(records.records(SCHEDULE_KIND, by_order=True, limit=_PAGE))

    async def _change(self, *changes: Put, **more: Any) -> Changed:
        return await self._store.arun(self._store.records.change(changes, **more))

    # --------------------------------------------------------------------------------- declaring

    async def _renew_release(self) -> Release:
        """Say that this release lives; the first to say so says since when."""
        while True:
            record = await self._store.arun(self._store.records.record(self._release))
            if record is None:
                page = await self._due_next()
                since_us, version = page.now_us, 0
            else:
                known = msgspec.json.decode(record.document, type=Release)
                since_us, version = known.since_us, record.version
            release = Release(self._release.key, since_us)
            document = msgspec.json.encode(release)
            put = Put(self._release, document, version, keep_us=_RELEASE_US)
            if (await self._change(put)).applied:
                return release

    async def _declare(self, release: Release) -> None:
        """Write each schedule that is new, is declared otherwise, or was not seen for long."""
        left = {each.name: each for each in self._declarations}
        while left:
            stored, now_us = await self._stored(left)
            puts = []
            for name, declaration in list(left.items()):
                put = await self._declared(stored.get(name), declaration, release, now_us)
                if put is None:
                    del left[name]
                else:
                    puts.append(put)
            for begin in range(0, len(puts), _TOGETHER):
                part = puts[begin : begin + _TOGETHER]
                changed = await self._change(*part)
                # What conflicts was declared by another worker meanwhile: compare again.
                for put in part if changed.applied else ():
                    del left[put.id.key]

    async def _declared(
        self,
        record: Record | None,
        declaration: ScheduleDeclaration,
        release: Release,
        now_us: int,
    ) -> Put | None:
        before = None if record is None else read_schedule(record.document)
        lives = before is None or before.release == release or await self._lives(before.release)
        after = declared(before, declaration, release, now_us, holder_lives=lives)
        return None if after is None else _put(after, 0 if record is None else record.version)

    async def _stored(self, wanted: Mapping[str, object]) -> tuple[dict[str, Record], int]:
        found: dict[str, Record] = {}
        after: str | None = None
        while True:
            plan = self._store.records.records(SCHEDULE_KIND, after=after, limit=_PAGE)
            page = await self._store.arun(plan)
            found.update({each.id.key: each for each in page.records if each.id.key in wanted})
            after = page.after
            if after is None:
                return found, page.now_us

    async def _lives(self, release: Release) -> bool:
        named = self._release._replace(key=release.name)
        return await self._store.arun(self._store.records.record(named)) is not None

    # ------------------------------------------------------------------------------------ firing

    async def _is_on_duty(self) -> bool:
        """Whether this worker may fire; that saves the others the work, versions decide."""
        now = self._monotonic()
        if now < self._duty_until:
            return True
        named = RecordId("duty", "", "schedules")
        record = await self._store.arun(self._store.records.record(named))
        if record is not None and record.document != self._worker.encode():
            return False
        put = Put(
            *(named, self._worker.encode(), 0 if record is None else record.version),
            keep_us=_DUTY_US,
        )
        if not (await self._change(put)).applied:
            return False
        self._duty_until = now + _DUTY_US / SECOND_US / 2
        return True

    async def _fire(self, records: Sequence[Record], now_us: int) -> bool:
        """Fire these schedules in one change; those that another worker changed are left to it."""
        moves = dict(filter(None, (self._move(record, now_us) for record in records)))
        while moves:
            fires = [move for move in moves.values() if move is not None]
            jobs = [job for move in fires for job in move.jobs]
            due = [move.due.fires[-1] for move in fires if move.due.fires]
            puts = list(moves)
            changed = await self._change(*puts, jobs=jobs, not_before=max(due, default=None))
            if changed.early:
                return False  # the store's clock was set back
            if changed.applied:
                await self._report(fires, changed, now_us)
                return True
            for index in changed.conflicts:
                del moves[puts[index]]
        return False

    def _move(self, record: Record, now_us: int) -> tuple[Put, Fired | None] | None:
        """How to write what becomes of a due schedule; None: a newer release wrote it."""
        try:
            schedule = read_schedule(record.document)
        except msgspec.DecodeError:
            return None
        if is_forgotten(schedule, now_us):
            put = _put(retired(schedule, now_us), record.version)
            return msgspec.structs.replace(put, keep_us=RETIRED_KEPT_US), None
        move = fired(schedule, now_us)
        return _put(schedule if move is None else move.document, record.version), move

    async def _report(self, moves: Sequence[Fired], changed: Changed, now_us: int) -> None:
        answers = iter(changed.jobs)
        for move in moves:
            schedule = move.document
            reasons = {
                job.id: answer.reason
                for job, answer in zip(move.jobs, answers, strict=False)
                if isinstance(answer, RefusedJob)
            }
            if move.due.missed:
                self._bus.emit(
                    ScheduleMissed(
                        worker_id=self._worker,
                        schedule=schedule.name,
                        catch_up=str(schedule.effective.catch_up),
                    )
                )
            late_us = now_us - max(move.due.fires, default=now_us)
            if late_us > _REPORTED_LATE_US:
                self._bus.emit(
                    ScheduleLate(
                        worker_id=self._worker,
                        schedule=schedule.name,
                        late_s=late_us / SECOND_US,
                    )
                )
            if reasons:
                await self._note_refused(schedule, reasons)

    async def _note_refused(self, schedule: ScheduleDocument, reasons: Mapping[str, str]) -> None:
        """Keep with the fires why their jobs were not stored; the schedule goes on."""
        self._bus.emit(
            ScheduleRefused(
                worker_id=self._worker,
                schedule=schedule.name,
                reason=next(iter(reasons.values())),
            )
        )
        record = await self._store.arun(self._store.records.record(schedule_id(schedule.name)))
        if record is not None:  # another one may change it meanwhile: the event told it anyway
            noted = refused(read_schedule(record.document), reasons)
            await self._change(_put(noted, record.version))


def _order(record: Record) -> int:
    return record.order or 0


def _put(schedule: ScheduleDocument, version: int) -> Put:
    return Put(
        *(schedule_id(schedule.name), written_schedule(schedule), version),
        order=schedule.next_us,
    )
