# SPDX-License-Identifier: MIT
"""Build, start and stop the flows of a host, within bounds.

A node may swallow its cancellation, and then `stop()` of its flow never returns. So every wait
here has a timeout, and a flow that does not stop is abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

#: How long a flow may take to stop, and a trace to be cancelled.
STOP_S: Final = 2.0


class Bounded(Exception):
    """Something did not end in time, and runs on unattended."""


async def within(seconds: float, work: Awaitable[Any]) -> Any:
    """Await `work`; raise `Bounded` after this time, even if it ignores its cancellation."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        task.cancel()
        task.add_done_callback(_retrieve_exception)
        raise Bounded
    return task.result()


def _retrieve_exception(task: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an exception that no code awaits any more."""
    if not task.cancelled():
        task.exception()


class HostedFlow:
    """One running flow, and its counts."""

    def __init__(self, flow: Any) -> None:
        self.flow = flow
        self.jobs = 0
        self.failures = 0
        self.users = 0  #: jobs in it just now
        self.worn = ""  #: why a new flow must replace it

    async def stop(self) -> bool:
        """Stop it; return whether it did."""
        try:
            await within(STOP_S, self.flow.stop())
        except Exception:  # noqa: BLE001 - it is abandoned, whatever it raised
            return False
        return True


class Flows:
    """Give each job a flow: one of its own, or a shared one until that is worn out."""

    def __init__(
        self,
        start: Callable[[], Any],
        *,
        shared: bool,
        jobs_max: int,
        failures_max: int,
        rebuilt: Callable[[HostedFlow, bool], None],
    ) -> None:
        self._start = start
        self._shared = shared
        self._jobs_max = jobs_max
        self._failures_max = failures_max
        self._rebuilt = rebuilt
        self._current: HostedFlow | None = None
        self._all: set[HostedFlow] = set()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[HostedFlow]:
        """Lend a flow to one job; an exception that leaves the block wears it out."""
        hosted = self._current_flow()
        hosted.users += 1
        hosted.jobs += 1
        try:
            yield hosted
        except BaseException:
            hosted.worn = hosted.worn or "an unexpected exception"
            raise
        finally:
            hosted.users -= 1
            self._judge(hosted)
            if hosted.worn and not hosted.users:
                await self._end(hosted)

    def _current_flow(self) -> HostedFlow:
        hosted = self._current
        if hosted is None or hosted.worn:
            hosted = HostedFlow(self._start())
            self._all.add(hosted)
            self._current = hosted if self._shared else None
        return hosted

    def _judge(self, hosted: HostedFlow) -> None:
        if hosted.worn:
            return
        if not self._shared:
            hosted.worn = "one job each"
        elif hosted.jobs >= self._jobs_max:
            hosted.worn = f"{hosted.jobs} jobs"
        elif hosted.failures >= self._failures_max:
            hosted.worn = f"{hosted.failures} failures"

    async def _end(self, hosted: HostedFlow) -> None:
        if hosted not in self._all:
            return
        self._all.discard(hosted)
        stopped = await hosted.stop()
        if self._shared or not stopped:
            self._rebuilt(hosted, stopped)

    async def close(self) -> None:
        """Stop all flows."""
        flows, self._all, self._current = tuple(self._all), set(), None
        await asyncio.gather(*(hosted.stop() for hosted in flows))
