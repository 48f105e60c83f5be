# SPDX-License-Identifier: MIT
"""How long what is over is kept."""

from __future__ import annotations

from typing import Final

import msgspec

from packhorse.core.clock import SECOND_US

DAY_US: Final = 24 * 3600 * SECOND_US
#: How long a worker that went without leaving is still shown, from the end of its lease.
GHOST_US: Final = DAY_US


class Retention(msgspec.Struct, frozen=True):
    """Lifetimes, from the end of the job; None keeps for ever."""

    finished_us: int | None = DAY_US  #: records of completed and cancelled jobs
    results_us: int | None = DAY_US
    dead_us: int | None = None  #: dead letters wait for an operator


def first_expiry_us(
    finished_us: int, keep_us: int | None, result_keep_us: int | None = None
) -> int | None:
    """When upkeep next has something to take away of a finished job: its result, or all of it."""
    ends = [finished_us + keep for keep in (keep_us, result_keep_us) if keep is not None]
    return min(ends, default=None)


def may_prune(finished_us: int, keep_us: int | None, now_us: int) -> bool:
    """Whether a finished job's whole record may go."""
    return keep_us is not None and finished_us + keep_us <= now_us


def is_ghost(expires_us: int, now_us: int) -> bool:
    """Whether a worker's record may go, provided that it holds no job any more."""
    return expires_us + GHOST_US <= now_us
