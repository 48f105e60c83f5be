# SPDX-License-Identifier: MIT
"""Settings that are allowed one by one and contradict each other.

The upstream schema lets them through, and so does `parse`: what another system may send, Packhorse
can read. Whoever is about to act on a configuration calls `check_settings` first.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UnsetType

from packhorse.errors import ConfigError
from packhorse.protocol.queue_config import AutoScale, QueueConfig
from packhorse.protocol.shape import Shape
from packhorse.protocol.task import Task, TaskRetryPolicy
from packhorse.protocol.worker import WorkerConfig

__all__ = ["check_settings"]


def check_settings(value: Shape) -> None:
    """Raise ConfigError, naming the setting and the fix, if settings in `value` contradict."""
    problem = next(_problems(value, "$"), None)
    if problem is not None:
        raise ConfigError(problem)


def _problems(value: Shape | UnsetType, path: str) -> Iterator[str]:
    match value:
        case TaskRetryPolicy():
            yield from _retry_problems(value, path)
        case AutoScale():
            yield from _scaling_problems(value, path)
        case Task():
            yield from _problems(value.retry_policy, f"{path}.retryPolicy")
        case QueueConfig():
            yield from _problems(value.default_retry_policy, f"{path}.defaultRetryPolicy")
            yield from _problems(value.auto_scale, f"{path}.autoScale")
        case WorkerConfig():
            for index, queue in enumerate(value.queue_configs or ()):
                yield from _problems(queue, f"{path}.queueConfigs[{index}]")
        case _:
            return


def _retry_problems(policy: TaskRetryPolicy, path: str) -> Iterator[str]:
    if policy.initial_delay_ms > policy.max_delay_ms:
        yield (
            f"{path}.initialDelayMs is {policy.initial_delay_ms}, above {path}.maxDelayMs, "
            f"which is {policy.max_delay_ms}: lower initialDelayMs or raise maxDelayMs"
        )


def _scaling_problems(scale: AutoScale, path: str) -> Iterator[str]:
    if scale.min_workers > scale.max_workers:
        yield (
            f"{path}.minWorkers is {scale.min_workers}, above {path}.maxWorkers, which is "
            f"{scale.max_workers}: lower minWorkers or raise maxWorkers"
        )
    if scale.scale_down_threshold >= scale.scale_up_threshold:
        yield (
            f"{path}.scaleDownThreshold is {scale.scale_down_threshold}, not below "
            f"{path}.scaleUpThreshold, which is {scale.scale_up_threshold}: workers would be "
            "started and stopped at the same queue size; lower scaleDownThreshold or raise "
            "scaleUpThreshold"
        )
