# SPDX-License-Identifier: MIT
"""How many jobs may wait in a queue, and which go when there are too many."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from heapq import nlargest
from typing import Literal, get_args

from packhorse.core.job import NUMBER_MAX
from packhorse.errors import ConfigError

__all__ = ["OnFull", "Waiting", "check_depth", "excess", "over_soft_depth", "shed", "turned_away"]

#: What a submit to a full queue comes to: an error, a wait for room, or the loss of the least.
OnFull = Literal["reject", "wait", "drop"]

#: (priority, sequence, id) of a job that waits; the higher goes first when some must go.
Waiting = tuple[int, int, str]


def excess(depth: int, arriving: int, max_depth: int | None) -> int:
    """How many too many there would be; nothing arriving is never too many."""
    if max_depth is None or arriving == 0:
        return 0
    return max(0, depth + arriving - max_depth)


def shed(waiting: Iterable[Waiting], excess: int) -> tuple[str, ...]:
    """Choose the jobs a full queue gives up: of all, the least urgent, latest first."""
    return tuple(job_id for _, _, job_id in nlargest(excess, waiting))


def turned_away(
    waiting: Iterable[Waiting], arriving: Iterable[Waiting], room: int
) -> frozenset[str]:
    """Choose, of jobs that arrive one after another, those a full queue gives up at once.

    `room` is how many more may wait. Of those that wait already the least urgent will do, as many
    as have to go in the end.
    """
    standing, away = sorted(waiting), set[str]()
    for one in arriving:
        insort(standing, one)
        room -= 1
        while room < 0:
            room += 1
            if standing.pop() == one:
                away.add(one[2])
    return frozenset(away)


def over_soft_depth(depth: int, soft_depth: int | None) -> bool:
    """Whether producers that look first should slow down."""
    return soft_depth is not None and depth >= soft_depth


def check_depth(*, max_depth: int | None, soft_depth: int | None, on_full: str) -> None:
    """Refuse depths that admit nothing or contradict each other."""
    for setting, value in (("max_depth", max_depth), ("soft_depth", soft_depth)):
        if value is not None and (type(value) is not int or not 1 <= value <= NUMBER_MAX):
            raise ConfigError(
                f"{setting} is {value!r}; give 1 or more, up to {NUMBER_MAX}, or leave it out for "
                "no limit"
            )
    if max_depth is not None and soft_depth is not None and soft_depth > max_depth:
        raise ConfigError(
            f"soft_depth is {soft_depth}, above max_depth, which is {max_depth}: it would never "
            "be reached; lower soft_depth or raise max_depth"
        )
    if on_full not in get_args(OnFull):
        raise ConfigError(f"on_full is {on_full!r}; give 'reject', 'wait' or 'drop'")
    if max_depth is None and on_full != "reject":
        raise ConfigError(
            f"on_full is {on_full!r} and there is no max_depth, so the queue is never full; "
            "set max_depth, or leave on_full out"
        )
