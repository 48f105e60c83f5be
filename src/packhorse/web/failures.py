# SPDX-License-Identifier: MIT
"""Dead letters that met the same end, as one: by task, error, and the place it came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

__all__ = ["FailureGroup", "failure_groups"]


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that met the same end."""

    task: str
    error: str
    place: str
    message: str
    count: int
    first: str
    last: str
    job_id: str  #: the newest of them


def failure_groups(found: Iterable[Mapping[str, Any]]) -> list[FailureGroup]:
    """Dead letters, the newest first, by task, error and place; the largest group first."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for job in found:
        groups.setdefault((job["task"], job["error"], job["place"]), []).append(job)
    made = [
        FailureGroup(
            task=task,
            error=error,
            place=place,
            message=members[0]["message"],
            count=len(members),
            first=min(one["at"] for one in members),
            last=max(one["at"] for one in members),
            job_id=members[0]["id"],
        )
        for (task, error, place), members in groups.items()
    ]
    return sorted(made, key=lambda group: (-group.count, group.task))
