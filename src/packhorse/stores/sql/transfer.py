# SPDX-License-Identifier: MIT
"""Read and write jobs that are carried from one store to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from packhorse.core.job import AttemptRecord, JobRecord, JobStatus, NewJob
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.uniqueness import Identity
from packhorse.stores.plan import Plan, Steps, Wake, planned
from packhorse.stores.requests import TaskSettings
from packhorse.stores.sql.attachments import attachment_rows, read_attachments
from packhorse.stores.sql.dialect import Dialect, read_queues
from packhorse.stores.sql.keys import Holder, holder_of, take_keys
from packhorse.stores.sql.limit_state import count_bytes, task_settings
from packhorse.stores.sql.lines import join_lines, line_of, order_line_of
from packhorse.stores.sql.new_jobs import index_rare, known_jobs
from packhorse.stores.sql.rows import (
    AGED,
    CODE,
    RANK_PER_PRIORITY,
    RECORD_COLUMNS,
    RECORD_NAMES,
    Lane,
    QueueRow,
    both_ends,
    encode_error,
    json_text,
    payload_text,
    read_attempt,
    read_extra,
    read_record,
    trace_of,
)
from packhorse.stores.sql.search import CONDITIONS
from packhorse.stores.sql.statements import NOW, Rows, Send, SendMany
from packhorse.stores.transfer import (
    CarriedJob,
    CarriedPage,
    CarryAnswer,
    Copied,
    Standing,
    as_carried,
    cursor_of,
    deals_passes,
    highest_number,
    keys_of,
)

#: The columns of `carry_out` after those of a record.
_KEPT_NAMES: Final = (
    *("rank", "place", "kept_rank", "kept_place", "ready_us", "suspect", "expires_us"),
    *("order_line", "line_no", "took_unique", "took_idempotency", "stashed"),
)


class SqlTransfer:
    """See `TransferStore`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    @planned(writes=False)
    def copied(self) -> Steps[Copied | None]:
        rows = yield Rows(self._dialect.sql("copied"))
        return Copied(*rows[0]) if rows else None

    @planned()
    def mark(self, copied: Copied | None) -> Steps[None]:
        yield from self._dialect.lock_all()
        yield Send(self._dialect.sql("copied_forget"))
        if copied is not None:
            yield Send(self._dialect.sql("copied_keep"), (copied.to, copied.at_us))
        yield from self._dialect.settings_changed()

    def carry_out(self, *, after: str | None, limit: int) -> Plan[CarriedPage]:
        beyond, wanted = cursor_of(after), max(0, limit)

        def steps() -> Steps[CarriedPage]:
            now_us: int = yield NOW
            asked = {"after": beyond, "limit": wanted + 1, "now": now_us}
            rows = yield Rows(self._chosen("after"), asked)
            shown = rows[:wanted]
            jobs: tuple[CarriedJob, ...] = yield from _read(self._dialect, shown)
            more = len(rows) > wanted and bool(shown)
            return CarriedPage(jobs, after=str(shown[-1][0]) if more else None)

        return Plan("carry_out", steps, writes=False)

    @planned(writes=False)
    def carried(self, job_ids: Sequence[str]) -> Steps[tuple[CarriedJob, ...]]:
        ids = list(job_ids)
        now_us: int = yield NOW
        asked = {"ids": self._dialect.many(ids), "limit": len(ids), "now": now_us}
        rows = yield Rows(self._chosen("ids"), asked)
        jobs: tuple[CarriedJob, ...] = yield from _read(self._dialect, rows)
        return jobs

    def carry_in(self, jobs: Sequence[CarriedJob]) -> Plan[tuple[CarryAnswer, ...]]:
        given = tuple(jobs)
        return Plan("carry_in", lambda: carry_in_steps(self._dialect, given))

    @planned()
    def exchange(self, job_id: str, texts: Mapping[str, str]) -> Steps[bool]:
        pairs = [{"id": job_id, "old": old, "new": new} for old, new in texts.items()]
        dialect = self._dialect
        rows = yield Rows(dialect.sql("attaching_row"), (job_id,))
        if rows and pairs:
            yield SendMany(dialect.sql("exchange_payload"), pairs)
            yield SendMany(dialect.sql("exchange_job"), pairs)
            yield SendMany(dialect.sql("exchange_history"), pairs)
            yield SendMany(dialect.sql("exchange_attached"), pairs)
            yield Send(dialect.sql("bytes_again"), (job_id,))
        return bool(rows)

    def _chosen(self, condition: str) -> str:
        dialect = self._dialect
        return dialect.sql("carry_out", columns=RECORD_COLUMNS, condition=CONDITIONS[condition])


def _read(dialect: Dialect, rows: Sequence[Sequence[Any]]) -> Steps[tuple[CarriedJob, ...]]:
    now_us: int = yield NOW
    seqs = dialect.many([row[0] for row in rows])
    lines = yield Rows(dialect.sql("carry_history"), {"seqs": seqs})
    histories: dict[int, list[AttemptRecord]] = {}
    for seq, *line in lines:
        histories.setdefault(seq, []).append(read_attempt(line))
    records = {row[0]: read_record(row[: -len(_KEPT_NAMES)], now_us) for row in rows}
    jobs = {seq: (one.status, one.fence) for seq, one in records.items() if _may_have(one)}
    found: dict[int, Attachments] = yield from read_attachments(dialect, jobs)
    return tuple(
        [
            _carried(
                *(row, records[row[0]], histories.get(row[0], [])),
                found.get(row[0], Attachments()),
            )
            for row in rows
        ]
    )


