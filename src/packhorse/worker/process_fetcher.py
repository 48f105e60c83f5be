# SPDX-License-Identifier: MIT
"""Claims jobs for processes: never more than there are processes free.

Such jobs are asked for apart from the others, so that a hundred of them do not sit in slots, held
from everybody else, while a few processes work.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from packhorse.clock import SECOND_US
from packhorse.worker.attempt import Stage
from packhorse.worker.fetcher import Fetcher
from packhorse.worker.shutdown import Shutdown
from packhorse.worker.slots import Slots

__all__ = ["ProcessFetcher"]

#: When the renewal of the lease stood in the way of a claim.
_IN_THE_WAY_S: Final = 0.02
_REST_MIN_S: Final = 0.005


class ProcessFetcher:
    """One loop beside the fetcher's."""

    def __init__(
        self,
        fetcher: Fetcher,
        slots: Slots,
        shutdown: Shutdown,
        *,
        tasks: tuple[str, ...],
        processes: int,
        poll_s: float,
    ) -> None:
        self._fetcher = fetcher
        self._slots = slots
        self._shutdown = shutdown
        self._tasks = tasks
        self._processes = processes
        self._poll_s = poll_s
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """There may be work, or a process for it."""
        self._woken.set()

    async def run(self) -> None:
        """Claim until the worker shuts down, or has finished."""
        while not (self._shutdown.begun or self._fetcher.finished):
            self._woken.clear()
            rest_s = await self._claim()
            if rest_s > 0 and not self._shutdown.begun:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), rest_s)

    @property
    def _free(self) -> int:
        held = (each for each in self._slots.held if each.stage <= Stage.RUNNING)
        return self._processes - sum(each.plan.process for each in held)

    async def _claim(self) -> float:
        """Claim once if there is a process for it; says how long to rest."""
        free = min(self._free, self._slots.concurrency - self._slots.running)
        if free < 1:
            return self._poll_s
        claimed = await self._fetcher.claim_only(self._tasks, free)
        if claimed is None:
            return _IN_THE_WAY_S if not self._shutdown.quiet else self._poll_s
        if claimed.next_due_us is None:
            return self._poll_s
        due_s = (claimed.next_due_us - claimed.now_us) / SECOND_US
        return max(_REST_MIN_S, min(self._poll_s, due_s))
