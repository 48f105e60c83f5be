# SPDX-License-Identifier: MIT
"""Why a job is not running, as people and programs read it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from packhorse.clock import to_datetime
from packhorse.job import JobStatus
from packhorse.policies import explain as policy
from packhorse.policies.explain import JobFacts, ReasonCode

__all__ = ["Explanation", "Reason", "explanation_of"]


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that keeps a job from running, or says what it does instead."""

    code: ReasonCode  #: stable: `not_due`, `rate_limit`, `behind_head`, ...
    text: str
    at: datetime | None = None  #: the instant it is about: when it is due, when the limit frees
    jobs: tuple[str, ...] = ()  #: the jobs it is about: who runs, who is before it
    count: int | None = None  #: how many it is about

    def __str__(self) -> str:
        return self.text


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that keeps a job from running at one instant, the first to be removed first."""

    job_id: str
    status: JobStatus
    queue: str
    task: str
    at: datetime  #: when that was so, by the store's clock
    reasons: tuple[Reason, ...]  #: never none: one that runs, has finished, or is next says so

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the reasons, in the same order."""
        return tuple(str(reason.code) for reason in self.reasons)

    def __str__(self) -> str:
        head = f"job {self.job_id} of task {self.task} in queue {self.queue} is {self.status}:"
        return "\n".join((head, *(f"- {reason.text}" for reason in self.reasons)))


def explanation_of(facts: JobFacts) -> Explanation:
    """From what a store sees of a job to what people are told."""
    record = facts.record
    return Explanation(
        job_id=record.id,
        status=record.status,
        queue=record.queue,
        task=record.task,
        at=to_datetime(facts.now_us),
        reasons=tuple(_reason(reason) for reason in policy.explain(facts)),
    )


def _reason(reason: policy.Reason) -> Reason:
    return Reason(
        code=reason.code,
        text=reason.text,
        at=None if reason.at_us is None else to_datetime(reason.at_us),
        jobs=reason.jobs,
        count=reason.count,
    )
