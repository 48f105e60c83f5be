# SPDX-License-Identifier: MIT
"""Fire schedules: every worker looks, the one on duty fires, and record versions decide.

A worker writes the schedules that its app declares when it starts, and again from time to time, so
that the store knows that they are still declared. A fire is one `change`: it moves the schedule on
and submits its job, or does neither. So two workers that both believe to be on duty do not fire
twice, and a worker that dies in between leaves the fire to the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Final

import msgspec

from packhorse.core.clock import SECOND_US, to_datetime
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
from packhorse.events import (
    ScheduleLate,
    ScheduleMissed,
    ScheduleRefused,
    ScheduleStuck,
    TickMissed,
)
from packhorse.runtime.services.declarer import Declarer
from packhorse.runtime.services.service import (
    OFF_DUTY_S,
    Duty,
    Service,
    ServiceContext,
    due_records,
    in_parts,
)
from packhorse.stores.records import Changed, RecordPage, RefusedJob

#: A context manager entered around a submit; it returns the jobs with their trace context.
Traced = Callable[[list[NewJob]], AbstractContextManager[list[NewJob]]]

#: A fire that is submitted later than this is reported.
_REPORTED_LATE_US: Final = 30 * SECOND_US
#: Why a fire has no job of its own: an earlier job holds its unique key.
_RUNS_YET: Final = "the run before had not ended"
_PAGE: Final = 100
_LOG: Final = logging.getLogger("packhorse.worker")
#: How long a schedule rests that this worker cannot move; another one may be able to.
_REST_S: Final = 60.0

#: The change of a due schedule, and its fire if it has one.
_Move = tuple[Put, Fired | None]


class Ticker(Service):
    """Declare the schedules of an app, and fire those that are due."""

    name = "schedules"
    interval_s = 5.0
    begins_at_once = True  # until it has declared a schedule, operators cannot see or change it

    def __init__(
        self,
        context: ServiceContext,
        *,
        schedules: Sequence[ScheduleDeclaration] = (),
        release: str = "",
        traced: Traced = nullcontext,
    ) -> None:
        super().__init__(context)
        self._duty = Duty(context, self.name)
        self._has_declared = False
        self._traced = traced
        self._ticks = frozenset(each.name for each in schedules if each.is_tick)
        self._declarer = Declarer(
            *(context, SCHEDULE_KIND, [self._once_aged(each) for each in schedules], release),
            failed=self._tell_stuck,
            wrote=self._tell_past,
        )
        self._told_past: set[tuple[str, int]] = set()  #: at most one for each declaration
        self._stuck: dict[str, str] = {}  #: what was told of schedules, by their names
        #: Until when those rest that cannot be moved, by key and version. Their records stay as
        #: they are, so that they count as late, and another worker may move them.
        self._resting: dict[tuple[str, int], float] = {}

    async def run_once(self) -> float:
        """Declare and fire what is due; return when the next fire is."""
        await self._declarer.declare()
        self._has_declared = True
        due, page = await self._due()
        if not due:
            return self._until_due_s(page)
        if not await self._duty.is_mine():
            return self._wait_s(OFF_DUTY_S)
        moved = False
        moves = filter(None, (self._move(record, page.now_us) for record in due))
        for part in in_parts(moves, _move_bytes):
            moved |= await self._fire(part, page.now_us)
        return 0.0 if moved else self._wait_s(OFF_DUTY_S)

    def _once_aged(self, schedule: ScheduleDeclaration) -> ScheduleDeclaration:
        """Count its age until it is declared; an emptied store must not fire again what passed."""
        age_us = schedule.age_us
        return msgspec.structs.replace(
            schedule, age_us=lambda: 0 if self._has_declared else age_us()
        )

    async def _due(self) -> tuple[list[Record], RecordPage]:
        """Read what is due and does not rest; a page of nothing else is passed over."""
        after = None
        while True:
            page = await self._page(SCHEDULE_KIND, limit=_PAGE, by_order=True, after=after)
            found = due_records(page)
            due = [record for record in found if not self._rests(record)]
            after = page.after
            if due or after is None or len(found) < len(page.records):
                return due, page

    def _rests(self, record: Record) -> bool:
        until = self._resting.get((record.id.key, record.version), 0.0)
        return self._monotonic() < until

    def _rest(self, record: Record) -> None:
        now = self._monotonic()
        self._resting = {named: until for named, until in self._resting.items() if now < until}
        self._resting[record.id.key, record.version] = now + _REST_S

    # ------------------------------------------------------------------------------------ firing

    async def _fire(self, part: Sequence[_Move], now_us: int) -> bool:
        """Fire schedules in one change, without those that another worker changed meanwhile."""
        moves = dict(part)
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

    def _move(self, record: Record, now_us: int) -> _Move | None:
        """Return the change of a due schedule, and its fire; None: it rests, and stops no other.

        A newer release may have written it, or this system may lack its time zone.
        """
        try:
            schedule = read_schedule(record.document)
        except msgspec.DecodeError:
            self._rest(record)
            return None
        try:
            return self._moved(schedule, record, now_us)
        except Exception as error:  # noqa: BLE001 - what another release declared may do anything
            self._tell_stuck(schedule.name, error)
            self._rest(record)
            return None

    def _moved(self, schedule: ScheduleDocument, record: Record, now_us: int) -> _Move:
        if is_forgotten(schedule, now_us):
            put = put_schedule(retired(schedule, now_us), record.version)
            return msgspec.structs.replace(put, keep_us=RETIRED_KEPT_US), None
        move = fired(schedule, now_us)
        return put_schedule(schedule if move is None else move.document, record.version), move

    def _tell_past(self, put: Put) -> None:
        """Say of a schedule that its only instant has passed, and that it did not fire then."""
        schedule = read_schedule(put.document)
        at_us = schedule.effective.at_us
        fired_then = at_us in {note.fire_us for note in schedule.fires}
        if at_us is None or at_us > schedule.last_us or fired_then:
            return
        if (schedule.name, at_us) in self._told_past:
            return
        self._told_past.add((schedule.name, at_us))
        _LOG.warning(
            "schedule %s does not fire: its only instant, %s, has passed; give a later at=, or run "
            "it by 'packhorse schedules run %s'",
            *(schedule.name, f"{to_datetime(at_us):%Y-%m-%d %H:%M:%S}Z", schedule.name),
        )

    def _tell_stuck(self, name: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        if self._stuck.get(name) != reason:
            self._stuck[name] = reason
            self._bus.emit(ScheduleStuck(worker=self._worker, schedule=name, reason=reason))

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
                kind = TickMissed if schedule.name in self._ticks else ScheduleMissed
                self._bus.emit(
                    kind(
                        worker=self._worker,
                        schedule=schedule.name,
                        catch_up=str(schedule.effective.catch_up),
                        missed=move.due.missed,
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
        """Note with the fires why their jobs were not stored; the schedule goes on."""
        refusals = [reason for reason in reasons.values() if reason != _RUNS_YET]
        if refusals:
            self._bus.emit(
                ScheduleRefused(worker=self._worker, schedule=schedule.name, reason=refusals[0])
            )
        record = await self._record(schedule_id(schedule.name))
        if record is not None:  # a conflict may lose the note, but not the event
            noted = refused(read_schedule(record.document), reasons)
            await self._change(put_schedule(noted, record.version))


def _move_bytes(move: _Move) -> int:
    put, fire = move
    return len(put.document) + sum(len(job.payload) for job in (fire.jobs if fire else ()))
