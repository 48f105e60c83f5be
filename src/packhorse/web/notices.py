# SPDX-License-Identifier: MIT
"""Routes about what is told to others: events of topics, and alerts."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from packhorse.client.documents import document_of
from packhorse.core.durations import microseconds
from packhorse.web.calls import ApiAnswer, ApiCall
from packhorse.web.problems import WebRefusal

__all__ = ["EventOrder", "SilenceOrder", "list_alerts", "list_topics", "publish", "silence_alert"]

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class EventOrder(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """An event, and options that hold for the job of every subscriber."""

    payload: Any
    tenant: str | None = None
    priority: Text | None = None
    delay: str | float | None = None  #: seconds, or a text such as `5m`
    tags: list[str] | None = None
    ordering_key: Text | None = None
    trace_id: Text | None = None


class SilenceOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """For how long nothing is told of an alert, such as `2h`; 0 ends a silence."""

    span: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | float


async def list_topics(call: ApiCall) -> ApiAnswer:
    """Topics that have subscribers, and those."""
    found = await call.app.topics.aall()
    return ApiAnswer(body={"topics": [document_of(one) for one in found]})


async def publish(call: ApiCall) -> ApiAnswer:
    """Store a job for each subscriber of a topic, all or none."""
    order, own = call.sent(EventOrder), call.principal.tenant
    if own is not None and order.tenant not in (None, own):
        raise WebRefusal(403, "OTHER_TENANT", "this token is for another tenant")
    options: Any = {
        name: getattr(order, name)
        for name in order.__struct_fields__
        if name not in ("payload", "tenant") and getattr(order, name) is not None
    }
    options["created_by"] = call.principal.name
    tenant, topic = own if own is not None else order.tenant, call.path["name"]
    if tenant is None:
        jobs = await call.app.topic(topic).apublish(order.payload, **options)
    else:
        jobs = await call.app.tenant(tenant).apublish(topic, order.payload, **options)
    body = {"topic": topic, "jobs": [job.id for job in jobs]}
    return ApiAnswer(body=body, status=201, after=body)


async def list_alerts(call: ApiCall) -> ApiAnswer:
    """Every alert that the app declares or the store knows, as it stands."""
    found = await call.app.alerts.aall()
    return ApiAnswer(body={"alerts": [document_of(one) for one in found]})


async def silence_alert(call: ApiCall) -> ApiAnswer:
    """Tell nothing of an alert for so long; what still fires then is told."""
    name, span = call.path["name"], call.sent(SilenceOrder).span
    before = await _alert(call, name)
    length = 0 if span in ("0", 0) else span
    microseconds(length, setting="span")
    await call.app.alerts.asilence(name, length)
    after = await _alert(call, name)
    kept = "silencedUntil"
    return ApiAnswer(body=after, before={kept: before[kept]}, after={kept: after[kept]})


async def _alert(call: ApiCall, name: str) -> dict[str, Any]:
    for one in await call.app.alerts.aall():
        if one.name == name:
            return document_of(one)
    raise WebRefusal(404, "ALERT_NOT_FOUND", f"no alert {name!r} is declared or known")
