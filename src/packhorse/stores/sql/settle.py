# SPDX-License-Identifier: MIT
"""Settle: completions in one statement, everything else row by row through `lifecycle.resolve`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, Final, NamedTuple

from packhorse.core.job import TERMINAL, JobStatus
from packhorse.core.lifecycle import Resolved, attempt_status, resolve
from packhorse.core.policies.gates import Gate, GateKind, holds_line, keyed_name
from packhorse.core.policies.lease import is_lost
from packhorse.core.policies.retention import lifetimes
from packhorse.core.policies.uniqueness import at_least_us, record_until_us, result_until_us
from packhorse.core.settlement import Settlement, SettlementKind, Verdict, signalled
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.sql.attachments import delivered_to, keep_counted, wait_for_signal
from packhorse.stores.sql.dialect import Dialect, Needs, PlanLocks, read_queues
from packhorse.stores.sql.finish import aftermath
from packhorse.stores.sql.keys import leave_ready
from packhorse.stores.sql.lines import gate_text
from packhorse.stores.sql.ranks import Newcomer, rank_of
from packhorse.stores.sql.rows import (
    CODE,
    HISTORY_EACH_END,
    STATUS,
    Lane,
    encode_error,
    queue_settings,
    read_extra,
    settled_mark,
)
from packhorse.stores.sql.statements import NOW, Rows, Send, SendMany

#: Only callers can wait for the end of unconstrained jobs.
_WAITERS: Final = Needs(awaited=True)
_COMPLETED: Final = SettlementKind.COMPLETED


class _Held(NamedTuple):
    """A job about to be settled: a row of `settle_rows`."""

    id: str
    seq: int
    status: int
    fence: int
    settled: int
    cancel_requested: bool
    deadline_us: int | None
    queue: str
    priority: int
    rank: int
    place: int
    due_us: int
    ready_us: int | None
    suspect: bool
    attempts: int
    started_us: int | None
    worker: str | None
    hold_us: int | None
    lease_expires_us: int | None
    dead_letter: str | None
    error: str | None
    tenant: str
    task: str
    rate_key: str | None
    created_us: int
    extra: str | None
    settings: str | None


def settle_in_order(
    dialect: Dialect,
    settlements: Sequence[Settlement],
    locks: PlanLocks,
    *,
    stashed: bool | None = None,
) -> Steps[tuple[Verdict, ...]]:
    """Settle together, unless a settlement may affect the next one.

    It may if jobs are `stashed` until one of these ends, or if one of them takes a new place.
    """
    needs: Needs | None = None
    if stashed is None:
        [row] = yield Rows(dialect.sql("aftermath_needed"))
        needs = Needs(*row)
        stashed = needs.stashed
    if len(settlements) == 1 or not (stashed or any(map(_takes_a_place, settlements))):
        verdict: tuple[Verdict, ...] = yield from _settle_all(dialect, settlements, locks, needs)
        return verdict
    verdicts: list[Verdict] = []
    for one in settlements:
        verdicts += yield from _settle_all(dialect, [one], locks, None)
    return tuple(verdicts)


def _takes_a_place(one: Settlement) -> bool:
    at_once = one.delay_us == 0 or one.waits is not None
    return one.status is JobStatus.PENDING and at_once and not one.keep_place


def _settle_all(
    dialect: Dialect, settlements: Sequence[Settlement], locks: PlanLocks, needs: Needs | None
) -> Steps[tuple[Verdict, ...]]:
    now_us: int = yield NOW
    # Completions without counts share one statement; nearly always that is all of them.
    plain = [one.kind is _COMPLETED and one.counted is None for one in settlements]
    completed = list(compress(settlements, plain))
    others = [one for one, goes in zip(settlements, plain, strict=True) if not goes]
    if len({one.job_id for one in settlements}) < len(settlements):
        others = list(settlements)  # a job that comes twice is settled in order
    elif completed:
        applied = yield from dialect.complete(completed, now_us)
        if applied < len(completed):  # some are stale, cancelled or repeated: look at each
            others = list(settlements)
    each = (yield from settle_each(dialect, others, now_us)) if others else []
    needs = _WAITERS if locks.unconstrained else needs
    ids = [one.job_id for one in settlements]
    if needs is None or any(needs):
        yield from aftermath(dialect, "id", ids, stashed=locks.alone, needs=needs)
    if len(others) == len(settlements):
        return tuple(each)
    if not others:
        return (Verdict.APPLIED,) * len(settlements)
    verdicts = iter(each)
    return tuple([Verdict.APPLIED if goes else next(verdicts) for goes in plain])


def settle_each(
    dialect: Dialect,
    settlements: Sequence[Settlement],
    now_us: int,
    *,
    by_owner: bool = True,
) -> Steps[list[Verdict]]:
    """Settle one by one through `lifecycle.resolve`; unless `by_owner`, keep the settled mark."""
    ids = dialect.many([one.job_id for one in settlements])
    rows = yield Rows(dialect.sql("settle_rows"), (ids,))
    held = {row[0]: _Held(*row) for row in rows}
    if any(one.keep_place for one in settlements):
        yield from dialect.back_in_place()
    verdicts: list[Verdict] = []
    changes: list[dict[str, Any]] = []
    for one in settlements:
        job = held.get(one.job_id)
        if job is None or not _applies(one, job, now_us):
            verdict = yield from _unapplied(one, job)
            verdicts.append(verdict)
            continue
        signals = 0 if one.waits is None else (yield from delivered_to(dialect, job.seq))
        resolved = resolve(
            signalled(one, signals),
            cancel_requested=bool(job.cancel_requested),
            deadline_us=job.deadline_us,
            now_us=now_us,
        )
        verdicts.append(resolved.verdict)
        if one.waits is not None and resolved.status not in TERMINAL:
            yield from wait_for_signal(dialect, job.seq, one)
        if one.counted is not None and resolved.status in TERMINAL:
            yield from keep_counted(dialect, job.seq, one.counted)
        change = yield from _change(dialect, one, job, resolved, now_us)
        if one.kind is SettlementKind.LIMITED:
            gate = gate_text(Gate(GateKind.TASK_RATE, keyed_name(job.task, job.rate_key)))
            yield from dialect.shut_until(gate, job.task, now_us + one.limit_us)
        if not by_owner:
            change["settled"] = job.settled
        changes.append(change)
        held[one.job_id] = job._replace(  # the same job may come twice in one call
            status=change["status"], settled=change["settled"]
        )
    yield from _write(dialect, changes)
    for topic in _topics(changes):
        yield Wake(topic)
    return verdicts


def _applies(one: Settlement, job: _Held, now_us: int) -> bool:
    if STATUS[job.status] is not JobStatus.PROCESSING or job.fence != one.fence:
        return False
    if one.kind is not SettlementKind.RESCUED:
        return True
    return is_lost(job.lease_expires_us, job.hold_us, now_us)


def _unapplied(one: Settlement, job: _Held | None) -> Steps[Verdict]:
    """Return applied for a repeated settlement, stale for any other."""
    if job is None:
        return Verdict.STALE
    yield from leave_ready(job.queue, job.status)
    rescued = one.kind is SettlementKind.RESCUED
    repeated = not rescued and job.settled == settled_mark(one.fence, one.kind)
    return Verdict.APPLIED if repeated else Verdict.STALE


def _change(
    dialect: Dialect, one: Settlement, job: _Held, resolved: Resolved, now_us: int
) -> Steps[dict[str, Any]]:
    status = resolved.status
    completed = status is JobStatus.COMPLETED
    rescued = one.kind is SettlementKind.RESCUED
    attempt_outcome, will_retry = attempt_status(one, resolved)
    proves_nothing = not one.ended or one.kind is SettlementKind.RELEASED
    kept = rescued or proves_nothing
    suspect = (rescued and one.suspect) or (kept and bool(job.suspect))
    standing = yield from _standing(dialect, one, job, resolved, now_us, suspect=suspect)
    return {
        "seq": job.seq,
        "id": job.id,
        "queue": job.queue,
        "status": CODE[status],
        "settled": job.settled if rescued else settled_mark(one.fence, one.kind),
        "suspect": suspect,
        "attempts": int(one.ended),
        "failures": one.failures,
        "crashes": one.crashes,
        "lone_crashes": one.lone_crashes,
        "snoozes": one.snoozes,
        "releases": one.releases,
        "error": encode_error(one.error),
        "shown_error": None if completed else encode_error(one.error) or job.error,
        "result": one.result if completed else None,
        "dead_reason": resolved.dead_reason,
        "dead_letter": job.dead_letter if status is JobStatus.DEAD else None,
        "now": now_us,
        "ended": one.ended,
        "attempt": job.attempts + 1,
        "attempt_status": CODE[attempt_outcome],
        "will_retry": will_retry,
        "started_us": job.started_us or 0,
        "worker": job.worker or "",
        "holds_line": _holds_line(job, status),
        **standing,
        **_ending(one, job, status, now_us),
    }


def _standing(
    dialect: Dialect,
    one: Settlement,
    job: _Held,
    resolved: Resolved,
    now_us: int,
    *,
    suspect: bool,
) -> Steps[dict[str, Any]]:
    """Return the lane, rank, place and times that the job gets."""
    status = resolved.status
    if status is JobStatus.DEAD:
        return _stand(job, Lane.DEAD, rank=job.seq, place=0)
    if status in TERMINAL:
        return _stand(job, None)
    if status is JobStatus.QUEUED:
        lane = Lane.SUSPECT if suspect else Lane.READY
        if one.keep_place:
            return _stand(job, lane, due_us=resolved.due_us)
        [place] = yield from dialect.take_places(1)
        queues = yield from read_queues(dialect, [job.queue])
        newcomer = Newcomer(job.queue, job.priority, job.tenant)
        rank = yield from rank_of(dialect, newcomer, queues, now_us)
        due_us = resolved.due_us
        return _stand(job, lane, rank=rank, place=place, due_us=due_us, ready_us=now_us)
    kept = {"kept_rank": job.rank, "kept_place": job.place} if one.keep_place else {}
    due_us = resolved.due_us
    return _stand(job, Lane.WAITING, rank=due_us, place=job.seq, due_us=due_us, **kept)


def _stand(job: _Held, lane: Lane | None, **changed: int) -> dict[str, Any]:
    """Return the columns of a job's place; those not `changed` keep their values."""
    before = {"rank": job.rank, "place": job.place, "due_us": job.due_us, "ready_us": job.ready_us}
    return {
        "lane": None if lane is None else int(lane),
        "kept_rank": None,
        "kept_place": None,
        **before,
        **changed,
    }


