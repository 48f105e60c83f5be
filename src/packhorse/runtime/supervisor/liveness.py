# SPDX-License-Identifier: MIT
"""Pure decisions about worker processes: alive, stuck, in need of a renewal, when to restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from packhorse.runtime.supervisor.shared_memory import Running

#: How long an event loop may be blocked beyond the time of its jobs before `/livez` fails.
ALIVE_SLACK_S: Final = 5.0
#: How long beyond the grace of its jobs a stuck process may live: loops report once a second.
STUCK_SLACK_S: Final = 2.0
#: An event loop without jobs that has not turned for so long is stuck.
IDLE_BLOCKED_S: Final = 60.0
#: How long a supervisor that was stopped or starved itself observes before it decides.
WATCH_S: Final = 5.0
#: The first and the longest wait before a process that died is replaced.
_RESTART_S, _RESTART_S_MAX, _RESTART_BEGUN_S_MAX = 0.1, 30.0, 2.0


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What a supervisor knows of a process at one moment."""

    now: float
    watched_since: float  #: since when the supervisor has observed without a gap
    turned_at: float  #: when the event loop last turned; 0 if it never has
    running: Sequence[Running] = ()
    culprit: int | None = None
    grace_s: float = 5.0  #: how long a handler may take to stop when told to


def stuck_since(state: ProcessState) -> float | None:
    """Return since when the process is stuck; None if it is not.

    While the event loop turns, the worker ends its attempts itself. When it does not, the process
    is stuck once the job that blocks it is beyond its time: the culprit if it is known, else the
    first job to expire.
    """
    now, turned = state.now, state.turned_at
    if not turned or now - state.watched_since < WATCH_S:
        return None
    if not state.running:
        return turned if now - turned > IDLE_BLOCKED_S else None
    blamed = [each for each in state.running if each.place == state.culprit] or state.running
    expires = min(each.expires for each in blamed)
    if turned >= expires or now - turned < STUCK_SLACK_S:
        return None
    return expires if now >= expires + state.grace_s + STUCK_SLACK_S else None


def is_alive(state: ProcessState) -> bool:
    """Tell whether the loop turns, or is blocked no longer than its jobs may take, and 5 s."""
    if not state.turned_at or state.now - state.watched_since < WATCH_S:
        return True
    ends = [each.expires for each in state.running]
    return state.now <= max([state.turned_at, *ends]) + ALIVE_SLACK_S


def needs_renewal(now: float, *, renewed_at: float, lease_s: float) -> bool:
    """Tell whether the supervisor has to renew a lease that its worker has not renewed in time."""
    return renewed_at > 0 and now - renewed_at >= lease_s / 2


def restart_delay_s(quick_deaths: int, *, begun: bool) -> float:
    """Return how long to wait before the next start, after so many processes that died early.

    A process that had begun to work died of a job that is settled by now, so the wait is short.
    """
    if quick_deaths == 0:
        return 0.0
    longest_s = _RESTART_BEGUN_S_MAX if begun else _RESTART_S_MAX
    return min(_RESTART_S * 2.0 ** min(quick_deaths - 1, 16), longest_s)
