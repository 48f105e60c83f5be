# SPDX-License-Identifier: MIT
"""Jobs to and from another store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from packhorse.job import AttemptRecord, JobStatus, NewJob
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.sqlite.carrying import carry_in_steps
from packhorse.stores.sqlite.ranking import AGED
from packhorse.stores.sqlite.rows import (
    PASSES,
    RECORD_COLUMNS,
    json_text,
    read_attempt,
    read_extra,
    read_record,
)
from packhorse.stores.sqlite.settling import HISTORY_EACH_END
from packhorse.stores.sqlite.statements import NOW, Rows, sql
from packhorse.stores.transfer import (
    CarriedJob,
    CarriedPage,
    CarryAnswer,
    Kept,
    Standing,
    as_carried,
    cursor_of,
)

__all__ = ["SqliteTransfer"]

_KEPT_NAMES: Final = (
    *("rank", "place", "kept_rank", "kept_place", "ready_us", "suspect", "expires_us"),
    *("order_line", "line_no", "took_unique", "took_idempotency", "stashed"),
)


class SqliteTransfer:
    """See `TransferStore`."""

    def carry_out(self, *, after: str | None, limit: int) -> Plan[CarriedPage]:
        beyond, wanted = cursor_of(after), max(0, limit)

        def steps() -> Steps[CarriedPage]:
            asked = {"after": beyond, "limit": wanted + 1}
            rows = yield Rows(_chosen("seq > :after"), asked)
            shown = rows[:wanted]
            jobs: tuple[CarriedJob, ...] = yield from _read(shown)
            more = len(rows) > wanted and bool(shown)
            return CarriedPage(jobs, after=str(shown[-1][0]) if more else None)

        return Plan("carry_out", steps, writes=False)

    def carried(self, job_ids: Sequence[str]) -> Plan[tuple[CarriedJob, ...]]:
        ids = list(job_ids)

        def steps() -> Steps[tuple[CarriedJob, ...]]:
            asked = {"ids": json_text(ids), "limit": len(ids)}
            rows = yield Rows(_chosen("id in (select value from json_each(:ids))"), asked)
            jobs: tuple[CarriedJob, ...] = yield from _read(rows)
            return jobs

        return Plan("carried", steps, writes=False)

    def carry_in(self, jobs: Sequence[CarriedJob]) -> Plan[tuple[CarryAnswer, ...]]:
        given = tuple(jobs)
        return Plan("carry_in", lambda: carry_in_steps(given))


def _chosen(condition: str) -> str:
    return sql("carry_out").format(columns=RECORD_COLUMNS, condition=condition)


def _read(rows: Sequence[Sequence[Any]]) -> Steps[tuple[CarriedJob, ...]]:
    now_us: int = yield NOW
    lines = yield Rows(sql("carry_history"), (json_text([row[0] for row in rows]),))
    histories: dict[int, list[AttemptRecord]] = {}
    for seq, *line in lines:
        histories.setdefault(seq, []).append(read_attempt(line))
    return tuple([_carried(row, histories.get(row[0], []), now_us) for row in rows])


def _carried(row: Sequence[Any], lines: Sequence[AttemptRecord], now_us: int) -> CarriedJob:
    split = len(row) - len(_KEPT_NAMES)
    record = read_record(row[:split], now_us)
    values = dict(zip(_KEPT_NAMES, row[split:], strict=True))
    extra = read_extra(row[RECORD_COLUMNS.split(", ").index("extra")])
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
        history=(*lines[:HISTORY_EACH_END], *lines[HISTORY_EACH_END:][-HISTORY_EACH_END:]),
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
