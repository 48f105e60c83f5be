# SPDX-License-Identifier: MIT
"""Who goes first: inside a queue by priority, pass and place, between queues by queue priority."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["Rank", "aged_rank", "claim_rank", "queue_order"]

#: Ranks are compared as they stand; the lower is claimed first.
Rank = tuple[int, int, int]


def claim_rank(priority: int, place: int, *, pass_number: int = 0) -> Rank:
    """The order of claiming inside one queue: priority number, fair pass, order of readiness.

    In a queue that is not fair every pass is 0.
    """
    return (priority, pass_number, place)


def aged_rank(priority: int, place: int, *, ready_us: int, ageing_us: int) -> Rank:
    """The order of claiming in a queue whose jobs age, written once when a job becomes ready.

    A job that has waited `ageing_us` longer ranks as one of the next higher priority, again and
    again, so that no job is overtaken for ever: at most those get ahead of it that become ready
    within (its priority - theirs) times `ageing_us`.
    """
    return (ready_us + priority * ageing_us, 0, place)


def queue_order(queues: Iterable[str], priorities: Mapping[str, int]) -> tuple[str, ...]:
    """The order in which a worker's queues are served; equals keep the order given."""
    return tuple(sorted(queues, key=lambda queue: priorities.get(queue, 0)))
