# SPDX-License-Identifier: MIT
"""Which changes of a contract callers and waiting jobs can live with."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse import Contract
from packhorse.core.contract_changes import changes
from packhorse.core.versions import PayloadVersions


def verdict(old: Contract, new: Contract) -> tuple[bool, bool]:
    found = changes(old, new)
    return all(change.callers for change in found), all(change.jobs for change in found)


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


INTEGER, NUMBER, STRING = {"type": "integer"}, {"type": "number"}, {"type": "string"}

#: Old inputs, new inputs, and whether all that was taken still is.
INPUTS = [
    ({"a": "string"}, {"a": "string"}, True),
    ({"a": "string"}, {"a": "string", "b?": "string"}, True),
    ({"a": "string"}, {"a": "string", "b": "string"}, False),
    ({"a": "string"}, {"a?": "string"}, True),
    ({"a?": "string"}, {"a": "string"}, False),
    ({"a": "string", "b?": "string"}, {"a": "string"}, False),
    ({"a": "integer"}, {"a": "number"}, True),
    ({"a": "number"}, {"a": "integer"}, False),
    ({"a": "string"}, {"a": "string | null"}, True),
    ({"a": "string | null"}, {"a": "string"}, False),
    ({"a": "any"}, {"a": "string"}, False),
    ({"a": "string"}, {"a": "any"}, True),
    (object_of(a={"enum": [1, 2]}), object_of(a={"enum": [1, 2, 3]}), True),
    (object_of(a={"enum": [1, 2]}), object_of(a={"enum": [1]}), False),
    (object_of(a={"const": 1}), object_of(a={"enum": [1, 2]}), True),
    (object_of(a={"maxLength": 5}), object_of(a={"maxLength": 6}), True),
    (object_of(a={"maxLength": 5}), object_of(a={"maxLength": 4}), False),
    (object_of(a={"minimum": 5}), object_of(a={}), True),
    (object_of(a={}), object_of(a={"minimum": 5}), False),
    (object_of(a={"pattern": "a"}), object_of(a={"pattern": "b"}), False),
    (object_of(a={"description": "one"}), object_of(a={"description": "two"}), True),
    (object_of(a={"items": INTEGER}), object_of(a={"items": NUMBER}), True),
    (object_of(a={"items": NUMBER}), object_of(a={"items": INTEGER}), False),
    (object_of(a={"anyOf": [INTEGER, STRING]}), object_of(a={"anyOf": [STRING, NUMBER]}), True),
    (object_of(a={"anyOf": [INTEGER, STRING]}), object_of(a={"anyOf": [STRING]}), False),
    ({"type": "object"}, object_of(a=STRING), False),
    (dict[str, int], dict[str, float], True),
    (dict[str, float], dict[str, int], False),
]


@pytest.mark.parametrize(("old", "new", "safe"), INPUTS)
def test_inputs_are_safe_if_all_that_was_taken_still_is(old: Any, new: Any, *, safe: bool) -> None:
    assert verdict(Contract(inputs=old), Contract(inputs=new)) == (safe, safe)


@pytest.mark.parametrize(("new", "old", "safe"), INPUTS)
def test_outputs_are_safe_the_other_way_round_and_for_jobs_always(
    old: Any, new: Any, *, safe: bool
) -> None:
    before = Contract(outputs=Contract(inputs=old).inputs)
    after = Contract(outputs=Contract(inputs=new).inputs)

    assert verdict(before, after) == (safe, True)


@pytest.mark.parametrize(
    ("old", "new", "callers", "jobs"),
    [
        ({"timeout": 60}, {"timeout": 90}, True, True),
        ({"timeout": 60}, {"timeout": 30}, False, False),
        ({}, {"max_attempts": 2}, False, False),
        ({"max_attempts": 2}, {}, True, True),
        ({"worker_id": "a"}, {"worker_id": "b"}, False, True),
        ({}, {"idempotency_key": "required"}, False, False),
        ({"version": "1"}, {"version": "2"}, True, True),
        ({"tools_allowed": ["a"]}, {"tools_allowed": []}, True, True),
        ({"rate_limit": "1/min"}, {"rate_limit": "2/min"}, True, True),
    ],
)
def test_limits_and_names_have_their_verdicts(
    old: dict[str, Any], new: dict[str, Any], *, callers: bool, jobs: bool
) -> None:
    assert verdict(Contract(**old), Contract(**new)) == (callers, jobs)
    assert changes(Contract(**old), Contract(**new)) != []


class Tree:
    """Its own children's type, by a reference."""

    schema = {  # noqa: RUF012 - an example
        "$ref": "#/$defs/Tree",
        "$defs": {"Tree": object_of(children={"items": {"$ref": "#/$defs/Tree"}})},
    }


def test_a_type_that_holds_itself_ends_the_comparison() -> None:
    tree = Tree.schema
    leaf = {
        **tree,
        "$defs": {"Tree": object_of(children={"items": {"$ref": "#/$defs/Tree"}}, n={})},
    }

    assert verdict(Contract(inputs=tree), Contract(inputs=tree)) == (True, True)
    assert changes(Contract(inputs=tree), Contract(inputs=leaf)) != []


def test_waiting_jobs_of_an_older_version_are_safe_where_upcasters_lead_on() -> None:
    versions = PayloadVersions("shop.pay", "2")
    versions.add("1", "2", lambda payload: payload)
    old, new = Contract(version="1.0", inputs={"a": "string"}), {"a": "string", "b": "string"}
    same = Contract(version="1.0", inputs=new)

    moved = changes(old, Contract(version="2", inputs=new), versions)
    parked = changes(old, Contract(version="2", inputs=new))
    dead = changes(old, same)

    assert [all(one.jobs for one in found) for found in (moved, parked, dead)] == [
        *(True, False, False)
    ]
    texts = [next(one.text for one in each if one.place == "version") for each in (parked, dead)]
    assert "are parked" in texts[0]
    assert "invalid_request" in texts[1]
