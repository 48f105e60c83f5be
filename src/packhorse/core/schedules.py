# SPDX-License-Identifier: MIT
"""A schedule as the store holds it, and what becomes of it: declared, fired, paused, changed.

Code declares a schedule, a record holds it, operators may change it. Each function here takes the
document as it is and returns the one to write; the version of its record decides between two
workers, so that each fire is submitted once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from packhorse.core.job import JobOptions, NewJob
from packhorse.core.keys import derived_id
from packhorse.core.policies.records import DOCUMENT_BYTES_MAX, Put, Record, RecordId
from packhorse.core.policies.schedule_times import (
    DueFires,
    Timing,
    check_timing,
    due_fires,
    fires_after,
    jittered_us,
)
from packhorse.core.releases import RETIRED_AFTER_US, Declared, Release, declared_again
from packhorse.errors import ConfigError

SCHEDULE_KIND: Final = "schedule"
#: Fires a schedule remembers; one with a large call remembers fewer.
_NOTES_MAX: Final = 50
#: Bytes of arguments that one look may submit; the rest waits for the next.
_FIRED_BYTES_MAX: Final = 1024 * 1024
#: What belongs to when it fires; the other fields of a timing say how.
_WHEN: Final = ("cron", "timezone", "every_us", "at_us")


class FireNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one fire."""

    fire_us: int  #: when it was due
    submitted_us: int
    job_id: str
    by_hand: bool = False
    refused: str = ""  #: why its job was not stored


class ScheduleDeclaration(msgspec.Struct, frozen=True):
    """A schedule as code declares it; of its job everything is decided but id, trace and time."""

    name: str
    timing: Timing
    job: NewJob
    is_tick: bool = False  #: declared with `app.every`
    age_us: Callable[[], int] = lambda: 0  #: how long ago code declared it

    @property
    def id(self) -> RecordId:
        """The record that holds it."""
        return schedule_id(self.name)

    def put(
        self, record: Record | None, release: Release, now_us: int, *, holder_lives: bool
    ) -> Put | None:
        """How to write what this declaration makes of it; None: nothing has to be written."""
        before = None if record is None else read_schedule(record.document)
        # The program may have been loading, or the store away, since an instant was chosen.
        since_us = now_us if self.timing.at_us is None else now_us - self.age_us()
        after = declared(
            before, self, release, now_us, since_us=since_us, holder_lives=holder_lives
        )
        return None if after is None else put_schedule(after, record.version if record else 0)


class ScheduleDocument(Declared, frozen=True, omit_defaults=True):
    """A schedule as the store holds it."""

    name: str
    timing: Timing  #: as declared
    job: NewJob
    anchor_us: int  #: where intervals are counted from
    last_us: int  #: every fire up to here is dealt with
    #: Fields of the timing that an operator set.
    changed: dict[str, Any] = msgspec.field(default_factory=dict)
    paused_us: int | None = None
    fires: tuple[FireNote, ...] = ()  #: the newest last

    @property
    def effective(self) -> Timing:
        """When it fires, with what an operator changed."""
        if not self.changed:
            return self.timing
        return msgspec.convert({**msgspec.to_builtins(self.timing), **self.changed}, Timing)

    def state(self, next_us: int | None) -> str:
        """One word: `active`, `paused`, `retired`, or `over` if there is no next fire."""
        if self.retired_us is not None:
            return "retired"
        if self.paused_us is not None:
            return "paused"
        return "over" if next_us is None else "active"

    @property
    def next_us(self) -> int | None:
        """When it fires next; None while it is paused, retired or over."""
        if self.retired_us is not None or self.paused_us is not None:
            return None
        return next(fires_after(self.effective, self.anchor_us, self.last_us), None)


class Fired(NamedTuple):
    """A schedule that has fired, and what is to be submitted with it."""

    document: ScheduleDocument
    jobs: tuple[NewJob, ...]
    due: DueFires


# ------------------------------------------------------------------------------------- as a record


def schedule_id(name: str) -> RecordId:
    """The record of a schedule."""
    return RecordId(SCHEDULE_KIND, "", name)


#: A schedule from the document of its record.
read_schedule: Final = msgspec.json.Decoder(ScheduleDocument).decode


def put_schedule(schedule: ScheduleDocument, version: int) -> Put:
    """How to write a schedule whose record has this version.

    What its call leaves no room for are its oldest fires: a schedule that was declared can fire.
    """
    fires, text = schedule.fires, msgspec.json.encode(schedule)
    while len(text) > DOCUMENT_BYTES_MAX and fires:
        fires = fires[1:]
        text = msgspec.json.encode(msgspec.structs.replace(schedule, fires=fires))
    if len(text) > DOCUMENT_BYTES_MAX:
        raise ConfigError(
            f"schedule {schedule.name!r} takes {len(text)} bytes, and {DOCUMENT_BYTES_MAX} are "
            "kept: give its call a reference instead of the data"
        )
    return Put(schedule_id(schedule.name), text, version, order=schedule.next_us)


# ---------------------------------------------------------------------------------------- declaring


