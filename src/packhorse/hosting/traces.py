# SPDX-License-Identifier: MIT
"""What a flow tells of its traces: to the log, the figures, and the job that waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from packhorse.events import EventBus, FlowEvent, FlowTrouble
from packhorse.hosting.flow_figures import FlowFigures
from packhorse.runtime.consumer import FetchedJob

#: Events that say nothing bad; all others, also those of later releases, are trouble.
_WELL: Final = frozenset({"node_start", "node_success"})
#: As the runtime writes it into an answer that looks like any other.
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
        """It took too long, as the host, the flow, or a deadline says."""
        return cls(failed=True, reason=_JOB_TIMEOUT, details=details)

    @classmethod
    def cancelled(cls) -> Self:
        """It is to be cancelled; whichever verb follows finishes it so."""
        return cls(failed=True, reason="TRACE_CANCELLED")

    @classmethod
    def raised(cls, error: BaseException) -> Self:
        """The flow, or who builds it, raised."""
        return cls(failed=True, reason=f"exception:{type(error).__name__}", details=error)

    @classmethod
    def flow_error(cls, payload: dict[str, Any]) -> Self:
        """The flow says that a node failed for good."""
        code, message = str(payload.get("code", "")), str(payload.get("message", ""))
        if code == "DEADLINE_EXCEEDED":
            return cls.timed_out(message)
        kind = payload.get("exception_type") or code or "FlowError"
        details = f"{code} in node {payload.get('node_name')}: {message}"
        return cls(failed=True, reason=f"exception:{kind}", details=details)

    @classmethod
    def of(cls, work: asyncio.Future[Any], library: Any) -> Self:
        """What a fetch answered: a value, or an error that came as one."""
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
    """Hears the events of all flows of a host."""

    def __init__(self, bus: EventBus, figures: FlowFigures) -> None:
        self._bus = bus
        self._figures = figures
        self._open: dict[str, tuple[FetchedJob, asyncio.Future[Ended]]] = {}

    @contextmanager
    def watching(self, job: FetchedJob) -> Iterator[asyncio.Future[Ended]]:
        """Hear of the trace of a job; the answer is set when no result will come."""
        told: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._open[job.attempt_trace_id] = (job, told)
        try:
            yield told
        finally:
            del self._open[job.attempt_trace_id]
            told.cancel()

    async def heard(self, event: Any) -> None:
        """Of the runtime, as a middleware; what it raised would be logged and forgotten there."""
        node, kind = str(event.node_name or ""), str(event.event_type)
        job, told = self._open.get(event.trace_id or "", (None, None))
        if event.trace_id is None and kind == _STOPPED:
            return  # each node says so when its flow is stopped, which is no news
        self._figures.count(node, kind, event.latency_ms, event.queue_depth)
        self._tell(event, node, kind, job)
        if told is None or told.done():
            return
        if kind == "node_failed":
            told.set_result(Ended.flow_error(dict(event.error_payload or {})))
        elif kind == "deadline_skip":
            told.set_result(Ended.timed_out(f"the deadline passed before node {node}"))
        elif kind == "trace_cancel_start":  # of the flow's own accord: nothing will come
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
