# SPDX-License-Identifier: MIT
"""Fires schedules: every worker looks, one at a time is on duty, and record versions decide.

What a worker declares it writes when it starts, and again from time to time, so that the store
knows that it is still declared. A fire is one `change`: the schedule moves on and its job is
submitted, or neither. So two workers that believe to be on duty cannot fire twice, and one that
dies in between leaves the fire to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, Final

import msgspec

from packhorse.core.clock import SECOND_US, Chance, Clock
from packhorse.core.job import NewJob
from packhorse.core.policies.records import Put, Record
from packhorse.core.releases import RETIRED_KEPT_US
from packhorse.core.schedules import (
    SCHEDULE_KIND,
    Fired,
    ScheduleDeclaration,
    ScheduleDocument,
    fired,
    is_forgotten,
    put_schedule,
    read_schedule,
    refused,
    retired,
    schedule_id,
)
from packhorse.events import EventBus, ScheduleLate, ScheduleMissed, ScheduleRefused
from packhorse.runtime.services.declarer import Declarer
from packhorse.runtime.services.duty import OFF_DUTY_S, Duty
from packhorse.runtime.services.upkeep import spread
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RecordPage, RefusedJob

#: Entered around what stores jobs; gives them with the trace they are part of, if any.
Traced = Callable[[list[NewJob]], AbstractContextManager[list[NewJob]]]

#: A fire submitted so long after it was due is reported.
_REPORTED_LATE_US: Final = 30 * SECOND_US
#: Why a fire has no job whose key another one holds, as that of a tick does.
_RUNS_YET: Final = "the run before had not ended"
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
        traced: Traced = nullcontext,
    ) -> None:
        self._store = store
        self._duty = Duty(store, clock, self.name, worker)
        self._chance = chance
        self._bus = bus
        self._worker = worker
        self._traced = traced
        self._declarer = Declarer(store, clock, SCHEDULE_KIND, schedules, release)

    async def run_once(self) -> float:
        """Declare if that is due, fire what is due, and say when the next fire is."""
        await self._declarer.declare()
        page = await self._due_next()
        due = [record for record in page.records if _order(record) <= page.now_us]
        if due and not await self._duty.is_mine():
            return spread(OFF_DUTY_S, self._chance)
        moved = False
        for begin in range(0, len(due), _TOGETHER):
            moved |= await self._fire(due[begin : begin + _TOGETHER], page.now_us)
        if due:
            return 0.0 if moved else spread(OFF_DUTY_S, self._chance)
        if not page.records:
            return spread(self.interval_s, self._chance)
        wait_s = (_order(page.records[0]) - page.now_us) / SECOND_US
        return min(wait_s, spread(self.interval_s, self._chance))

    async def _due_next(self) -> RecordPage:
        records = self._store.records
        return await self._store.arun(records.records(SCHEDULE_KIND, by_order=True, limit=_PAGE))

    async def _change(self, *changes: Put, **more: Any) -> Changed:
        return await self._store.arun(self._store.records.change(changes, **more))

    # ------------------------------------------------------------------------------------ firing

    async def _fire(self, records: Sequence[Record], now_us: int) -> bool:
        """Fire these schedules in one change; those that another worker changed are left to it."""
        moves = dict(filter(None, (self._move(record, now_us) for record in records)))
        while moves:
            fires = [move for move in moves.values() if move is not None]
            jobs = [job for move in fires for job in move.jobs]
            due = [move.due.fires[-1] for move in fires if move.due.fires]
            puts = list(moves)
            with ExitStack() as stack:
                with suppress(Exception):  # users' samplers and processors run in it
                    jobs = stack.enter_context(self._traced(jobs))
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
            put = put_schedule(retired(schedule, now_us), record.version)
            return msgspec.structs.replace(put, keep_us=RETIRED_KEPT_US), None
        move = fired(schedule, now_us)
        return put_schedule(schedule if move is None else move.document, record.version), move

    async def _report(self, moves: Sequence[Fired], changed: Changed, now_us: int) -> None:
        answers = iter(changed.jobs)
        for move in moves:
            schedule = move.document
            reasons = {
                job.id: answer.reason if isinstance(answer, RefusedJob) else _RUNS_YET
                for job, answer in zip(move.jobs, answers, strict=False)
                if isinstance(answer, RefusedJob) or answer.job_id != job.id
            }
            if move.due.missed:
                self._bus.emit(
                    ScheduleMissed(
                        worker=self._worker,
                        schedule=schedule.name,
                        catch_up=str(schedule.effective.catch_up),
                    )
                )
            late_us = now_us - min(move.due.fires, default=now_us)
            if late_us > _REPORTED_LATE_US:
                self._bus.emit(
                    ScheduleLate(
                        worker=self._worker,
                        schedule=schedule.name,
                        late_s=late_us / SECOND_US,
                    )
                )
            if reasons:
                await self._note_refused(schedule, reasons)

    async def _note_refused(self, schedule: ScheduleDocument, reasons: Mapping[str, str]) -> None:
        """Keep with the fires why their jobs were not stored; the schedule goes on."""
        told = [reason for reason in reasons.values() if reason != _RUNS_YET]
        if told:
            self._bus.emit(
                ScheduleRefused(worker=self._worker, schedule=schedule.name, reason=told[0])
            )
        record = await self._store.arun(self._store.records.record(schedule_id(schedule.name)))
        if record is not None:  # another one may change it meanwhile: the event told it anyway
            noted = refused(read_schedule(record.document), reasons)
            await self._change(put_schedule(noted, record.version))


def _order(record: Record) -> int:
    return record.order or 0
