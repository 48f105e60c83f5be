# SPDX-License-Identifier: MIT
"""Write the OpenAPI 3.1 document from the table of routes and the types of the answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Any, Final

import msgspec

from packhorse.breaker import BreakerInfo
from packhorse.client.alerts import AlertInfo
from packhorse.client.audit import AuditNote
from packhorse.client.documents import camel
from packhorse.client.history import History
from packhorse.client.scaling import ScaleSignal
from packhorse.client.schedules import ScheduleInfo
from packhorse.client.topics import TopicInfo
from packhorse.client.worker_signals import WorkerStacks
from packhorse.core.job import JobStatus
from packhorse.core.job_info import Explanation, JobInfo
from packhorse.core.job_logs import LogLine
from packhorse.web.calls import ApiRoute, EmptyOrder
from packhorse.web.failures import FailureGroup
from packhorse.web.groups import BatchInfo
from packhorse.web.operations import OperationInfo
from packhorse.web.problems import PROBLEM_TYPE
from packhorse.web.routes import API_ROUTES, PREFIX
from packhorse.workflows.info import WorkflowInfo

_REFERENCE: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"{(\w+)(?::path)?}")
_ANSWERED: Final = (
    *(JobInfo, Explanation, ScheduleInfo, ScaleSignal, BreakerInfo, AuditNote),
    *(BatchInfo, WorkflowInfo, AlertInfo, TopicInfo, OperationInfo, FailureGroup, WorkerStacks),
    *(History, LogLine),
)
#: Schemas that are not named as their class.
_RENAMED: Final = {
    "JobInfo": "Job",
    "ScheduleInfo": "Schedule",
    "BatchInfo": "Batch",
    "WorkflowInfo": "Workflow",
    "AlertInfo": "Alert",
    "TopicInfo": "Topic",
    "SubscriberInfo": "Subscriber",
    "OperationInfo": "Operation",
}.items()
#: Bodies without required fields that must have at least one.
_NEVER_EMPTY: Final = ("LimitsOrder",)
_PROBLEMS: Final = ("400", "401", "403", "404", "409", "412", "413", "415", "422", "429", "503")


def openapi_document() -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in API_ROUTES:
        path = _PARAMETER.sub(r"{\1}", f"{PREFIX}{route.path}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Packhorse",
            "version": "1",
            "description": "Submit, watch and steer background jobs.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(sorted(_schemas().items())),
        },
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    name, described = route.handler.__name__, route.answers
    shape = _of(described.schema) if described.schema else {"type": "string"}
    good = {"description": "Done", "content": {described.media: {"schema": shape}}}
    answers = {str(described.status): good}
    if name == "submit":
        answers["200"] = {**good, "description": "It was there already"}
    problem = {
        "description": "It was not done",
        "content": {PROBLEM_TYPE: {"schema": {"$ref": _REFERENCE.format(name="Problem")}}},
    }
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": described.summary,
        "x-permission": str(route.permission),
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_headers(route)],
        "responses": {**answers, **dict.fromkeys(_PROBLEMS, problem)},
    }
    if route.body is not None:
        schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
        if route.body is not EmptyOrder:
            schema = {"$ref": _REFERENCE.format(name=route.body.__name__)}
        needed = any(field.required for field in msgspec.structs.fields(route.body))
        operation["requestBody"] = {
            "required": needed or route.body.__name__ in _NEVER_EMPTY,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _path_parameters(route: ApiRoute) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(route.path):
        schema = {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(route: ApiRoute) -> Iterator[dict[str, Any]]:
    if route.query is None:
        return
    [_], found = msgspec.json.schema_components([route.query], ref_template=_REFERENCE)
    for name, schema in found[route.query.__name__]["properties"].items():
        yield {"name": name, "in": "query", "required": False, "schema": _in_a_query(schema)}


def _in_a_query(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter: it is left out where a field would be null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    given = {name: value for name, value in schema.items() if (name, value) != ("default", None)}
    if not kinds:
        return given
    del given["anyOf"]
    return {**given, **(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})}


def _headers(route: ApiRoute) -> Iterator[dict[str, Any]]:
    if not route.changes:
        return
    key = {"type": "string", "minLength": 1, "maxLength": 200}
    yield {"name": "Idempotency-Key", "in": "header", "required": False, "schema": key}
    if route.answers.schema in ("ChangedQueue", "Schedule"):
        yield {
            "name": "If-Match",
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
        }


def _schemas() -> dict[str, Any]:
    sent = [route.body for route in API_ROUTES if route.body not in (None, EmptyOrder)]
    asked = [route.query for route in API_ROUTES if route.query is not None]
    _, found = msgspec.json.schema_components(
        [*dict.fromkeys((*sent, *asked)), *_ANSWERED, JobStatus], ref_template=_REFERENCE
    )
    schemas = {_renamed(name): _camelled(schema) for name, schema in found.items()}
    for kind in dict.fromkeys(asked):
        del schemas[kind.__name__]  # their fields are parameters
    for schema in schemas.values():  # up to Python 3.12 docstrings keep their indentation
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    schemas["ReasonCode"] = {"type": "string"}  # releases may add others
    job = schemas["Job"]["properties"]
    del job["timeout"]  # answered in milliseconds
    job["timeoutMs"] = {"type": ["integer", "null"]}
    schemas["Job"]["required"] = sorted(job)
    for name in _NEVER_EMPTY:
        schemas[name]["minProperties"] = 1
    return {**schemas, **_composed()}


def _renamed(name: str) -> str:
    return dict(_RENAMED).get(name, name)


def _camelled(schema: Any) -> Any:
    """Return a schema with its property names in camelCase."""
    if isinstance(schema, list):
        return [_camelled(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    done: dict[str, Any] = {}
    for name, part in schema.items():
        if name == "properties":
            done[name] = {camel(key): _camelled(value) for key, value in part.items()}
        elif name == "required":
            done[name] = [camel(key) for key in part]
        elif name == "$ref":
            head, _, last = part.rpartition("/")
            done[name] = f"{head}/{_renamed(last)}"
        elif name == "default" and part is None:
            continue
        else:
            done[name] = _camelled(part)
    return done


def _composed() -> dict[str, Any]:
    """Return the schemas of answers that have no type of their own."""
    job, status = _of("Job"), _of("JobStatus")
    text, number, flag = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
    after, stopped = {"type": ["string", "null"]}, {"type": ["integer", "null"]}
    whole = {"payload": {}, "result": {}, "history": _list({"type": "object"})}
    queue = {
        "name": text,
        "depth": number,
        "inSteps": number,
        "paused": flag,
        "closed": flag,
        "limits": _open(),
    }
    return {
        "Problem": _object(type=text, title=text, status=number, code=text, detail=text),
        "JobPage": _object(jobs=_list(job), after=after, stoppedAfter=stopped),
        "SubmittedJob": _object(id=text, deduplicated={"type": ["boolean", "null"]}),
        "WholeJob": {"allOf": [job, _object(**whole)]},
        "JobLogs": _object(lines=_list(_of("LogLine"))),
        "WaitedJob": _object(finished=flag, job=_of("WholeJob")),
        "ActedJob": _object(id=text, status=status),
        "Redriven": _object(matched=number, redriven=number, refused=number, after=after),
        "Queue": _object(**queue, counts={**_open(), "additionalProperties": number}),
        "ChangedQueue": {"allOf": [_of("Queue"), _object(changed=flag)]},
        "QueueList": _object(queues=_list(_of("Queue"))),
        "ScheduleList": _object(schedules=_list(_of("Schedule"))),
        "Fires": _object(schedule=text, fires=_list({"type": "string", "format": "date-time"})),
        "FiredSchedule": _object(schedule=text, jobId=text, deduplicated=flag),
        "WorkerList": _object(workers=_list(_object(id=text, host=text, live=flag, quiet=flag))),
        "ToldWorker": _object(id=text, quiet=flag),
        "TaskList": _object(tasks=_list(_object(name=text, queue=text))),
        "DeclaredTask": _object(name=text, queue=text, contract=_open()),
        "WorkerStats": _object(totalProcessed=number, succeeded=number, failed=number),
        "ScaleList": _object(queues=_list(_of("ScaleSignal"))),
        "BreakerList": _object(breakers=_list(_of("BreakerInfo"))),
        "AuditPage": _object(notes=_list(_of("AuditNote")), after=after),
        **_composed_groups(),
    }


def _composed_groups() -> dict[str, Any]:
    """Return those about batches, workflows, topics, alerts, operations and failures."""
    batch, workflow = _of("Batch"), _of("Workflow")
    text, number, flag = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
    after, job_id = {"type": ["string", "null"]}, {"type": ["string", "null"]}
    failure = _object(index=number, item={}, type=text, message=text, code=text, jobId=text)
    failures = _object(failures=_list(failure), after={"type": ["integer", "null"]})
    node = {"key": text, "name": text, "task": text, "queue": text, "state": text}
    nodes = _list(_object(**node, jobId=job_id, parents=_list(text), reason=text))
    return {
        "BatchPage": _object(batches=_list(batch), after=after),
        "BatchFailurePage": failures,
        "CancelledBatch": {"allOf": [batch, _object(done=flag)]},
        "RetriedBatch": {"allOf": [batch, _object(retried=number)]},
        "WorkflowPage": _object(workflows=_list(workflow), after=after),
        "RetriedWorkflow": {"allOf": [workflow, _object(retried=number)]},
        "WholeWorkflow": _object(workflow=workflow, nodes=nodes),
        "TopicList": _object(topics=_list(_of("Topic"))),
        "PublishedEvent": _object(topic=text, jobs=_list(text)),
        "AlertList": _object(alerts=_list(_of("Alert"))),
        "OperationList": _object(operations=_list(_of("Operation"))),
        "FailureList": _object(
            groups=_list(_of("FailureGroup")), hidden=number, more=flag, sample=number, after=after
        ),
        "SilencedFailure": _object(task=text, error=text, place=text, silenced=flag, until=after),
        "MatchedJobs": _object(action=text, matched=number, more=flag),
    }


def _of(name: str) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(name=name)}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _open() -> dict[str, Any]:
    return {"type": "object"}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}
