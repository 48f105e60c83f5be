# SPDX-License-Identifier: MIT
"""One job in the hands of somebody else's runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from packhorse.clock import to_datetime
from packhorse.worker.attempt import Attempt

__all__ = ["FetchedJob", "fetched_job"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FetchedJob:
    """What a runtime needs to know of a job; give it back to the consumer's verbs.

    Two fetches of one job are two objects: each settles its own attempt, and no other.
    """

    id: str
    task: str
    queue: str
    tenant: str  #: `""` when it belongs to nobody
    payload: Any = field(repr=False)  #: the arguments by name, or whatever JSON came by the wire
    attempts: int  #: ended before this one
    attempt: int  #: the number of this one, from 1
    fence: int  #: rises with every fetch; give it to systems that can refuse an older one
    trace_id: str  #: one per job, the same on every attempt
    timeout: float  #: seconds this attempt may take, shortened by the deadline
    deadline: datetime | None
    upstream_request_id: str | None
    origin: Attempt = field(repr=False)  #: the consumer's own record of it

    @property
    def attempt_trace_id(self) -> str:
        """Another one for every fetch of the job.

        For runtimes in which a trace that was cut short keeps the next one of its name waiting.
        """
        return f"{self.trace_id}-{self.fence}"


def fetched_job(attempt: Attempt) -> FetchedJob:
    """A claimed job as its runtime sees it; raises `msgspec.DecodeError` if it cannot be read."""
    job = attempt.job
    return FetchedJob(
        id=job.id,
        task=job.task,
        queue=job.queue,
        tenant=job.tenant,
        payload=msgspec.json.decode(job.payload),
        attempts=job.attempts,
        attempt=job.attempt,
        fence=job.fence,
        trace_id=job.trace_id,
        timeout=attempt.timeout_s,
        deadline=None if job.deadline_us is None else to_datetime(job.deadline_us),
        upstream_request_id=job.upstream_request_id,
        origin=attempt,
    )
