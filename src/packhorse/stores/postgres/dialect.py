# SPDX-License-Identifier: MIT
"""PostgreSQL's own ways of what the SQL stores do alike: arrays, few round trips, and locks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from packhorse.job import NewJob
from packhorse.settlement import Settlement
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.postgres import claiming, settling, submitting
from packhorse.stores.postgres.locking import ALL, Level, write_special
from packhorse.stores.postgres.rows import (
    RECORD_COLUMNS,
    extra_of,
    options_of,
    read_record,
    worded,
)
from packhorse.stores.postgres.statements import Lock, Send, Together, sql
from packhorse.stores.requests import QueueSettings
from packhorse.stores.sql.dialect import Column, Dialect, Needs, Promoted
from packhorse.stores.sql.queue_row import QueueRow
from packhorse.stores.sql.rows import json_text
from packhorse.stores.sql.steps import Parameters, Rows
from packhorse.stores.sql.submitting import is_keyed

__all__ = ["POSTGRES"]

_CONDITIONS: Final = MappingProxyType(
    {
        "queue": "job.queue = %(queue)s",
        "task": "job.task = %(task)s",
        "tenant": "job.tenant = %(tenant)s",
        "tag": "job.seq in (select seq from {tags} where tag = %(tag)s)",
        "created_by": "job.created_by = %(created_by)s",
        "dead_reason": "job.dead_reason = %(dead_reason)s",
        "dead_letter": "job.dead_letter = %(dead_letter)s",
        "statuses": "job.status = any(%(statuses)s::bigint[])",
        "ids": "job.id = any(%(ids)s::text[])",
        "below": "job.seq < %(below)s",
        "after": "job.seq > %(after)s",
    }
)
#: The type of the column by which jobs are named.
_TYPES: Final = MappingProxyType({"id": "text", "seq": "bigint"})
#: Of the name of a line, which is a digest: short, and nobody needs to read it.
_LINE_DIGITS: Final = 32


class _Postgres:
    """See `Dialect`."""

    conditions = _CONDITIONS
    record_columns = RECORD_COLUMNS
    read_record = staticmethod(read_record)
    queue_rows = staticmethod(submitting.queue_rows)
    take_places = staticmethod(submitting.take_places)
    insert_rows = staticmethod(submitting.insert_new)
    index_rare = staticmethod(submitting.index_rare)
    take = staticmethod(claiming.take)
    hand_over = staticmethod(claiming.hand_over)

    # ------------------------------------------------------------------------------- statements

    def sql(self, name: str, **parts: str) -> str:
        return worded(name, **parts)

    def many(self, values: Iterable[Any]) -> list[Any]:
        return list(values)

    def listed(self, value: Sequence[str]) -> tuple[str, ...]:
        return tuple(value)

    def write(self, text: str, parameters: Parameters = ()) -> Send:
        return Send(text, parameters)

    def write_each(self, text: str, seqs: Sequence[int], now_us: int | None = None) -> Send:
        chosen = list(seqs)
        return Send(text, (chosen,) if now_us is None else {"seqs": chosen, "now": now_us})

    def write_rows(self, text: str, rows: Sequence[Mapping[str, Any]]) -> Send:
        return Send(text, (json_text(rows),))

    # ------------------------------------------------------------------------------------- rows

    def extra_columns(self, job: NewJob) -> dict[str, Any]:
        return {
            "options": options_of(job),
            "upstream_request_id": job.upstream_request_id,
            "created_by": job.created_by,
            "extra": extra_of(job),
            "keyed": is_keyed(job),
        }

    def line_name(self, words: str) -> str:
        return sha256(words.encode()).hexdigest()[:_LINE_DIGITS]

    def numbers_for(
        self, jobs: Sequence[NewJob], queues: Mapping[str, QueueRow]
    ) -> Steps[Sequence[int]]:
        del queues
        return submitting.take_places(len(jobs))

    def remove(self, seqs: Sequence[int]) -> Steps[int]:
        [(removed,)] = yield Rows(sql("remove"), {"seqs": list(seqs)})
        return int(removed)

    def counted(self) -> Steps[list[tuple[str, int, int]]]:
        rows: list[tuple[str, int, int]] = yield Rows(sql("counts"))
        return rows

    def oldest_ready(self, queues: Collection[str]) -> Steps[dict[str, dict[int, int]]]:
        del queues  # all of them are read in one go
        rows = yield Rows(sql("oldest_ready"))
        oldest: dict[str, dict[int, int]] = {}
        for queue, priority, ready_us in rows:
            oldest.setdefault(queue, {})[priority] = ready_us
        return oldest

    # ------------------------------------------------------------------------------------ moves

    def promote(self, jobs: Sequence[Promoted], now_us: int) -> Send:
        where = {
            "seqs": [one.seq for one in jobs],
            "ranks": [one.rank for one in jobs],
            "places": [one.place for one in jobs],
        }
        return Send(sql("promote"), {**where, "now": now_us})

    def complete(self, completed: Sequence[Settlement], now_us: int) -> Steps[int]:
        del now_us  # the statement reads the clock
        return settling.complete(completed)

    def shut_until(self, gate: str, task: str, until_us: int) -> Steps[None]:
        yield Send(sql("shut_until"), (gate, task, until_us))
        yield from self.settings_changed(task)

    # ------------------------------------------------------------------------------------- ends

    def needs(self) -> Steps[Needs]:
        [(needed,)] = yield Rows(sql("aftermath_needed"))
        return Needs(gates=needed, stashed=needed, limited=needed, awaited=True)

    def over(self, column: Column, values: Sequence[int | str]) -> Rows:
        text = worded("aftermath", column=column, type=_TYPES[column])
        return Rows(text, {"values": list(values)})

    def advance_after(self, column: Column, values: Sequence[int | str]) -> Steps[None]:
        """Not asked for: lines are never said to wait alone."""
        raise NotImplementedError

    def holding(self, gates: Sequence[str], tasks: Sequence[str]) -> Steps[list[tuple[str]]]:
        asked = (
            Rows(sql("gates_holding"), (list(gates),)),
            Rows(sql("tasked_ready"), (list(tasks),)),
        )
        holding, others = yield Together(asked)
        for (queue,) in others:
            yield Wake(f"queue:{queue}")
        found: list[tuple[str]] = holding
        return found

    def wake_waiters(self, column: Column, values: Sequence[int | str]) -> Steps[None]:
        text = worded("awaited_ended", column=column, type=_TYPES[column])
        ended = yield Rows(text, {"values": list(values)})
        for (job_id,) in ended:
            yield Wake(f"job:{job_id}")

    # ------------------------------------------------------------------------------- neighbours

    def lock_all(self) -> Steps[None]:
        yield Lock(ALL)

    def go_alone(self) -> Steps[Level]:
        level = Level(alone=True)
        yield from level.enter()
        return level

    def judges(self, settings: QueueSettings) -> bool:
        """Whether more than priority and order of arrival decides about its jobs."""
        limits = (settings.concurrency, settings.rate, settings.tenant_rate, settings.max_depth)
        return any(limit is not None for limit in (*limits, settings.ageing_us))

    def settings_changed(self, task: str | None = None) -> Steps[None]:
        if task is not None:
            yield Send(sql("lines_begin"), (task,))
        yield from write_special()


POSTGRES: Final[Dialect] = _Postgres()
