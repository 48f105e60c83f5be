# SPDX-License-Identifier: MIT
"""Which jobs a filter means."""

from __future__ import annotations

from packhorse.stores.memory.rows import JobRow
from packhorse.stores.requests import JobFilter

__all__ = ["chosen_by"]


def chosen_by(chosen: JobFilter, row: JobRow) -> bool:
    """Whether every part of the filter that is given fits the job."""
    new = row.new
    return (
        chosen.queue in (None, new.queue)
        and chosen.task in (None, new.task)
        and (not chosen.statuses or row.status in chosen.statuses)
        and chosen.tenant in (None, new.tenant)
        and (chosen.tag is None or chosen.tag in new.tags)
        and (chosen.created_by is None or chosen.created_by == new.created_by)
        and (chosen.dead_reason is None or chosen.dead_reason == row.dead_reason)
        and (chosen.dead_letter is None or chosen.dead_letter == row.dead_letter)
    )
