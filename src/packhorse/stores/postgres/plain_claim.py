# SPDX-License-Identifier: MIT
"""Claim from plain queues in one statement, each from where the last claim left off."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from packhorse.job import Job
from packhorse.lifecycle import HOLD_GRACE_US
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.floors import Floors
from packhorse.stores.postgres.locking import Level, Special
from packhorse.stores.postgres.rows import HANDED_COLUMNS, worded
from packhorse.stores.postgres.statements import Once, sql
from packhorse.stores.requests import EVERY_TASK, Claimed, ClaimRequest
from packhorse.stores.sql.promoting import PROMOTE_MAX
from packhorse.stores.sql.rows import PASSES

__all__ = ["claim_in_one"]

#: Columns of a job that is handed over; rank and place follow them.
_HANDED: Final = len(Job.__struct_fields__)
_QUEUE: Final = Job.__struct_fields__.index("queue")
_PAYLOAD: Final = Job.__struct_fields__.index("payload")
_RANK: Final = _HANDED
_PLACE: Final = _HANDED + 1
#: How the queues stand, in the place of the payload; all else in that row is null. What is special
#: is told only when that is why nothing was handed over.
_STANDING: Final = (
    "json_build_array(now_us, lease_us, due_us, suspects, survey.queues, case when survey.special "
    "then json_build_array(entered.queues, entered.tasks, entered.tasked) end)::text"
)
_SURVEYED: Final = ", ".join(
    [_STANDING if index == _PAYLOAD else "null" for index in range(_HANDED)]
)


class _Survey(msgspec.Struct, frozen=True, array_like=True):
    """How the queues stand, as `claim_plain.sql` found them."""

    now_us: int
    lease_us: int | None
    due_us: int | None
    suspects: bool
    queues: list[str]  #: those that are served, in the order of service
    special: tuple[list[str], list[str], list[str]] | None

    @property
    def lapsed(self) -> bool:
        return self.lease_us is None or self.lease_us <= self.now_us

    @property
    def late(self) -> bool:
        return self.due_us is not None and self.due_us <= self.now_us


_survey: Final = msgspec.json.Decoder(_Survey).decode
_Answer = tuple[_Survey, list[tuple[Any, ...]]]


def claim_in_one(request: ClaimRequest, level: Level, floors: Floors) -> Steps[Claimed | None]:
    """As `JobStore.claim` if all queues are plain; None if not."""
    queues = list(dict.fromkeys(request.queues))
    floors.serve(request.tasks)
    from_floors = floors.known(queues)
    survey, rows = yield from _ask(request, queues, floors)
    if survey.late and survey.special is None and not survey.lapsed:
        due = {"queues": survey.queues, "limit": PROMOTE_MAX, "passes": PASSES}
        yield Once(sql("promote_plain"), due)
        floors.forget()
        survey, rows = yield from _ask(request, queues, floors, late=True)
    elif from_floors and survey.special is None and not rows:
        floors.forget()
        survey, rows = yield from _ask(request, queues, floors)
    if survey.lapsed:
        return Claimed((), survey.now_us, lease_lost=True)
    if survey.special is not None:
        level.expect(queues, Special.of(survey.special))
        return None
    _in_order(rows, survey.queues)
    if len(rows) < request.limit:
        floors.forget()
    elif rows:
        handed = [(row[_RANK], row[_PLACE], row[_QUEUE]) for row in _furthest(rows)]
        floors.raise_to(handed, survey.now_us, request.tasks)
    jobs = tuple([Job(*row[:_HANDED]) for row in rows])
    return Claimed(jobs, survey.now_us, next_due_us=survey.due_us, suspects=survey.suspects)


def _in_order(rows: list[tuple[Any, ...]], queues: Sequence[str]) -> None:
    """Queue by queue in the order of service, each in the order of claiming."""
    rows.sort(key=itemgetter(_RANK, _PLACE))
    if len(queues) > 1:
        number = {queue: index for index, queue in enumerate(queues)}
        rows.sort(key=lambda row: number[row[_QUEUE]])


def _furthest(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Those that say how far a claim has gone: of one queue and priority, the last."""
    first, last = rows[0], rows[-1]
    alike = first[_QUEUE] == last[_QUEUE] and first[_RANK] // PASSES == last[_RANK] // PASSES
    return rows[-1:] if alike else rows


def _ask(
    request: ClaimRequest, queues: Sequence[str], floors: Floors, *, late: bool = False
) -> Steps[_Answer]:
    asked = {
        "worker": request.worker,
        "queues": list(queues),
        "tasks": list(request.tasks),
        "any_task": EVERY_TASK in request.tasks,
        "limit": max(0, request.limit),
        "late": late,
        "default_timeout_us": request.default_timeout_us,
        "grace_us": HOLD_GRACE_US,
        **floors.ranges(queues),
    }
    text = worded("claim_plain", handed_columns=HANDED_COLUMNS, survey_columns=_SURVEYED)
    first, *rows = yield Once(text, asked)
    return _survey(first[_PAYLOAD]), rows
