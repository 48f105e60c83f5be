# SPDX-License-Identifier: MIT
"""Run jobs in flows of PenguiFlow: a job is a message, and what the flow makes of it its result.

    host = FlowHost(app, build, queues=["flows"])
    await host.run()              until host.stop(), or SIGTERM where you call that

`build` makes a flow that does not run yet. By default each job has one of its own; with
`mode="long_lived"` they share one, which gives way to a new one after some jobs, some failures, or
whatever was not expected of it. The runtime has ways of its own, and each is met here:

    a node that raised         is heard of by its event, since `fetch` may wait for it in vain
    an error that is returned  is a failure, and so is the answer that a deadline passed
    the deadline               is an absolute instant, and interrupts nothing: the bound here does
    a trace                    has another name for each attempt: one cut short keeps its lock
    `emit`, `fetch`, `cancel`, `stop`   may wait for ever: each has a bound
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from packhorse.app import Packhorse
from packhorse.core.clock import SECOND_US, from_datetime
from packhorse.core.durations import Duration, microseconds
from packhorse.errors import ConfigError, PayloadError, StoreUnavailable
from packhorse.events import FlowRebuilt
from packhorse.hosting.flows import (
    STOP_S,
    Bounded,
    Ended,
    FlowFigures,
    Flows,
    HostedFlow,
    Traces,
    within,
)
from packhorse.runtime.consumer import Consumer, FetchedJob

if TYPE_CHECKING:
    from packhorse.core.clock import Clock

Mode = Literal["stateless", "long_lived"]

#: How long a loop waits for a job, and so how soon it sees that it is to stop.
_FETCH_S: Final = 1.0
#: How often a job that runs is asked for whether it is to be cancelled.
_LOOK_S: Final = 0.25
#: The tenant of a message whose job has none: the runtime wants one.
_NO_TENANT: Final = "default"


class FlowHost:
    """Fetches jobs and runs each in a flow; see the module.

    `message` makes the payload of a message from a job, which is the job's own otherwise, and
    `registry` is what `flow.run` is given. `loops` jobs are under way at once.
    """

    def __init__(
        self,
        app: Packhorse,
        build: Callable[[], Any],
        *,
        mode: Mode = "stateless",
        loops: int = 8,
        message: Callable[[FetchedJob], Any] | None = None,
        registry: Any = None,
        rebuild_after: tuple[int, int] = (1_000, 100),
        grace: Duration = "30s",
        **consumer: Any,
    ) -> None:
        if mode not in ("stateless", "long_lived"):
            raise ConfigError(f"FlowHost: mode={mode!r} is neither 'stateless' nor 'long_lived'")
        if loops < 1 or min(rebuild_after) < 1:
            raise ConfigError("FlowHost: loops, and both numbers of rebuild_after, are at least 1")
        self._library = _library()
        self._app = app
        self._build = build
        self._registry = registry
        self._message = message or (lambda job: job.payload)
        self._loops = loops
        self._grace_s = microseconds(grace, setting="FlowHost: grace") / SECOND_US
        self._consumer = consumer
        self._stop = asyncio.Event()
        self._clock: Clock = app._connection.clock  # noqa: SLF001 - the app's own
        self.figures = FlowFigures()  #: `figures.text()` for Prometheus
        self._traces = Traces(app.bus, self.figures)
        self._flows = Flows(
            self._started,
            shared=mode == "long_lived",
            jobs_max=rebuild_after[0],
            failures_max=rebuild_after[1],
            rebuilt=self._rebuilt,
        )

    def stop(self) -> None:
        """Fetch no more; `run` returns when the jobs under way have ended, or after `grace`."""
        self._stop.set()

    async def run(self, *, burst: bool = False) -> None:
        """Run jobs until `stop()`, or with `burst` until there is none."""
        async with self._app.consumer(**self._consumer) as consumer:
            loops = [asyncio.create_task(self._loop(consumer, burst)) for _ in range(self._loops)]
            stopping = asyncio.create_task(self._stop.wait())
            try:
                everything: asyncio.Future[Any] = asyncio.gather(*loops)
                first: set[asyncio.Future[Any]] = {everything, stopping}
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                with contextlib.suppress(Bounded):  # what is open is given back by the consumer
                    await within(self._grace_s, everything)
            finally:
                stopping.cancel()
                for loop in loops:
                    loop.cancel()
                await asyncio.wait(loops, timeout=STOP_S)
                await self._flows.close()

    async def _loop(self, consumer: Consumer, burst: bool) -> None:  # noqa: FBT001 - as told
        while not self._stop.is_set():
            job = await consumer.fetch(_FETCH_S)
            if job is None:
                if burst:
                    return
                continue
            await self.serve(consumer, job)

    # ---------------------------------------------------------------------------------- one job

    async def serve(self, consumer: Consumer, job: FetchedJob) -> None:
        """Run one job in a flow, and say what became of it."""
        try:
            async with self._flows.lend() as hosted:
                ended = await self._run(consumer, job, hosted)
                hosted.failures += ended.failed
        except Exception as error:  # noqa: BLE001 - of the flow, or of the code that builds it
            ended = Ended.raised(error)
        # What the store cannot take now is fetched again when its hold has run out.
        with contextlib.suppress(StoreUnavailable):
            await _settle(consumer, job, ended)

    async def _run(self, consumer: Consumer, job: FetchedJob, hosted: HostedFlow) -> Ended:
        trace_id, begun = job.attempt_trace_id, self._clock.monotonic()
        with self._traces.watching(job) as told:
            work = asyncio.ensure_future(self._round_trip(hosted.flow, job))
            try:
                ended = await self._waited(consumer, job, work, told)
            finally:
                if not work.done():
                    await self._cut_short(hosted, trace_id, work, is_over=told.done())
        if _raised(work):
            hosted.worn = hosted.worn or "an unexpected exception"
        if not ended.failed and self._clock.monotonic() - begun > job.timeout:
            return Ended.timed_out()  # blocking code, which nothing can interrupt
        return ended

    async def _round_trip(self, flow: Any, job: FetchedJob) -> Any:
        types, trace_id = self._library, job.attempt_trace_id
        until_us = self._clock.now_us() + int(job.timeout * SECOND_US)
        if job.deadline is not None:
            until_us = min(until_us, from_datetime(job.deadline))
        message = types.Message(
            payload=self._message(job),
            headers=types.Headers(tenant=job.tenant or _NO_TENANT),
            trace_id=trace_id,
            deadline_s=until_us / SECOND_US,
            meta={"job_id": job.id, "trace_id": job.trace_id, "retry_count": job.attempts},
        )
        await flow.emit(message, trace_id=trace_id)
        return await flow.fetch(trace_id=trace_id)

    async def _waited(
        self,
        consumer: Consumer,
        job: FetchedJob,
        work: asyncio.Future[Any],
        told: asyncio.Future[Ended],
    ) -> Ended:
        """What came first: a result, an event that says there will be none, or the bound."""
        until = self._clock.monotonic() + job.timeout
        while True:
            rest_s = until - self._clock.monotonic()
            await asyncio.wait(
                {work, told},
                timeout=max(0.0, min(rest_s, _LOOK_S)),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if told.done():
                return told.result()
            if work.done():
                return Ended.of(work, self._library)
            if consumer.cancel_requested(job):
                return Ended.cancelled()
            if rest_s <= 0:
                return Ended.timed_out()

    async def _cut_short(
        self, hosted: HostedFlow, trace_id: str, work: asyncio.Future[Any], *, is_over: bool
    ) -> None:
        """Cancel what is still under way; a flow that does not let go of it is worn.

        `is_over`: the flow has said that nothing will come, so there may be nothing to cancel.
        """
        try:
            if not (await within(STOP_S, hosted.flow.cancel(trace_id)) or is_over):
                hosted.worn = hosted.worn or "a trace that could not be cancelled"
        except Exception:  # noqa: BLE001 - it is not running any more, or hangs
            hosted.worn = hosted.worn or "a flow that does not cancel"
        work.cancel()
        await asyncio.wait({work}, timeout=STOP_S)
        invocations = getattr(hosted.flow, "_trace_invocations", {})
        await asyncio.sleep(0)  # so that what was cancelled can end
        if not work.done() or invocations.get(trace_id):
            hosted.worn = hosted.worn or "a node that swallows its cancellation"

    # ------------------------------------------------------------------------------------ flows

    def _started(self) -> Any:
        flow = self._build()
        flow.add_middleware(self._traces.heard)
        flow.run(registry=self._registry)
        return flow

    def _rebuilt(self, hosted: HostedFlow, stopped: bool) -> None:  # noqa: FBT001 - as told
        self.figures.rebuilds += 1
        self._app.bus.emit(
            FlowRebuilt(
                reason=hosted.worn, jobs=hosted.jobs, failures=hosted.failures, stopped=stopped
            )
        )


def _raised(work: asyncio.Future[Any]) -> bool:
    return work.done() and not work.cancelled() and work.exception() is not None


async def _settle(consumer: Consumer, job: FetchedJob, ended: Ended) -> None:
    if ended.failed:
        await consumer.retry_job(job, None, ended.reason, ended.details)
        return
    try:
        await consumer.mark_complete(job, ended.result)
    except PayloadError as error:  # no JSON, too large, or not what the contract promises
        await consumer.mark_failed(job, "invalid_result", error)


def _library() -> Any:
    try:
        import penguiflow  # noqa: PLC0415 - not installed everywhere
    except ImportError as error:
        raise ConfigError(
            f"packhorse.hosting.penguiflow needs PenguiFlow ({error}); install it with: "
            "pip install --no-deps penguiflow, and what it asks for; see docs/how-to/penguiflow.md"
        ) from error
    return penguiflow
