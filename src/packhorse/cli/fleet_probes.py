# SPDX-License-Identifier: MIT
"""Answer HTTP requests for the parent of `packhorse worker --autoscale`, as a supervisor does."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from packhorse.core.clock import Clock
from packhorse.runtime.supervisor.exposition import exposition
from packhorse.runtime.supervisor.fleet import FleetFigures
from packhorse.runtime.supervisor.probes import (
    METRICS_TYPE,
    Address,
    Answer,
    Routes,
    counts_of,
    served,
)
from packhorse.stores.protocol import Store
from packhorse.stores.requests import Counts

_LOG: Final = logging.getLogger("packhorse.supervisor")
_TEXT: Final = "text/plain; charset=utf-8"
_COUNTS_S: Final = 2.0


@asynccontextmanager
async def fleet_probes(
    fleet: FleetFigures,
    address: Address | None,
    *,
    store: Store,
    queues: Sequence[str],
    clock: Clock,
) -> AsyncIterator[None]:
    """Answer probes while inside, if there is an address."""
    if address is None:
        yield
        return
    async with served(_routes(fleet, store, queues, clock), address) as bound:
        _LOG.info("answering probes at http://%s:%s/livez", *bound[:2])
        yield


def _routes(fleet: FleetFigures, store: Store, queues: Sequence[str], clock: Clock) -> Routes:
    async def livez() -> Answer:
        return 200, _TEXT, b"ok\n"

    async def readyz() -> Answer:
        living = [each.living for each in fleet.by_process().values()]
        if any(each.lease and not each.trouble and not each.quiet for each in living):
            return 200, _TEXT, b"ok\n"
        return 503, _TEXT, b"no process claims jobs\n"

    async def metrics() -> Answer:
        figures = dataclasses.replace(
            fleet.figures(), queues=await _counts(store, queues), now_us=clock.now_us()
        )
        return 200, METRICS_TYPE, exposition(figures).encode()

    async def status() -> Answer:
        found = {
            "workers": [
                {
                    "pid": pid,
                    "processes": report.processes,
                    "restarts": report.restarts,
                    "running": report.living.running,
                    "slots": report.living.slots,
                    "succeeded": report.living.succeeded + report.past.succeeded,
                    "failed": report.living.failed + report.past.failed,
                    "quiet": report.living.quiet,
                    "trouble": report.living.trouble,
                }
                for pid, report in sorted(fleet.by_process().items())
            ]
        }
        return 200, "application/json", msgspec.json.encode(found) + b"\n"

    return {"/livez": livez, "/readyz": readyz, "/metrics": metrics, "/status": status}


async def _counts(store: Store, queues: Sequence[str]) -> Sequence[Counts]:
    """Count the jobs of the queues; return nothing while the store cannot be asked."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(counts_of, store, queues), _COUNTS_S)
    except Exception as error:  # noqa: BLE001 - the totals are answered all the same
        _LOG.warning("the queues could not be counted: %s", error)
        return ()
