# SPDX-License-Identifier: MIT
"""The flows of a host: build and stop them within bounds, follow their events, and count them.

A node may swallow its cancellation, and then `stop()` of its flow never returns. So every wait
here has a timeout, and a flow that does not stop is abandoned.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from packhorse.events import EventBus, FlowEvent, FlowTrouble
from packhorse.runtime.consumer import FetchedJob
from packhorse.runtime.supervisor.exposition import Samples, family, labels_text

#: How long a flow may take to stop, and a trace to be cancelled.
STOP_S: Final = 2.0
#: Events of normal work; all others, also those of later releases, are trouble.
_WELL: Final = frozenset({"node_start", "node_success"})
#: The text by which an answer of the runtime says that the deadline passed.
_DEADLINE_TEXT: Final = "Deadline exceeded"
_STOPPED: Final = "node_cancelled"
#: Seconds, of how long nodes took.
_BOUNDS_S: Final = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)
#: Nodes with figures of their own; those beyond are counted as one.
_NODES_MAX: Final = 200
_OTHER: Final = "other"


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


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of one job in its flow."""

    result: Any = None
    failed: bool = False
    reason: str = ""
    details: object = None

    @classmethod
    def timed_out(cls, details: str | None = None) -> Self:
        """Return the end of a job that took too long for the host, the flow, or a deadline."""
        return cls(failed=True, reason="job_timeout", details=details)

    @classmethod
    def cancelled(cls) -> Self:
        """Return the end of a job that was cancelled; the store settles it as cancelled."""
        return cls(failed=True, reason="TRACE_CANCELLED")

    @classmethod
    def raised(cls, error: BaseException) -> Self:
        """Return the end of a job whose flow, or the code that builds it, raised."""
        return cls(failed=True, reason=f"exception:{type(error).__name__}", details=error)

    @classmethod
    def flow_error(cls, payload: dict[str, Any]) -> Self:
        """Return the end of a job one of whose nodes failed for good."""
        code, message = str(payload.get("code", "")), str(payload.get("message", ""))
        if code == "DEADLINE_EXCEEDED":
            return cls.timed_out(message)
        kind = payload.get("exception_type") or code or "FlowError"
        details = f"{code} in node {payload.get('node_name')}: {message}"
        return cls(failed=True, reason=f"exception:{kind}", details=details)

    @classmethod
    def of(cls, work: asyncio.Future[Any], library: Any) -> Self:
        """Return the end of a job from what `fetch` returned: a value, or an error as a value."""
        error = work.exception()
        if error is not None:
            return cls.raised(error)
        value = work.result()
        if isinstance(value, library.Message):
            value = value.payload
        if isinstance(value, library.FlowError):
            return cls.flow_error(value.to_payload())
        if isinstance(value, BaseException):
            return cls.raised(value)
        if isinstance(value, library.FinalAnswer) and value.text == _DEADLINE_TEXT:
            return cls.timed_out(value.text)
        dump = getattr(value, "model_dump", None)
        return cls(value if dump is None else dump(mode="json"))


class Traces:
    """Receive the events of all flows of a host."""

    def __init__(self, bus: EventBus, figures: FlowFigures) -> None:
        self._bus = bus
        self._figures = figures
        self._open: dict[str, tuple[FetchedJob, asyncio.Future[Ended]]] = {}

    @contextmanager
    def watching(self, job: FetchedJob) -> Iterator[asyncio.Future[Ended]]:
        """Follow the trace of a job; the future is set when no result will come."""
        told: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._open[job.attempt_trace_id] = (job, told)
        try:
            yield told
        finally:
            del self._open[job.attempt_trace_id]
            told.cancel()

    async def heard(self, event: Any) -> None:
        """Receive an event, as a middleware of the runtime, which only logs what this raises."""
        node, kind = str(event.node_name or ""), str(event.event_type)
        job, told = self._open.get(event.trace_id or "", (None, None))
        if event.trace_id is None and kind == _STOPPED:
            return  # every node emits it when its flow is stopped
        self._figures.count(node, kind, event.latency_ms, event.queue_depth)
        self._tell(event, node, kind, job)
        if told is None or told.done():
            return
        if kind == "node_failed":
            told.set_result(Ended.flow_error(dict(event.error_payload or {})))
        elif kind == "deadline_skip":
            told.set_result(Ended.timed_out(f"the deadline passed before node {node}"))
        elif kind == "trace_cancel_start":  # by the flow itself: no result will come
            told.set_result(Ended.cancelled())

    def _tell(self, event: Any, node: str, kind: str, job: FetchedJob | None) -> None:
        sort = FlowEvent if kind in _WELL else FlowTrouble
        if not self._bus.wants(sort):
            return
        fields: dict[str, Any] = {
            "event": kind,
            "node": node,
            "attempt": event.attempt,
            "latency_ms": event.latency_ms,
            "queue_depth": event.queue_depth,
        }
        if job is not None:
            fields |= {"job_id": job.id, "trace_id": job.trace_id, "tenant": job.tenant}
            fields |= {"task": job.task, "queue": job.queue}
        if sort is FlowTrouble:
            error = event.error_payload or {}
            fields |= {
                "error_code": str(error.get("code", "")),
                "error_type": str(error.get("exception_type") or ""),
            }
        self._bus.emit(sort(**fields))


class FlowFigures:
    """Count the events of nodes, and measure how long successful ones took, for Prometheus.

    Nodes and kinds of events are labels; traces, jobs and ids of node instances never are, since
    their number has no bound.
    """

    def __init__(self) -> None:
        self._nodes: set[str] = set()
        self._events: Counter[tuple[str, str]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: Counter[str] = Counter()
        self.depth: dict[str, int] = {}  #: messages before and behind each node, as last reported
        self.rebuilds = 0

    def count(self, node: str, event: str, latency_ms: float | None, depth: int) -> None:
        """Count one event of a node."""
        if node not in self._nodes and len(self._nodes) >= _NODES_MAX:
            node = _OTHER
        self._nodes.add(node)
        self._events[node, event] += 1
        self.depth[node] = depth
        if latency_ms is None or event != "node_success":
            return
        self._seconds[node] += latency_ms / 1000  # type: ignore[assignment]  # a float will do
        for bound in _BOUNDS_S:
            self._buckets[node, bound] += latency_ms / 1000 <= bound

    def text(self) -> str:
        """Write all figures, to be served to Prometheus beside others."""
        events = [
            (labels_text(node=node, event=event), number)
            for (node, event), number in sorted(self._events.items())
        ]
        depths = [(labels_text(node=node), depth) for node, depth in sorted(self.depth.items())]
        seconds = [sample for node in sorted(self._nodes) for sample in self._histogram(node)]
        lasted = "How long nodes took that ended well"
        gave_way = "Flows that gave way to a new one"
        lines = [
            *family("flow_events_total", "counter", "Events of nodes of hosted flows", events),
            *family("flow_node_seconds", "histogram", lasted, seconds),
            *family("flow_queue_depth", "gauge", "Messages before and behind a node", depths),
            *family("flow_rebuilds_total", "counter", gave_way, [("", self.rebuilds)]),
        ]
        return "\n".join(lines) + "\n"

    def _histogram(self, node: str) -> Samples:
        number = self._events[node, "node_success"]
        for bound in _BOUNDS_S:
            yield f"_bucket{labels_text(node=node, le=str(bound))}", self._buckets[node, bound]
        yield f"_bucket{labels_text(node=node, le='+Inf')}", number
        yield f"_sum{labels_text(node=node)}", round(float(self._seconds[node]), 6)
        yield f"_count{labels_text(node=node)}", number
