# SPDX-License-Identifier: MIT
"""Routes about schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from packhorse.client.documents import document_of
from packhorse.client.schedules import ScheduleInfo
from packhorse.core.clock import from_datetime
from packhorse.protocol import wire_datetime
from packhorse.web.calls import ApiAnswer, ApiCall, answers, given_fields
from packhorse.web.fleet import etag_of

_FIRES_MAX: Final = 1_000
#: Fields of a schedule that operators change.
_EDITED: Final = ("state", "timing", "changed")


class FiresQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many fires to list."""

    count: Annotated[int, msgspec.Meta(ge=1, le=_FIRES_MAX)] = 10


class ScheduleChange(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """When a schedule is to fire instead; what is left out stays as it is."""

    cron: str | None = None
    timezone: str | None = None
    every: str | float | None = None
    at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    catch_up: str | None = None
    jitter: str | float | None = None


@answers("ScheduleList", "List schedules")
async def list_schedules(call: ApiCall) -> ApiAnswer:
    """List every schedule that the store holds."""
    found = await call.app.schedules.aall()
    return ApiAnswer(body={"schedules": [document_of(one) for one in found]})


@answers("Schedule", "Show one schedule")
async def read_schedule(call: ApiCall) -> ApiAnswer:
    """Show one schedule; its ETag changes with what operators change, not with its fires."""
    found = await call.app.schedules.aget(call.path["name"])
    return ApiAnswer(body=document_of(found), etag=_tag(found))


@answers("Fires", "List the next fires of a schedule")
async def list_fires(call: ApiCall, query: FiresQuery) -> ApiAnswer:
    """List when a schedule fires next."""
    name = call.path["name"]
    fires = await call.app.schedules.afires(name, query.count)
    return ApiAnswer(
        body={"schedule": name, "fires": [wire_datetime(from_datetime(one)) for one in fires]}
    )


@answers("FiredSchedule", "Submit a schedule's call now", status=201)
async def run_schedule(call: ApiCall) -> ApiAnswer:
    """Submit the schedule's call now; its own fires are not affected."""
    name = call.path["name"]
    job = await call.app.schedules.arun(name)
    body = {"schedule": name, "jobId": job.id, "deduplicated": job.deduplicated}
    return ApiAnswer(body=body, status=201, after=body)


@answers("Schedule", "Let a schedule fire no more")
async def pause_schedule(call: ApiCall) -> ApiAnswer:
    """Let a schedule fire no more until it is resumed; deploys do not change that."""
    return await _changed(call, call.app.schedules.apause)


@answers("Schedule", "Let a schedule fire again")
async def resume_schedule(call: ApiCall) -> ApiAnswer:
    """Let a schedule fire again from now on; fires during the pause are skipped."""
    return await _changed(call, call.app.schedules.aresume)


@answers("Schedule", "Change when a schedule fires")
async def edit_schedule(call: ApiCall, order: ScheduleChange) -> ApiAnswer:
    """Change when a schedule fires, whatever code declares now or later."""
    options, schedules = given_fields(order), call.app.schedules
    return await _changed(call, schedules.aedit if options else schedules.aget, **options)


@answers("Schedule", "Let a schedule fire as declared again")
async def restore_schedule(call: ApiCall) -> ApiAnswer:
    """Undo the changes: code decides again when it fires."""
    return await _changed(call, call.app.schedules.aedit)


async def _changed(
    call: ApiCall, change: Callable[..., Awaitable[ScheduleInfo]], **given: Any
) -> ApiAnswer:
    """Change the schedule if it is as If-Match says, and describe it."""
    before = await call.app.schedules.aget(call.path["name"])
    call.require_match(_tag(before))
    after = await change(call.path["name"], **given)
    return ApiAnswer(
        body=document_of(after), etag=_tag(after), before=_edited(before), after=_edited(after)
    )


def _edited(schedule: ScheduleInfo) -> dict[str, Any]:
    document = document_of(schedule)
    return {name: document[name] for name in _EDITED}


def _tag(schedule: ScheduleInfo) -> str:
    return etag_of(_edited(schedule))
