# SPDX-License-Identifier: MIT
"""A store whose values are encrypted: sealed on the way in, opened on the way out.

Arguments, results, errors, steps and signals are sealed here, and nowhere else, so that every
store, worker, handle and command has them the same way. Ids, names, keys, tags, counters, instants
and progress stay plain: stores work with them. What no key here opens stays sealed;
readers call `core.sealing.require_open`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from packhorse.client.encryption import Encryption
from packhorse.core.job import AttemptError, AttemptRecord, Job, JobRecord, NewJob
from packhorse.core.lifecycle import CancelAnswer
from packhorse.core.policies.attachments import Attachments
from packhorse.core.policies.explain import JobFacts
from packhorse.core.policies.records import Record, RecordChange, RecordId
from packhorse.core.policies.uniqueness import may_replace
from packhorse.core.settlement import Settlement, Verdict
from packhorse.stores.attachments import AttachmentStore, DeliverAnswer
from packhorse.stores.plan import Plan, Wakeups
from packhorse.stores.protocol import (
    InspectionStore,
    JobStore,
    LeaseStore,
    QueueStore,
    Store,
    UpkeepStore,
)
from packhorse.stores.records import Changed, RecordPage, RecordStore
from packhorse.stores.requests import (
    Claimed,
    ClaimRequest,
    Counts,
    JobFilter,
    Outlook,
    Page,
    ProgressNote,
    RedriveAnswer,
    Submitted,
)
from packhorse.stores.transfer import TransferStore

__all__ = ["SealedStore", "Sealer", "loose_place", "place", "plain_store"]

T = TypeVar("T")


class Sealer:
    """Seals and opens what jobs consist of."""

    def __init__(self, keys: Encryption) -> None:
        self.keys = keys

    def seal_jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """New jobs as they are stored."""
        return [self._sealed_job(job) for job in jobs]

    def _sealed_job(self, job: NewJob) -> NewJob:
        rule = job.idempotency
        if rule is not None:
            rule = msgspec.structs.replace(rule, digest=self.keys.digest(rule.digest))
        if may_replace(job.unique):  # its arguments may become those of the holder of its key
            loose = loose_place(job.task, job.tenant)
            payload = self.keys.seal(job.payload, loose, loose_for=job.id)
        else:
            payload = self.keys.seal(job.payload, place(job.id, "payload"))
        return msgspec.structs.replace(job, payload=payload.encode(), idempotency=rule)

    def open_jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Stored jobs as they were submitted, where a key opens them."""
        pairs = [(job, self.open_payload(job)) for job in jobs]
        return [
            job if payload is None else msgspec.structs.replace(job, payload=payload)
            for job, payload in pairs
        ]

    def open_payload(self, job: Job | JobRecord | NewJob) -> bytes | None:
        """The arguments of a job; None: no key opens them."""
        loose = loose_place(job.task, job.tenant)
        return self.keys.open(job.payload, place(job.id, "payload"), loose_place=loose)

    def open_job(self, job: Job) -> Job:
        """A claimed job."""
        payload = self.open_payload(job)
        return job if payload is None else msgspec.structs.replace(job, payload=payload.decode())

    def open_record(self, record: JobRecord) -> JobRecord:
        """What a store knows of a job."""
        payload, result = self.open_payload(record), record.result
        return msgspec.structs.replace(
            record,
            payload=record.payload if payload is None else payload,
            result=None if result is None else self._open(result, place(record.id, "result")),
            error=self.open_error(record.id, record.error),
        )

    def seal_settlement(self, settlement: Settlement) -> Settlement:
        """What an attempt came to."""
        result, error = settlement.result, settlement.error
        if result is None and error is None:
            return settlement
        if result is not None:
            result = self.keys.seal(result.encode(), place(settlement.job_id, "result"))
        if error is not None:
            error = self.seal_error(settlement.job_id, error)
        return msgspec.structs.replace(settlement, result=result, error=error)

    def seal_error(self, job_id: str, error: AttemptError) -> AttemptError:
        """An error: its texts are one value, in the place of the message."""
        texts = msgspec.json.encode((error.message, error.stack, error.outputs))
        message = self.keys.seal(texts, place(job_id, "error"))
        return msgspec.structs.replace(error, message=message, stack=None, outputs=None)

    def open_error(self, job_id: str, error: AttemptError | None) -> AttemptError | None:
        """An error with its texts, if a key opens them."""
        if error is None or not error.message.startswith('{"$enc"'):
            return error
        texts = self.keys.open(error.message, place(job_id, "error"))
        if texts is None:
            return error
        message, stack, outputs = msgspec.json.decode(texts)
        return msgspec.structs.replace(error, message=message, stack=stack, outputs=outputs)

    def open_attempt(self, job_id: str, line: AttemptRecord) -> AttemptRecord:
        """A line of history."""
        if line.error is None:
            return line
        return msgspec.structs.replace(line, error=self.open_error(job_id, line.error))

    def open_attached(self, job_id: str, kept: Attachments) -> Attachments:
        """What is kept with a job."""
        return msgspec.structs.replace(
            kept,
            values={
                name: self._open(value, place(job_id, "step", name))
                for name, value in kept.values.items()
            },
            signals={
                name: tuple(self._open(value, place(job_id, "signal", name)) for value in came)
                for name, came in kept.signals.items()
            },
        )

    def _open(self, value: bytes, where: str) -> bytes:
        opened = self.keys.open(value, where)
        return value if opened is None else opened


