# SPDX-License-Identifier: MIT
"""Jobs to and from another store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from packhorse.job import AttemptRecord, JobStatus, NewJob
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.sql.carrying import carry_in_steps
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.rows import AGED, PASSES, both_ends, read_attempt, read_extra
from packhorse.stores.sql.steps import NOW, Rows
from packhorse.stores.transfer import (
    CarriedJob,
    CarriedPage,
    CarryAnswer,
    Kept,
    Standing,
    as_carried,
    cursor_of,
)

__all__ = ["SqlTransfer"]

#: What `carry_out.sql` says after the columns of a record.
_KEPT_NAMES: Final = (
    *("rank", "place", "kept_rank", "kept_place", "ready_us", "suspect", "expires_us"),
    *("order_line", "line_no", "took_unique", "took_idempotency", "stashed"),
)


class SqlTransfer:
    """See `TransferStore`. `go_back`: what a store does when jobs come in before others."""

    def __init__(self, dialect: Dialect, go_back: Callable[[], Steps[None]]) -> None:
        self._dialect = dialect
        self._go_back = go_back

    def carry_out(self, *, after: str | None, limit: int) -> Plan[CarriedPage]:
        beyond, wanted = cursor_of(after), max(0, limit)

        def steps() -> Steps[CarriedPage]:
            asked = {"after": beyond, "limit": wanted + 1}
            rows = yield Rows(self._chosen("after"), asked)
            shown = rows[:wanted]
            jobs: tuple[CarriedJob, ...] = yield from _read(self._dialect, shown)
            more = len(rows) > wanted and bool(shown)
            return CarriedPage(jobs, after=str(shown[-1][0]) if more else None)

        return Plan("carry_out", steps, writes=False)

    def carried(self, job_ids: Sequence[str]) -> Plan[tuple[CarriedJob, ...]]:
        ids = list(job_ids)

        def steps() -> Steps[tuple[CarriedJob, ...]]:
            asked = {"ids": self._dialect.many(ids), "limit": len(ids)}
            rows = yield Rows(self._chosen("ids"), asked)
            jobs: tuple[CarriedJob, ...] = yield from _read(self._dialect, rows)
            return jobs

        return Plan("carried", steps, writes=False)

    def carry_in(self, jobs: Sequence[CarriedJob]) -> Plan[tuple[CarryAnswer, ...]]:
        given = tuple(jobs)
        return Plan("carry_in", lambda: carry_in_steps(self._dialect, given, self._go_back))

    def _chosen(self, condition: str) -> str:
        dialect = self._dialect
        return dialect.sql(
            "carry_out", columns=dialect.record_columns, condition=dialect.conditions[condition]
        )


def _read(dialect: Dialect, rows: Sequence[Sequence[Any]]) -> Steps[tuple[CarriedJob, ...]]:
    now_us: int = yield NOW
    seqs = dialect.many([row[0] for row in rows])
    lines = yield Rows(dialect.sql("carry_history"), (seqs,))
    histories: dict[int, list[AttemptRecord]] = {}
    for seq, *line in lines:
        histories.setdefault(seq, []).append(read_attempt(line))
    return tuple([_carried(dialect, row, histories.get(row[0], []), now_us) for row in rows])


def _carried(
    dialect: Dialect, row: Sequence[Any], lines: Sequence[AttemptRecord], now_us: int
) -> CarriedJob:
    split = len(row) - len(_KEPT_NAMES)
    record = dialect.read_record(row[:split], now_us)
    values = dict(zip(_KEPT_NAMES, row[split:], strict=True))
    extra = read_extra(row[dialect.record_columns.split(", ").index("extra")])
    stashed = values["stashed"]
    kept = Kept(
        unique=extra.unique,
        idempotency=extra.idempotency,
        standing=_standing(values, record.priority, queued=record.status is JobStatus.QUEUED),
        line_number=None if values["order_line"] is None else values["line_no"],
        took_unique=bool(values["took_unique"]),
        took_idempotency=bool(values["took_idempotency"]),
        suspect=bool(values["suspect"]),
        expires_us=values["expires_us"],
        history=both_ends(lines),
        stashed=None if stashed is None else msgspec.json.decode(stashed, type=NewJob),
    )
    return as_carried(record, kept)


def _standing(values: dict[str, Any], priority: int, *, queued: bool) -> Standing | None:
    """Where it stands, or where a rescued job will stand again."""
    rank, place = values["rank"], values["place"]
    if not queued:
        rank, place = values["kept_rank"], values["kept_place"]
    if place is None:
        return None
    if rank >= AGED:
        return Standing(place, values["ready_us"], aged=rank - AGED)
    return Standing(place, values["ready_us"], rank - priority * PASSES)
