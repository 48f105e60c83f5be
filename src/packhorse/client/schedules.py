# SPDX-License-Identifier: MIT
"""Schedules of an app: declared in code, held by the store, changed by operators.

    app.schedule("nightly", report.call("all"), cron="0 3 * * *", timezone="Europe/Berlin")
    @app.every("30s")              a task that runs again and again, never twice at once
    app.schedules.all()            and get, fires, run, pause, resume, edit; each has an a-twin

Workers declare and fire them (`runtime.services.ticker`); this module runs nothing by itself.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import islice
from types import FrameType, MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypedDict, Unpack

import msgspec

from packhorse.call import Call
from packhorse.client.queue_admin import QueueAdmin
from packhorse.client.sealed_store import sealed_job
from packhorse.client.store_access import Asks, Connection
from packhorse.client.submission import new_job
from packhorse.core.clock import SECOND_US, new_id, to_datetime
from packhorse.core.durations import Duration, microseconds, positive_microseconds
from packhorse.core.generators import awaited, blocking
from packhorse.core.interpreter import is_interactive
from packhorse.core.job_info import shown
from packhorse.core.options import (
    Reader,
    TaskOptions,
    chosen_options,
    instant_us,
    name_text,
    read_options,
)
from packhorse.core.policies.records import Record
from packhorse.core.policies.retry import RetryPolicy
from packhorse.core.policies.schedule_times import (
    CatchUp,
    Timing,
    check_timing,
    fires_after,
    timing_words,
)
from packhorse.core.schedules import (
    SCHEDULE_KIND,
    FireNote,
    ScheduleDeclaration,
    ScheduleDocument,
    edited,
    fired_by_hand,
    paused,
    put_schedule,
    read_schedule,
    resumed,
    schedule_id,
)
from packhorse.core.text import declared_twice
from packhorse.errors import ConfigError, ScheduleNotFound
from packhorse.handle import JobHandle
from packhorse.stores.plan import Asking
from packhorse.stores.records import Changed, RefusedJob, all_records, store_clock
from packhorse.task import Task, TaskDecorator
from packhorse.unique import Unique

#: A fire overdue by this long suggests that no worker fires schedules.
OVERDUE_S: Final = 30
#: How often a change is tried again after another one came first.
_TRIES: Final = 20
#: Options of a call that a schedule decides for each fire.
_NOT_FOR_FIRES: Final = (
    *("delay", "scheduled_at", "deadline", "job_id", "trace_id", "idempotency_key"),
    *("idempotency_window", "wait"),
)


#: What becomes of a schedule at an instant, and the jobs that are submitted with it.
_Change = Callable[[ScheduleDocument, int], tuple[ScheduleDocument, tuple[Any, ...]]]


class TimingOptions(TypedDict, total=False):
    """When a schedule fires; exactly one of `cron`, `every` and `at`."""

    cron: str | None
    timezone: str | None  #: of the cron expression; UTC
    every: Duration | None
    at: datetime | None
    catch_up: Literal["skip", "latest", "all"] | None  #: what becomes of missed fires; latest
    jitter: Duration | None  #: jobs start up to so long after the fire


class ScheduleOptions(TimingOptions, total=False):
    """What `app.schedule(name, call, ...)` takes."""

    at_start: bool | None  #: an interval fires at once when it is first declared


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its present state."""

    name: str
    state: str  #: `active`, `paused`, `retired`, `over`; `unreadable`: not to this release
    words: str  #: when it fires: `at 03:00 every day, Europe/Berlin`
    task: str
    queue: str
    timing: Timing  #: with what an operator changed
    changed: tuple[str, ...] = ()  #: what an operator set, by the names of the options
    next_at: datetime | None = None
    overdue_s: float = 0.0  #: how long the next fire has been due already
    fires: tuple[FireNote, ...] = ()  #: the newest last


class _Declared(NamedTuple):
    """A schedule as this program declares it."""

    timing: Timing
    call: Call[Any]
    where: str
    age_us: Callable[[], int]

    def is_again(self, where: str, call: Call[Any]) -> bool:
        """Whether this is the same declaration, in a module that is loaded a second time."""
        known = self.call
        return (self.where, known.task, known.payload) == (where, call.task, call.payload)


