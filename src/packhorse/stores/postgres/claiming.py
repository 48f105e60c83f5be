# SPDX-License-Identifier: MIT
"""Handing jobs to a worker: chosen, changed and read in one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from packhorse.job import Job
from packhorse.lifecycle import HOLD_GRACE_US
from packhorse.stores.plan import Steps
from packhorse.stores.postgres.rows import HANDED_COLUMNS, worded
from packhorse.stores.requests import ClaimRequest
from packhorse.stores.sql.steps import Rows

__all__ = ["hand_over", "take"]

#: Columns before those of the job handed over.
_STANDING: Final = 2


def take(request: ClaimRequest, chosen: Mapping[str, Any]) -> Steps[list[Job]]:
    """Hand over the next jobs of a queue; no gate is asked."""
    text = worded("claim_batch", handed_columns=HANDED_COLUMNS)
    rows = yield Rows(text, {**chosen, **_handed(request, chosen["now"])})
    return [Job(*row[_STANDING:]) for row in rows]


def hand_over(request: ClaimRequest, seqs: Sequence[int], now_us: int) -> Steps[list[Job]]:
    """Hand over these jobs, in this order."""
    text = worded("claim_chosen", handed_columns=HANDED_COLUMNS)
    rows = yield Rows(text, {"seqs": list(seqs), **_handed(request, now_us)})
    return [Job(*row[_STANDING:]) for row in rows]


def _handed(request: ClaimRequest, now_us: int) -> dict[str, Any]:
    return {
        "worker": request.worker,
        "alone": request.quarantine,
        "now": now_us,
        "default_timeout_us": request.default_timeout_us,
        "grace_us": HOLD_GRACE_US,
    }