def _may_have(record: JobRecord) -> bool:
    """Whether a job may have attachments, or wait for a signal."""
    options = record.options
    attached = options is not None and (options.attached or options.member is not None)
    return attached or (record.status is JobStatus.PENDING and record.fence > 0)


def _carried(
    row: Sequence[Any],
    record: JobRecord,
    lines: Sequence[AttemptRecord],
    attached: Attachments,
) -> CarriedJob:
    values = dict(zip(_KEPT_NAMES, row[-len(_KEPT_NAMES) :], strict=True))
    extra = read_extra(row[RECORD_NAMES.index("extra")])
    stashed = values["stashed"]
    return as_carried(
        record,
        *(extra.unique, extra.idempotency),
        standing=_standing(values, record.priority, queued=record.status is JobStatus.QUEUED),
        line_number=None if values["order_line"] is None else values["line_no"],
        took_unique=bool(values["took_unique"]),
        took_idempotency=bool(values["took_idempotency"]),
        suspect=bool(values["suspect"]),
        expires_us=values["expires_us"],
        history=both_ends(lines),
        stashed=None if stashed is None else msgspec.json.decode(stashed, type=NewJob),
        attached=attached,
    )


def _standing(values: dict[str, Any], priority: int, *, queued: bool) -> Standing | None:
    """Return the place of a ready job, or the place that a rescued job will take again."""
    rank, place = values["rank"], values["place"]
    if not queued:
        rank, place = values["kept_rank"], values["kept_place"]
    if place is None:
        return None
    if rank >= AGED:
        return Standing(place, values["ready_us"], aged=rank - AGED)
    return Standing(place, values["ready_us"], rank - priority * RANK_PER_PRIORITY)


#: Columns with the names of fields of `NewJob`, and of `CarriedJob`.
_AS_GIVEN: Final = (
    *("id", "task", "queue", "timeout_us", "deadline_us", "tenant", "ordering_key"),
    *("concurrency_key", "rate_key", "weight"),
)
_AS_CARRIED: Final = (
    *("due_us", "created_us", "updated_us", "fence", "suspect", "cancel_requested", "worker"),
    *("started_us", "finished_us", "expires_us", "dead_reason", "dead_letter"),
)


def carry_in_steps(dialect: Dialect, jobs: Sequence[CarriedJob]) -> Steps[tuple[CarryAnswer, ...]]:
    """Store all new jobs together; see `TransferStore.carry_in`."""
    locks = yield from dialect.go_alone()
    answers: tuple[CarryAnswer, ...] = yield from _decide(dialect, jobs)
    pairs = zip(jobs, answers, strict=True)
    chosen = [job for job, answer in pairs if answer is CarryAnswer.CARRIED]
    if not chosen:
        return answers
    queues = yield from read_queues(dialect, {one.job.queue: None for one in chosen})
    rows: list[dict[str, Any]] = yield from _rows(dialect, chosen, queues)
    names, given = ", ".join(rows[0]), ", ".join([f":{name}" for name in rows[0]])
    yield SendMany(dialect.sql("carry_in", names=names, given=given), rows)
    counted = [one.job.id for one in chosen if queues[one.job.queue].counts_bytes]
    yield from count_bytes(dialect, counted)
    yield Send(dialect.sql("carry_numbers"), (highest_number(chosen),))
    yield from _index(dialect, chosen, [row["seq"] for row in rows])
    for one in chosen:
        yield from take_keys(dialect, one.job.id, keys_of(one))
    yield from _pass_on_passes(dialect, chosen)
    lined = [bool(row["line"] or row["order_line"] or row["weight"] != 1) for row in rows]
    own = zip([one.job for one in chosen], lined, strict=True)
    yield from locks.mark_lined(own, queues)
    yield from dialect.settings_changed()
    ready = [row["seq"] for row in rows if row["lane"] == Lane.READY]
    if ready:
        yield from dialect.back_in_place()
    yield from join_lines(dialect, ready)
    lines = sorted({row["order_line"] for row in rows if row["order_line"] is not None})
    behind = dialect.sql("order_behind", chosen="order_line {in_texts ?}")
    yield Send(behind, (dialect.many(lines),))
    for queue in queues:
        yield Wake(f"queue:{queue}")
    return answers


def _decide(dialect: Dialect, jobs: Sequence[CarriedJob]) -> Steps[tuple[CarryAnswer, ...]]:
    known = set((yield from known_jobs(dialect, [one.job.id for one in jobs])))
    taken: set[tuple[str, Identity]] = set()
    answers = []
    for one in jobs:
        keys = keys_of(one)
        answer = CarryAnswer.CARRIED
        if one.job.id in known:
            answer = CarryAnswer.KNOWN
        elif not taken.isdisjoint(keys) or (yield from _held(dialect, keys)):
            answer = CarryAnswer.CONFLICT
        else:
            known.add(one.job.id)
            taken.update(keys)
        answers.append(answer)
    return tuple(answers)


