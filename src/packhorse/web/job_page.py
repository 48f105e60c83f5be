# SPDX-License-Identifier: MIT
"""The page of a job, and the route that submits its call again."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from packhorse.core.batches import BATCH_KIND
from packhorse.core.clock import from_datetime
from packhorse.core.job import JobRecord
from packhorse.core.policies.journal import Group
from packhorse.core.redaction import redacted
from packhorse.errors import KeyUnavailable, PackhorseError, PayloadError
from packhorse.web import jobs
from packhorse.web.calls import ApiAnswer, ApiCall, answers
from packhorse.web.graphs import DRAWN_MAX

#: Options that a repeated call takes from the job; idempotency keys are not among them.
_KEPT: Final = (
    *("task", "queue", "priority", "timeout", "ordering_key", "concurrency_key", "trace_id"),
    *("tags",),
)


class AgainOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments for the same call; those of the job where none are given.

    A value that is what was shown of a masked one stands for that one.
    """

    args: dict[str, Any] | list[Any] | str | None = None  #: a text is JSON, as forms send it


@answers("SubmittedJob", "Submit a job's call again as a new job", status=201)
async def submit_again(call: ApiCall, order: AgainOrder) -> ApiAnswer:
    """Submit a job's call again as a new job, with the same arguments or others."""
    handle = call.job()
    original = (await handle.awire()).payload
    given = _decoded(order.args)
    if given is None:
        given = original
    else:
        given = _unmasked(given, redacted(call.app.bus.redact, original), original)
    info = await handle.ainfo()
    kept: dict[str, Any] = {name: getattr(info, name) for name in _KEPT}
    kept["tags"] = list(info.tags)
    again = jobs.SubmitOrder(**kept, args=given, tenant=info.tenant or None)
    answer = await jobs.submit(call, again)
    return dataclasses.replace(answer, before={"id": info.id})


def _decoded(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        decoded = msgspec.json.decode(given)
    except msgspec.DecodeError as error:
        raise PayloadError(f"args: that is no JSON: {error}", field="args") from None
    if not isinstance(decoded, dict | list):
        raise PayloadError("args: give an object or an array", field="args")
    return decoded


def _unmasked(given: Any, shown: Any, original: Any) -> Any:
    """Replace the values that equal their masked form by the original ones."""
    if given == shown:
        return original
    if isinstance(given, dict) and isinstance(shown, dict) and isinstance(original, dict):
        return {
            name: _unmasked(value, shown[name], original[name])
            if name in shown and name in original
            else value
            for name, value in given.items()
        }
    return given


# ------------------------------------------------------------------------------------------- page


async def job(call: ApiCall) -> ApiAnswer:
    """Show a job, why it is not running, its group, logs and artifacts."""
    document = await jobs.whole_job(call)
    explained = (await jobs.explain(call)).body
    tenant = call.principal.tenant
    found = call.app.store.inspection.job(document["id"], tenant=tenant)
    record: JobRecord | None = await call.app.store.arun(found)
    try:
        artifacts = [each.wire() for each in await call.job().aartifacts()]
    except PackhorseError:  # their store may be unavailable
        artifacts = []
    return ApiAnswer(
        body={
            "job": document,
            "reasons": explained["reasons"],
            "artifacts": artifacts,
            "logs": await _logs(call),
            "group": await _group(call, record),
            "trace_url": _trace_url(call, document["traceId"]),
            "timeline": _timeline(document),
            **_copies(document),
        }
    )


async def _logs(call: ApiCall) -> list[dict[str, Any]] | str:
    """Return the log lines of the job, or why they cannot be shown."""
    try:
        lines: list[dict[str, Any]] = (await jobs.read_logs(call)).body["lines"]
    except KeyUnavailable as error:
        return f"They are encrypted with key {error.key!r}, which is not here."
    return lines


async def _group(call: ApiCall, record: JobRecord | None) -> dict[str, Any] | None:
    """Describe the batch or workflow of a job, with the nodes next to it."""
    member = None if record is None or record.options is None else record.options.member
    if member is None:
        return None
    group = Group.of(member.group)
    found: dict[str, Any] = {"kind": "batch", "name": group.key, "parents": [], "children": []}
    if group.kind == BATCH_KIND:
        return {**found, "path": f"/batches/{quote(group.key, safe='')}"}
    run = f"{group.key}#{group.run}"
    found |= {"kind": "workflow", "path": f"/workflows/{quote(run, safe='')}"}
    if call.principal.tenant is None and group.tenant:
        found["path"] += f"?tenant={quote(group.tenant, safe='')}"
    try:
        workflow = await call.app.workflows.aget(run, tenant=group.tenant)
        nodes = await workflow.anodes() if (await workflow.ainfo()).nodes <= DRAWN_MAX else []
    except PackhorseError:  # it was removed before its jobs
        return found
    own = next((node for node in nodes if node.job_id == call.path["id"]), None)
    if own is not None:
        found["parents"] = [node for node in nodes if node.name in own.parents]
        found["children"] = [node for node in nodes if own.name in node.parents]
    return found


def _trace_url(call: ApiCall, trace_id: str) -> str | None:
    template: str | None = call.request.app.state.trace_url
    if template is None or not trace_id:
        return None
    return template.replace("{trace_id}", quote(trace_id, safe=""))


def _timeline(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Add to each attempt the wait before it, and its length relative to the longest."""
    lines = document["history"]
    waited_from = _us(document["createdAt"])
    longest = max([1, *(line["durationMs"] for line in lines)])
    found = []
    for line in lines:
        waited_ms = max(0, _us(line["startedAt"]) - waited_from) // 1_000
        waited_from = _us(line["completedAt"])
        found.append({**line, "waitedMs": waited_ms, "share": line["durationMs"] / longest})
    return found


def _us(text: str) -> int:
    return from_datetime(msgspec.convert(text, type=datetime))


def _copies(document: Mapping[str, Any]) -> dict[str, str]:
    """Write the call for a shell and for Python, with masked arguments."""
    payload = document["payload"]
    named = payload if isinstance(payload, dict) else {}
    words = [f"{name}={msgspec.json.encode(value).decode()}" for name, value in named.items()]
    shell = shlex.join(["packhorse", "enqueue", document["task"], *words])
    given = ", ".join(f"{name}={value!r}" for name, value in named.items())
    return {"shell": shell, "python": f"app.tasks[{document['task']!r}].enqueue({given})"}
