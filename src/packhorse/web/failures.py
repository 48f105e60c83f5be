# SPDX-License-Identifier: MIT
"""Group dead letters by task, error, and the line of code that raised it.

A known group that needs no attention can be silenced: a record in the store hides it until the
silence ends. It is still listed on request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from packhorse.client.documents import document_of
from packhorse.client.operations import end_of
from packhorse.core.clock import SECOND_US, from_datetime, to_datetime
from packhorse.core.durations import positive_microseconds
from packhorse.core.job import LOOK_MAX, PAGE_MAX, JobStatus
from packhorse.core.policies.records import Put, RecordId, Remove
from packhorse.core.redaction import redacted_text
from packhorse.protocol import wire_datetime
from packhorse.stores.records import RecordPage
from packhorse.web import jobs
from packhorse.web.calls import ApiAnswer, ApiCall, Text, answers

#: Dead letters that one request groups.
_SAMPLE: Final = PAGE_MAX
_SILENCED_KIND: Final = "silenced_failure"
_HOUR_US: Final = 3_600 * SECOND_US


class FailureQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which groups to list."""

    silenced: bool = False  #: silenced ones too
    after: Text | None = None  #: continue with older dead letters


class FailureOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A group of failures."""

    task: Text
    error: Text
    place: Text


class FailureSilenceOrder(FailureOrder, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of failures to be hidden, for so long or until it is shown again."""

    span: str | float | None = None


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that met the same end."""

    task: str
    error: str
    place: str
    message: str
    count: int
    first: str
    last: str
    job_id: str  #: the newest of them
    last_hour: int = 0  #: how many of them died within the last hour
    silenced: bool = False


def failure_groups(
    found: Iterable[Mapping[str, Any]], *, since: str = "", silenced: Container[str] = ()
) -> list[FailureGroup]:
    """Group dead letters, given newest first; return the largest group first.

    `since` is when the last hour began.
    """
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for job in found:
        groups.setdefault((job["task"], job["error"], job["place"]), []).append(job)
    made = [
        FailureGroup(
            task=task,
            error=error,
            place=place,
            message=members[0]["message"],
            count=len(members),
            first=min(one["at"] for one in members),
            last=max(one["at"] for one in members),
            job_id=members[0]["id"],
            last_hour=sum(one["at"] >= since for one in members),
            silenced=_key(task, error, place) in silenced,
        )
        for (task, error, place), members in groups.items()
    ]
    return sorted(made, key=lambda group: (-group.count, group.task))


@answers("FailureList", "Group the newest dead letters by task, error and place")
async def list_failures(call: ApiCall, query: FailureQuery) -> ApiAnswer:
    """Group the newest dead letters, or older ones; leave out silenced groups."""
    records = call.app.store.records.records(
        _SILENCED_KIND, tenant=call.principal.tenant or "", limit=PAGE_MAX
    )
    page: RecordPage = await call.app.store.arun(records)
    found = await _dead_letters(call, query.after)
    groups = failure_groups(
        found["jobs"],
        since=wire_datetime(page.now_us - _HOUR_US),
        silenced={record.id.key for record in page.records},
    )
    shown = [one for one in groups if query.silenced or not one.silenced]
    return ApiAnswer(
        body={
            "groups": [document_of(one) for one in shown],
            "hidden": len(groups) - len(shown),
            "more": found["after"] is not None,
            "sample": len(found["jobs"]),
            "after": found["after"],
        }
    )


@answers("SilencedFailure", "Hide a group of failures")
async def silence_failure(call: ApiCall, order: FailureSilenceOrder) -> ApiAnswer:
    """Hide a group of failures; its jobs are not changed."""
    keep_us = None
    if order.span is not None:
        keep_us = positive_microseconds(order.span, setting="the length of a silence")
    note = msgspec.json.encode({**msgspec.to_builtins(order), "by": call.principal.name})
    put = Put(_silenced(call, order), note, keep_us=keep_us)
    changed = await call.app.store.arun(call.app.store.records.change((put,)))
    until = None if keep_us is None else to_datetime(changed.now_us + keep_us)
    return _silence(order, silenced=True, until=until)


@answers("SilencedFailure", "Show a group of failures again")
async def unsilence_failure(call: ApiCall, order: FailureOrder) -> ApiAnswer:
    """Show a group of failures again."""
    remove = Remove(_silenced(call, order))
    await call.app.store.arun(call.app.store.records.change((remove,)))
    return _silence(order, silenced=False, until=None)


def _silence(order: FailureOrder, *, silenced: bool, until: datetime | None) -> ApiAnswer:
    named = {name: getattr(order, name) for name in ("task", "error", "place")}
    ends = None if until is None else wire_datetime(from_datetime(until))
    body = {**named, "silenced": silenced, "until": ends}
    return ApiAnswer(body=body, after=body)


def _silenced(call: ApiCall, order: FailureOrder) -> RecordId:
    key = _key(order.task, order.error, order.place)
    return RecordId(_SILENCED_KIND, call.principal.tenant or "", key)


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


async def newest_dead(call: ApiCall) -> dict[str, Any]:
    """Return the newest dead letters; those of all tenants are cached for a while."""
    return await _dead_letters(call, None)


async def _dead_letters(call: ApiCall, after: str | None) -> dict[str, Any]:
    looks = call.looks
    if call.principal.tenant is not None or after is not None:
        return await looks.apart(lambda: _read_dead(call, after))
    return await looks.dead.get(lambda: looks.apart(lambda: _read_dead(call, None)))


def _read_dead(call: ApiCall, after: str | None) -> dict[str, Any]:
    chosen = jobs.job_filter(call, jobs.DeadQuery(), statuses=(JobStatus.DEAD,))
    page = call.insights.jobs(chosen, limit=_SAMPLE, after=after, most=LOOK_MAX)
    redact = call.app.bus.redact
    found = []
    for job in page.jobs:
        error, place = end_of(job)
        message = "" if job.error is None else redacted_text(redact, job.error.message)
        found.append(
            {
                "id": job.id,
                "task": job.task,
                "error": error,
                "message": message,
                "place": place,
                "at": wire_datetime(from_datetime(job.finished_at or job.updated_at)),
            }
        )
    return {"jobs": found, "after": page.after}