def _held(dialect: Dialect, keys: Sequence[tuple[str, Identity]]) -> Steps[bool]:
    for kind, identity in keys:
        holder: Holder | None = yield from holder_of(dialect, kind, identity)
        if holder is not None:
            return True
    return False


def _rows(
    dialect: Dialect, jobs: Sequence[CarriedJob], queues: dict[str, QueueRow]
) -> Steps[list[dict[str, Any]]]:
    """Return the rows of jobs, with numbers above all that were used."""
    seqs = yield from dialect.take_places(len(jobs))
    names = {one.job.task: None for one in jobs}
    tasks: dict[str, TaskSettings] = yield from task_settings(dialect, names)
    rows = []
    for seq, one in zip(seqs, jobs, strict=True):
        line = line_of(dialect, one.job, queues[one.job.queue].settings, tasks.get(one.job.task))
        rows.append({**_row(one, seq, line), **dialect.extra_columns(one.job)})
    return rows


def _row(carried: CarriedJob, seq: int, line: str | None) -> dict[str, Any]:
    """Return the row of a carried job."""
    job = carried.job
    standing = carried.standing
    in_line = carried.line_number is not None
    return {
        "seq": seq,
        "status": CODE[carried.status],
        **_where(carried, seq),
        **msgspec.structs.asdict(carried.counters),
        **{name: getattr(job, name) for name in _AS_GIVEN},
        **{name: getattr(carried, name) for name in _AS_CARRIED},
        "record_until_us": carried.expires_us,
        "priority": int(job.priority),
        "ready_us": carried.created_us if standing is None else standing.ready_us,
        "trace_id": trace_of(job),
        "payload": payload_text(job),
        "error": encode_error(carried.error),
        "result": None if carried.result is None else carried.result.decode(),
        "progress": None if carried.progress is None else json_text(carried.progress),
        "line": None if carried.status.is_final else line,
        "order_line": order_line_of(job) if in_line else None,
        "line_no": carried.line_number,
    }


def _where(carried: CarriedJob, seq: int) -> dict[str, int | None]:
    """Return lane, rank and place of a carried job."""
    standing = carried.standing
    if carried.status is JobStatus.DEAD:
        return {"lane": Lane.DEAD, "rank": seq, "place": seq, "kept_rank": None, "kept_place": None}
    if carried.status.is_final:
        return {"lane": None, "rank": seq, "place": seq, "kept_rank": None, "kept_place": None}
    rank = None if standing is None else _rank(carried.job.priority, standing)
    place = None if standing is None else standing.place
    if carried.status is JobStatus.QUEUED:
        lane = Lane.SUSPECT if carried.suspect else Lane.READY
        return {"lane": lane, "rank": rank, "place": place, "kept_rank": None, "kept_place": None}
    waiting = {"lane": Lane.WAITING, "rank": carried.due_us, "place": seq}
    return {**waiting, "kept_rank": rank, "kept_place": place}


def _rank(priority: int, standing: Standing) -> int:
    if standing.aged is not None:
        return AGED + standing.aged
    return priority * RANK_PER_PRIORITY + standing.pass_number


def _index(dialect: Dialect, jobs: Sequence[CarriedJob], seqs: Sequence[int]) -> Steps[None]:
    """Write rare fields, histories, attachments and stashed jobs."""
    yield from index_rare(dialect, [one.job for one in jobs])
    lines = [
        {
            **msgspec.structs.asdict(line),
            "seq": seq,
            "attempt_status": CODE[line.status],
            "now": line.finished_us,
            "error": encode_error(line.error),
        }
        for one, seq in zip(jobs, seqs, strict=True)
        for line in one.history
        if one.status is not JobStatus.COMPLETED or line.attempt < one.counters.attempts
    ]
    if lines:
        yield SendMany(dialect.sql("attempt_add"), lines)
    for one, seq in zip(jobs, seqs, strict=True):
        kept = attachment_rows(seq, one.attached, one.fence)
        if kept:
            yield from dialect.keep_attached(kept)
        if one.stashed is not None:
            yield Send(dialect.sql("stash_keep"), (seq, json_text(one.stashed)))


def _pass_on_passes(dialect: Dialect, jobs: Sequence[CarriedJob]) -> Steps[None]:
    """Raise the last passes of tenants to those of the carried jobs."""
    dealing = [one for one in jobs if deals_passes(one)]
    for queue in dict.fromkeys(one.job.queue for one in dealing):
        yield Send(dialect.sql("queue_tenanted"), (queue,))
    passes = [
        {
            "queue": one.job.queue,
            "priority": int(one.job.priority),
            "tenant": one.job.tenant,
            "pass": one.standing.pass_number,
        }
        for one in dealing
        if one.standing is not None and one.standing.aged is None
    ]
    if passes:
        yield SendMany(dialect.sql("carry_passes"), passes)
