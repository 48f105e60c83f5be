# SPDX-License-Identifier: MIT
"""Jobs that wait behind others: lines of order, and jobs that a limit has blocked.

A ready job that a limit blocks is taken out of the ready lane and written down under that limit, so
that no claim scans past it. Jobs that share all their limits form a line: when one of them is
blocked, so is the rest of its line, and so are those that join it later. When a limit has room
again, the first of those under it are released, as many as it has room for; should another limit
block them, the claim writes them down there and releases the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from packhorse.core.policies.gates import (
    Gate,
    GateKind,
    JobKeys,
    concurrency_gate,
    key_pause,
    rate_gate,
    tenant_pause,
)
from packhorse.stores.plan import Steps, Wake
from packhorse.stores.requests import QueueSettings, TaskSettings
from packhorse.stores.sql.dialect import Dialect
from packhorse.stores.sql.rows import json_text
from packhorse.stores.sql.statements import NOW, Rows, Send, Together

_SEPARATOR: Final = "\x1f"
#: The parts of a line's name, for statements that build it.
ORDER_LINE: Final = MappingProxyType(
    {"line": f"{GateKind.ORDER}{_SEPARATOR}", "part": _SEPARATOR},
)


class Keys(NamedTuple):
    """The fields of a job that decide its gates; see `policies.gates.JobKeys`."""

    queue: str
    task: str
    tenant: str
    ordering_key: str | None
    concurrency_key: str | None
    rate_key: str | None


def gate_text(gate: Gate) -> str:
    """Return the stored name of a gate."""
    return _SEPARATOR.join((gate.kind, *gate.name))


def read_gate(text: str) -> Gate:
    """Return a gate from its stored name."""
    kind, *name = text.split(_SEPARATOR)
    return Gate(GateKind(kind), tuple(name))


def order_line_of(job: JobKeys) -> str | None:
    """Return the line of order of a job."""
    if job.ordering_key is None:
        return None
    # The same as `gate_text` of its gate; this runs for every job of a line.
    return _SEPARATOR.join((GateKind.ORDER, job.queue, job.tenant, job.ordering_key))


def line_of(
    dialect: Dialect, job: JobKeys, queue: QueueSettings, task: TaskSettings | None
) -> str | None:
    """Return the line of jobs that share all their gates; None if only the queue limits the job.

    Lines only save work: at the claim the gates decide which jobs may run. Jobs with an ordering
    key have no such line: only the head of their line of order is ever ready.
    """
    if job.ordering_key is not None:
        return None
    keyed = job.concurrency_key is not None or job.rate_key is not None
    if not (keyed or task is not None or queue.tenant_rate is not None):
        return None
    words = (job.queue, job.tenant, job.task, job.concurrency_key, job.rate_key)
    return dialect.line_name(json_text(words))


def join_lines(dialect: Dialect, seqs: Sequence[int]) -> Steps[None]:
    """Block jobs that just became ready behind blocked jobs of their lines."""
    if seqs:
        chosen = dialect.many(seqs)
        yield Send(dialect.sql("order_behind", chosen="seq {in_numbers ?}"), (chosen,))
        now_us: int = yield NOW
        yield Send(dialect.sql("line_behind"), {"seqs": chosen, "now": now_us})


def any_blocked(dialect: Dialect) -> Steps[bool]:
    """Whether any job is blocked."""
    [(found,)] = yield Rows(dialect.sql("blocked_any"))
    return bool(found)


def unblock(
    dialect: Dialect, counts: Mapping[str, int], *, heaviest: int | None = None
) -> Steps[int]:
    """Unblock the first jobs of each gate, so many per queue and task; return how many in all.

    Per queue and task, since the next claim may serve only one of them. If they are more than the
    gate has room for, the claim blocks them again. None is heavier than `heaviest`.
    """
    now_us: int = yield NOW
    gates, sql = list(counts), dialect.sql
    found = yield Together([Rows(sql("blocked_kinds"), {"gate": g}) for g in gates])
    kinds = [(gate, *kind) for gate, rows in zip(gates, found, strict=True) for kind in rows]
    asked = [
        {"gate": gate, "queue": queue, "task": task, "count": counts[gate]}
        for gate, queue, task in kinds
    ]
    most = {"now": now_us, "heaviest": heaviest}
    first = yield Together([Rows(sql("blocked_first"), one | most) for one in asked])
    seqs = [seq for rows in first for (seq,) in rows]
    if seqs:
        yield from make_ready(dialect, seqs)
    yield from wake_queues([(queue,) for _, queue, _ in kinds])
    return len(seqs)


def unblock_all(dialect: Dialect, condition: str, value: str) -> Steps[None]:
    """Unblock all blocked jobs of a queue, of a task, or of a gate."""
    rows = yield Rows(dialect.sql("blocked_of", condition=condition), (value,))
    if rows:
        yield from make_ready(dialect, [seq for seq, _ in rows])
    yield from wake_queues([(queue,) for _, queue in rows])


def make_ready(dialect: Dialect, seqs: Sequence[int]) -> Steps[None]:
    """Make blocked jobs ready again."""
    yield Send(dialect.sql("blocked_ready"), (dialect.many(seqs),))


def advance_lines(dialect: Dialect, left: Iterable[JobKeys]) -> Steps[None]:
    """Make the next job the head of each line of order that jobs have left."""
    lines = dict.fromkeys(line for keys in left if (line := order_line_of(keys)) is not None)
    if lines:
        rows = yield Rows(dialect.sql("order_advance"), (dialect.many(list(lines)),))
        yield from wake_queues(rows)


def wake_queues(rows: Iterable[tuple[str]]) -> Steps[None]:
    """Wake the workers of queues, which are given as rows."""
    for queue in dict.fromkeys(queue for (queue,) in rows):
        yield Wake(f"queue:{queue}")


def other_gates(job: JobKeys) -> Iterable[Gate]:
    """Yield the gates, except its line of order, at which a job may have blocked others."""
    yield concurrency_gate(job)
    yield rate_gate(job)
    yield Gate(GateKind.TENANT_RATE, (job.queue, job.tenant))
    yield tenant_pause(job.queue, job.tenant)
    for key in (job.ordering_key, job.concurrency_key, job.rate_key):
        if key is not None:
            yield key_pause(job.queue, key)
