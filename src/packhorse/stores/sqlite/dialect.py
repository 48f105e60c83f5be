# SPDX-License-Identifier: MIT
"""The dialect of SQLite. It has one writer, so plans need no locks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

import msgspec

from packhorse.core.job import Job, JobStatus, NewJob, Priority
from packhorse.core.policies.attachments import Attaching
from packhorse.core.settlement import Settlement
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import ClaimRequest
from packhorse.stores.sql.claim import BEGINNING, candidates
from packhorse.stores.sql.dialect import (
    AttachedRow,
    Column,
    Dialect,
    HeldJob,
    Neighbours,
    PlanLocks,
)
from packhorse.stores.sql.new_jobs import due_us_of
from packhorse.stores.sql.rows import (
    AGED,
    CODE,
    COUNTED_MIN,
    RANK_PER_PRIORITY,
    STATUS_OF,
    Extra,
    QueueRow,
    json_text,
    payload_text,
    trace_of,
)
from packhorse.stores.sql.statements import NOW, Change, Rows, SendMany, Together
from packhorse.stores.sqlite.statements import queries, sql

_jobs: Final = msgspec.json.Decoder(list[Job])
_numbers: Final = msgspec.json.Decoder(list[int])
#: Rows of one statement: this many, or a half, a quarter ... of it, to have few statement texts.
_ROWS_MAX: Final = 64
_held: Final = msgspec.json.Decoder(list[tuple[str, int, int]])


def _many(values: Collection[Any]) -> str:
    """Return values as one parameter, which statements read with `json_each`."""
    return msgspec.json.encode(values).decode()


def _take_jobs(request: ClaimRequest, chosen: Mapping[str, Any]) -> Steps[list[Job]]:
    """Hand over the next jobs of a queue without checking gates."""
    following = candidates(queries, request, {**BEGINNING, **chosen}, "seq, rank, place")
    text = sql("claim_numbers", next=following.text)
    [(seqs,)] = yield Rows(text, following.parameters)
    return [] if seqs == "[]" else (yield from _handed(seqs, chosen))


def _hand_over_jobs(seqs: Sequence[int], chosen: Mapping[str, Any]) -> Steps[list[Job]]:
    """Hand over these jobs, in this order."""
    return _handed(_many(list(seqs)), chosen)


def _handed(seqs: str, chosen: Mapping[str, Any]) -> Steps[list[Job]]:
    """Make these jobs the worker's, and give them their large payloads, which are not in rows."""
    [(found,)] = yield Rows(sql("claim_chosen"), {"seqs": seqs})
    yield Change(sql("claim"), {**chosen, "seqs": seqs})
    jobs = _jobs.decode(found)
    if "" not in [job.payload for job in jobs]:
        return jobs
    bodies = dict((yield Rows(sql("claim_bodies"), {"seqs": seqs})))
    return [
        job if job.payload else msgspec.structs.replace(job, payload=bodies[seq])
        for job, seq in zip(jobs, _numbers.decode(seqs), strict=True)
    ]


#: A longer result has a statement of its own.
_RESULT_LARGE: Final = 2_000
_OF_BATCH: Final = "json_each(:results)"
_OF_ONE: Final = "(select :id as key, :result as value)"


def _complete_jobs(completed: Sequence[Settlement], now_us: int) -> Steps[int]:
    """Complete these jobs; return how many were still held as the settlements say.

    One statement serves all of the same fence and lifetimes, nearly always all there are.
    """
    groups: dict[tuple[int, int | None, int | None], dict[str, str | None]] = {}
    for one in completed:
        group = groups.setdefault((one.fence, one.keep_us, one.result_keep_us), {})
        group[one.job_id] = one.result
    applied = 0
    for (fence, keep_us, result_keep_us), results in groups.items():
        kept = {"fence": fence, "now": now_us, "keep_us": keep_us, "results_us": result_keep_us}
        large = [key for key, result in results.items() if result and len(result) > _RESULT_LARGE]
        for key in large:
            alone = {"id": key, "result": results.pop(key), **kept}
            applied += yield Change(sql("settle_completed", done=_OF_ONE), alone)
        given = {"results": _many(results), **kept}
        applied += yield Change(sql("settle_completed", done=_OF_BATCH), given)
    return applied


#: SQLite groups by sorting, in memory that grows with the rows. So unfinished and dead jobs are
#: counted lane by lane, and other finished jobs in pages of this many index entries: about three
#: megabytes.
_PAGE: Final = 50_000
#: Below every index entry of a job that expires.
_FIRST: Final = (-1, "", -1, -1)


