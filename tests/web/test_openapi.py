# SPDX-License-Identifier: MIT
"""The OpenAPI document is the one that is checked in, and answers are what it says."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec
import pytest

from packhorse.testing import TestApp
from packhorse.web.openapi import openapi_document
from packhorse.web.routes import API_ROUTES, PREFIX
from scripts.openapi import FILE, openapi_text
from tests.web.support import Web, groups

DOCUMENT = openapi_document()


def schema_of(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}


def test_the_document_that_is_checked_in_is_the_one_that_is_served() -> None:
    assert FILE.read_text(encoding="utf-8") == openapi_text(), "run python -m scripts.openapi"


async def test_it_is_served_to_everybody(web: Web) -> None:
    got = await web.get("/openapi.json", token=None)

    assert got.json == msgspec.json.decode(msgspec.json.encode(DOCUMENT))
    assert got.json["openapi"] == "3.1.0"


def test_every_route_is_in_it_once_under_a_name_of_its_own() -> None:
    operations = [one for path in DOCUMENT["paths"].values() for one in path.values()]

    assert len(operations) == len(API_ROUTES)
    assert len({one["operationId"] for one in operations}) == len(operations)


def test_every_schema_that_is_named_is_there_and_is_one() -> None:
    text = msgspec.json.encode(DOCUMENT).decode()
    schemas = DOCUMENT["components"]["schemas"]
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}

    assert named <= set(schemas)
    assert set(schemas) - named <= {"AttemptError"}
    for name in schemas:
        jsonschema_rs.validator_for(schema_of(name))


async def test_answers_fit_their_schemas(web: Web) -> None:
    assert isinstance(web.app, TestApp)
    made = (await web.post("/jobs", {"task": "add", "args": [1, 2]})).json
    dead = (await web.post("/jobs", {"task": "fail"})).json
    batch, workflow = await groups(web.app)
    begun = (await web.post("/operations", {"action": "cancel", "queue": "none"})).json
    ids = {"batches": batch, "workflows": workflow, "operations": begun["id"]}
    await web.app.arun_for("1h")
    for route in API_ROUTES:
        if route.changes or route.answers.media != "application/json":
            continue
        kind = route.path.split("/")[1]
        name = {"tasks": "add", "schedules": "nightly"}.get(kind, "default")
        path = route.path.replace(":path", "").format(id=ids.get(kind, made["id"]), name=name)

        got = await web.ask("GET", f"{PREFIX}{path}")

        assert got.status == route.answers.status, path
        jsonschema_rs.validate(schema_of(route.answers.schema), got.json)
    refused = await web.get("/jobs?limit=0")
    jsonschema_rs.validate(schema_of("Problem"), refused.json)
    jsonschema_rs.validate(schema_of("WholeJob"), (await web.get(f"/jobs/{dead['id']}")).json)


def test_the_document_says_what_is_refused() -> None:
    paths, schemas = DOCUMENT["paths"], DOCUMENT["components"]["schemas"]
    [asked] = [
        each
        for each in paths[f"{PREFIX}/jobs"]["get"]["parameters"]
        if each["name"] == "createdBefore"
    ]
    nothing = paths[f"{PREFIX}/jobs/{{id}}/cancel"]["post"]["requestBody"]["content"]

    assert asked["schema"] == {"type": "string", "format": "date-time"}
    assert nothing["application/json"]["schema"]["additionalProperties"] is False
    assert schemas["LimitsOrder"]["minProperties"] == 1


def test_a_schema_can_be_missed() -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema_of("JobPage"), {"jobs": [{}], "after": None})
