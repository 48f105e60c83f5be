# SPDX-License-Identifier: MIT
"""The limits of each fetched job: of its call, its task where this app declares it, its queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from packhorse.clock import SECOND_US
from packhorse.codec import Signature
from packhorse.job import Job, RetryRule
from packhorse.lifecycle import Limits
from packhorse.policies.retention import Retention
from packhorse.registry import Registry
from packhorse.stores.requests import QueueSettings
from packhorse.worker.plans import CallPlan, PlanBook

__all__ = ["ConsumerPlans"]


def _elsewhere(payload: Any) -> Any:
    """Stands for a task that is declared elsewhere: any JSON in, any JSON out."""
    return payload


_ELSEWHERE: Final = Signature.of(_elsewhere, skip_first=False)


class ConsumerPlans:
    """Call plans, also of tasks this app does not declare."""

    def __init__(
        self, registry: Registry, queues: Mapping[str, QueueSettings], default_timeout_us: int
    ) -> None:
        self._registry = registry
        self._queues = queues
        self._default_timeout_us = default_timeout_us
        self._book = PlanBook(registry, queues, default_timeout_us)

    @property
    def longest_timeout_us(self) -> int:
        """What a store is to assume for jobs that name no timeout."""
        return self._book.longest_timeout_us

    def find(self, job: Job) -> CallPlan:
        """The plan of a job's task; of a foreign one, whatever its queue says."""
        plan = self._book.find(job)
        if self._registry.get(job.task) is not None:
            return plan
        settings = self._queues.get(job.queue) or QueueSettings(name=job.queue)
        return replace(
            plan,
            timeout_s=self._default_timeout_us / SECOND_US,
            encode_result=_ELSEWHERE.encode_result,
            limits=Limits(
                retry=settings.retry or RetryRule(),
                retention=settings.retention or Retention(),
            ),
        )
