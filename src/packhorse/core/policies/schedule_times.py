# SPDX-License-Identifier: MIT
"""When a schedule fires: by a cron expression, at an interval, or once.

A fire is identified by its instant in UTC, so that every worker names the same fires. Cron
expressions are read by cronsim, which goes by the rules of Debian's cron: fixed local times run
once in an hour that is repeated, and at the next valid instant in one that is skipped; expressions
whose minute or hour is a wildcard run by elapsed time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from packhorse.core.clock import SECOND_US, to_datetime
from packhorse.core.durations import span_text
from packhorse.errors import ConfigError

if TYPE_CHECKING:
    from cronsim import CronSim

#: Missed fires that `catch_up="all"` brings up to date; older ones are left out.
CATCH_UP_MAX: Final = 1_000
#: A fire that nothing has looked at for so long counts as missed, and `catch_up` decides.
LATE_US: Final = 60 * SECOND_US
#: A shorter interval is refused: a look at the store takes milliseconds, and the ticker many looks.
EVERY_US_MIN: Final = SECOND_US // 10
#: A longer expression is refused unread: a hostile one would take long to expand.
_CRON_LENGTH_MAX: Final = 200
_CRON_FIELDS: Final = 5
_MINUTE_US: Final = 60 * SECOND_US
_HOUR_US: Final = 60 * _MINUTE_US
_DAY_US: Final = 24 * _HOUR_US
_HOUR: Final = timedelta(hours=1)
_MACROS: Final = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)


class CatchUp(StrEnum):
    """What becomes of fires that were missed while nothing looked at the schedule."""

    SKIP = "skip"  #: nothing
    LATEST = "latest"  #: the newest one runs
    ALL = "all"  #: each one runs, up to `CATCH_UP_MAX`


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """When to fire: exactly one of `cron`, `every_us` and `at_us`."""

    cron: str | None = None
    timezone: str = "UTC"  #: of the cron expression
    every_us: int | None = None
    at_us: int | None = None
    at_start: bool = False  #: an interval fires when it is first declared, not one interval later
    catch_up: CatchUp = CatchUp.LATEST
    jitter_us: int = 0  #: jobs start up to so long after the fire


class DueFires(NamedTuple):
    """What a look at a schedule found."""

    fires: tuple[int, ...]  #: to submit now, the oldest first
    missed: int  #: how many were missed and are left out; of a cron's too many, at least so many
    last_us: int  #: the fire up to which all is dealt with
    next_us: int | None  #: when to look again; None: it will not fire again


def check_timing(timing: Timing, where: str) -> None:
    """Refuse what says nothing, contradicts itself, or would never fire."""
    given = [timing.cron, timing.every_us, timing.at_us]
    if sum(each is not None for each in given) != 1:
        raise ConfigError(f"{where}: give one of cron=, every= and at=, and not more")
    if timing.at_start and timing.every_us is None:
        raise ConfigError(f"{where}: at_start=True goes with every=; cron= and at= say it all")
    if timing.every_us is not None and timing.every_us < EVERY_US_MIN:
        raise ConfigError(
            f"{where}: every is {span_text(timing.every_us)}, and the shortest interval is "
            f"{span_text(EVERY_US_MIN)}; for work without a pause use a loop in one job"
        )
    if timing.cron is not None:
        _check_cron(timing, where)


def fires_after(timing: Timing, anchor_us: int, after_us: int) -> Iterator[int]:
    """The fires behind an instant, in order; `anchor_us` is where intervals are counted from."""
    if timing.cron is not None:
        yield from _cron_fires(timing, after_us)
    elif timing.every_us is not None:
        fire = _interval_fire(timing, anchor_us, after_us)
        while True:
            yield fire
            fire += timing.every_us
    elif timing.at_us is not None and timing.at_us > after_us:
        yield timing.at_us


def due_fires(
    timing: Timing, anchor_us: int, last_us: int, now_us: int, *, limit: int = CATCH_UP_MAX
) -> DueFires:
    """Which fires behind `last_us` are to be submitted now, at most `limit`, and when the next is.

    One that is due alone and not late is always among them.
    """
    newest, older = _newest(timing, anchor_us, last_us, now_us)
    wanted = newest if timing.catch_up is CatchUp.ALL else newest[-1:]
    if timing.catch_up is CatchUp.SKIP:
        wanted = [fire for fire in wanted if fire > now_us - LATE_US]
    chosen = wanted[:limit]
    dealt_us = chosen[-1] if len(chosen) < len(wanted) else max(last_us, now_us)
    following = next(fires_after(timing, anchor_us, dealt_us), None)
    missed = older + len(newest) - len(wanted)
    return DueFires(tuple(chosen), missed, dealt_us, following)


def jittered_us(timing: Timing, name: str, fire_us: int) -> int:
    """When the job of a fire starts: the same for every worker that computes it."""
    if not timing.jitter_us:
        return fire_us
    digest = hashlib.sha256(f"{name}\0{fire_us}".encode()).digest()
    return fire_us + int.from_bytes(digest[:8], "big") % (timing.jitter_us + 1)


def timing_words(timing: Timing) -> str:
    """When it fires, in words: `at 03:00 every day, Europe/Berlin`."""
    if timing.at_us is not None:
        return f"once, at {to_datetime(timing.at_us):%Y-%m-%d %H:%M:%S}Z"
    if timing.every_us is not None:
        return f"every {span_text(timing.every_us)}"
    words = _simulation(timing, to_datetime(0)).explain()
    return f"{words[:1].lower()}{words[1:]}, {timing.timezone}"


# ----------------------------------------------------------------------------------- intervals


def _interval_fire(timing: Timing, anchor_us: int, after_us: int) -> int:
    """The first fire behind an instant; those of an interval are counted, never added up."""
    every_us = timing.every_us or 1
    first = anchor_us if timing.at_start else anchor_us + every_us
    return first if after_us < first else first + ((after_us - first) // every_us + 1) * every_us


# ----------------------------------------------------------------------------------------- cron


def _check_cron(timing: Timing, where: str) -> None:
    from cronsim import CronSimError  # noqa: PLC0415 - only who has schedules pays for it

    text = timing.cron or ""
    if len(text) > _CRON_LENGTH_MAX:
        raise ConfigError(
            f"{where}: cron has {len(text)} characters; at most {_CRON_LENGTH_MAX} are read"
        )
    expression = _MACROS.get(text.strip().lower(), text)
    if len(expression.split()) != _CRON_FIELDS:
        raise ConfigError(
            f"{where}: cron is {text!r}; write five fields (minute, hour, day, month, weekday) "
            f"or one of {', '.join(_MACROS)}; for seconds use every="
        )
    _zone(timing.timezone, where)
    try:
        first = next(_cron_fires(timing, 0), None)
    except CronSimError as error:
        raise ConfigError(f"{where}: cron is {text!r}: {error}") from error
    if first is None:
        raise ConfigError(f"{where}: cron is {text!r}, which never fires")


def _cron_fires(timing: Timing, after_us: int) -> Iterator[int]:
    """The fires behind an instant; what cronsim repeats in a repeated hour is left out."""
    zone = _zone(timing.timezone, "timezone")
    simulation = _simulation(timing, _local(after_us, zone))
    last_us = after_us
    try:
        for fire in simulation:
            fire_us = _instant_us(fire)
            if fire_us <= last_us:
                continue
            if simulation.fixup_tz is None:
                yield from _passed_over(simulation, zone, last_us, fire_us)
            last_us = fire_us
            yield fire_us
    except OverflowError:  # the end of the calendar
        return


def _passed_over(cron: CronSim, zone: tzinfo, begin_us: int, end_us: int) -> Iterator[int]:
    """Fires that cronsim passes over behind a change of the clock that is no full hour."""
    change_us = _change_between(zone, begin_us, end_us)
    if change_us is None:
        return
    for fire_us in range(change_us, min(end_us, change_us + _DAY_US), _MINUTE_US):
        local = _local(fire_us, zone)
        matches = local.minute in cron.minutes and local.hour in cron.hours
        if matches and local.month in cron.months and cron.match_day(local.date()):
            yield fire_us


def _change_between(zone: tzinfo, begin_us: int, end_us: int) -> int | None:
    """When the clock of a zone changed by other than full hours; None: it did not."""
    first, last = begin_us // SECOND_US, end_us // SECOND_US
    offset = _local(begin_us, zone).utcoffset() or timedelta()
    change = (_local(end_us, zone).utcoffset() or timedelta()) - offset
    if not change % _HOUR:
        return None
    while first + 1 < last:
        middle = (first + last) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            first = middle
        else:
            last = middle
    return last * SECOND_US


def _local(instant_us: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(instant_us // SECOND_US, zone)


def _instant_us(moment: datetime) -> int:
    return round(moment.astimezone(UTC).timestamp()) * SECOND_US


def _simulation(timing: Timing, begin: datetime) -> CronSim:
    from cronsim import CronSim  # noqa: PLC0415 - as above

    text = timing.cron or ""
    return CronSim(_MACROS.get(text.strip().lower(), text), begin)


def _zone(name: str, where: str) -> tzinfo:
    from zoneinfo import ZoneInfo, available_timezones  # noqa: PLC0415 - as above

    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        import difflib  # noqa: PLC0415 - as above

        near = difflib.get_close_matches(name, available_timezones(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else "write it as in 'Europe/Berlin'"
        if not available_timezones():
            hint = "this system has no time zones: install the package tzdata"
        raise ConfigError(f"{where}: there is no time zone {name!r}; {hint}") from None


# ------------------------------------------------------------------------------------- due fires


def _newest(timing: Timing, anchor_us: int, after_us: int, now_us: int) -> tuple[list[int], int]:
    """The newest fires up to now, at most `CATCH_UP_MAX`, and how many more there were."""
    if after_us >= now_us:
        return [], 0
    begin_us = max(after_us, now_us - _span_us(timing, anchor_us, now_us))
    while True:
        found: deque[int] = deque(maxlen=CATCH_UP_MAX + 1)
        for fire in fires_after(timing, anchor_us, begin_us):
            if fire > now_us:
                break
            found.append(fire)
        if len(found) > CATCH_UP_MAX:
            found.popleft()
            return list(found), _older(timing, anchor_us, after_us, found[0])
        if begin_us == after_us:
            return list(found), 0
        begin_us = max(after_us, now_us - 4 * (now_us - begin_us))


def _older(timing: Timing, anchor_us: int, after_us: int, oldest_us: int) -> int:
    """How many fires there were before the oldest of many; those of a cron are not counted."""
    if timing.every_us is None:
        return 1
    return (oldest_us - _interval_fire(timing, anchor_us, after_us)) // timing.every_us


def _span_us(timing: Timing, anchor_us: int, now_us: int) -> int:
    """How far back the newest fires may reach, by the distance of the next two."""
    coming = list(islice(fires_after(timing, anchor_us, now_us), 2))
    distance = coming[1] - coming[0] if len(coming) > 1 else _HOUR_US
    return max(_HOUR_US, distance * (CATCH_UP_MAX + 2))
