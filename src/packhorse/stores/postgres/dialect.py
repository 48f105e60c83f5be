# SPDX-License-Identifier: MIT
"""Implement the SQL dialect for PostgreSQL: arrays, few round trips, and locks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from packhorse.core.job import Job, JobStatus, NewJob, Priority
from packhorse.core.policies.attachments import Attaching
from packhorse.core.settlement import Settlement
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.postgres.fast_paths import (
    HANDED_COLUMNS,
    attaching,
    completions,
    extra_of,
    options_of,
)
from packhorse.stores.postgres.floors import FLOOR_TOPIC
from packhorse.stores.postgres.locking import ALL, LockLevel, write_constrained
from packhorse.stores.postgres.statements import Again, Commit, Lock, queries, sql
from packhorse.stores.requests import ClaimRequest
from packhorse.stores.sql.claim import BEGINNING, merged, merged_tasks
from packhorse.stores.sql.dialect import (
    COLUMN_TYPES,
    AttachedRow,
    Column,
    Dialect,
    HeldJob,
    Neighbours,
    no_steps,
    scope,
)
from packhorse.stores.sql.lines import wake_queues
from packhorse.stores.sql.new_jobs import due_us_of, is_keyed
from packhorse.stores.sql.rows import (
    AGED,
    CODE,
    COUNTED_MIN,
    RANK_PER_PRIORITY,
    STATUS_OF,
    QueueRow,
    json_text,
    payload_text,
    trace_of,
)
from packhorse.stores.sql.statements import Rows, Send, Together

#: The row of a candidate, and its place in the order of claiming.
_PLACED: Final = "ctid as row, rank, place"
#: Number of columns before those of `Job`.
_STANDING: Final = 2
#: Columns that hold a field of `NewJob` as it is.
_UNCHANGED: Final = (
    *("id", "task", "queue", "timeout_us", "deadline_us", "tenant"),
    *("upstream_request_id", "created_by"),
)
#: Length of the name of a line, which is a digest.
_LINE_DIGITS: Final = 32
#: Ready jobs of a queue and priority that a bounded search for the oldest one reads.
_OLDEST_SOME: Final = 500


class _Postgres(Neighbours):
    """See `Dialect`."""

    beside_jobs = tuple(
        (table, "seq") for table in ("attempts", "tags", "keys", "stash", "attachments")
    )
    queries = queries
    sql = staticmethod(sql)

    # ------------------------------------------------------------------------------- statements

    def many(self, values: Iterable[Any]) -> list[Any]:
        return list(values)

    def listed(self, value: Sequence[str]) -> tuple[str, ...]:
        return tuple(value)

    def write_rows(self, text: str, rows: Sequence[Mapping[str, Any]]) -> Send:
        return Send(text, (json_text(rows),))

    def keep_attached(self, rows: Sequence[AttachedRow]) -> Steps[None]:
        yield Send(sql("attach_rows"), tuple(zip(*rows, strict=True)))

    def keep_held(self, kept: Sequence[Attaching]) -> Steps[list[HeldJob]]:
        held: list[HeldJob] = yield Rows(sql("attach", answer="id, seq, number"), attaching(kept))
        return held

    # ------------------------------------------------------------------------------------- rows

    def take_places(self, count: int) -> Steps[list[int]]:
        """Take `count` numbers behind all that were ever given out, as sequence or as place."""
        if count == 0:
            return []
        rows = yield Rows(sql("numbers"), (count,))
        return [number for (number,) in rows]

    def insert_rows(
        self,
        jobs: Sequence[NewJob],
        seqs: Sequence[int],
        where: Sequence[tuple[int, int, int]],
        now_us: int,
    ) -> Steps[int]:
        """Add jobs whose ids were new when that was asked. A job's number is also its place."""
        places = zip(("status", "lane", "rank"), zip(*where, strict=True), strict=True)
        columns: dict[str, Any] = {
            **{name: [getattr(job, name) for job in jobs] for name in _UNCHANGED},
            **{name: list(values) for name, values in places},
            "seq": list(seqs),
            "priority": [int(job.priority) for job in jobs],
            "due_us": [due_us_of(job, now_us) for job in jobs],
            "trace_id": [trace_of(job) for job in jobs],
            "options": [options_of(job) for job in jobs],
            "extra": [extra_of(job) for job in jobs],
            "keyed": [is_keyed(job) for job in jobs],
            "payload": [payload_text(job) for job in jobs],
        }
        rows = yield Rows(sql("submit_rows"), {**columns, "now": now_us})
        if len(rows) < len(jobs):
            raise Again("a job of the same id was stored meanwhile, in another queue")
        return len(rows)

    def keep_bodies(self, jobs: Sequence[NewJob]) -> Steps[None]:
        del jobs
        return no_steps()  # PostgreSQL itself keeps large values beside the row

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
        return self.take_places(len(jobs))

    def counted(self) -> Steps[list[tuple[str, int, int]]]:
        rows: list[tuple[str, int, int]] = yield Rows(sql("counts"))
        return rows

    def counted_some(self, most: int) -> Steps[list[tuple[str, int, int, bool]]]:
        stands = yield Rows(sql("counts_some"), {"most": most, "least": COUNTED_MIN})
        found = [
            (queue, STATUS_OF[lane] if status is None else status, number, more)
            for lane, queue, status, number, more in stands
        ]
        newest = yield Rows(sql("counts_newest"), {"most": most})
        more = sum(number for *_, number in newest) >= most
        # Dead jobs have a lane, and were counted with it.
        found += [(*row, more) for row in newest if row[1] != CODE[JobStatus.DEAD]]
        oldest = yield Rows(sql("counts_lasting"), {"most": most})
        more = sum(number for _, _, number, _ in oldest) >= most
        return found + [(*row, more) for *row, lasting in oldest if lasting]

    def oldest_ready(
        self, queues: Collection[str], most: int | None = None
    ) -> Steps[dict[str, dict[int, int]]]:
        if most is None:
            rows = yield Rows(sql("oldest_ready"))
        else:
            # By priority, and by age beyond all of them.
            lows = [*(int(priority) * RANK_PER_PRIORITY for priority in Priority), AGED]
            highs = [*(low + RANK_PER_PRIORITY for low in lows[:-1]), 2**63 - 1]
            asked = {"queues": list(queues), "lows": lows, "highs": highs, "most": _OLDEST_SOME}
            rows = yield Rows(sql("oldest_some"), asked)
        oldest: dict[str, dict[int, int]] = {}
        for queue, priority, ready_us in rows:
            oldest.setdefault(queue, {})[priority] = ready_us
        return oldest

    # ------------------------------------------------------------------------------------ moves

    def back_in_place(self) -> Steps[None]:
        yield Wake(FLOOR_TOPIC)

    def take(self, request: ClaimRequest, chosen: Mapping[str, Any]) -> Steps[list[Job]]:
        """Claim the next jobs of a queue without asking limits."""
        tasks = merged_tasks(request, chosen["lane"])
        if tasks:
            merging = merged(queries, "claim_ready_of_task", len(tasks), _PLACED)
            lock = queries.filled("claim_lock")
            following = queries.filled("claim_next_of_tasks", next=merging, lock=lock)
        else:
            following = queries.filled("claim_next", columns="ctid as row", scope=scope(request))
            following = queries.filled("claim_next_locked", next=following)
        text = sql("claim_batch", handed_columns=HANDED_COLUMNS, next=following)
        rows = yield Rows(text, {**BEGINNING, **chosen, **tasks, "window": None})
        return [Job(*row[_STANDING:]) for row in rows]

    def hand_over(self, seqs: Sequence[int], chosen: Mapping[str, Any]) -> Steps[list[Job]]:
        """Claim these jobs, in this order."""
        text = sql(
            "claim_batch", handed_columns=HANDED_COLUMNS, next=queries.filled("claim_chosen")
        )
        rows = yield Rows(text, {**chosen, "seqs": list(seqs)})
        return [Job(*row[_STANDING:]) for row in rows]

    def complete(self, completed: Sequence[Settlement], now_us: int) -> Steps[int]:
        """Complete jobs, one statement for each pair of lifetimes: nearly always one."""
        del now_us  # the statement reads the clock
        groups: dict[tuple[int | None, int | None], list[Settlement]] = {}
        for one in completed:
            groups.setdefault((one.keep_us, one.result_keep_us), []).append(one)
        applied = 0
        for group in groups.values():
            [(count, *_)] = yield Rows(sql("settle_completed"), completions(group, locked=None))
            applied += count
        return applied

    def shut_until(self, gate: str, task: str, until_us: int) -> Steps[None]:
        yield Send(sql("shut_until"), (gate, task, until_us))
        yield from self.settings_changed(task)

    # ------------------------------------------------------------------------------------- ends

    def holding(self, gates: Sequence[str], tasks: Sequence[str]) -> Steps[list[tuple[str]]]:
        asked = (
            Rows(sql("gates_holding"), (list(gates),)),
            Rows(sql("tasked_ready"), (list(tasks),)),
        )
        holding, others = yield Together(asked)
        yield from wake_queues(others)
        found: list[tuple[str]] = holding
        return found

    def wake_waiters(self, column: Column, values: Sequence[int | str]) -> Steps[None]:
        text = sql("awaited_ended", column=column, type=COLUMN_TYPES[column])
        ended = yield Rows(text, {"values": list(values)})
        for (job_id,) in ended:
            yield Wake(f"job:{job_id}")

    # ------------------------------------------------------------------------------- neighbours

    def lock_all(self) -> Steps[None]:
        yield Lock(ALL)

    def outlast_claims(self) -> Steps[None]:
        # `claim_fast` reads its lease as it was before it waited for our lock, which it gets when
        # we commit. To get it once more is to wait for its end.
        yield Commit()
        yield Lock(ALL)

    def go_alone(self) -> Steps[LockLevel]:
        locks = LockLevel(alone=True)
        yield from locks.enter()
        return locks

    def lock_records(self, names: Sequence[str]) -> Steps[None]:
        yield Lock(*[f"record:{name}" for name in names])

    def settings_changed(self, task: str | None = None) -> Steps[None]:
        if task is not None:
            yield Send(sql("lines_begin"), (task,))
        yield from write_constrained()


POSTGRES: Final[Dialect] = _Postgres()
