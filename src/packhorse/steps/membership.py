# SPDX-License-Identifier: MIT
"""The batch of a running job, to which its handler may add items."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import msgspec

from packhorse.attempt_host import AttemptHost
from packhorse.core.batches import BATCH_KIND, filled, put_batch, read_batch
from packhorse.core.job import Job, JobOptions
from packhorse.core.policies.journal import MEMBER_LIFE_US_MAX, Group
from packhorse.core.policies.records import Put, RecordId
from packhorse.errors import UsageError

#: Records of what members have added, so that another attempt does not add it again.
_ADDED_KIND: Final = "batch_added"
#: Characters of a digest that tell additions of one job apart.
_DIGEST_LENGTH: Final = 32
#: Jobs of one change.
_PAGE_JOBS: Final = 50
#: Tries of a change that conflicts with others.
_TRIES: Final = 100


class BatchMembership:
    """The batch of the job, or of the item, whose handler runs."""

    def __init__(self, job: Job, host: AttemptHost) -> None:
        self._job = job
        self._host = host
        self._group = _group(job)

    @property
    def id(self) -> str:
        """Of the batch."""
        return self._group.key

    def add(self, items: Iterable[Any]) -> int:
        """Add items to the batch, which does not end before them; return how many were added.

        A job or item adds the same items once, however often it is tried. Coroutines use `aadd`.
        """
        return self._host.ask(partial(self._added_all, items=items))

    async def aadd(self, items: Iterable[Any]) -> int:
        """As `add`, without blocking the event loop."""
        return await self._host.aask(partial(self._added_all, items=items))

    def _added_all(self, store: Any, items: Iterable[Any]) -> Generator[Any, Any, int]:
        added, rest = 0, iter(items)
        while page := list(islice(rest, self._page_of((yield from self._read(store))))):
            payloads = [self._payload(item) for item in page]
            added += yield from self._added_page(store, payloads)
        return added

    def _read(self, store: Any) -> Generator[Any, Any, Any]:
        record = yield store.records.record(self._group.record)
        if record is None:
            raise UsageError(f"batch {self.id!r} is gone: nothing can be added to it")
        return record

    def _page_of(self, record: Any) -> int:
        return _PAGE_JOBS * max(1, read_batch(record.document).size)

    def _payload(self, item: Any) -> bytes:
        if isinstance(item, Mapping):
            return msgspec.json.encode(item)
        own = msgspec.json.decode(self._job.payload)
        if not isinstance(own, dict) or len(own) != 1:
            raise UsageError(f"{item!r} is no mapping of the arguments of task {self._job.task}")
        return msgspec.json.encode({next(iter(own)): item})

    def _added_page(self, store: Any, payloads: Sequence[bytes]) -> Generator[Any, Any, int]:
        plain = hashlib.sha256(b"\0".join(payloads)).hexdigest()
        named, before = self._added(self._host.digest(plain)), self._added(plain)
        if named != before and (yield store.records.record(before)) is not None:
            return 0  # a release added them that did not know that no guess may be checked here
        added = Put(named, b"", 0, keep_us=MEMBER_LIFE_US_MAX)
        for _ in range(_TRIES):
            record = yield from self._read(store)
            batch = read_batch(record.document)
            if batch.is_cancelled or batch.finished_us is not None:
                what = "cancelled" if batch.is_cancelled else batch.status
                raise UsageError(f"batch {self.id!r} is {what}: nothing can be added to it")
            singles = (
                [self._host.member_job(batch.job, each) for each in payloads]
                if batch.single
                else ()
            )
            moved = filled(batch, payloads, singles=singles)
            puts = (put_batch(moved.document, record.version), added)
            changed = yield store.records.change(puts, jobs=moved.jobs)
            if changed.applied:
                return len(payloads)
            if 1 in changed.conflicts:
                return 0  # an earlier attempt has added them
        raise UsageError(f"batch {self.id!r} is changed by others all the time; try again")

    def _added(self, digest: str) -> RecordId:
        """Name the record of what this job or item has added."""
        return RecordId(
            _ADDED_KIND, self._group.tenant, f"{self._job.trace_id}:{digest[:_DIGEST_LENGTH]}"
        )


def _group(job: Job) -> Group:
    if job.options is not None:
        member = msgspec.json.decode(job.options, type=JobOptions).member
        if member is not None and (group := Group.of(member.group)).kind == BATCH_KIND:
            return group
    raise UsageError(
        f"job {job.id} of task {job.task} is no member of a batch: it has no ctx.batch"
    )
