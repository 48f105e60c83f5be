# SPDX-License-Identifier: MIT
"""Removing finished jobs, with all that belongs to them."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.stores.plan import Steps
from packhorse.stores.postgres.finishing import advance_lines
from packhorse.stores.postgres.lines import Keys
from packhorse.stores.postgres.statements import Rows, sql

__all__ = ["remove_steps"]


def remove_steps(seqs: Sequence[int]) -> Steps[int]:
    """Remove jobs with history, tags and keys; a line that one of them held goes on."""
    if not seqs:
        return 0
    held = yield Rows(sql("lines_held"), (list(seqs),))
    [(removed,)] = yield Rows(sql("remove"), {"seqs": list(seqs)})
    yield from advance_lines([Keys(*row) for row in held])
    return int(removed)
