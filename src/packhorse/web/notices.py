# SPDX-License-Identifier: MIT
"""Routes about topics and alerts."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from packhorse.client.documents import document_of
from packhorse.core.durations import microseconds
from packhorse.web.calls import ApiAnswer, ApiCall, Text, answers, given_fields
from packhorse.web.problems import WebRefusal


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


@answers("TopicList", "List topics and their subscribers")
async def list_topics(call: ApiCall) -> ApiAnswer:
    """List topics and their subscribers."""
    found = await call.app.topics.aall()
    return ApiAnswer(body={"topics": [document_of(one) for one in found]})


@answers("PublishedEvent", "Publish an event", status=201)
async def publish(call: ApiCall, order: EventOrder) -> ApiAnswer:
    """Store a job for each subscriber of a topic, all or none."""
    options = given_fields(order)
    for name in ("payload", "tenant"):
        options.pop(name, None)
    options["created_by"] = call.principal.name
    tenant, topic = call.tenant(order.tenant), call.path["name"]
    if tenant is None:
        jobs = await call.app.topic(topic).apublish(order.payload, **options)
    else:
        jobs = await call.app.tenant(tenant).apublish(topic, order.payload, **options)
    body = {"topic": topic, "jobs": [job.id for job in jobs]}
    return ApiAnswer(body=body, status=201, after=body)


@answers("AlertList", "List alerts")
async def list_alerts(call: ApiCall) -> ApiAnswer:
    """List every alert that the app declares or the store knows, with its state."""
    found = await call.app.alerts.aall()
    return ApiAnswer(body={"alerts": [document_of(one) for one in found]})


@answers("Alert", "Write a rule down, or change it")
async def add_alert(call: ApiCall, order: AlertOrder) -> ApiAnswer:
    """Store a rule, or change it; workers apply it within a minute."""
    name = call.path["name"]
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


@answers("Alert", "Remove a rule that was written down")
async def remove_alert(call: ApiCall) -> ApiAnswer:
    """Remove a stored rule and its state."""
    before = await _alert(call, call.path["name"])
    await call.app.alerts.aremove(call.path["name"])
    return ApiAnswer(body=before, before={"condition": before["condition"]})


@answers("Alert", "Tell nothing of an alert for a while")
async def silence_alert(call: ApiCall, order: SilenceOrder) -> ApiAnswer:
    """Send no notices of an alert for a while; what still fires then is sent."""
    name, span = call.path["name"], order.span
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
