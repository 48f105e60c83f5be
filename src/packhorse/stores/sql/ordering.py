# SPDX-License-Identifier: MIT
"""Jobs that wait behind others: lines of order, and jobs that a limit has blocked.

A ready job that a limit blocks is taken out of the ready lane and written down under that limit, so
that no claim scans past it. Jobs that share all their limits form a line: when one of them is
blocked, so is the rest of its line, and so are those that join it later. When a limit has room
again, the first of those under it are released, as many as it has room for; should another limit
block them, the claim writes them down there and releases the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from packhorse.stores.sql.statements import NOW, Rows

_SEPARATOR: Final = "\x1f"
#: What the text of a line of order is made of, for statements that make it themselves.
ORDER_LINE: Final = MappingProxyType(
    {"line": f"{GateKind.ORDER}{_SEPARATOR}", "part": _SEPARATOR},
)


class Keys(NamedTuple):
    """What of a job decides its gates; see `policies.gates.JobKeys`."""

    queue: str
    task: str
    tenant: str
    ordering_key: str | None
    concurrency_key: str | None
    rate_key: str | None


def gate_text(gate: Gate) -> str:
    """A gate as it is stored."""
    return _SEPARATOR.join((gate.kind, *gate.name))


def read_gate(text: str) -> Gate:
    """A gate from its column."""
    kind, *name = text.split(_SEPARATOR)
    return Gate(GateKind(kind), tuple(name))


def order_line_of(job: JobKeys) -> str | None:
    """The line of order a job stands in."""
    if job.ordering_key is None:
        return None
    # As `gate_text` of the gate, which is made for every job of a line.
    return _SEPARATOR.join((GateKind.ORDER, job.queue, job.tenant, job.ordering_key))


def line_of(
    dialect: Dialect, job: JobKeys, queue: QueueSettings, task: TaskSettings | None
) -> str | None:
    """The line of jobs that share all their gates; None when nothing but the queue limits it.

    Lines only save work: what may run is decided by the gates at the claim. Jobs in a line of order
    have none besides: only their head is ever ready, and one more index would be kept for nothing.
    """
    if job.ordering_key is not None:
        return None
    keyed = job.concurrency_key is not None or job.rate_key is not None
    if not (keyed or task is not None or queue.tenant_rate is not None):
        return None
    words = (job.queue, job.tenant, job.task, job.concurrency_key, job.rate_key)
    return dialect.line_name(json_text(words))


def join_lines(dialect: Dialect, seqs: Sequence[int]) -> Steps[None]:
    """Jobs that just became ready stand behind those of their lines that are held back."""
    if seqs:
        chosen = dialect.many(seqs)
        yield dialect.write(dialect.sql("order_behind"), (chosen,))
        now_us: int = yield NOW
        yield dialect.write(dialect.sql("line_behind"), {"seqs": chosen, "now": now_us})


def any_blocked(dialect: Dialect) -> Steps[bool]:
    """Whether any gate holds back any job."""
    [(found,)] = yield Rows(dialect.sql("blocked_any"))
    return bool(found)


def unblock(dialect: Dialect, gate: str, count: int, *, heaviest: int | None = None) -> Steps[int]:
    """Let the first `count` jobs under a gate, of each queue and task, be ready again; how many.

    None is heavier than `heaviest`. Of each, because the next claim may serve only one of
    the queues and know only one of the tasks. Should they be more than the gate has room for, the
    claim holds them back again.
    """
    now_us: int = yield NOW
    kinds = yield Rows(dialect.sql("blocked_kinds"), {"gate": gate})
    released = 0
    for queue, task in kinds:
        kind = {"gate": gate, "queue": queue, "task": task}
        most = {"now": now_us, "count": count, "heaviest": heaviest}
        rows = yield Rows(dialect.sql("blocked_first"), {**kind, **most})
        yield dialect.write_each(dialect.sql("blocked_ready"), [seq for (seq,) in rows])
        yield Wake(f"queue:{queue}")
        released += len(rows)
    return released


def unblock_all(dialect: Dialect, condition: str, value: str) -> Steps[None]:
    """Let all be ready again that are held back in a queue, of a task, or under a gate."""
    rows = yield Rows(dialect.sql("blocked_of", condition=condition), (value,))
    if rows:
        yield dialect.write_each(dialect.sql("blocked_ready"), [seq for seq, _ in rows])
    for queue in dict.fromkeys(queue for _, queue in rows):
        yield Wake(f"queue:{queue}")


def advance_lines(dialect: Dialect, left: Iterable[JobKeys]) -> Steps[None]:
    """Where jobs have left their lines of order, the next becomes the head."""
    lines = dict.fromkeys(line for keys in left if (line := order_line_of(keys)) is not None)
    if lines:
        rows = yield Rows(dialect.sql("order_advance"), (dialect.many(list(lines)),))
        yield from wake_queues(rows)


def wake_queues(rows: Iterable[tuple[str]]) -> Steps[None]:
    """Wake the workers of queues, given as rows."""
    for queue in dict.fromkeys(queue for (queue,) in rows):
        yield Wake(f"queue:{queue}")


def other_gates(job: JobKeys) -> Iterable[Gate]:
    """The gates that a job may have kept others from, beside its line of order."""
    yield concurrency_gate(job)
    yield rate_gate(job)
    yield Gate(GateKind.TENANT_RATE, (job.queue, job.tenant))
    yield tenant_pause(job.queue, job.tenant)
    for key in (job.ordering_key, job.concurrency_key, job.rate_key):
        if key is not None:
            yield key_pause(job.queue, key)
