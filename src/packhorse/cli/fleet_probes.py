# SPDX-License-Identifier: MIT
"""Answer HTTP requests for the parent of `packhorse worker --autoscale`, as a supervisor does."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
#: How long the server may take to be there, and to go.
_SOON_S: Final = 5.0


@contextmanager
def fleet_probes(
    fleet: FleetFigures,
    address: Address | None,
    *,
    store: Store,
    queues: Sequence[str],
    clock: Clock,
) -> Iterator[None]:
    """Answer in a thread while inside, if there is an address."""
    if address is None:
        yield
        return
    routes = _routes(fleet, store, queues, clock)
    server = _Server(routes, address)
    server.start()
    try:
        yield
    finally:
        server.stop()


class _Server:
    """The event loop of the probes, in a thread of its own."""

    def __init__(self, routes: Routes, address: Address) -> None:
        self._routes = routes
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="packhorse-probes", daemon=True)

    def start(self) -> None:
        """Begin to answer; raise what prevents it."""
        self._thread.start()
        self._ready.wait(_SOON_S)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Answer no more."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_SOON_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:  # noqa: BLE001 - raised by `start`
            self._error = error
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        async with served(self._routes, self._address) as bound:
            _LOG.info("answering probes at http://%s:%s/livez", *bound[:2])
            self._ready.set()
            await self._over.wait()


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
    """What the queues hold; nothing while the store cannot be asked."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(counts_of, store, queues), _COUNTS_S)
    except Exception as error:  # noqa: BLE001 - the totals are answered all the same
        _LOG.warning("the queues could not be counted: %s", error)
        return ()