def declared(
    before: ScheduleDocument | None,
    new: ScheduleDeclaration,
    release: Release,
    now_us: int,
    *,
    since_us: int | None = None,
    holder_lives: bool = True,
) -> ScheduleDocument | None:
    """What a worker's declaration makes of a schedule; None: nothing that had to be written.

    The newest release holds, until no worker of it lives (`holder_lives`). What an operator has
    changed stays. Each declaration keeps it from being retired. What was due before `since_us`,
    by default now, does not fire.
    """
    since_us = now_us if since_us is None else since_us
    if before is None:
        last_us = now_us - 1 if new.timing.at_start else since_us
        return ScheduleDocument(
            *(new.name, new.timing, new.job, now_us, last_us), seen_us=now_us, release=release
        )
    said = msgspec.structs.replace(before, timing=new.timing, job=new.job)
    after = declared_again(before, said, release, now_us, holder_lives=holder_lives)
    return None if after is None else _from_now_on(before, after, since_us)


def _from_now_on(
    before: ScheduleDocument, after: ScheduleDocument, now_us: int
) -> ScheduleDocument:
    """What another time-table would have fired in the past was not missed."""
    old, new = before.effective, after.effective
    if all(getattr(old, name) == getattr(new, name) for name in _WHEN):
        return after
    return msgspec.structs.replace(after, last_us=max(after.last_us, now_us))


# ------------------------------------------------------------------------------------------- firing


def fired(schedule: ScheduleDocument, now_us: int) -> Fired | None:
    """The schedule after its due fires, with a job for each; None: none is due."""
    if schedule.retired_us is not None or schedule.paused_us is not None:
        return None
    timing = schedule.effective
    limit = max(1, _FIRED_BYTES_MAX // (len(schedule.job.payload) + 1_000))
    due = due_fires(timing, schedule.anchor_us, schedule.last_us, now_us, limit=limit)
    if not due.fires and not due.missed:
        return None
    jobs = tuple(_job(schedule, timing, fire) for fire in due.fires)
    notes = tuple(FireNote(fire, now_us, job.id) for fire, job in zip(due.fires, jobs, strict=True))
    return Fired(
        msgspec.structs.replace(
            schedule, last_us=due.last_us, fires=(*schedule.fires, *notes)[-_NOTES_MAX:]
        ),
        jobs,
        due,
    )


def fired_by_hand(schedule: ScheduleDocument, job_id: str, now_us: int) -> Fired:
    """The schedule after an operator had it run now; its time-table goes on as it is."""
    job = _as_fire(schedule, job_id, now_us)
    notes = (*schedule.fires, FireNote(now_us, now_us, job_id, by_hand=True))
    after = msgspec.structs.replace(schedule, fires=notes[-_NOTES_MAX:])
    return Fired(after, (job,), DueFires((now_us,), 0, schedule.last_us, schedule.next_us))


def _job(schedule: ScheduleDocument, timing: Timing, fire_us: int) -> NewJob:
    """The job of a fire: its id follows from schedule and instant, so that none is there twice."""
    job_id = derived_id("schedule", schedule.name, str(fire_us))
    job = _as_fire(schedule, job_id, fire_us)
    starts_us = jittered_us(timing, schedule.name, fire_us)
    return job if starts_us == fire_us else msgspec.structs.replace(job, scheduled_us=starts_us)


def _as_fire(schedule: ScheduleDocument, job_id: str, fire_us: int) -> NewJob:
    options = msgspec.structs.replace(
        schedule.job.options or JobOptions(), schedule=schedule.name, scheduled_for_us=fire_us
    )
    return msgspec.structs.replace(
        schedule.job, id=job_id, trace_id=job_id.replace("-", ""), options=options
    )


def refused(schedule: ScheduleDocument, reasons: Mapping[str, str]) -> ScheduleDocument:
    """The schedule with what was said of the jobs that were not stored, by their ids."""
    notes = tuple(
        msgspec.structs.replace(note, refused=reasons.get(note.job_id, note.refused))
        for note in schedule.fires
    )
    return msgspec.structs.replace(schedule, fires=notes)


# ------------------------------------------------------------------------------- by an operator


def paused(schedule: ScheduleDocument, now_us: int) -> ScheduleDocument:
    """It fires no more until it is resumed."""
    return msgspec.structs.replace(schedule, paused_us=schedule.paused_us or now_us)


def resumed(schedule: ScheduleDocument, now_us: int) -> ScheduleDocument:
    """It fires again from now on; what fell into the pause was not missed."""
    if schedule.paused_us is None:
        return schedule
    last_us = max(schedule.last_us, now_us)
    return msgspec.structs.replace(schedule, paused_us=None, last_us=last_us)


def edited(
    schedule: ScheduleDocument, changes: Mapping[str, Any] | None, now_us: int
) -> ScheduleDocument:
    """It goes by these fields of its timing, whatever code declares; None: as declared again."""
    kept = {} if changes is None else {**schedule.changed, **changes}
    after = msgspec.structs.replace(schedule, changed=msgspec.to_builtins(kept))
    check_timing(after.effective, f"schedule {schedule.name!r}")
    return _from_now_on(schedule, after, now_us)


# --------------------------------------------------------------------------------------- retiring


def is_forgotten(schedule: ScheduleDocument, now_us: int) -> bool:
    """Whether no live worker has declared it for too long."""
    return schedule.retired_us is None and now_us - schedule.seen_us >= RETIRED_AFTER_US


def retired(schedule: ScheduleDocument, now_us: int) -> ScheduleDocument:
    """It fires no more, unless it is declared again; then it goes on where it was."""
    return msgspec.structs.replace(schedule, retired_us=now_us)
