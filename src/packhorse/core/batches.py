# SPDX-License-Identifier: MIT
"""A batch as the store holds it, and what becomes of it: filled, sealed, folded, stopped.

The document of a batch is the record of its group. Each function here takes the document as it is
and returns the one to write; the version of the record decides between a producer, a folder and an
operator who come at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from packhorse.core.clock import SECOND_US
from packhorse.core.job import JobOptions, JobStatus, NewJob, options_of
from packhorse.core.keys import derived_id
from packhorse.core.policies.journal import Group, JournalLine
from packhorse.core.policies.records import DOCUMENT_BYTES_MAX, Put, RecordId
from packhorse.errors import ConfigError

BATCH_KIND: Final = "batch"
#: The records that hold the tenant of a batch, by its id.
BATCH_ID_KIND: Final = "batch_id"
BATCH_QUEUE: Final = "batch"
BATCH_SIZE: Final = 100  #: items of one job, unless a batch says otherwise
#: How long a batch and its members are kept after its end.
BATCH_KEPT_US: Final = 7 * 24 * 3_600 * SECOND_US
#: Numbers of members that died, of which a batch remembers the first.
_DEAD_MAX: Final = 1_000
#: What they and all that is counted take at most: so much must be free when a batch begins.
_GROWTH_BYTES: Final = 10_000
#: What a chunk's item may take when neither call nor task says it.
_ITEM_TIMEOUT_US: Final = 300 * SECOND_US
_RUN: Final = "1"
_ON: Final = "on_"  #: before the kind of a callback, in the node of its job


class ItemError(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """Why an item failed."""

    type: str
    message: str
    code: str


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a job that runs its task for several items."""

    first: int  #: the number of its first item in the batch, from 0
    items: list[msgspec.Raw]  #: the payload of each
    concurrency: int = 1  #: items at once
    item_timeout_us: int = _ITEM_TIMEOUT_US
    stop_on_error: bool = False


read_chunk: Final = msgspec.json.Decoder(Chunk).decode


class _Callback(StrEnum):
    """What a callback follows."""

    SUCCESS = "success"  #: every item of it succeeded
    COMPLETE = "complete"  #: all its members have ended
    DEATH = "death"  #: an item has failed for good


class BatchDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch as the store holds it."""

    id: str
    job: NewJob  #: what its members have in common
    created_us: int
    batch_size: int = BATCH_SIZE
    single: bool = False  #: a job for each item
    parallel: bool = True
    stop_on_error: bool = False
    concurrency: int = 1  #: items of a chunk at once
    callbacks: dict[str, NewJob] = {}  #: by `success`, `complete`, `death`
    fired: tuple[str, ...] = ()  #: callbacks that were submitted
    expected: int = 0  #: items, as far as the producer could say before
    producer: str = ""  #: who fills it
    place: int = 0  #: items taken from the producer
    total: int = 0  #: items of all members
    members: int = 0
    sealed: bool = False  #: nothing more comes from the producer
    ended: int = 0  #: members
    processed: int = 0  #: items
    failed: int = 0  #: items
    dead: tuple[int, ...] = ()  #: numbers of the first members that died
    stopped: str = ""  #: `error` or `cancelled`: no further member starts
    cancelled: int = 0  #: members that `cancel` has told
    called: dict[str, str] = {}  #: what became of the jobs of callbacks, by `success`, ...
    news: int = 0  #: ends of members told so far
    started_us: int | None = None
    finished_us: int | None = None

    @property
    def group(self) -> Group:
        """The group of its members."""
        return batch_group(self.id, self.job.tenant)

    @property
    def size(self) -> int:
        """Items of one member."""
        return 1 if self.single else self.batch_size

    @property
    def status(self) -> str:
        """As the worker protocol names it."""
        if self.finished_us is not None:
            if self.is_cancelled:
                return "cancelled"
            return "completed" if self.succeeded == self.total else "failed"
        return "pending" if self.started_us is None else "running"

    @property
    def is_cancelled(self) -> bool:
        """Whether someone has cancelled it; one that an error stopped can go on."""
        return self.stopped == "cancelled"

    @property
    def succeeded(self) -> int:
        """Items that did."""
        return self.processed - self.failed

    @property
    def callback_states(self) -> dict[str, str]:
        """Where each callback stands: `waiting`, `submitted`, or what its job has become."""
        fired = dict.fromkeys(self.fired, "submitted")
        return {
            f"{_ON}{kind}": (fired | self.called).get(kind, "waiting") for kind in self.callbacks
        }

    @property
    def maybe_dead(self) -> tuple[int, ...]:
        """Members that may have failed items: those remembered, or all where they are many."""
        if len(self.dead) >= _DEAD_MAX or self.stopped:
            return tuple(range(self.members))
        return tuple(sorted(self.dead))

    @property
    def items(self) -> int:
        """How many there are, as far as is known."""
        known = self.total if self.sealed else max(self.total, self.expected)
        return max(known, self.processed)

    @property
    def percentage(self) -> float:
        """How much of it is done."""
        if not self.items:
            return 100.0 if self.finished_us is not None else 0.0
        return min(100.0, 100.0 * self.processed / self.items)


class BatchMoved(NamedTuple):
    """A batch after something became of it, and what is to be submitted with that."""

    document: BatchDocument
    jobs: tuple[NewJob, ...] = ()


# ------------------------------------------------------------------------------------- as a record


def batch_group(batch_id: str, tenant: str) -> Group:
    """The group of a batch; an id is used for one batch only."""
    return Group(BATCH_KIND, tenant, batch_id, _RUN)


#: A batch from the document of its record.
read_batch: Final = msgspec.json.Decoder(BatchDocument).decode


def put_batch(batch: BatchDocument, version: int) -> Put:
    """How a batch is written; one that has ended expires."""
    text = msgspec.json.encode(batch)
    most = DOCUMENT_BYTES_MAX if version else DOCUMENT_BYTES_MAX - _GROWTH_BYTES
    if len(text) > most:
        raise ConfigError(
            f"batch {batch.id!r} takes {len(text)} bytes, and {most} are kept: give its callbacks "
            "references instead of data"
        )
    return Put(batch.group.record, text, version, keep_us=_keep_us(batch))


def put_owner(before: BatchDocument | None, after: BatchDocument) -> tuple[Put, ...]:
    """How the record is written that finds the tenant of a batch by its id, if it has to be.

    It is there as long as its batch, so that an id is used once in a store, and again later.
    """
    if before is None:
        return (_put_owner(after, 0),)
    lives = before.finished_us is None and after.finished_us is None
    return () if lives else (_put_owner(after, None),)


def owner_id(batch_id: str) -> RecordId:
    """The record that finds the tenant of a batch."""
    return RecordId(BATCH_ID_KIND, "", batch_id)


def _put_owner(batch: BatchDocument, expected: int | None) -> Put:
    tenant = batch.job.tenant.encode()
    return Put(owner_id(batch.id), tenant, expected, keep_us=_keep_us(batch))


def _keep_us(batch: BatchDocument) -> int | None:
    return None if batch.finished_us is None else BATCH_KEPT_US


# ------------------------------------------------------------------------------------------ members


def member_id(group: Group, number: int | str) -> str:
    """The id of a member, or of a callback: it follows from the group, so that none is twice."""
    return derived_id(group.text, str(number))


def filled(
    batch: BatchDocument, items: Sequence[bytes], *, place: int = 0, singles: Sequence[NewJob] = ()
) -> BatchMoved:
    """The batch with the jobs of these items; `place` of them came from the producer.

    Of a batch with a job for each item, `singles` are these jobs, but for their ids.
    """
    size = batch.size
    parts = [items[begin : begin + size] for begin in range(0, len(items), size)]
    jobs, first, number = [], batch.total, batch.members
    for at, part in enumerate(parts):
        base = singles[at] if batch.single else batch.job
        jobs.append(_member(batch, base, part, first, number + at))
        first += len(part)
    after = msgspec.structs.replace(
        batch,
        place=batch.place + place,
        total=first,
        members=number + len(parts),
        finished_us=None,
    )
    return BatchMoved(after, tuple(jobs))


def _member(
    batch: BatchDocument, base: NewJob, items: Sequence[bytes], first: int, number: int
) -> NewJob:
    group, job_id = batch.group, member_id(batch.group, number)
    node = f"i{number}" if batch.single else f"c{number}:{len(items)}"
    options = msgspec.structs.replace(base.options or JobOptions(), member=group.member(node))
    changes: dict[str, object] = {"id": job_id, "options": options}
    changes["trace_id"] = base.trace_id or job_id.replace("-", "")
    if not batch.parallel:
        changes["ordering_key"] = f"batch:{batch.id}"
    if not batch.single:
        timeout_us = base.timeout_us or _ITEM_TIMEOUT_US
        raw = [msgspec.Raw(item) for item in items]
        chunk = Chunk(first, raw, batch.concurrency, timeout_us, batch.stop_on_error)
        changes["payload"] = msgspec.json.encode(chunk)
        changes["timeout_us"] = timeout_us * -(-len(items) // batch.concurrency)
    return msgspec.structs.replace(base, **changes)


def is_chunk(options: str | None) -> bool:
    """Whether the options of a job say that its payload is a chunk."""
    if options is None or '"member"' not in options:
        return False
    return is_chunk_member(options_of(options))


def is_chunk_member(options: JobOptions | None) -> bool:
    """As `is_chunk`, of options that were read."""
    member = None if options is None else options.member
    if member is None or not member.node.startswith("c"):
        return False
    return RecordId.of(member.group).kind == BATCH_KIND


def chunk_size(node: str) -> int:
    """How many items a member has."""
    return int(node.partition(":")[2]) if node.startswith("c") else 1


# ---------------------------------------------------------------------------------------- its life


def sealed_batch(batch: BatchDocument, now_us: int) -> BatchMoved:
    """Nothing more comes from the producer."""
    return _settled(msgspec.structs.replace(batch, sealed=True), now_us)


def folded_batch(batch: BatchDocument, lines: Iterable[JournalLine], now_us: int) -> BatchMoved:
    """The batch after these ends of members, and ends that were taken back."""
    ended, processed, failed, news = batch.ended, batch.processed, batch.failed, batch.news
    dead, called = dict.fromkeys(batch.dead), dict(batch.called)
    for line in lines:
        sign = 1 if line.status.is_final else -1
        if line.node.startswith(_ON):
            called[line.node.removeprefix(_ON)] = str(line.status)
            continue
        status = line.status if line.status.is_final else line.was
        items, bad = _counted(line, status)
        ended, news = ended + sign, news + (sign > 0)
        processed, failed = processed + sign * items, failed + sign * bad
        number = int(line.node.partition(":")[0][1:])
        if status is JobStatus.DEAD and sign > 0 and len(dead) < _DEAD_MAX:
            dead[number] = None
        elif sign < 0:
            dead.pop(number, None)
    after = msgspec.structs.replace(
        batch,
        ended=ended,
        processed=processed,
        failed=failed,
        news=news,
        dead=tuple(dead),
        called=called,
        started_us=batch.started_us or now_us,
        # A retry and the end after it may come together.
        finished_us=batch.finished_us if news == batch.news else None,
    )
    return _settled(after, now_us)


def _counted(line: JournalLine, status: JobStatus) -> tuple[int, int]:
    """Items, and those that failed, of one end. What a dead member has not done has failed."""
    size = chunk_size(line.node)
    if status is JobStatus.COMPLETED:
        return size, line.failed
    if status is JobStatus.DEAD:
        return size, size - (line.items - line.failed)
    return line.items, line.failed


def stopped_batch(batch: BatchDocument) -> BatchDocument:
    """No further member starts, since an item has failed."""
    return msgspec.structs.replace(batch, stopped=batch.stopped or "error")


def cancelled_batch(batch: BatchDocument, now_us: int) -> BatchMoved:
    """No further member starts, and nothing more is taken from the producer.

    What has ended stays as it ended: nothing is left to cancel, and what failed can be retried.
    """
    if batch.finished_us is not None:
        return BatchMoved(batch)
    after = msgspec.structs.replace(batch, stopped="cancelled", sealed=True)
    return _settled(after, now_us)


def cancel_told(
    batch: BatchDocument, numbers: tuple[int, int], gone: int, now_us: int
) -> BatchMoved:
    """The members from one number to the other were told; so many of them are not there."""
    begin, end = numbers
    if batch.cancelled != begin:
        return BatchMoved(batch)  # another cancel came before, and counted them
    return _settled(msgspec.structs.replace(batch, cancelled=end, ended=batch.ended + gone), now_us)


def going_on(batch: BatchDocument, now_us: int) -> BatchMoved:
    """Members start again after an item had failed."""
    if batch.stopped != "error":
        return BatchMoved(batch)
    return _settled(msgspec.structs.replace(batch, stopped=""), now_us)


def _settled(batch: BatchDocument, now_us: int) -> BatchMoved:
    """The batch as it is now, ended or not, with the callbacks that are due."""
    is_over = batch.sealed and batch.ended >= batch.members
    finished_us = (batch.finished_us or now_us) if is_over else None
    due = []
    if batch.failed:
        due.append(_Callback.DEATH)
    if is_over:
        due.append(_Callback.COMPLETE)
        if batch.succeeded == batch.total and not batch.stopped:
            due.append(_Callback.SUCCESS)
    kinds = [kind for kind in due if kind in batch.callbacks and kind not in batch.fired]
    jobs = tuple(_callback(batch, kind) for kind in kinds)
    after = msgspec.structs.replace(
        batch,
        finished_us=finished_us,
        started_us=batch.started_us or (now_us if is_over else None),
        fired=(*batch.fired, *kinds),
    )
    return BatchMoved(after, jobs)


def _callback(batch: BatchDocument, kind: _Callback) -> NewJob:
    """Its job is a member that is not counted: the batch hears what became of it."""
    job, group, node = batch.callbacks[kind], batch.group, f"{_ON}{kind}"
    job_id = member_id(group, node)
    options = msgspec.structs.replace(job.options or JobOptions(), member=group.member(node))
    trace_id = job.trace_id or job_id.replace("-", "")
    return msgspec.structs.replace(job, id=job_id, trace_id=trace_id, options=options)
