# SPDX-License-Identifier: MIT
"""`packhorse schedules`: list, show, next, history, run, pause, resume, edit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.options import duration, store_command
from packhorse.cli.output import (
    age,
    note,
    one_line,
    print_answer,
    print_fields,
    print_json,
    print_list,
    print_struct,
    print_table,
    print_text,
)
from packhorse.core.clock import SECOND_US, to_datetime
from packhorse.core.durations import span_text
from packhorse.errors import ConfigError

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.client.schedules import ScheduleInfo
    from packhorse.core.schedules import FireNote

_NAME = click.argument("name", metavar="NAME")


@click.group()
def schedules() -> None:
    """List, show, run, pause and change schedules."""


@store_command(schedules, "list")
def list_schedules(app: Packhorse, *, as_json: bool) -> None:
    """List every schedule that the store holds."""
    headers = ("SCHEDULE", "STATE", "NEXT", "TASK", "LAST", "WHEN")
    none = "No schedules. Workers of an app that declares some write them down when they start."
    print_list("schedules", app.schedules.all(), headers, _row, none=none, as_json=as_json)


def _row(schedule: ScheduleInfo) -> tuple[object, ...]:
    last = schedule.fires[-1] if schedule.fires else None
    changed = " (changed by hand)" if schedule.changed else ""
    return (
        schedule.name,
        _state(schedule),
        one_line(schedule.next_at),
        schedule.task,
        "-" if last is None else one_line(to_datetime(last.fire_us)),
        f"{schedule.words}{changed}",
    )


def _state(schedule: ScheduleInfo) -> str:
    from packhorse.client.schedules import OVERDUE_S

    if schedule.overdue_s >= OVERDUE_S:
        return f"overdue {age(schedule.overdue_s)}"
    at_us = schedule.timing.at_us
    if schedule.state == "over" and at_us not in {None, *(fire.fire_us for fire in schedule.fires)}:
        return "over, did not fire"
    return schedule.state


@store_command(schedules, "show")
@_NAME
def show_schedule(app: Packhorse, *, name: str, as_json: bool) -> None:
    """Show one schedule, its next fires and its last ones."""
    found = app.schedules.get(name)
    if as_json:
        print_struct(found)
        return
    timing = found.timing
    print_fields(
        [
            ("schedule", found.name),
            ("state", _state(found)),
            ("when", found.words),
            ("changed by hand", found.changed),
            ("catch up", timing.catch_up),
            ("jitter", span_text(timing.jitter_us) if timing.jitter_us else None),
            ("task", found.task),
            ("queue", found.queue),
            ("next", _coming(app, found)),
        ]
    )
    if _state(found).startswith("overdue"):
        note("It is overdue: see with 'packhorse workers list' whether a worker runs.")
    _print_fires(app, found, limit=5)


def _coming(app: Packhorse, schedule: ScheduleInfo) -> object:
    """Return its next fires, or the stored one if this process cannot compute them."""
    try:
        return [one_line(moment) for moment in app.schedules.fires(schedule.name, 3)]
    except ConfigError as error:
        return f"{one_line(schedule.next_at)}; {error}"


@store_command(schedules, "next")
@_NAME
@click.option("--count", type=click.IntRange(1, 1_000), default=10, help="How many; 10.")
def next_fires(app: Packhorse, *, name: str, count: int, as_json: bool) -> None:
    """List the next fires, in UTC and in the schedule's time zone."""
    from zoneinfo import ZoneInfo

    found = app.schedules.get(name)
    fires = app.schedules.fires(name, count)
    zone = ZoneInfo(found.timing.timezone)
    if as_json:
        both = [
            {"at": one_line(each), "local": each.astimezone(zone).isoformat()} for each in fires
        ]
        print_json({"schedule": name, "fires": both})
    elif fires:
        rows = [(one_line(each), _local(each.astimezone(zone))) for each in fires]
        print_table(("UTC", found.timing.timezone), rows)
    else:
        note(f"Schedule {name} is {found.state}: it does not fire.")


@store_command(schedules, "history")
@_NAME
def past_fires(app: Packhorse, *, name: str, as_json: bool) -> None:
    """List the last fires, how late each was, and what became of its job."""
    found = app.schedules.get(name)
    if as_json:
        print_json({"schedule": name, "fires": list(_fire_documents(app, found))})
    elif not _print_fires(app, found, limit=None):
        note(f"Schedule {name} has not fired yet.")


