# SPDX-License-Identifier: MIT
"""Give a node of a workflow the results of others that it has among its arguments."""

from __future__ import annotations

from typing import Final

import msgspec

from packhorse.context import Context
from packhorse.core.references import Wanted, filled
from packhorse.errors import StoreUnavailable
from packhorse.runtime.worker.attempt import Attempt

#: Between looks at a store that cannot be reached: as long as the attempt holds its job.
_PAUSE_S: Final = 1.0


def fill(attempt: Attempt, wanted: Wanted, context: Context) -> None:
    """Put the results into the payload, in the caller's thread."""
    while True:
        try:
            return _put(attempt, wanted, context.host.results(wanted.job_ids))
        except StoreUnavailable:
            if context.lease_lost or context.wait_cancelled(_PAUSE_S):
                raise


async def afill(attempt: Attempt, wanted: Wanted, context: Context) -> None:
    """As `fill`, without blocking the event loop."""
    while True:
        try:
            return _put(attempt, wanted, await context.host.aresults(wanted.job_ids))
        except StoreUnavailable:
            if context.lease_lost or await context.await_cancelled(_PAUSE_S):
                raise


def _put(attempt: Attempt, wanted: Wanted, results: list[bytes | None]) -> None:
    payload = filled(attempt.job.payload, wanted, results)
    attempt.job = msgspec.structs.replace(attempt.job, payload=payload)
