# SPDX-License-Identifier: MIT
"""How each task is called and bound, worked out once per task instead of once per job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from packhorse.clock import SECOND_US
from packhorse.job import Job, JobOptions, JobStatus, RetryRule
from packhorse.lifecycle import Limits
from packhorse.policies.retention import Retention
from packhorse.registry import Registry, TaskDefinition
from packhorse.settlement import Settlement, SettlementKind
from packhorse.stores.requests import QueueSettings
from packhorse.worker.settings import Settings

__all__ = ["CallPlan", "PlanBook", "UnknownTask", "completed", "limits_of"]

_OPTIONS: Final = msgspec.json.Decoder(JobOptions)


@dataclass(frozen=True, slots=True, eq=False)
class CallPlan:
    """One task on one queue: how to call it, for how long, under which limits."""

    name: str
    threaded: bool
    wants_context: bool
    whole: bool  #: the payload is the one argument itself
    function: Callable[..., Any]
    decode: Callable[[str], dict[str, Any]]
    call: Callable[..., Any]
    encode_result: Callable[[Any], str]
    timeout_s: float  #: for jobs that name none
    limits: Limits  #: for jobs with no options of their own
    process: bool = False  #: it runs in a process of its own, which can be killed
    limited: bool = False  #: the task or the queue has limits, over all workers
    counted: bool = False  #: it counts while it runs, so that its end may let another one go
    keep_us: int | None = field(init=False)
    result_keep_us: int | None = field(init=False)
    dead_keep_us: int | None = field(init=False)

    def __post_init__(self) -> None:
        limits, retention = self.limits, self.limits.retention
        own = limits.result_keep_us
        object.__setattr__(self, "keep_us", retention.finished_us)
        object.__setattr__(self, "result_keep_us", retention.results_us if own is None else own)
        object.__setattr__(self, "dead_keep_us", retention.dead_us)


def completed(job: Job, plan: CallPlan, result: str) -> Settlement:
    """What `lifecycle.settle` decides for a success, without asking it.

    By position, since this runs once per job; a test holds the two together.
    """
    return Settlement(
        job.id,
        job.fence,
        SettlementKind.COMPLETED,
        JobStatus.COMPLETED,
        0,
        False,
        True,
        0,
        0,
        0,
        0,
        0,
        result,
        None,
        None,
        plan.keep_us,
        plan.result_keep_us,
        plan.dead_keep_us,
    )


class PlanBook:
    """The call plans of every task this worker knows, by queue and task."""

    def __init__(
        self, registry: Registry, queues: Mapping[str, QueueSettings], default_timeout_us: int
    ) -> None:
        self._registry = registry
        self._settings = Settings(queues)
        self._default_timeout_us = default_timeout_us
        # At most (queues served) x (tasks known) entries.
        self._plans: dict[tuple[str, str], CallPlan] = {}

    def use(self, settings: Settings) -> None:
        """Go by these settings from now on; attempts under way go on by those they began with."""
        self._settings = settings
        self._plans.clear()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks to ask a store for."""
        return self._registry.names

    @property
    def longest_timeout_us(self) -> int:
        """What a store is to assume for jobs that name no timeout.

        The longest any task has, since the store knows the job's own timeout only: a hold limit
        that is too short would give a running job away.
        """
        definitions = (self._registry.get(name) for name in self._registry.names)
        own = [task.timeout_us for task in definitions if task and task.timeout_us]
        return max([self._default_timeout_us, *own])

    def find(self, job: Job) -> CallPlan:
        """The plan of a job's task."""
        key = (job.queue, job.task)
        plan = self._plans.get(key)
        if plan is None:
            definition = self._registry.get(job.task)
            if definition is None:
                return _unknown(job.task)
            plan = self._plans[key] = self._make(definition, job)
        return plan

    def _make(self, definition: TaskDefinition, job: Job) -> CallPlan:
        settings = self._settings.queue(job.queue)
        timeout_us = definition.timeout_us or self._default_timeout_us
        signature = definition.signature
        return CallPlan(
            name=definition.name,
            threaded=definition.kind == "thread",
            process=definition.kind == "process",
            wants_context=definition.wants_context,
            whole=signature.whole,
            function=definition.function,
            decode=signature.decode,
            call=signature.call,
            encode_result=signature.encode_result,
            timeout_s=timeout_us / SECOND_US,
            limits=Limits(
                retry=definition.retry or settings.retry or RetryRule(),
                max_snoozes=definition.max_snoozes,
                retention=settings.retention or Retention(),
                result_keep_us=definition.result_keep_us,
                max_crashes=definition.max_crashes,
            ),
            limited=self._settings.limits(job.queue, job.task),
            counted=self._settings.counts(job.queue, job.task),
        )


class UnknownTask(LookupError):
    """A store handed over a job of a task this worker did not ask for."""


def _unknown(task: str) -> CallPlan:
    """A plan that fails, so that such a job is retried elsewhere under the ordinary rules."""

    async def fail() -> None:
        raise UnknownTask(
            f"no task is declared as {task!r} here; deploy the code that has it, or give it "
            "as an alias of the task that replaced it"
        )

    return CallPlan(
        name=task,
        threaded=False,
        wants_context=False,
        whole=True,
        function=fail,
        decode=lambda _payload: {},
        call=lambda function, _arguments: function(),
        encode_result=str,
        timeout_s=1.0,
        limits=Limits(),
    )


def limits_of(job: Job, plan: CallPlan) -> Limits:
    """The rules that bind one job: its call's own, else its task's, else its queue's."""
    if job.options is None:
        return plan.limits
    try:
        own = _OPTIONS.decode(job.options)
    except msgspec.DecodeError:  # written by a release that knew other options
        return plan.limits
    return msgspec.structs.replace(
        plan.limits,
        retry=own.retry or plan.limits.retry,
        max_snoozes=plan.limits.max_snoozes if own.max_snoozes is None else own.max_snoozes,
        max_crashes=plan.limits.max_crashes if own.max_crashes is None else own.max_crashes,
    )