class ScheduleVerbs(QueueAdmin):
    """The verbs of an app that are about schedules."""

    task: TaskDecorator

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._declared: dict[str, _Declared] = {}

    @property
    def schedules(self) -> Schedules:
        """The schedules that the store holds, to look at and to change."""
        return Schedules(self._connection)

    def schedule(self, name: str, call: Call[Any], /, **options: Unpack[ScheduleOptions]) -> None:
        """Submit `call` again and again, or once: by `cron=`, `every=` or `at=`.

        This app's workers declare it to the store, which then has it fired once however many
        workers there are. Two schedules of one name are refused, unless the same line of code
        declares the same call again.
        """
        where = f"schedule {name_text(name, 'the name of a schedule')!r}"
        if not isinstance(call, Call):
            raise ConfigError(f"{where}: {call!r} is not a call; make one with task.call(...)")
        for option in _NOT_FOR_FIRES:
            if option in call.choices.values:
                raise ConfigError(
                    f"{where}: its call has {option}=, which would be the same for every fire; "
                    "leave it out"
                )
        timing = _timing(options, where)
        check_timing(timing, where)
        self._declare(name, timing, call, sys._getframe(1))  # noqa: SLF001 - where it is declared

    def every(self, interval: Duration, /, **options: Unpack[TaskOptions]) -> TaskDecorator:
        """Declare a task that runs at this interval, over all workers never twice at once.

        The first run comes after one interval. What falls into a run that outlasts it is left
        out. A run that fails is logged, counted, not retried, and kept among the dead letters for
        a day; the next one comes as usual. Shutdown ends a run at once.
        """
        timing = Timing(every_us=positive_microseconds(interval, setting="app.every()"))
        check_timing(timing, "app.every()")
        given: dict[str, Any] = {
            "unique": Unique(),
            "retry": RetryPolicy(max_retries=0),
            **options,
        }

        def take(task: Task[..., Any]) -> None:
            task.definition = dataclasses.replace(task.definition, is_tick=True)
            self.task.take(task)
            self._declare(task.name, timing, task.call(), None)

        return self.task.taking(take)(**given)

    def _declare(self, name: str, timing: Timing, call: Call[Any], frame: FrameType | None) -> None:
        """Note a schedule that a frame declares, None: the decorator of its task."""
        where, typed = call.definition.where, is_interactive()
        if frame is not None:
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            typed &= frame.f_globals.get("__name__") == "__main__"
        before = self._declared.get(name)
        if before is not None and not typed and not before.is_again(where, call):
            what, places = f"schedule {name!r}", (before.where, where)
            raise ConfigError(declared_twice(what, places, ("", "")))
        clock = self._connection.clock
        began = clock.monotonic()
        self._declared[name] = _Declared(
            *(timing, call, where), lambda: round((clock.monotonic() - began) * SECOND_US)
        )

    def _declared_schedules(self) -> tuple[ScheduleDeclaration, ...]:
        """The schedules this app declares, with the queues and tasks it knows now."""
        store, declarations = self._connection.store, self._connection.declarations
        return tuple(
            ScheduleDeclaration(
                name,
                timing,
                sealed_job(store, new_job(call, declarations, ""), keeper=schedule_id(name).text),
                is_tick=call.definition.is_tick,
                age_us=age_us,
            )
            for name, (timing, call, _, age_us) in self._declared.items()
        )