def plain_store(store: Store) -> Store:
    """The store itself, without keys."""
    return store.plain if isinstance(store, SealedStore) else store


def place(job_id: str, field: str, name: str = "") -> str:
    """Where a value belongs; it opens nowhere else. No id or name has U+0000."""
    return f"job\0{job_id}\0{field}\0{name}"


def loose_place(task: str, tenant: str) -> str:
    """Where arguments belong that may become those of another job."""
    return f"any\0{task}\0{tenant}\0payload"


class _Opened(Plan[T], Generic[T], frozen=True, eq=False, kw_only=True):
    """A plan whose answer is opened when it has run."""

    opening: Callable[[Any], Any]


def _opened(plan: Plan[T], opening: Callable[[T], T]) -> Plan[T]:
    return _Opened(plan.verb, plan.steps, plan.writes, plan.look, plan.short, opening=opening)


class SealedStore:
    """A store, with the keys of its values. Carrying jobs elsewhere leaves them sealed."""

    def __init__(self, store: Store, keys: Encryption) -> None:
        self.plain = store  #: itself, where values are as they are stored
        self.sealer = sealer = Sealer(keys)
        self.jobs: JobStore = _Jobs(store.jobs, sealer)
        self.inspection: InspectionStore = _Inspection(store.inspection, sealer)
        self.attachments: AttachmentStore = _Attachments(store.attachments, sealer)
        self.records: RecordStore = _Records(store.records, sealer)

    @property
    def leases(self) -> LeaseStore:
        return self.plain.leases

    @property
    def queues(self) -> QueueStore:
        return self.plain.queues

    @property
    def upkeep(self) -> UpkeepStore:
        return self.plain.upkeep

    @property
    def transfer(self) -> TransferStore:
        return self.plain.transfer

    @property
    def wakeups(self) -> Wakeups:
        return self.plain.wakeups

    @property
    def label(self) -> str:
        return self.plain.label

    def run(self, plan: Plan[T]) -> T:
        answer = self.plain.run(plan)
        return plan.opening(answer) if isinstance(plan, _Opened) else answer

    async def arun(self, plan: Plan[T]) -> T:
        answer = await self.plain.arun(plan)
        return plan.opening(answer) if isinstance(plan, _Opened) else answer

    def migrate(self) -> int:
        return self.plain.migrate()

    def facts(self) -> dict[str, str]:
        return self.plain.facts()

    def close(self) -> None:
        self.plain.close()


class _Jobs:
    def __init__(self, jobs: JobStore, sealer: Sealer) -> None:
        self._jobs = jobs
        self._sealer = sealer

    def submit(
        self, jobs: Sequence[NewJob], *, ids_are_new: bool = False
    ) -> Plan[tuple[Submitted, ...]]:
        return self._jobs.submit(self._sealer.seal_jobs(jobs), ids_are_new=ids_are_new)

    def claim(self, request: ClaimRequest) -> Plan[Claimed]:
        def opening(claimed: Claimed) -> Claimed:
            jobs = tuple([self._sealer.open_job(job) for job in claimed.jobs])
            return msgspec.structs.replace(claimed, jobs=jobs)

        return _opened(self._jobs.claim(request), opening)

    def settle(self, settlements: Sequence[Settlement]) -> Plan[tuple[Verdict, ...]]:
        return self._jobs.settle([self._sealer.seal_settlement(each) for each in settlements])

    def note_progress(self, notes: Sequence[ProgressNote]) -> Plan[tuple[Verdict, ...]]:
        return self._jobs.note_progress(notes)

    def cancel(self, job_id: str, *, tenant: str | None = None) -> Plan[CancelAnswer]:
        return self._jobs.cancel(job_id, tenant=tenant)

    def redrive(
        self, job_ids: Sequence[str], *, tenant: str | None = None
    ) -> Plan[tuple[RedriveAnswer, ...]]:
        return self._jobs.redrive(job_ids, tenant=tenant)

    def delete(self, chosen: JobFilter, *, limit: int) -> Plan[int]:
        return self._jobs.delete(chosen, limit=limit)

    def await_finish(self, job_id: str) -> Plan[JobRecord | None]:
        return _opened(self._jobs.await_finish(job_id), _maybe(self._sealer.open_record))


