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


def lifetimes(
    finished_us: int, keep_us: int | None, result_keep_us: int | None = None
) -> dict[str, int | None]:
    """Until when a finished job and its result are kept, and when upkeep has the first to take."""
    record_us = None if keep_us is None else finished_us + keep_us
    result_us = None if result_keep_us is None else finished_us + result_keep_us
    first_us = min([end for end in (record_us, result_us) if end is not None], default=None)
    return {"expires_us": first_us, "record_until_us": record_us, "result_until_us": result_us}


def may_prune(finished_us: int, keep_us: int | None, now_us: int) -> bool:
    """Whether a finished job's whole record may go."""
    return keep_us is not None and finished_us + keep_us <= now_us


def is_ghost(expires_us: int, now_us: int) -> bool:
    """Whether a worker's record may go, provided that it holds no job any more."""
    return expires_us + GHOST_US <= now_us
