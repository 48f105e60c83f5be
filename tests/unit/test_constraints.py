# SPDX-License-Identifier: MIT
"""The constraint model: what needs more than a store's fast path."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.core.constraints import (
    UNCONSTRAINED,
    Constraint,
    are_alike,
    job_constraints,
    queue_constraints,
)
from packhorse.core.job import IdempotencyRule, JobOptions, NewJob, RateRule, UniqueRule
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.samples import new_job

_CONSTRAINED: dict[str, tuple[Any, Constraint]] = {
    "unique": (UniqueRule("k"), Constraint.KEY),
    "idempotency": (IdempotencyRule("k", "digest", 1), Constraint.KEY),
    "ordering_key": ("k", Constraint.ORDER),
    "concurrency_key": ("k", Constraint.LIMIT),
    "rate_key": ("k", Constraint.LIMIT),
    "weight": (2, Constraint.LIMIT),
    "tenant": ("acme", Constraint.TENANT),
    "delay_us": (1, Constraint.DELAY),
    "scheduled_us": (1, Constraint.DELAY),
    "deadline_us": (1, Constraint.DEADLINE),
    "tags": (("a",), Constraint.TAGS),
}
_FREE: dict[str, Any] = {
    "id": "other",
    "task": "other",
    "payload": b"[]",
    "queue": "other",
    "priority": 0,
    "timeout_us": 1,
    "options": JobOptions(max_crashes=1),
    "trace_id": "t",
    "upstream_request_id": "u",
    "created_by": "ada",
}


def test_every_field_of_a_job_is_a_constraint_or_free() -> None:
    assert set(NewJob.__struct_fields__) == {*_CONSTRAINED, *_FREE}


@pytest.mark.parametrize("name", _CONSTRAINED)
def test_a_field_constrains_its_job(name: str) -> None:
    value, constraint = _CONSTRAINED[name]

    assert job_constraints(new_job("a", **{name: value})) is constraint


def test_fields_that_decide_nothing_leave_a_job_unconstrained() -> None:
    assert job_constraints(NewJob(**_FREE)) is UNCONSTRAINED


def test_constraints_add_up() -> None:
    job = new_job("a", tenant="acme", weight=2, tags=("x",))

    assert job_constraints(job) == Constraint.TENANT | Constraint.LIMIT | Constraint.TAGS


def test_jobs_are_alike_that_differ_in_id_payload_and_trace_only() -> None:
    jobs = [NewJob(str(number), "t", b"%d" % number, trace_id=str(number)) for number in range(3)]

    assert are_alike([])
    assert are_alike(jobs)
    assert not are_alike([*jobs, NewJob("9", "t", b"", priority=1)])


@pytest.mark.parametrize(
    ("settings", "state", "expected"),
    [
        ({}, {}, UNCONSTRAINED),
        ({"priority": 3, "dead_letter": "shelf", "soft_depth": 5}, {}, UNCONSTRAINED),
        ({"concurrency": 1}, {}, Constraint.LIMIT),
        ({"rate": RateRule(1, 1)}, {}, Constraint.LIMIT),
        ({"tenant_rate": RateRule(1, 1)}, {}, Constraint.LIMIT),
        ({}, {"limited_tasks": True}, Constraint.LIMIT),
        ({"max_depth": 1}, {}, Constraint.DEPTH),
        ({"ageing_us": 1, "fair": False}, {}, Constraint.AGEING),
        ({}, {"tenanted": True}, Constraint.TENANT),
        ({}, {"closed": True}, Constraint.CLOSED),
        ({}, {"shelf": True}, Constraint.CLOSED),
    ],
)
def test_a_queue_constrains_its_jobs(
    settings: dict[str, Any], state: dict[str, bool], expected: Constraint
) -> None:
    assert queue_constraints(QueueSettings("q", **settings), **state) == expected
