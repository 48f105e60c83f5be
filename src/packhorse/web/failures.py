# SPDX-License-Identifier: MIT
"""Dead letters that met the same end, as one: by task, error, and the place it came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from packhorse.core.info import JobInfo

__all__ = ["FailureGroup", "end_of", "failure_groups"]

_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
#: Of an end that came from no place, or has no error; a form cannot send an empty field.
_NONE: Final = "-"


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


def end_of(job: JobInfo) -> tuple[str, str]:
    """The error a dead job met, or the reason it is dead, and the place that came from."""
    if job.error is None:
        return str(job.dead_reason or _NONE), _NONE
    return job.error.type or _NONE, _place(job.error.stack or "")


def _place(stack: str) -> str:
    """The last frame of a stack: where the exception came from."""
    frames = list(_FRAME.finditer(stack))
    if not frames:
        return _NONE
    file = frames[-1]["file"].rpartition("/")[2]
    return f"{file}:{frames[-1]['line']} in {frames[-1]['name']}"


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
