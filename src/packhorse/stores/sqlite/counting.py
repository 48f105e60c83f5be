# SPDX-License-Identifier: MIT
"""How many jobs stand where. SQLite groups by sorting, in memory that grows with what it counts.

So what is unfinished is read in the order of its index, where groups lie together, and what is
finished in pages, each grouped by itself.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from packhorse.stores.plan import Steps
from packhorse.stores.sql.steps import Rows
from packhorse.stores.sqlite.statements import sql

__all__ = ["counted"]

#: Entries of an index that are grouped in one go: about three megabytes.
_PAGE: Final = 50_000
#: The statuses of unfinished jobs, as the statement has them.
_UNFINISHED: Final = (0, 1, 2, 4, 6)
#: Before every job that is not kept for ever.
_FIRST: Final = (-1, "", -1, -1)


def counted() -> Steps[list[tuple[str, int, int]]]:
    """Queue, status and number of jobs, where there are any."""
    found: Counter[tuple[str, int]] = Counter()
    for queue, *numbers in (yield Rows(sql("counts"))):
        for status, number in zip(_UNFINISHED, numbers, strict=True):
            found[queue, status] += number
    for queue, status, number in (yield Rows(sql("counts_kept"))):
        found[queue, status] += number
    behind: tuple[Any, ...] | None = _FIRST
    while behind is not None:
        names = ("expires_us", "queue", "status", "seq")
        asked = {**dict(zip(names, behind, strict=True)), "size": _PAGE}
        for queue, status, number in (yield Rows(sql("counts_page"), asked)):
            found[queue, status] += number
        ends = yield Rows(sql("counts_page_end"), asked)
        behind = ends[0] if ends else None
    return [(queue, status, number) for (queue, status), number in found.items() if number]
