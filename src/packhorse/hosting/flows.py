# SPDX-License-Identifier: MIT
"""The flows of a host: built, started, watched, and stopped within bounds.

A node may swallow its cancellation, and then `stop()` of its flow never returns. So every wait
here has an end, and a flow that does not stop is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

#: How long a flow may take to stop, and a trace to be cancelled.
STOP_S: Final = 2.0


class Bounded(Exception):
    """Something did not end in its time, and goes on by itself."""


async def within(seconds: float, work: Awaitable[Any]) -> Any:
    """The answer of `work`; `Bounded` after so long, also where it ignores that it is cancelled."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        task.cancel()
        task.add_done_callback(_looked_at)
        raise Bounded
    return task.result()


def _looked_at(task: asyncio.Future[Any]) -> None:
    """So that nothing is said of an exception that has no reader any more."""
    if not task.cancelled():
        task.exception()


class HostedFlow:
    """One flow that runs, and what it has been through."""

    def __init__(self, flow: Any) -> None:
        self.flow = flow
        self.jobs = 0
        self.failures = 0
        self.users = 0  #: jobs in it just now
        self.worn = ""  #: why it is to give way to a new one

    async def stop(self) -> bool:
        """Stop it; says whether it did."""
        try:
            await within(STOP_S, self.flow.stop())
        except Exception:  # noqa: BLE001 - it is left behind, whatever it has
            return False
        return True


class Flows:
    """Gives each job a flow: its own, or one that many share until it is worn."""

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
        """A flow for one job; whatever leaves this block as an exception wears it out."""
        hosted = self._taken()
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

    def _taken(self) -> HostedFlow:
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
        """Stop what runs."""
        flows, self._all, self._current = tuple(self._all), set(), None
        await asyncio.gather(*(hosted.stop() for hosted in flows))
