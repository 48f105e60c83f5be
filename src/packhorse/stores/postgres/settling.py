# SPDX-License-Identifier: MIT
"""Completions of jobs in any queue, inside the transaction of a settlement."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.settlement import Settlement
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.plain_settle import completions
from packhorse.stores.postgres.statements import sql
from packhorse.stores.sql.steps import Rows

__all__ = ["complete"]


def complete(completed: Sequence[Settlement]) -> Steps[int]:
    """One statement for each pair of lifetimes, which is nearly always one; says how many."""
    groups: dict[tuple[int | None, int | None], list[Settlement]] = {}
    for one in completed:
        groups.setdefault((one.keep_us, one.result_keep_us), []).append(one)
    applied = 0
    for group in groups.values():
        [(count, *_)] = yield Rows(sql("settle_completed"), completions(group, any_queue=True))
        applied += count
    return applied
