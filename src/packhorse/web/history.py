# SPDX-License-Identifier: MIT
"""The history of work and waiting: the API's route, and what pages show of it."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from packhorse.client.documents import document_of
from packhorse.client.history import History
from packhorse.core.policies.history import RANGES
from packhorse.web.calls import ApiAnswer, ApiCall, Text, answers
from packhorse.web.charts import age_chart, depth_chart, flow_chart, throughput_chart

_TOP: Final = 5


class HistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The range, and the queue."""

    range: Literal["15m", "1h", "6h", "24h", "7d", "30d"] = "1h"
    queue: Text | None = None


@answers("History", "What was done and what waited over time")
async def history(call: ApiCall, query: HistoryQuery) -> ApiAnswer:
    """Show what was done and what waited, step by step, and by queue and task."""
    found = await call.insights.ahistory(query.range, queue=query.queue)
    return ApiAnswer(body=document_of(found))


async def overview_parts(call: ApiCall, query: HistoryQuery) -> dict[str, Any]:
    """Return curves of all queues, and the tasks that fail most and take longest."""
    found = await _cached(call, query)
    failing = [task for task in found.tasks if task.failed]
    timed = [task for task in found.tasks if task.run_p95_ms is not None]
    return {
        **_asked(found),
        "charts": (throughput_chart(found), flow_chart(found), age_chart(found)),
        "failing_tasks": sorted(failing, key=lambda task: -task.failed)[:_TOP],
        "slowest_tasks": sorted(timed, key=lambda task: -(task.run_p95_ms or 0.0))[:_TOP],
        "peaks": {each.queue: each for each in found.queues},
    }


async def queue_parts(call: ApiCall, query: HistoryQuery) -> dict[str, Any]:
    """Return how many jobs waited in each queue, and for how long."""
    found = await _cached(call, query)
    chosen = query.queue
    if chosen is not None:
        kept = tuple(each for each in found.queues if each.queue == chosen)
        found = msgspec.structs.replace(found, queues=kept)
    charts = (depth_chart(found), age_chart(found))
    return {**_asked(found), "charts": charts, "chosen": chosen}


async def task_parts(call: ApiCall, query: HistoryQuery) -> dict[str, Any]:
    """Return rates and percentiles by task: nothing for one tenant, as they are of all tenants."""
    if call.principal.tenant is not None:
        return {"figures": {}, "others": (), "range": None}
    found = await _cached(call, query)
    figures = {each.task: each for each in found.tasks}
    others = [each for each in found.tasks if each.task not in call.app.tasks]
    return {**_asked(found), "figures": figures, "others": others}


async def _cached(call: ApiCall, query: HistoryQuery) -> History:
    """Return the history of a range, as it was read a short while ago."""
    looks, name, insights = call.looks, query.range, call.insights
    return await looks.history[name].get(lambda: looks.apart(lambda: insights.history(name)))


def _asked(found: History) -> dict[str, Any]:
    return {"range": found.range, "ranges": tuple(RANGES), "tasks_since": found.tasks_since}
