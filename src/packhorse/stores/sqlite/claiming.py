# SPDX-License-Identifier: MIT
"""Handing jobs to a worker: read as one JSON document, which SQLite builds without our lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from packhorse.job import Job
from packhorse.lifecycle import HOLD_GRACE_US
from packhorse.stores.plan import Steps
from packhorse.stores.requests import ClaimRequest
from packhorse.stores.sql.rows import json_text
from packhorse.stores.sql.steps import Change, Rows
from packhorse.stores.sqlite.statements import sql

__all__ = ["hand_over", "take"]

_jobs: Final = msgspec.json.Decoder(list[Job])


def take(request: ClaimRequest, chosen: Mapping[str, Any]) -> Steps[list[Job]]:
    """Hand over the next jobs of a queue; no gate is asked."""
    [(jobs, seqs, count)] = yield Rows(sql("claim_batch"), chosen)
    if count == 0:
        return []
    yield Change(sql("claim"), _handed(request, seqs, chosen["now"]))
    return _jobs.decode(jobs)


def hand_over(request: ClaimRequest, seqs: Sequence[int], now_us: int) -> Steps[list[Job]]:
    """Hand over these jobs, in this order."""
    chosen = json_text(list(seqs))
    [(jobs,)] = yield Rows(sql("claim_chosen"), {"seqs": chosen})
    yield Change(sql("claim"), _handed(request, chosen, now_us))
    return _jobs.decode(jobs)


def _handed(request: ClaimRequest, seqs: str, now_us: int) -> dict[str, Any]:
    return {
        "seqs": seqs,
        "worker": request.worker,
        "alone": int(request.quarantine),
        "now": now_us,
        "default_timeout_us": request.default_timeout_us,
        "grace_us": HOLD_GRACE_US,
    }
