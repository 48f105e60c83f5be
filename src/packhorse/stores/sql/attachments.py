# SPDX-License-Identifier: MIT
"""Attachments in the SQL stores. Every write locks the row of its job first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from packhorse.core.job import TERMINAL, WAITING, JobStatus
from packhorse.core.policies.attachments import (
    ATTACHED_BYTES_MAX,
    SIGNALS_MAX,
    VALUE_BYTES_MAX,
    Attaching,
    Attachments,
    check_attaching,
    check_values,
    fits,
    too_much,
)
from packhorse.core.settlement import Settlement, Verdict
from packhorse.stores.attachments import DeliverAnswer
from packhorse.stores.plan import Plan, Steps, Wake, about_job, planned
from packhorse.stores.sql.dialect import AttachedRow, Dialect, HeldJob
from packhorse.stores.sql.rows import STATUS
from packhorse.stores.sql.statements import NOW, Rows, Send

#: This many values always fit, even with some that concurrent calls add.
FEW: Final = ATTACHED_BYTES_MAX // VALUE_BYTES_MAX // 2
#: Numbers of the nameless rows for items and failed; lower numbers are for deliveries.
_COUNTED: Final = (-1, -2)


class SqlAttachments:
    """See `AttachmentStore`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def attach(self, kept: Sequence[Attaching]) -> Plan[tuple[Verdict, ...]]:
        check_attaching(kept)
        return Plan("attach", lambda: attach_steps(self._dialect, kept))

    @about_job(DeliverAnswer.UNKNOWN)
    def deliver(
        self, job_id: str, name: str, value: bytes, *, tenant: str | None = None, delivery: int = 0
    ) -> Plan[DeliverAnswer]:
        check_values({name: value})
        steps = partial(_deliver, self._dialect, (job_id, tenant), name, value, delivery)
        return Plan("deliver", steps)

    @planned(writes=False)
    def attachments(self, job_id: str, *, tenant: str | None = None) -> Steps[Attachments | None]:
        rows = yield Rows(self._dialect.sql("attached_to"), (job_id,))
        if not rows or tenant not in (None, rows[0][1]):
            return None
        seq, _, status, fence = rows[0]
        found: dict[int, Attachments] = yield from read_attachments(
            self._dialect, {seq: (STATUS[status], fence)}
        )
        return found[seq]


class _Receiver(NamedTuple):
    """A job that receives a signal: a row of `attaching_row`."""

    seq: int
    status: int
    fence: int
    tenant: str
    queue: str


class _Size(NamedTuple):
    """How much is attached to a job: a row of `attached_size`."""

    number: int
    size: int
    signals: int
    of_name: int
    lowest: int  #: row number of the delivery that was kept last
    known: int  #: whether this delivery is kept


def attach_steps(dialect: Dialect, kept: Sequence[Attaching]) -> Steps[tuple[Verdict, ...]]:
    """See `AttachmentStore.attach`."""
    held: list[HeldJob] = yield from dialect.keep_held(kept)
    crowded = {seq: job_id for job_id, seq, number in held if number > FEW}
    if crowded:  # an error undoes all that was written
        sizes = yield Rows(dialect.sql("attached_sizes"), (dialect.many(list(crowded)),))
        for seq, number, size in sizes:
            if not fits(int(number), int(size)):
                raise too_much(crowded[seq])
    return verdicts_of(kept, [job_id for job_id, _, _ in held])


def verdicts_of(kept: Sequence[Attaching], held: Collection[str] | None) -> tuple[Verdict, ...]:
    """Return the verdict of each, given the ids of held jobs; None: all were held."""
    if held is None:
        return (Verdict.APPLIED,) * len(kept)
    known = set(held)
    return tuple([Verdict.APPLIED if one.job_id in known else Verdict.STALE for one in kept])


