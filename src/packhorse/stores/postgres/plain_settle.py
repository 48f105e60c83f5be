# SPDX-License-Identifier: MIT
"""Settle completions of plain jobs: a batch in one statement, in a single round trip."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from packhorse.errors import PayloadError
from packhorse.policies.retention import first_expiry_us
from packhorse.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.postgres.locking import Level, Special
from packhorse.stores.postgres.statements import Once, sql

__all__ = ["complete_in_one", "completions", "goes_in_one"]

#: Parts texts that are sent as one. JSON has no such character, and names of jobs have none.
_PART: Final = "\x1e"


def goes_in_one(settlements: Sequence[Settlement]) -> bool:
    """Whether these are completions of different jobs that are kept equally long."""
    if not settlements:
        return False
    kept = settlements[0].keep_us, settlements[0].result_keep_us
    alike = all(
        one.kind is SettlementKind.COMPLETED and (one.keep_us, one.result_keep_us) == kept
        for one in settlements
    )
    return alike and len({one.job_id for one in settlements}) == len(settlements)


def complete_in_one(
    settlements: Sequence[Settlement], level: Level
) -> Steps[tuple[Verdict, ...] | None]:
    """Those that are still as they should be; None when some are not and need a closer look."""
    row = completions(settlements, any_queue=False)
    [(count, awaited, queues, *special)] = yield Once(sql("settle_completed"), row)
    for job_id in awaited:
        yield Wake(f"job:{job_id}")
    if count < len(settlements):
        level.expect(queues, Special.of(special))
        return None  # those done are known when they come again
    return (Verdict.APPLIED,) * len(settlements)


def completions(settlements: Sequence[Settlement], *, any_queue: bool) -> dict[str, Any]:
    """What `settle_completed.sql` wants to know; they are kept equally long."""
    first = settlements[0]
    settlements = sorted(settlements, key=attrgetter("job_id"))  # rows are locked in this order
    ids = _PART.join([one.job_id for one in settlements])
    results = _PART.join([one.result or "" for one in settlements])
    if ids.count(_PART) != results.count(_PART) or results.count(_PART) >= len(settlements):
        raise PayloadError("a result is not JSON text; nothing was settled")
    return {
        "ids": ids,
        "fences": " ".join([str(one.fence) for one in settlements]),
        "results": results,
        "count": len(settlements),
        "any_queue": any_queue,
        "keep_us": first.keep_us,
        "result_keep_us": first.result_keep_us,
        "expires_us": first_expiry_us(0, first.keep_us, first.result_keep_us),
    }
