# SPDX-License-Identifier: MIT
"""Removing finished jobs, with all that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.stores.plan import Steps
from packhorse.stores.sqlite.finishing import advance_lines
from packhorse.stores.sqlite.lines import Keys
from packhorse.stores.sqlite.rows import json_text
from packhorse.stores.sqlite.statements import Change, Rows, sql

__all__ = ["remove_steps"]


def remove_steps(seqs: Sequence[int]) -> Steps[int]:
    """Remove jobs with history, tags and keys; a line that one of them held goes on."""
    if not seqs:
        return 0
    chosen = (json_text(list(seqs)),)
    held = yield Rows(sql("lines_held"), chosen)
    for table in ("attempts", "tags", "interests", "keys", "stash"):
        yield Change(sql("remove").format(table=table), chosen)
    removed: int = yield Change(sql("remove").format(table="jobs"), chosen)
    yield from advance_lines([Keys(*row) for row in held])
    return removed
