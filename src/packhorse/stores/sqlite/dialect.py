# SPDX-License-Identifier: MIT
"""SQLite's own ways of what the SQL stores do alike. There is one writer, so nobody waits here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from packhorse.job import NewJob, Priority
from packhorse.policies.gates import Gate, JobKeys
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import QueueSettings
from packhorse.stores.sql.dialect import Column, Dialect, Level, Needs, Promoted
from packhorse.stores.sql.lines import ORDER_LINE, wake_queues
from packhorse.stores.sql.queue_row import QueueRow
from packhorse.stores.sql.rows import AGED, PASSES, Lane, json_text
from packhorse.stores.sql.steps import Change, ChangeMany, Parameters, Rows
from packhorse.stores.sqlite import claiming, counting, settling, submitting
from packhorse.stores.sqlite.rows import RECORD_COLUMNS, extra_of, read_record
from packhorse.stores.sqlite.statements import sql

__all__ = ["ONE_WRITER", "SQLITE", "nothing"]

_CONDITIONS: Final = MappingProxyType(
    {
        "queue": "job.queue = :queue",
        "task": "job.task = :task",
        "tenant": "job.tenant = :tenant",
        "tag": "job.seq in (select seq from packhorse_tags where tag = :tag)",
        "created_by": "json_extract(job.extra, '$.created_by') = :created_by",
        "dead_reason": "job.dead_reason = :dead_reason",
        "dead_letter": "job.dead_letter = :dead_letter",
        "statuses": "job.status in (select value from json_each(:statuses))",
        "ids": "job.id in (select value from json_each(:ids))",
        "below": "job.seq < :below",
        "after": "job.seq > :after",
    }
)
#: How many of a queue's ready jobs of a priority are looked at for the one that waits longest.
_OLDEST_WINDOW: Final = 10_000


def nothing() -> Steps[None]:
    """No steps."""
    yield from ()


class _OneWriter:
    """A transaction that writes has everything for itself."""

    alone = True
    plain = False
    gated_tasks = ()

    def enter(self) -> Steps[None]:
        return nothing()

    def allow(self, queues: Iterable[str]) -> None:
        pass

    def go_alone(self) -> None:
        pass

    def mark_lined(
        self, jobs: Iterable[tuple[JobKeys, bool]], queues: Mapping[str, QueueRow]
    ) -> Steps[None]:
        del jobs, queues
        return nothing()

    def asks_gates(self, queue: str) -> bool:  # noqa: ARG002 - any
        return True

    def covers(self, gate: Gate) -> bool:  # noqa: ARG002 - any
        return True


class _Sqlite:
    """See `Dialect`."""

    conditions = _CONDITIONS
    record_columns = RECORD_COLUMNS
    read_record = staticmethod(read_record)
    queue_rows = staticmethod(submitting.queue_rows)
    insert_rows = staticmethod(submitting.insert_rows)
    take = staticmethod(claiming.take)
    hand_over = staticmethod(claiming.hand_over)
    complete = staticmethod(settling.complete)
    counted = staticmethod(counting.counted)

    # ------------------------------------------------------------------------------- statements

    def sql(self, name: str, **parts: str) -> str:
        return sql(name).format(**parts) if parts else sql(name)

    def many(self, values: Iterable[Any]) -> str:
        return json_text(list(values))

    def listed(self, value: str) -> tuple[str, ...]:
        return msgspec.json.decode(value, type=tuple[str, ...])

    def write(self, text: str, parameters: Parameters = ()) -> Change:
        return Change(text, parameters)

    def write_each(self, text: str, seqs: Sequence[int], now_us: int | None = None) -> ChangeMany:
        if now_us is None:
            return ChangeMany(text, [(seq,) for seq in seqs])
        return ChangeMany(text, [{"seq": seq, "now": now_us} for seq in seqs])

    def write_rows(self, text: str, rows: Sequence[Mapping[str, Any]]) -> ChangeMany:
        return ChangeMany(text, rows)

    # ------------------------------------------------------------------------------------- rows

    def extra_columns(self, job: NewJob) -> dict[str, Any]:
        return {"extra": extra_of(job)}

    def line_name(self, words: str) -> str:
        return words

    def take_places(self, count: int) -> Steps[Sequence[int]]:
        if count == 0:
            return ()
        [(last,)] = yield Rows(sql("next_places"), (count,))
        return range(last - count + 1, last + 1)

    def numbers_for(
        self, jobs: Sequence[NewJob], queues: Mapping[str, QueueRow]
    ) -> Steps[Sequence[int]]:
        yield from ()
        last = max([row.last for row in queues.values()])
        return range(last + 1, last + 1 + len(jobs))

    def index_rare(self, jobs: Sequence[NewJob], seqs: Sequence[int]) -> Steps[None]:
        del seqs  # found by their ids
        return submitting.index_rare(jobs)

    def remove(self, seqs: Sequence[int]) -> Steps[int]:
        chosen = (json_text(list(seqs)),)
        for table in ("attempts", "tags", "interests", "keys", "stash"):
            yield Change(self.sql("remove", table=table), chosen)
        removed: int = yield Change(self.sql("remove", table="jobs"), chosen)
        return removed

    def oldest_ready(self, queues: Collection[str]) -> Steps[dict[str, dict[int, int]]]:
        asked = {
            "queues": json_text(list(queues)),
            "levels": json_text([int(priority) for priority in Priority]),
            "passes": PASSES,
            "aged": AGED,
            "window": _OLDEST_WINDOW,
        }
        rows = yield Rows(sql("oldest_ready"), asked)
        oldest: dict[str, dict[int, int]] = {}
        for queue, level, *dates in rows:  # among those ranked by priority, and by age
            known = [since_us for since_us in dates if since_us is not None]
            if known:
                oldest.setdefault(queue, {})[level] = min(known)
        return oldest

    # ------------------------------------------------------------------------------------ moves

    def promote(self, jobs: Sequence[Promoted], now_us: int) -> ChangeMany:
        rows = [
            {
                "seq": one.seq,
                "lane": Lane.SUSPECT if one.suspect else Lane.READY,
                "rank": one.rank,
                "place": one.place,
                "now": now_us,
            }
            for one in jobs
        ]
        return ChangeMany(sql("promote"), rows)

    def shut_until(self, gate: str, task: str, until_us: int) -> Steps[None]:
        del task  # the gate names it
        yield Change(sql("shut_until"), (gate, until_us))

    # ------------------------------------------------------------------------------------- ends

    def needs(self) -> Steps[Needs]:
        [row] = yield Rows(sql("aftermath_needed"))
        return Needs(*row)

    def over(self, column: Column, values: Sequence[int | str]) -> Rows:
        return Rows(self.sql("aftermath", column=column), (json_text(list(values)),))

    def advance_after(self, column: Column, values: Sequence[int | str]) -> Steps[None]:
        """In one statement, however many."""
        given = {**ORDER_LINE, "values": json_text(list(values))}
        rows = yield Rows(self.sql("order_advance_after", column=column), given)
        yield from wake_queues(rows)

    def holding(self, gates: Sequence[str], tasks: Sequence[str]) -> Steps[list[tuple[str]]]:
        del tasks  # whoever cares for them stands under a gate
        rows: list[tuple[str]] = yield Rows(sql("gates_holding"), (json_text(gates),))
        return rows

    def wake_waiters(self, column: Column, values: Sequence[int | str]) -> Steps[None]:
        del column, values  # those who are waited for are written down
        ended = yield Rows(sql("interests_ended"))
        for (job_id,) in ended:
            if job_id is not None:
                yield Wake(f"job:{job_id}")

    # ------------------------------------------------------------------------------- neighbours

    def lock_all(self) -> Steps[None]:
        return nothing()

    def go_alone(self) -> Steps[Level]:
        yield from ()
        return ONE_WRITER

    def judges(self, settings: QueueSettings) -> bool:
        judged = (settings.max_depth, settings.ageing_us, settings.tenant_rate)
        return any(setting is not None for setting in judged)

    def settings_changed(self, task: str | None = None) -> Steps[None]:
        del task
        return nothing()


ONE_WRITER: Final[Level] = _OneWriter()
SQLITE: Final[Dialect] = _Sqlite()