class _Inspection:
    def __init__(self, inspection: InspectionStore, sealer: Sealer) -> None:
        self._inspection = inspection
        self._sealer = sealer

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        plan = self._inspection.job(job_id, tenant=tenant)
        return _opened(plan, _maybe(self._sealer.open_record))

    def history(self, job_id: str) -> Plan[tuple[AttemptRecord, ...]]:
        def opening(lines: tuple[AttemptRecord, ...]) -> tuple[AttemptRecord, ...]:
            return tuple([self._sealer.open_attempt(job_id, line) for line in lines])

        return _opened(self._inspection.history(job_id), opening)

    def search(self, chosen: JobFilter, *, limit: int, after: str | None = None) -> Plan[Page]:
        def opening(page: Page) -> Page:
            jobs = tuple([self._sealer.open_record(record) for record in page.jobs])
            return msgspec.structs.replace(page, jobs=jobs)

        return _opened(self._inspection.search(chosen, limit=limit, after=after), opening)

    def counts(self) -> Plan[tuple[Counts, ...]]:
        return self._inspection.counts()

    def outlook(self, worker: str, queues: Sequence[str], tasks: Sequence[str]) -> Plan[Outlook]:
        return self._inspection.outlook(worker, queues, tasks)

    def explain(self, job_id: str, *, tenant: str | None = None) -> Plan[JobFacts | None]:
        def opening(facts: JobFacts) -> JobFacts:
            return msgspec.structs.replace(facts, record=self._sealer.open_record(facts.record))

        return _opened(self._inspection.explain(job_id, tenant=tenant), _maybe(opening))


class _Attachments:
    def __init__(self, attachments: AttachmentStore, sealer: Sealer) -> None:
        self._attachments = attachments
        self._sealer = sealer

    def attach(self, job_id: str, fence: int, values: Mapping[str, bytes]) -> Plan[Verdict]:
        seal = self._sealer.keys.seal
        kept = {
            name: seal(value, place(job_id, "step", name)).encode()
            for name, value in values.items()
        }
        return self._attachments.attach(job_id, fence, kept)

    def deliver(
        self, job_id: str, name: str, value: bytes, *, tenant: str | None = None
    ) -> Plan[DeliverAnswer]:
        text = self._sealer.keys.seal(value, place(job_id, "signal", name))
        return self._attachments.deliver(job_id, name, text.encode(), tenant=tenant)

    def attachments(self, job_id: str, *, tenant: str | None = None) -> Plan[Attachments | None]:
        plan = self._attachments.attachments(job_id, tenant=tenant)
        return _opened(plan, _maybe(lambda kept: self._sealer.open_attached(job_id, kept)))


class _Records:
    """Documents are plain; the jobs that come with a change are not."""

    def __init__(self, records: RecordStore, sealer: Sealer) -> None:
        self._records = records
        self._sealer = sealer

    def record(self, named: RecordId) -> Plan[Record | None]:
        return self._records.record(named)

    def records(
        self,
        kind: str | None,
        *,
        tenant: str | None = None,
        by_order: bool = False,
        after: str | None = None,
        limit: int,
    ) -> Plan[RecordPage]:
        return self._records.records(
            kind, tenant=tenant, by_order=by_order, after=after, limit=limit
        )

    def change(
        self,
        changes: Sequence[RecordChange],
        *,
        jobs: Sequence[NewJob] = (),
        not_before: int | None = None,
    ) -> Plan[Changed]:
        own = self._sealer.seal_jobs(jobs)
        return self._records.change(changes, jobs=own, not_before=not_before)


def _maybe(opening: Callable[[T], T]) -> Callable[[T | None], T | None]:
    return lambda found: None if found is None else opening(found)