class Schedules(Asks):
    """The schedules that a store holds. Every verb has an a-twin."""

    @blocking
    def all(self) -> Asking[list[ScheduleInfo]]:
        """All of them, by name."""
        page = yield from all_records(self._connection.store.records, SCHEDULE_KIND)
        return [_info(record, page.now_us) for record in page.records]

    aall = awaited(all)  # noqa: A003 - the verb above

    @blocking
    def get(self, name: str) -> Asking[ScheduleInfo]:
        """One of them; `ScheduleNotFound` if the store holds none of that name."""
        return self._get(name)

    aget = awaited(get)

    @blocking
    def fires(self, name: str, count: int = 10) -> Asking[list[datetime]]:
        """When it fires next, at most `count` times."""
        record, now_us = yield from self._read(name)
        schedule = _document(record)
        if schedule.next_us is None:
            return []
        coming = fires_after(schedule.effective, schedule.anchor_us, max(schedule.last_us, now_us))
        return [to_datetime(fire) for fire in islice(coming, count)]

    afires = awaited(fires)

    @blocking
    def run(self, name: str) -> Asking[JobHandle[Any]]:
        """Submit its call now; when it fires by itself stays as it is."""
        job_id = new_id()
        changed = yield from self._change(
            name, lambda schedule, now_us: fired_by_hand(schedule, job_id, now_us)[:2]
        )
        answer = changed.jobs[0]
        if isinstance(answer, RefusedJob):
            raise ConfigError(f"schedule {name!r} was not run: {answer.reason}")
        return JobHandle(answer.job_id, answer.deduplicated, self._connection)

    arun = awaited(run)

    @blocking
    def pause(self, name: str) -> Asking[ScheduleInfo]:
        """Stop it from firing until `resume`, also across deploys."""
        return self._changed(name, paused)

    apause = awaited(pause)

    @blocking
    def resume(self, name: str) -> Asking[ScheduleInfo]:
        """Let it fire again from now on; fires missed in the pause are left out."""
        return self._changed(name, resumed)

    aresume = awaited(resume)

    @blocking
    def edit(self, name: str, **options: Unpack[TimingOptions]) -> Asking[ScheduleInfo]:
        """Change when it fires, whatever code declares now or later.

        Without options it fires as declared again.
        """
        changes = _changes(options, f"schedule {name!r}")
        return self._changed(name, lambda schedule, now_us: edited(schedule, changes, now_us))

    aedit = awaited(edit)

    # ------------------------------------------------------------------------------------ asking

    def _get(self, name: str) -> Asking[ScheduleInfo]:
        return _info(*(yield from self._read(name)))

    def _changed(
        self, name: str, change: Callable[[ScheduleDocument, int], ScheduleDocument]
    ) -> Asking[ScheduleInfo]:
        yield from self._change(name, lambda schedule, now_us: (change(schedule, now_us), ()))
        return (yield from self._get(name))

    def _change(self, name: str, change: _Change) -> Asking[Changed]:
        """Write what `change` makes of a schedule; try again if another change came first.

        A change that changes nothing is written too: operators make few.
        """
        for _ in range(_TRIES):
            record, now_us = yield from self._read(name)
            schedule, jobs = change(_document(record), now_us)
            put = put_schedule(schedule, record.version)
            changed: Changed = yield self._connection.store.records.change((put,), jobs=jobs)
            if changed.applied:
                return changed
        raise ConfigError(f"schedule {name!r} is changed by others all the time; try again")

    def _read(self, name: str) -> Asking[tuple[Record, int]]:
        records = self._connection.store.records
        record: Record | None = yield records.record(schedule_id(name))
        if record is None:
            raise ScheduleNotFound(name)
        return record, (yield from store_clock(records))


def _info(record: Record, now_us: int) -> ScheduleInfo:
    """Describe a schedule; its next fire is the stored one: its time zone may be missing here."""
    next_us = record.order
    due: dict[str, Any] = {
        "next_at": None if next_us is None else to_datetime(next_us),
        "overdue_s": 0.0 if next_us is None else max(0, now_us - next_us) / 1_000_000,
    }
    try:
        schedule = _document(record)
        timing = schedule.effective
        words = timing_words(timing)
    except Exception as error:  # noqa: BLE001 - no release's schedule must hide the others
        unknown: dict[str, Any] = {"words": str(error), "task": "", "queue": "", "timing": Timing()}
        return ScheduleInfo(name=record.id.key, state="unreadable", **unknown, **due)
    return shown(
        ScheduleInfo,
        *(schedule, schedule.job),
        state=schedule.state(next_us),
        words=words,
        timing=timing,
        changed=tuple(name.removesuffix("_us") for name in schedule.changed),
        **due,
    )


def _document(record: Record) -> ScheduleDocument:
    try:
        return read_schedule(record.document)
    except msgspec.DecodeError as error:
        raise ConfigError(f"schedule {record.id.key!r} cannot be read here: {error}") from error


def _changes(options: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Return the fields of a timing that options set; one of cron, every and at ends the others."""
    timing = _timing(options, where)
    chosen = chosen_options(options, TimingOptions, where)
    if not chosen:
        return None
    names = [_READERS[name][0] for name in chosen]
    if set(names) & {"cron", "every_us", "at_us"}:
        names += [name for name in ("cron", "every_us", "at_us") if name not in names]
    return {name: getattr(timing, name) for name in names}


def _timing(options: Mapping[str, Any], where: str) -> Timing:
    chosen = chosen_options(options, ScheduleOptions, where)
    return Timing(**read_options(chosen, _READERS, f"{where}: "))


def _catch_up(value: Any, setting: str) -> CatchUp:
    if value not in set(CatchUp):
        raise ConfigError(f"{setting} is {value!r}; give one of {', '.join(CatchUp)}")
    return CatchUp(value)


#: Each option, the field of a timing it decides, and how its value is read.
_READERS: Final[Mapping[str, tuple[str, Reader]]] = MappingProxyType(
    {
        "cron": ("cron", name_text),
        "timezone": ("timezone", name_text),
        "every": ("every_us", positive_microseconds),
        "at": ("at_us", instant_us),
        "catch_up": ("catch_up", _catch_up),
        "jitter": ("jitter_us", microseconds),
        "at_start": ("at_start", lambda value, _: value),
    }
)