def _deliver(
    dialect: Dialect, asked: tuple[str, str | None], name: str, value: bytes, delivery: int
) -> Steps[DeliverAnswer]:
    job_id, tenant = asked
    rows = yield Rows(dialect.sql("attaching_row"), (job_id,))
    row = _Receiver(*rows[0]) if rows else None
    if row is None or tenant not in (None, row.tenant):
        return DeliverAnswer.UNKNOWN
    status = STATUS[row.status]
    size: _Size = yield from _size(dialect, row.seq, name, delivery)
    if size.known:
        return DeliverAnswer.DELIVERED
    if status in TERMINAL:
        return DeliverAnswer.FINISHED
    if size.of_name >= SIGNALS_MAX or not fits(size.number + 1, size.size + len(value)):
        return DeliverAnswer.FULL
    kept = [(row.seq, name, size.of_name + 1, value)]
    if delivery:
        kept.append((row.seq, "", min(size.lowest, *_COUNTED) - 1, _told(delivery)))
    yield from dialect.keep_attached(kept)
    now_us: int = yield NOW
    yield Send(dialect.sql("attached_touch"), {"seq": row.seq, "now": now_us})
    yield Send(dialect.sql("attached_mark"), (dialect.many([row.seq]),))
    waits = yield Rows(dialect.sql("attached_waits"), (row.seq,))
    if status is JobStatus.PENDING and waits and int(waits[0][0]) == row.fence:
        yield Send(dialect.sql("attached_due"), {"seq": row.seq, "now": now_us})
    if status in WAITING:  # a claim may have skipped the row while it was locked here
        yield Wake(f"queue:{row.queue}")
    return DeliverAnswer.DELIVERED


def _size(dialect: Dialect, seq: int, name: str = "", delivery: int = 0) -> Steps[_Size]:
    asked = {"seq": seq, "name": name, "delivery": _told(delivery)}
    [row] = yield Rows(dialect.sql("attached_size"), asked)
    return _Size(*map(int, row))


def _told(delivery: int) -> bytes:
    """Return a delivery number as it is stored: negative, so that it never equals a fence."""
    return b"-%d" % delivery


def delivered_to(dialect: Dialect, seq: int) -> Steps[int]:
    """Return how many signals a job has received; its row is locked."""
    size: _Size = yield from _size(dialect, seq)
    return size.signals


def wait_for_signal(dialect: Dialect, seq: int, settlement: Settlement) -> Steps[None]:
    """Let a signal make the job due, until it is claimed again."""
    yield from dialect.keep_attached([(seq, "", 0, b"%d" % settlement.fence)])


def keep_counted(dialect: Dialect, seq: int, counted: Sequence[int]) -> Steps[None]:
    """Keep the counts of a member that is about to end, for its journal line."""
    for number, value in zip(_COUNTED, counted, strict=True):
        kept = {"seq": seq, "number": number, "value": b"%d" % value}
        yield Send(dialect.sql("counted_keep"), kept)


def read_attachments(
    dialect: Dialect, jobs: Mapping[int, tuple[JobStatus, int]]
) -> Steps[dict[int, Attachments]]:
    """Return the attachments of jobs, which are given by number with status and fence."""
    rows = yield Rows(dialect.sql("attached"), (dialect.many(list(jobs)),))
    found: dict[int, list[Sequence[Any]]] = {seq: [] for seq in jobs}
    for seq, *row in rows:
        found[seq].append(row)
    return {seq: _attachments(found[seq], *job) for seq, job in jobs.items()}


def _attachments(rows: Iterable[Sequence[Any]], status: JobStatus, fence: int) -> Attachments:
    values: dict[str, bytes] = {}
    signals: dict[str, tuple[bytes, ...]] = {}
    waiting = False
    counted, deliveries = dict.fromkeys(_COUNTED, 0), list[int]()
    for name, number, value in rows:
        if not name and number in counted:
            counted[number] = int(value)
        elif number < 0:
            deliveries.append(-int(value))
        elif not name:
            waiting = status is JobStatus.PENDING and int(value) == fence
        elif number:
            signals[name] = (*signals.get(name, ()), bytes(value))
        else:
            values[name] = bytes(value)
    items, failed = counted.values()
    return Attachments(values, signals, waiting, (items, failed), tuple(sorted(deliveries)))


def attachment_rows(seq: int, attached: Attachments, fence: int) -> list[AttachedRow]:
    """Return the rows for the attachments of a job carried from another store."""
    kept = [(name, 0, value) for name, value in attached.values.items()]
    for name, signals in attached.signals.items():
        kept += [(name, number, value) for number, value in enumerate(signals, 1)]
    if attached.waiting:
        kept.append(("", 0, b"%d" % fence))
    if any(attached.counted):
        pairs = zip(_COUNTED, attached.counted, strict=True)
        kept += [("", number, b"%d" % value) for number, value in pairs]
    for number, delivery in enumerate(attached.deliveries, 1):
        kept.append(("", min(_COUNTED) - number, _told(delivery)))
    return [(seq, name, number, value) for name, number, value in kept]
