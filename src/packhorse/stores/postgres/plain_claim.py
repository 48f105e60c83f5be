# SPDX-License-Identifier: MIT
"""Claim from plain queues in one statement, each from where the last claim left off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from packhorse.job import Job
from packhorse.lifecycle import HOLD_GRACE_US
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.floors import Floors
from packhorse.stores.postgres.locking import Level, Special
from packhorse.stores.postgres.rows import HANDED_COLUMNS, PASSES, worded
from packhorse.stores.postgres.statements import Once, sql
from packhorse.stores.requests import EVERY_TASK, Claimed, ClaimRequest

__all__ = ["PROMOTE_MAX", "claim_in_one"]

#: Due jobs that become ready in one claim, per queue.
PROMOTE_MAX: Final = 1000
#: What is special, told only when that is why nothing was handed over.
_SPECIAL: Final = ", ".join(
    f"case when survey.special then entered.{name} end" for name in Special._fields
)
#: Columns of the answer before those of the job handed over.
_SURVEYED: Final = 7
_STANDING: Final = 3


class _Answer(NamedTuple):
    """What `claim_plain.sql` found."""

    now_us: int
    lease_us: int | None
    special: Special | None
    due_us: int | None
    suspects: bool
    rows: list[tuple[Any, ...]]

    @property
    def lapsed(self) -> bool:
        return self.lease_us is None or self.lease_us <= self.now_us

    @property
    def late(self) -> bool:
        return self.due_us is not None and self.due_us <= self.now_us


def claim_in_one(request: ClaimRequest, level: Level, floors: Floors) -> Steps[Claimed | None]:
    """As `JobStore.claim` if all queues are plain; None if not."""
    queues = list(dict.fromkeys(request.queues))
    from_floors = floors.known(queues)
    answer: _Answer = yield from _ask(request, queues, floors)
    if answer.late and answer.special is None and not answer.lapsed:
        due = {"queues": queues, "limit": PROMOTE_MAX, "passes": PASSES}
        yield Once(sql("promote_plain"), due)
        floors.forget()
        answer = yield from _ask(request, queues, floors, late=True)
    elif from_floors and answer.special is None and not answer.rows:
        floors.forget()
        answer = yield from _ask(request, queues, floors)
    if answer.lapsed:
        return Claimed((), answer.now_us, lease_lost=True)
    if answer.special is not None:
        level.expect(queues, answer.special)
        return None
    if len(answer.rows) < request.limit:
        floors.forget()
    else:
        floors.raise_to([(row[1], row[2], row[5]) for row in answer.rows], answer.now_us)
    jobs = tuple([Job(*row[_STANDING:]) for row in answer.rows])
    return Claimed(jobs, answer.now_us, next_due_us=answer.due_us, suspects=answer.suspects)


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
    text = worded("claim_plain", handed_columns=HANDED_COLUMNS, special_columns=_SPECIAL)
    rows = yield Once(text, asked)
    handed = [row[_SURVEYED:] for row in rows if row[_SURVEYED] is not None]
    now_us, lease_us, due_us, suspects, *arrays = rows[0][:_SURVEYED]
    special = None if arrays[0] is None else Special.of(arrays)
    return _Answer(now_us, lease_us, special, due_us, suspects, handed)
