# SPDX-License-Identifier: MIT
"""Removing finished jobs, with all that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.stores.plan import Steps
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.lines import Keys, advance_lines
from packhorse.stores.sql.steps import Rows

__all__ = ["remove_steps"]


def remove_steps(dialect: Dialect, seqs: Sequence[int]) -> Steps[int]:
    """Remove jobs with history, tags and keys; a line that one of them held goes on."""
    if not seqs:
        return 0
    held = yield Rows(dialect.sql("lines_held"), (dialect.many(seqs),))
    removed: int = yield from dialect.remove(seqs)
    yield from advance_lines(dialect, [Keys(*row) for row in held])
    return removed