def _holds_line(job: _Held, status: JobStatus) -> bool:
    settings = queue_settings(job.queue, job.settings)
    return holds_line(status, dead_holds=settings.on_dead == "hold")


def _ending(one: Settlement, job: _Held, status: JobStatus, now_us: int) -> dict[str, Any]:
    """Return the lifetimes of a job that ends; null for one that goes on."""
    if status not in TERMINAL:
        return dict.fromkeys(("finished_us", "expires_us", "record_until_us", "result_until_us"))
    keep_us = one.dead_keep_us if status is JobStatus.DEAD else one.keep_us
    if status is not JobStatus.COMPLETED:
        return {"finished_us": now_us, **lifetimes(now_us, keep_us)}
    # A completed job may still answer for its keys, so it is kept as long as it holds them.
    extra, since = read_extra(job.extra), job.created_us
    until_us = record_until_us(extra.unique, extra.idempotency, created_us=since)
    keep_us = at_least_us(keep_us, until_us, finished_us=now_us)
    until_us = result_until_us(extra.idempotency, created_us=since)
    result_keep_us = at_least_us(one.result_keep_us, until_us, finished_us=now_us)
    return {"finished_us": now_us, **lifetimes(now_us, keep_us, result_keep_us)}


def _write(dialect: Dialect, changes: Sequence[dict[str, Any]]) -> Steps[None]:
    if not changes:
        return
    yield SendMany(dialect.sql("settle_one"), changes)
    completed = CODE[JobStatus.COMPLETED]
    others = [one for one in changes if one["status"] != completed]
    if others:  # only now, which spares completed jobs a write of their row
        seqs = dialect.many([one["seq"] for one in others])
        yield Send(dialect.sql("attached_mark"), (seqs,))
    lines = [one for one in others if one["ended"]]
    if lines:
        yield SendMany(dialect.sql("attempt_add"), lines)
    long = [
        {"seq": one["seq"], "attempt": one["attempt"], "kept": HISTORY_EACH_END}
        for one in lines
        if one["attempt"] > 2 * HISTORY_EACH_END
    ]
    if long:
        yield SendMany(dialect.sql("attempts_trim"), long)


def _topics(changes: Iterable[dict[str, Any]]) -> list[str]:
    """Return the topics of queues in which a job became ready or due."""
    terminal = {CODE[status] for status in TERMINAL}
    return [f"queue:{one['queue']}" for one in changes if one["status"] not in terminal]
