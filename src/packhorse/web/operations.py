# SPDX-License-Identifier: MIT
"""Routes about operations: workers do one thing to every job that matches a filter."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from packhorse.client.documents import document_of
from packhorse.client.operations import (
    SELECTED_MAX,
    Operation,
    OperationAction,
    Operations,
    OperationState,
)
from packhorse.core.access import Permission
from packhorse.core.job import JobStatus
from packhorse.core.job_info import shown
from packhorse.core.options import rate_rule
from packhorse.stores.requests import JobFilter
from packhorse.web.calls import ApiAnswer, ApiCall, Text, answers
from packhorse.web.jobs import DeadMeant, job_filter
from packhorse.web.problems import WebRefusal

#: What each action needs, besides `jobs.bulk`.
_NEEDED: Final = (
    (OperationAction.CANCEL, Permission.JOBS_CANCEL),
    (OperationAction.RETRY, Permission.JOBS_RETRY),
    (OperationAction.REDRIVE, Permission.JOBS_RETRY),
    (OperationAction.PURGE, Permission.JOBS_PURGE),
)


class MatchQuery(DeadMeant, frozen=True):
    """What to do to which jobs; `status` may be repeated."""

    action: OperationAction = OperationAction.REDRIVE
    status: tuple[JobStatus, ...] = ()
    created_by: Text | None = None
    error: Text | None = None  #: its type; of dead letters
    place: Text | None = None  #: where it came from, as `mail.py:17 in send`


class OperationOrder(MatchQuery, frozen=True, kw_only=True):
    """The same, to be done: to the jobs named, or to those that fit, so fast at most."""

    action: OperationAction
    job: Annotated[tuple[Text, ...], msgspec.Meta(max_length=SELECTED_MAX)] = ()
    rate: Text | None = None  #: such as `100/60s`; unlimited by default
    reset_budget: bool = False


class OperationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An operation, and how far it is."""

    id: str
    action: OperationAction
    state: OperationState
    filter: dict[str, Any]
    by: str
    matched: int  #: jobs that were counted before it began
    more: bool  #: there were more
    done: int
    refused: int
    rate: str | None
    started_at: datetime
    ended_at: datetime | None
    stopped_by: str | None


def _info(one: Operation) -> OperationInfo:
    chosen: dict[str, Any] = msgspec.to_builtins(one.chosen)
    chosen |= {"error": one.error, "place": one.place}
    rate = None if one.rate is None else f"{one.rate.max}/{one.rate.window_us / 1_000_000:g}s"
    known = {name: value for name, value in chosen.items() if value}
    return shown(OperationInfo, one, filter=known, rate=rate)


def _operations(call: ApiCall) -> Operations:
    return Operations(call.app.store, call.principal.tenant)


@answers("OperationList", "List operations over many jobs")
async def list_operations(call: ApiCall) -> ApiAnswer:
    """List operations that run, were stopped, or ended within 30 days, the newest first."""
    found = await _operations(call).aall()
    return ApiAnswer(body={"operations": [document_of(_info(one)) for one in found]})


@answers("Operation", "Show how far an operation is")
async def read_operation(call: ApiCall) -> ApiAnswer:
    """Show one operation and its progress."""
    return _shown(await _operations(call).aget(call.path["id"]))


@answers("MatchedJobs", "Count the jobs of an operation before it begins")
async def match_operation(call: ApiCall, query: MatchQuery) -> ApiAnswer:
    """Count the jobs that an operation would change; change nothing."""
    chosen = _chosen(call, query)
    found = await _operations(call).amatch(query.action, chosen, query.error, query.place)
    return ApiAnswer(body={"action": query.action, **document_of(found)})


@answers("Operation", "Do one thing to all jobs that fit", status=202)
async def begin_operation(call: ApiCall, order: OperationOrder) -> ApiAnswer:
    """Begin an operation; workers carry it out."""
    _allowed(call, order.action)
    begun = await _operations(call).abegin(
        order.action,
        _chosen(call, order),
        by=call.principal.name,
        selected=order.job,
        error=order.error,
        place=order.place,
        rate=None if order.rate is None else rate_rule(order.rate, "rate"),
        reset_budget=order.reset_budget,
    )
    root = call.request.scope.get("root_path", "")
    place = f"{root}/api/v1/operations/{begun.id}"
    return _shown(begun, status=202, headers={"Location": place}, audited=True)


@answers("Operation", "Stop an operation")
async def stop_operation(call: ApiCall) -> ApiAnswer:
    """Stop an operation after its current step."""
    before = await _before(call)
    stopped = await _operations(call).astop(before.id, by=call.principal.name)
    return _shown(stopped, before=before)


@answers("Operation", "Go on with an operation")
async def resume_operation(call: ApiCall) -> ApiAnswer:
    """Continue a stopped operation."""
    before = await _before(call)
    return _shown(await _operations(call).aresume(before.id), before=before)


async def _before(call: ApiCall) -> Operation:
    known = await _operations(call).aget(call.path["id"])
    _allowed(call, known.action)
    return known


def needed_for(action: OperationAction) -> Permission:
    """Return the permission that an action needs, besides `jobs.bulk`."""
    return dict(_NEEDED)[action]


def _allowed(call: ApiCall, action: OperationAction) -> None:
    needed = needed_for(action)
    if not call.principal.may(needed):
        raise WebRefusal(403, "FORBIDDEN", f"to {action} jobs needs the permission {needed}")


def _chosen(call: ApiCall, asked: MatchQuery) -> JobFilter:
    return job_filter(
        *(call, asked),
        statuses=asked.status,
        created_by=asked.created_by,
        dead_reason=asked.reason,
        dead_letter=asked.shelf,
    )


def _shown(
    one: Operation, *, before: Operation | None = None, audited: bool = False, **more: Any
) -> ApiAnswer:
    body = document_of(_info(one))
    names = ("action", "state", "filter", "rate", "matched", "done")
    noted = {name: body[name] for name in names} if audited or before is not None else None
    was = None if before is None else {"state": before.state, "done": before.done}
    return ApiAnswer(body=body, before=was, after=noted, **more)
