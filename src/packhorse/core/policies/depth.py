# SPDX-License-Identifier: MIT
"""How many jobs may wait in a queue, in how many bytes, and which go when there are too many."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import Literal, get_args

from packhorse.core.job import NUMBER_MAX
from packhorse.errors import ConfigError

#: What a submit to a full queue comes to: an error, a wait for room, or the loss of the least.
OnFull = Literal["reject", "wait", "drop"]

#: (priority, sequence, id, bytes) of a job that waits; the higher goes first when some must go.
Waiting = tuple[int, int, str, int]


def excess(held: int, arriving: int, limit: int | None) -> int:
    """How many jobs or bytes too many there would be; nothing arriving is never too many."""
    if limit is None or arriving == 0:
        return 0
    return max(0, held + arriving - limit)


def room(held: int, limit: int | None) -> int:
    """How many more jobs or bytes there may be."""
    return NUMBER_MAX if limit is None else limit - held


def shed(waiting: Iterable[Waiting], jobs: int, size: int = 0) -> tuple[str, ...]:
    """Choose who goes until so many jobs and bytes have gone: the least urgent, latest first."""
    gone = []
    for *_, job_id, own in sorted(waiting, reverse=True):
        if jobs <= 0 and size <= 0:
            break
        gone.append(job_id)
        jobs, size = jobs - 1, size - own
    return tuple(gone)


def turned_away(
    waiting: Iterable[Waiting], arriving: Iterable[Waiting], jobs: int, size: int = NUMBER_MAX
) -> frozenset[str]:
    """Choose, of jobs that arrive one after another, those a full queue gives up at once.

    `jobs` and `size` are how many more jobs and bytes may wait. Of those that wait already the
    least urgent will do, as many as have to go in the end. One that is less urgent than one that
    had to go does not take the room which that one left.
    """
    standing, away = sorted(waiting), set[str]()
    last: Waiting | None = None
    for one in arriving:
        if last is not None and one > last:
            away.add(one[2])
            continue
        insort(standing, one)
        jobs, size = jobs - 1, size - one[3]
        while standing and (jobs < 0 or size < 0):
            last = standing.pop()
            jobs, size = jobs + 1, size + last[3]
            if last == one:
                away.add(one[2])
    return frozenset(away)


def over_soft_depth(depth: int, soft_depth: int | None) -> bool:
    """Whether producers that look first should slow down."""
    return soft_depth is not None and depth >= soft_depth


def check_depth(
    *, max_depth: int | None, soft_depth: int | None, on_full: str, max_bytes: int | None = None
) -> None:
    """Refuse bounds that admit nothing or contradict each other."""
    given = (("max_depth", max_depth), ("soft_depth", soft_depth), ("max_bytes", max_bytes))
    for setting, value in given:
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
    if max_depth is None and max_bytes is None and on_full != "reject":
        raise ConfigError(
            f"on_full is {on_full!r} and there is no max_depth and no max_bytes, so the queue is "
            "never full; set one of them, or leave on_full out"
        )
