# SPDX-License-Identifier: MIT
"""Reading the ready jobs of a worker's tasks without walking past those of others.

An index has the ready jobs of each queue and task in the order of claiming. A query of one such
line for each task, put together, is merged by the stores in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from packhorse.stores.requests import EVERY_TASK, ClaimRequest
from packhorse.stores.sql.dialect import CANDIDATE_COLUMNS, scope
from packhorse.stores.sql.rows import Lane
from packhorse.stores.sql.statements import Queries, Rows

#: Tasks of a worker whose ready jobs are merged; a worker with more walks past those it ignores.
_MERGED_MAX: Final = 32
#: Before every rank and place.
BEGINNING: Final = MappingProxyType({"rank": -1, "after": -1})


def merged_tasks(request: ClaimRequest, lane: int = Lane.READY) -> dict[str, str]:
    """The tasks whose jobs are merged, as parameters; none when there are too many, or all.

    None either where a claim is not about ready jobs, or about more than their tasks.
    """
    named = dict.fromkeys(request.tasks)
    all_or_many = EVERY_TASK in named or len(named) > _MERGED_MAX
    if lane != Lane.READY or request.narrow or all_or_many:
        return {}
    return {f"task_{number}": task for number, task in enumerate(named)}


@cache
def merged(sql: Queries, name: str, count: int, columns: str = "") -> str:
    """A query of jobs of one task, put together for so many, as a part of another query."""
    each = [f":task_{number}" for number in range(count)]
    return "\nunion all\n".join([sql.filled(name, task=task, columns=columns) for task in each])


def candidates(sql: Queries, request: ClaimRequest, chosen: Mapping[str, Any]) -> Rows:
    """The next jobs of a queue after a rank and place, whose gates are to be asked."""
    tasks = merged_tasks(request, chosen["lane"])
    if not tasks:
        return Rows(sql("claim_candidates", scope=scope(request)), chosen)
    following = merged(sql, "claim_ready_of_task", len(tasks), CANDIDATE_COLUMNS)
    return Rows(
        sql("claim_candidates_of_tasks", next=following),
        {**chosen, "window": chosen["limit"], **tasks},
    )
