# SPDX-License-Identifier: MIT
"""Completions in one statement: the hot path of a settlement."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.settlement import Settlement
from packhorse.stores.plan import Steps
from packhorse.stores.sql.finishing import lifetimes
from packhorse.stores.sql.rows import json_text
from packhorse.stores.sql.steps import Change
from packhorse.stores.sqlite.statements import sql

__all__ = ["complete"]


def complete(completed: Sequence[Settlement], now_us: int) -> Steps[int]:
    """One statement for all of the same fence and lifetimes, nearly always one; says how many."""
    groups: dict[tuple[int, int | None, int | None], dict[str, str | None]] = {}
    for one in completed:
        group = groups.setdefault((one.fence, one.keep_us, one.result_keep_us), {})
        group[one.job_id] = one.result
    applied = 0
    for (fence, keep_us, result_keep_us), results in groups.items():
        kept = lifetimes(now_us, keep_us, result_keep_us)
        given = {"results": json_text(results), "fence": fence, "now": now_us, **kept}
        applied += yield Change(sql("settle_completed"), given)
    return applied
