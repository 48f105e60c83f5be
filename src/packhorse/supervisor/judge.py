# SPDX-License-Identifier: MIT
"""Decisions about worker processes: pure, from what is seen on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from packhorse.supervisor.page import Running

__all__ = ["Sight", "is_alive", "needs_renewal", "restart_delay_s", "stuck_since"]

#: How long a blocked event loop is let be beyond the time of its jobs, before `/livez` fails.
ALIVE_SLACK_S: Final = 5.0
#: Beyond the grace of its jobs, before a stuck process is killed: the loop is asked once a second.
STUCK_SLACK_S: Final = 2.0
#: An event loop that runs no job at all and does not turn for so long will not do so again.
IDLE_BLOCKED_S: Final = 60.0
#: A supervisor that was away itself (stopped, starved) looks so long before it judges anybody.
WATCH_S: Final = 5.0
#: The first and the longest wait before a process that died is replaced.
_RESTART_S, _RESTART_S_MAX, _RESTART_BEGUN_S_MAX = 0.1, 30.0, 2.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of a process at one moment."""

    now: float
    watched_since: float  #: since when the supervisor has looked without a gap
    turned_at: float  #: when the event loop last turned; 0 if it never has
    running: Sequence[Running] = ()
    culprit: int | None = None
    grace_s: float = 5.0  #: how long a handler may take to stop when told to


def stuck_since(sight: Sight) -> float | None:
    """When the process should have come to itself, if it is truly stuck; None if it is not.

    While the event loop turns, the worker ends its attempts itself. When it does not, nobody can,
    and once the job that blocks it is beyond its time the process has to go. Which job that is may
    be known; if it is not, the first one beyond its time decides, since its hold ends soon.
    """
    now, turned = sight.now, sight.turned_at
    if not turned or now - sight.watched_since < WATCH_S:
        return None
    if not sight.running:
        return turned if now - turned > IDLE_BLOCKED_S else None
    blamed = [each for each in sight.running if each.place == sight.culprit] or sight.running
    expires = min(each.expires for each in blamed)
    if turned >= expires or now - turned < STUCK_SLACK_S:
        return None
    return expires if now >= expires + sight.grace_s + STUCK_SLACK_S else None


def is_alive(sight: Sight) -> bool:
    """Whether the loop turns, or is blocked no longer than its jobs may still take, and 5 s."""
    if not sight.turned_at or sight.now - sight.watched_since < WATCH_S:
        return True
    ends = [each.expires for each in sight.running]
    return sight.now <= max([sight.turned_at, *ends]) + ALIVE_SLACK_S


def needs_renewal(now: float, *, renewed_at: float, lease_s: float) -> bool:
    """Whether the supervisor has to renew a lease because its worker has not done so in time."""
    return renewed_at > 0 and now - renewed_at >= lease_s / 2


def restart_delay_s(quick_deaths: int, *, begun: bool) -> float:
    """How long to wait before the next one is started, after so many that did not live long.

    One that had begun to work was killed, or died of a job that is dealt with by now; one that had
    not will hardly do any better the next time.
    """
    if quick_deaths == 0:
        return 0.0
    longest_s = _RESTART_BEGUN_S_MAX if begun else _RESTART_S_MAX
    return min(_RESTART_S * 2.0 ** min(quick_deaths - 1, 16), longest_s)
