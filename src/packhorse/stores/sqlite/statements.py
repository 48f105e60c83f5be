# SPDX-License-Identifier: MIT
"""Run the steps of a SQLite plan, and render its queries."""

from __future__ import annotations

import sqlite3
from types import MappingProxyType
from typing import Any, Final, TypeVar

from packhorse.core.clock import Clock
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.sql.statements import Change, ChangeMany, Now, Queries, Rows

T = TypeVar("T")


_LISTED: Final = "in (select value from json_each({0}))"
_FRAGMENTS: Final = MappingProxyType(
    {
        "true": "1",
        "false": "0",
        "greatest": "max",
        "least": "min",
        "is": "is",
        "text": "{0}",
        "number": "{0}",
        "each": "= {0}",
        "in_texts": _LISTED,
        "in_numbers": _LISTED,
        "in_column": _LISTED,
        "texts": "json_each({0}) as {2}",
        "elements": "json_each({0}) as {2}",
        "field": "json_extract({0}, '$.{1}')",
        "options": "json_extract({0}.extra, '$.options')",
        "fence_bytes": "cast(cast({0}.fence as text) as blob)",
        "member": "json_extract({0}.extra, '$.options.member[0]')",
        "bytes": "{0}",
        "created_by": "json_extract({0}.extra, '$.created_by')",
        "has_ends": "(substr({0}, 1, length({1})) = {1} or substr({0}, -length({1})) = {1})",
        # A large payload is in the table of bodies, and empty in the row.
        "payload": (
            "case payload when '' then (select body from packhorse_bodies where job_seq = seq) "
            "else payload end"
        ),
        "payload_bytes": (
            "length(cast(case payload when '' then (select body from packhorse_bodies "
            "where job_seq = seq) else payload end as blob))"
        ),
        "unindexed": "+{0}",
        "unsorted": "{0}",
        "apart": "",
        "lock": "",
        "skip_locked": "",
    }
)

queries: Final = Queries(
    "packhorse.stores.sqlite", _FRAGMENTS, table="packhorse_{}", named=":{}", unnamed="?"
)
sql: Final = queries.text


def answered(connection: sqlite3.Connection, steps: Steps[T], clock: Clock, wakes: list[str]) -> T:
    """Run each step of a plan and send it the answer; an error ends the plan."""
    answer: Any = None
    now_us = 0
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        kind = type(step)
        if kind is Rows:
            answer = connection.execute(step.text, step.parameters).fetchall()
        elif kind is Change:
            answer = connection.execute(step.text, step.parameters).rowcount
        elif kind is ChangeMany:
            answer = connection.executemany(step.text, step.parameters).rowcount
        elif kind is Now:
            answer = now_us = now_us or clock.now_us()
        elif kind is Wake:
            answer = None
            if step.topic not in wakes:
                wakes.append(step.topic)
        else:
            raise TypeError(f"a SQLite plan cannot ask for {step!r}")
