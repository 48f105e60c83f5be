# SPDX-License-Identifier: MIT
"""Pass the events of flows on: to the bus, the figures, and the jobs that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from packhorse.events import EventBus, FlowEvent, FlowTrouble
from packhorse.hosting.flow_figures import FlowFigures
from packhorse.runtime.consumer import FetchedJob

#: Events of normal work; all others, also those of later releases, are trouble.
_WELL: Final = frozenset({"node_start", "node_success"})
#: The text by which an answer of the runtime says that the deadline passed.
_DEADLINE_TEXT: Final = "Deadline exceeded"
_STOPPED: Final = "node_cancelled"
_JOB_TIMEOUT: Final = "job_timeout"


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
        return cls(failed=True, reason=_JOB_TIMEOUT, details=details)

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
        elif (
            kind == "trace_cancel_start"
        ):  # the flow cancelled the trace itself: no result will come
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
