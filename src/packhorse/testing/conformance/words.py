# SPDX-License-Identifier: MIT
"""Helpers for tests about limits, order and keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobStatus, RateRule
from packhorse.core.lifecycle import CancelAnswer
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import Listener, Store
from packhorse.stores.requests import (
    QueueSettings,
    QueueState,
    RedriveAnswer,
    Submitted,
    TaskSettings,
)
from packhorse.testing.conformance.samples import ANNA, QUEUE, TASK, new_job
from packhorse.testing.conformance.trial import Trial

#: Far longer than any wake-up takes, so that only a missing one fails.
PATIENCE_S: Final = 20.0
#: How long to wait when no wake-up is expected.
SILENCE_S: Final = 0.15
#: Without a wake-up for so long, all earlier changes have been announced.
_ECHO_S: Final = 0.1
_ECHOES_MAX: Final = 20
#: The topic that stands for any.
ANY_TOPIC: Final = "*"

#: Where a rate may be limited; see `limit_rate`.
everywhere: Final = pytest.mark.parametrize("where", ["queue", "tenant", "task"])


def submit(trial: Trial, *names: str, **changes: Any) -> tuple[Submitted, ...]:
    """Submit jobs of these names in one call, with the given changes."""
    return trial.submit(*(new_job(name, **changes) for name in names))


def given(trial: Trial, worker: str = ANNA, **request: Any) -> list[str]:
    """Return the names of the jobs that a worker claims now."""
    return [job.id for job in trial.claim(worker, **request)]


def limit_queue(trial: Trial, queue: str = QUEUE, **settings: Any) -> None:
    """Declare a queue with these settings."""
    trial.declare(QueueSettings(queue, **settings))


def limit_task(trial: Trial, task: str = TASK, **limits: Any) -> None:
    """Declare the limits of a task."""
    trial.run(trial.store.queues.declare_tasks([TaskSettings(task, **limits)]))


def limit_rate(trial: Trial, where: str, rule: RateRule) -> None:
    """Limit the queue, each of its tenants, or the task; give a worker a long lease."""
    match where:
        case "queue":
            limit_queue(trial, rate=rule)
        case "tenant":
            limit_queue(trial, tenant_rate=rule)
        case _:
            limit_task(trial, rate=rule)
    trial.renew(ANNA, lease_us=100 * rule.window_us)


def cancel(trial: Trial, job_id: str) -> CancelAnswer:
    """Cancel a job."""
    return trial.run(trial.store.jobs.cancel(job_id))


def complete(trial: Trial, job_id: str) -> None:
    """Complete a running job, whichever worker has it."""
    fence = trial.record(job_id).fence
    done = Settlement(job_id, fence, SettlementKind.COMPLETED, JobStatus.COMPLETED, result="1")
    assert trial.settle(done) == (Verdict.APPLIED,)


def redrive(trial: Trial, job_id: str) -> RedriveAnswer:
    """Redrive a job."""
    (answer,) = trial.run(trial.store.jobs.redrive([job_id]))
    return answer


def queue_state(trial: Trial, queue: str = QUEUE) -> QueueState:
    """Return the state of a queue in the store."""
    states = {state.settings.name: state for state in trial.run(trial.store.queues.queues())}
    return states[queue]


def pass_until(trial: Trial, instant_us: int) -> None:
    """Let time pass until an instant."""
    trial.clock.advance(max(0, instant_us - trial.now_us()) / SECOND_US)


def heard(
    trial: Trial, topic: str, doing: Callable[[Store], Plan[Any]], patience_s: float = PATIENCE_S
) -> bool:
    """Whether a waiter for a topic is woken by what another process does.

    When no wake-up is expected, `*` does not count as one for the topic.
    """
    topics = trial.play(_heard(trial, topic, doing, patience_s))
    return topic in topics or (ANY_TOPIC in topics and patience_s == PATIENCE_S)


async def _heard(
    trial: Trial, topic: str, doing: Callable[[Store], Plan[Any]], patience_s: float
) -> frozenset[str]:
    store = trial.elsewhere()
    listener = trial.store.wakeups.listen(frozenset({topic}))
    if patience_s == SILENCE_S:
        await quiet(listener)
    waiting = asyncio.create_task(listener.wait(patience_s))
    await asyncio.sleep(0)  # the wait has begun
    await trial.arun(doing(store), store)
    topics = await waiting
    listener.close()
    return topics


async def quiet(listener: Listener) -> None:
    """Wait until wake-ups for earlier changes have passed: a store may delay them."""
    for _ in range(_ECHOES_MAX):
        if not await listener.wait(_ECHO_S):
            return