def _counted_jobs() -> Steps[list[tuple[str, int, int]]]:
    """Return queue, status and number of jobs, where there are any."""
    found: Counter[tuple[str, int]] = Counter()
    kept: list[tuple[str, int, int]] = yield Rows(sql("counts_kept"))
    behind: tuple[Any, ...] | None = _FIRST
    while behind is not None:
        names = ("expires_us", "queue", "status", "seq")
        asked = {**dict(zip(names, behind, strict=True)), "size": _PAGE}
        kept += yield Rows(sql("counts_page"), asked)
        ends = yield Rows(sql("counts_page_end"), asked)
        behind = ends[0] if ends else None
    counted = yield from _counted_lanes(None)
    for queue, status, number in _not_dead(kept) + [row[:3] for row in counted]:
        found[queue, status] += number
    return [(queue, status, number) for (queue, status), number in found.items()]


def _counted_some(most: int) -> Steps[list[tuple[str, int, int, bool]]]:
    found = yield from _counted_lanes(most)
    for name in ("counts_newest", "counts_lasting"):
        rows = yield Rows(sql(name), {"most": most})
        more = sum(number for _, _, number in rows) >= most
        found += [(*row, more) for row in _not_dead(rows)]
    return found


def _counted_lanes(most: int | None) -> Steps[list[tuple[str, int, int, bool]]]:
    """Count unfinished and dead jobs; with `most`, so many of a lane of a queue at most."""
    found: list[tuple[str, int, int, bool]] = []
    stands = yield Rows(sql("counts_stands"))
    each = -1  # no limit
    if most is not None:
        each = min(most, max(COUNTED_MIN, 5 * most // max(1, len(stands))))
    for lane, queue in stands:
        asked = {"lane": lane, "queue": queue, "most": each}
        [(total, failed, timeout)] = yield Rows(sql("counts_stand"), asked)
        later = {CODE[JobStatus.FAILED]: failed, CODE[JobStatus.TIMEOUT]: timeout}
        first = STATUS_OF.get(lane, CODE[JobStatus.PENDING])
        numbers = {first: total - failed - timeout, **later}
        found += [(queue, one, number, total == each) for one, number in numbers.items() if number]
    return found


def _not_dead(rows: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Leave out dead jobs, which are counted in their lane."""
    return [row for row in rows if row[1] != CODE[JobStatus.DEAD]]


#: Ready jobs of a queue and priority among which the longest-waiting one is searched.
_OLDEST_WINDOW: Final = 10_000
#: The same for a bounded count.
_OLDEST_SOME: Final = 500


def extra_of(job: NewJob) -> str | None:
    """Return the column for rare fields; None for most jobs."""
    if not (
        job.tags
        or job.options
        or job.upstream_request_id
        or job.created_by
        or job.unique
        or job.idempotency
    ):
        return None
    wishes = (job.tags, job.options, job.upstream_request_id, job.created_by)
    return json_text(Extra(*wishes, job.unique, job.idempotency))


#: Characters of a payload that lies in its row; longer ones would be written again by each claim.
LARGE: Final = 2000
#: Rows in one insert: enough to spread the cost of a statement, below SQLite's parameter limit.
_INSERTED_MAX: Final = 50
_COLUMNS: Final = 19


def _insert_rows(
    jobs: Sequence[NewJob],
    seqs: Sequence[int],
    where: Sequence[tuple[int, int, int]],
    now_us: int,
) -> Steps[int]:
    """Insert the jobs whose id is new; return how many. `keep_bodies` adds large payloads."""
    apart = any(len(job.payload) > LARGE for job in jobs)
    if apart:
        [(apart,)] = yield Rows(sql("bodies_known"), (now_us,))
    rows = [
        (
            *(seq, job.id, job.task, job.queue, *stands, seq, job.priority, due_us_of(job, now_us)),
            *(now_us, now_us, now_us, job.timeout_us, job.deadline_us, job.tenant),
            *(trace_of(job), extra_of(job)),
            "" if apart and len(job.payload) > LARGE else payload_text(job),
        )
        for seq, job, stands in zip(seqs, jobs, where, strict=True)
    ]
    inserted = 0
    for start in range(0, len(rows), _INSERTED_MAX):
        chunk = rows[start : start + _INSERTED_MAX]
        inserted += yield Change(_insert(len(chunk)), tuple(chain.from_iterable(chunk)))
    return inserted


@cache
def _insert(rows: int) -> str:
    row = "(" + ", ".join("?" * _COLUMNS) + ")"
    return sql("submit", rows=", ".join([row] * rows))


def _keep_bodies(jobs: Sequence[NewJob]) -> Steps[None]:
    """Move the large payloads of jobs just stored beside their rows."""
    large = [job for job in jobs if len(job.payload) > LARGE]
    if large:  # the rows first: the pages they free are there for the bodies
        cut = {"ids": _many([job.id for job in large]), "size": LARGE, "now": (yield NOW)}
        yield Change(sql("payloads_cut"), cut)
        yield SendMany(sql("body_keep"), [(payload_text(job), job.id) for job in large])


class _OneWriter(PlanLocks):
    """A transaction that writes has the whole store for itself."""

    alone = True
    unconstrained = False
    gated_tasks = ()

    def enter(self, *asked: Rows, claims: Sequence[str] = ()) -> Steps[list[list[Any]]]:
        del claims
        found: list[list[Any]] = yield Together(asked)
        return found

    def allow(self, queues: Iterable[str]) -> None:
        pass

    def go_alone(self) -> None:
        pass


class _Sqlite(Neighbours):
    """See `Dialect`."""

    beside_jobs = (
        *((table, "seq") for table in ("attempts", "tags", "interests", "keys", "stash")),
        *(("attachments", "seq"), ("bodies", "job_seq")),
    )
    queries = queries
    sql = staticmethod(sql)
    many = staticmethod(_many)
    insert_rows = staticmethod(_insert_rows)
    keep_bodies = staticmethod(_keep_bodies)
    take = staticmethod(_take_jobs)
    hand_over = staticmethod(_hand_over_jobs)
    complete = staticmethod(_complete_jobs)
    counted = staticmethod(_counted_jobs)
    counted_some = staticmethod(_counted_some)

    # ------------------------------------------------------------------------------- statements

    def listed(self, value: str) -> tuple[str, ...]:
        return msgspec.json.decode(value, type=tuple[str, ...])

    def write_rows(self, text: str, rows: Sequence[Mapping[str, Any]]) -> SendMany:
        return SendMany(text, rows)

    def keep_attached(self, rows: Sequence[AttachedRow]) -> Steps[None]:
        """Write many rows per statement, which costs half as much."""
        left, most = list(rows), _ROWS_MAX
        while left:
            while most > len(left):
                most //= 2
            text = sql("attach_rows", kept=", ".join(["(?, ?, ?, ?)"] * most))
            yield Change(text, tuple(chain.from_iterable(left[:most])))
            del left[:most]

    def keep_held(self, kept: Sequence[Attaching]) -> Steps[list[HeldJob]]:
        fences = _many({one.job_id: one.fence for one in kept})
        [(found,)] = yield Rows(sql("attaching_held"), (fences,))
        values = {one.job_id: one.values for one in kept}
        held: list[HeldJob] = []
        rows: list[AttachedRow] = []
        for job_id, seq, number in _held.decode(found):
            own = values[job_id]
            held.append((job_id, seq, number + len(own)))
            rows += [(seq, name, 0, value) for name, value in own.items()]
        yield from self.keep_attached(rows)
        return held

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

    def oldest_ready(
        self, queues: Collection[str], most: int | None = None
    ) -> Steps[dict[str, dict[int, int]]]:
        asked = {
            "queues": _many(list(queues)),
            "levels": _many([int(priority) for priority in Priority]),
            "passes": RANK_PER_PRIORITY,
            "aged": AGED,
            "window": _OLDEST_WINDOW if most is None else _OLDEST_SOME,
        }
        rows = yield Rows(sql("oldest_ready"), asked)
        oldest: dict[str, dict[int, int]] = {}
        for queue, level, *dates in rows:  # of jobs ranked by priority, and by age
            known = [since_us for since_us in dates if since_us is not None]
            if known:
                oldest.setdefault(queue, {})[level] = min(known)
        return oldest

    # ------------------------------------------------------------------------------------ moves

    def shut_until(self, gate: str, task: str, until_us: int) -> Steps[None]:
        del task  # the name of the gate has it
        yield Change(sql("shut_until"), (gate, until_us))

    # ------------------------------------------------------------------------------------- ends

    def holding(self, gates: Sequence[str], tasks: Sequence[str]) -> Steps[list[tuple[str]]]:
        del tasks  # jobs that wait for them are blocked by a gate
        rows: list[tuple[str]] = yield Rows(sql("gates_holding"), (_many(gates),))
        return rows

    def wake_waiters(self, column: Column, values: Sequence[int | str]) -> Steps[None]:
        del column, values  # a table has the jobs that callers wait for
        ended = yield Rows(sql("interests_ended"))
        for (job_id,) in ended:
            if job_id is not None:
                yield Wake(f"job:{job_id}")

    # ------------------------------------------------------------------------------- neighbours

    def go_alone(self) -> Steps[PlanLocks]:
        yield from ()
        return ONE_WRITER


ONE_WRITER: Final[PlanLocks] = _OneWriter()
SQLITE: Final[Dialect] = _Sqlite()
