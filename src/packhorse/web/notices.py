# SPDX-License-Identifier: MIT
"""Routes about what is told to others: events of topics, and alerts."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from packhorse.client.documents import document_of
from packhorse.core.durations import microseconds
from packhorse.web.calls import ApiAnswer, ApiCall
from packhorse.web.problems import WebRefusal

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


class AlertOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A rule to write down: `oldest_ready > 5m`, and how it is judged and told."""

    condition: Text
    queue: str = ""
    to: list[Text] = []  #: URLs, `slack:` and a URL, or `mailto:` and an address
    hold: str | float = 0
    clear_after: str | float = "1m"
    repeat: str | float | None = None
    over: str | float = "15m"


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


async def add_alert(call: ApiCall) -> ApiAnswer:
    """Write a rule down, or change it; workers go by it within a minute."""
    name, order = call.path["name"], call.sent(AlertOrder)
    found = {one.name: document_of(one) for one in await call.app.alerts.aall()}
    await call.app.alerts.aadd(name, **msgspec.structs.asdict(order))
    after = await _alert(call, name)
    kept = ("condition", "queue", "source")
    before = found.get(name)
    return ApiAnswer(
        body=after,
        before=None if before is None else {each: before[each] for each in kept},
        after={each: after[each] for each in kept},
    )


async def remove_alert(call: ApiCall) -> ApiAnswer:
    """Remove a rule that was written down, and what is known of it."""
    before = await _alert(call, call.path["name"])
    await call.app.alerts.aremove(call.path["name"])
    return ApiAnswer(body=before, before={"condition": before["condition"]})


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
