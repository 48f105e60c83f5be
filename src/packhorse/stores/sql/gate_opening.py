# SPDX-License-Identifier: MIT
"""Before gates are asked: what holds for all queues is read, and what time has opened is opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from packhorse.stores.plan import Steps
from packhorse.stores.sql.dialect import Dialect, Level
from packhorse.stores.sql.gating import GateBook
from packhorse.stores.sql.lines import let_go, read_gate
from packhorse.stores.sql.settings import task_settings
from packhorse.stores.sql.steps import Rows

__all__ = ["open_book", "reopen_due"]

#: Jobs let go from a gate that time has opened; those it has no room for are held back again.
_LET_GO_MAX: Final = 100


def open_book(
    dialect: Dialect, tasks: Sequence[str], now_us: int, *, in_order: bool = False
) -> Steps[GateBook]:
    """What holds for all queues: the limits of tasks, and what somebody shut.

    With `in_order`, heavy jobs that are held back are asked before lighter ones behind them.
    """
    limited = yield from task_settings(dialect, tasks)
    shut_rows = yield Rows(dialect.sql("shut_gates"), (now_us,))
    shut = {read_gate(gate): until_us for gate, until_us in shut_rows}
    running: dict[tuple[str, str | None], int] = {}
    if limited:
        rows = yield Rows(dialect.sql("running_of_tasks"), (dialect.many(limited),))
        running = {(task, key): count for task, key, count in rows}
    return GateBook(dialect, now_us, limited, shut, running, known=tasks if in_order else None)


def reopen_due(dialect: Dialect, now_us: int, level: Level) -> Steps[None]:
    """Let go those whose gate time has opened; whoever finds it closed again is held back again.

    Gates that the plan does not cover are opened by who claims from their queues.
    """
    rows = yield Rows(dialect.sql("reopens_due"), {"now": now_us})
    for (gate,) in rows:
        if level.covers(read_gate(gate)):
            yield from let_go(dialect, gate, _LET_GO_MAX)
            yield dialect.write(dialect.sql("reopen_forget"), (gate,))
