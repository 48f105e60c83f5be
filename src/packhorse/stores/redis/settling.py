# SPDX-License-Identifier: MIT
"""Settle: settlements as a script takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from packhorse.lifecycle import TASK_TIMEOUT
from packhorse.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.plan import Steps
from packhorse.stores.redis.rows import CODE
from packhorse.stores.redis.short_way import ShortWay
from packhorse.stores.redis.statements import Script

__all__ = ["settle_steps"]

#: Verdicts in the order of `lua/lib/endings.lua`.
_VERDICTS: Final = (Verdict.APPLIED, Verdict.CANCELLED, Verdict.EXPIRED, Verdict.STALE)

_pack: Final = msgspec.msgpack.Encoder().encode


def settle_steps(settlements: Sequence[Settlement], short: ShortWay) -> Steps[tuple[Verdict, ...]]:
    """All in one script; see `JobStore.settle`."""
    if not settlements:
        return ()
    if _all_completed(settlements) and short.worth_trying("completions"):
        reply = yield Script("complete", _completions(settlements))
        if reply is not None:
            return tuple(_VERDICTS[verdict] for verdict in reply)
        short.closed("completions")
    args: list[str | bytes | int] = []
    for each in settlements:
        args += (each.job_id, each.fence, each.result or "", _rest(each))
    reply = yield Script("settle", args)
    return tuple(_VERDICTS[verdict] for verdict in reply)


def _all_completed(settlements: Sequence[Settlement]) -> bool:
    """Whether all go the short way: plain successes that share their lifetimes."""
    first = settlements[0]
    shared = (first.keep_us, first.result_keep_us)
    return all(
        each.kind is SettlementKind.COMPLETED
        and (each.keep_us, each.result_keep_us) == shared
        and each.ended
        and each.error is None
        and not (each.failures or each.crashes or each.snoozes or each.releases)
        for each in settlements
    )


def _completions(settlements: Sequence[Settlement]) -> list[str | int]:
    first = settlements[0]
    args: list[str | int] = [_lifetime(first.keep_us), _lifetime(first.result_keep_us)]
    for each in settlements:
        result = "-" if each.result is None else "+" + each.result
        args += (each.job_id, each.fence, result)
    return args


def _lifetime(keep_us: int | None) -> int:
    return -1 if keep_us is None else keep_us


def _rest(settled: Settlement) -> bytes:
    """All that settlements of a kind often share, in the order of `lua/settle.lua`."""
    error = settled.error
    return _pack(
        (
            settled.kind,
            CODE[settled.status],
            settled.delay_us,
            settled.keep_place,
            settled.ended,
            settled.failures,
            settled.crashes,
            settled.lone_crashes,
            settled.snoozes,
            settled.releases,
            settled.result is not None,
            None if error is None else msgspec.json.encode(error).decode(),
            settled.dead_reason,
            settled.keep_us,
            settled.result_keep_us,
            settled.dead_keep_us,
            settled.suspect,
            settled.limit_us,
            error is not None and error.code == TASK_TIMEOUT,
        )
    )
