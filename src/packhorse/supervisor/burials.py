# SPDX-License-Identifier: MIT
"""Settling the jobs of dead processes beside everything else, until the store has taken it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from packhorse.clock import Chance
from packhorse.events import EventBus
from packhorse.logs import attach
from packhorse.supervisor.aftermath import Aftermath, Cause, bury
from packhorse.supervisor.desk import StoreDesk
from packhorse.supervisor.messages import Hello
from packhorse.supervisor.obituaries import events_of
from packhorse.supervisor.process import Death

__all__ = ["Burials"]

_LOG: Final = logging.getLogger("packhorse.supervisor")
#: How often, and how far apart, the store is asked; then the lease has run out, and others rescue.
_TRIES: Final = 60
_WAIT_S: Final = 0.5
#: Jobs named in one line of the log.
_NAMED: Final = 10


class Burials:
    """Those under way."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._bus = EventBus()
        attach(self._bus)  # nobody else could listen: observers are user code
        self._tasks: set[asyncio.Task[None]] = set()  # at most one per process that died

    def begin(self, desk: StoreDesk | None, hello: Hello, death: Death, cause: Cause) -> None:
        """Settle what a dead process held."""
        if desk is None:
            return  # its store died with it
        task = asyncio.ensure_future(self._bury(desk, hello, death, cause))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ended(self, timeout_s: float) -> None:
        """Wait until all is settled, but not longer than this."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def _bury(self, desk: StoreDesk, hello: Hello, death: Death, cause: Cause) -> None:
        for _ in range(_TRIES):
            try:
                found = await desk.ask(lambda store: bury(store, hello, death, cause, self._chance))
            except Exception as error:  # noqa: BLE001 - tried again; the lease runs out meanwhile
                _LOG.warning("the jobs of process %s wait for the store: %s", hello.pid, error)
                await asyncio.sleep(_WAIT_S)
            else:
                _tell(self._bus, hello, found)
                return


def _tell(bus: EventBus, hello: Hello, found: Aftermath) -> None:
    for each in found.buried:
        for event in events_of(each, hello):
            bus.emit(event)
    if found.released:
        _LOG.warning(
            "%s jobs of process %s were given back: %s",
            *(len(found.released), hello.pid, ", ".join(found.released[:_NAMED])),
        )
