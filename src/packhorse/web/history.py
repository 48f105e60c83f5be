# SPDX-License-Identifier: MIT
"""What was done and what waited over time: the API's route, and what pages show of it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from packhorse.client.documents import document_of
from packhorse.client.history import History
from packhorse.core.policies.history import RANGES
from packhorse.web.calls import ApiAnswer, ApiCall
from packhorse.web.charts import age_chart, depth_chart, flow_chart, throughput_chart

_TOP: Final = 5
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class HistoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far back, and of which queue."""

    range: Literal["15m", "1h", "6h", "24h", "7d", "30d"] = "1h"
    queue: Text | None = None


async def history(call: ApiCall) -> ApiAnswer:
    """What was done and what waited, step by step, and by queue and task."""
    asked = call.asked(HistoryQuery)
    found = await call.insights.ahistory(asked.range, queue=asked.queue)
    return ApiAnswer(body=document_of(found))


async def overview_parts(call: ApiCall) -> dict[str, Any]:
    """Curves of all queues, and the tasks that fail most and take longest."""
    found = await _looked_at(call)
    failing = [task for task in found.tasks if task.failed]
    timed = [task for task in found.tasks if task.run_p95_ms is not None]
    return {
        **_asked(found),
        "charts": (throughput_chart(found), flow_chart(found), age_chart(found)),
        "failing_tasks": sorted(failing, key=lambda task: -task.failed)[:_TOP],
        "slowest_tasks": sorted(timed, key=lambda task: -(task.run_p95_ms or 0.0))[:_TOP],
        "peaks": {each.queue: each for each in found.queues},
    }


async def queue_parts(call: ApiCall) -> dict[str, Any]:
    """How many waited in each queue, and for how long."""
    found = await _looked_at(call)
    chosen = call.asked(HistoryQuery).queue
    if chosen is not None:
        kept = tuple(each for each in found.queues if each.queue == chosen)
        found = msgspec.structs.replace(found, queues=kept)
    charts = (depth_chart(found), age_chart(found))
    return {**_asked(found), "charts": charts, "chosen": chosen}


async def task_parts(call: ApiCall) -> dict[str, Any]:
    """Rates and percentiles by task; those of all tenants are not for one of them."""
    if call.principal.tenant is not None:
        return {"figures": {}, "others": (), "range": None}
    found = await _looked_at(call)
    figures = {each.task: each for each in found.tasks}
    others = [each for each in found.tasks if each.task not in call.app.tasks]
    return {**_asked(found), "figures": figures, "others": others}


async def _looked_at(call: ApiCall) -> History:
    """The history of a range, as it was read not long ago."""
    looks, name = call.looks, call.asked(HistoryQuery).range
    insights = call.insights
    return await looks.history[name].get(lambda: looks.apart(lambda: insights.history(name)))


def _asked(found: History) -> dict[str, Any]:
    return {"range": found.range, "ranges": tuple(RANGES), "tasks_since": found.tasks_since}