@store_command(schedules, "run")
@_NAME
def run_schedule(app: Packhorse, *, name: str, as_json: bool) -> None:
    """Submit the schedule's call now; when it fires by itself stays as it is."""
    job = app.schedules.run(name)
    done = "is there already, and only one may be" if job.deduplicated else "was submitted"
    fields = {"schedule": name, "jobId": job.id, "deduplicated": job.deduplicated}
    print_answer(f"Job {job.id} of schedule {name} {done}.", as_json=as_json, **fields)


@store_command(schedules, "pause")
@_NAME
def pause_schedule(app: Packhorse, *, name: str, as_json: bool) -> None:
    """Let a schedule fire no more until it is resumed; deploys do not change that."""
    _tell(app.schedules.pause(name), as_json=as_json)


@store_command(schedules, "resume")
@_NAME
def resume_schedule(app: Packhorse, *, name: str, as_json: bool) -> None:
    """Let a paused schedule fire again; what fell into the pause is left out."""
    _tell(app.schedules.resume(name), as_json=as_json)


@store_command(schedules, "edit")
@_NAME
@click.option("--cron", help="Five fields: minute, hour, day, month, weekday.")
@click.option("--timezone", help="Of the cron expression, such as Europe/Berlin.")
@click.option("--every", type=duration, help="An interval, such as 15m.")
@click.option("--catch-up", type=click.Choice(["skip", "latest", "all"]), help="Of missed fires.")
@click.option("--jitter", type=duration, help="Start jobs up to so long after the fire.")
@click.option("--declared", is_flag=True, help="End what was changed: code decides again.")
def edit_schedule(
    app: Packhorse, /, *, name: str, declared: bool, as_json: bool, **options: Any
) -> None:
    """Change when a schedule fires, whatever code declares now or later.

    What is not named stays as it is.

        packhorse schedules edit nightly --cron "30 4 * * *"

        packhorse schedules edit nightly --declared
    """
    chosen = {option: value for option, value in options.items() if value is not None}
    if declared == bool(chosen):
        raise click.UsageError("give what to change, or --declared, and not both")
    _tell(app.schedules.edit(name, **chosen), as_json=as_json)


def _tell(schedule: ScheduleInfo, *, as_json: bool) -> None:
    if as_json:
        print_struct(schedule)
        return
    then = "" if schedule.next_at is None else f"; next at {one_line(schedule.next_at)}"
    print_text(f"Schedule {schedule.name} is {schedule.state}: {schedule.words}{then}.")


def _print_fires(app: Packhorse, schedule: ScheduleInfo, *, limit: int | None) -> bool:
    rows = [
        (one_line(to_datetime(fire.fire_us)), _lateness(fire), outcome, fire.job_id)
        for fire, outcome in _outcomes(app, schedule, limit)
    ]
    if rows:
        print_table(("FIRED FOR", "LATE", "OUTCOME", "JOB"), rows)
    return bool(rows)


def _outcomes(
    app: Packhorse, schedule: ScheduleInfo, limit: int | None
) -> Iterator[tuple[FireNote, str]]:
    """Yield each fire, the newest first, with the status of its job."""
    for fire in schedule.fires[::-1][:limit]:
        if fire.refused:
            yield fire, f"refused: {fire.refused}"
            continue
        record = app.store.run(app.store.inspection.job(fire.job_id))
        yield fire, "removed" if record is None else str(record.status)


def _lateness(fire: FireNote) -> str:
    if fire.by_hand:
        return "by hand"
    return span_text(max(0, fire.submitted_us - fire.fire_us)) or "0s"


def _fire_documents(app: Packhorse, schedule: ScheduleInfo) -> Iterator[dict[str, Any]]:
    for fire, outcome in _outcomes(app, schedule, None):
        yield {
            "firedFor": one_line(to_datetime(fire.fire_us)),
            "lateMs": max(0, fire.submitted_us - fire.fire_us) * 1_000 // SECOND_US,
            "byHand": fire.by_hand,
            "outcome": outcome,
            "jobId": fire.job_id,
        }


def _local(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S %Z (%a)}"
