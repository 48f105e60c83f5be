# SPDX-License-Identifier: MIT
"""A store whose values are encrypted: sealed on the way in, opened on the way out.

Arguments, results, errors, steps and signals are sealed here, and nowhere else, so that every
store, worker, handle and command has them the same way. Ids, names, keys, tags, counters, instants
and progress stay plain: stores work with them. What no key here opens stays sealed;
readers call `core.sealing.require_open`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from packhorse.client.encryption import Encryption, Sealer, place
from packhorse.core.job import AttemptRecord, JobRecord, NewJob
from packhorse.core.policies.attachments import Attaching, Attachments
from packhorse.core.policies.explain import JobFacts
from packhorse.core.policies.journal import Group, JournalLine
from packhorse.core.policies.records import RecordChange
from packhorse.core.settlement import Settlement, Verdict
from packhorse.stores.attachments import AttachmentStore, DeliverAnswer
from packhorse.stores.intake import Intake, IntakeRequest, UserStatement
from packhorse.stores.plan import Plan
from packhorse.stores.protocol import InspectionStore, JobStore, Store
from packhorse.stores.records import Changed, JournalStore, RecordStore
from packhorse.stores.requests import Claimed, ClaimRequest, JobFilter, Page, Submitted
from packhorse.stores.transactions import TransactionStore

T = TypeVar("T")


def plain_store(store: Store) -> Store:
    """The store itself, without keys."""
    return store.plain if isinstance(store, SealedStore) else store


def sealed_job(store: Store, job: NewJob, *, keeper: str = "") -> NewJob:
    """A job as a record keeps it: encrypted, if the store's are; `keeper`: see `Sealer`."""
    return store.sealer.seal_job(job, keeper=keeper) if isinstance(store, SealedStore) else job


def sealed_digest(store: Store, digest: str) -> str:
    """A digest of values as a record keeps it: no guess can be checked where there are keys."""
    return store.sealer.keys.digest(digest) if isinstance(store, SealedStore) else digest


class _Opened(Plan[T], Generic[T], frozen=True, eq=False, kw_only=True):
    """A plan whose answer is opened when it has run."""

    opening: Callable[[Any], Any]


def _opened(plan: Plan[T], opening: Callable[[T], T]) -> Plan[T]:
    known = (plan.verb, plan.steps, plan.writes, plan.look, plan.short, plan.named)
    return _Opened(*known, opening=opening)


def _following(plan: Plan[T], found: list[str]) -> Plan[T]:
    """A plan that notes the id of the job it is about, should that have another name."""
    named = plan.named
    if named is None:
        return plan

    def again(job_id: str) -> Plan[T]:
        found[0] = job_id
        return named.again(job_id)

    return msgspec.structs.replace(plan, named=msgspec.structs.replace(named, again=again))


class SealedStore:
    """A store, with the keys of its values. Carrying jobs elsewhere leaves them sealed."""

    def __init__(self, store: Store, keys: Encryption) -> None:
        self.plain = store  #: itself, where values are as they are stored
        self.sealer = sealer = Sealer(keys)
        self.jobs: JobStore = _Jobs(store.jobs, sealer)
        self.inspection: InspectionStore = _Inspection(store.inspection, sealer)
        self.attachments: AttachmentStore = _Attachments(store.attachments, sealer)
        self.records: RecordStore = _Records(store.records, sealer)
        self.journal: JournalStore = _Journal(store.journal, sealer)
        self.leases, self.queues, self.upkeep = store.leases, store.queues, store.upkeep
        self.transfer, self.wakeups = store.transfer, store.wakeups
        self.label, self.works_apart = store.label, store.works_apart

    @property
    def intake(self) -> Intake | None:
        intake = self.plain.intake
        return None if intake is None else _SealedIntake(intake, self.sealer)

    @property
    def transactions(self) -> TransactionStore | None:
        return self.plain.transactions  # a forked child has others

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
        self.note_progress = jobs.note_progress
        self.cancel, self.redrive, self.delete = jobs.cancel, jobs.redrive, jobs.delete

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

    def await_finish(self, job_id: str) -> Plan[JobRecord | None]:
        return _opened(self._jobs.await_finish(job_id), _maybe(self._sealer.open_record))


class _Inspection:
    def __init__(self, inspection: InspectionStore, sealer: Sealer) -> None:
        self._inspection = inspection
        self._sealer = sealer
        self.counts, self.outlook = inspection.counts, inspection.outlook

    def job(self, job_id: str, *, tenant: str | None = None) -> Plan[JobRecord | None]:
        plan = self._inspection.job(job_id, tenant=tenant)
        return _opened(plan, _maybe(self._sealer.open_record))

    def history(self, job_id: str) -> Plan[tuple[AttemptRecord, ...]]:
        found = [job_id]

        def opening(lines: tuple[AttemptRecord, ...]) -> tuple[AttemptRecord, ...]:
            return tuple([self._sealer.open_attempt(found[0], line) for line in lines])

        return _opened(_following(self._inspection.history(job_id), found), opening)

    def search(
        self, chosen: JobFilter, *, limit: int, after: str | None = None, most: int | None = None
    ) -> Plan[Page]:
        def opening(page: Page) -> Page:
            jobs = tuple([self._sealer.open_record(record) for record in page.jobs])
            return msgspec.structs.replace(page, jobs=jobs)

        search = self._inspection.search(chosen, limit=limit, after=after, most=most)
        return _opened(search, opening)

    def explain(self, job_id: str, *, tenant: str | None = None) -> Plan[JobFacts | None]:
        def opening(facts: JobFacts) -> JobFacts:
            return msgspec.structs.replace(facts, record=self._sealer.open_record(facts.record))

        return _opened(self._inspection.explain(job_id, tenant=tenant), _maybe(opening))


class _Attachments:
    def __init__(self, attachments: AttachmentStore, sealer: Sealer) -> None:
        self._attachments = attachments
        self._sealer = sealer

    def attach(self, kept: Sequence[Attaching]) -> Plan[tuple[Verdict, ...]]:
        return self._attachments.attach([self._sealed(one) for one in kept])

    def _sealed(self, one: Attaching) -> Attaching:
        seal = self._sealer.keys.seal
        values = {
            name: seal(value, place(one.job_id, "step", name)).encode()
            for name, value in one.values.items()
        }
        return msgspec.structs.replace(one, values=values)

    def deliver(
        self, job_id: str, name: str, value: bytes, *, tenant: str | None = None, delivery: int = 0
    ) -> Plan[DeliverAnswer]:
        text = self._sealer.keys.seal(value, place(job_id, "signal", name))
        known: Any = {"tenant": tenant, "delivery": delivery}
        plan = self._attachments.deliver(job_id, name, text.encode(), **known)
        if plan.named is None:
            return plan

        def again(holder: str) -> Plan[DeliverAnswer]:  # sealed for the job that it really is
            return self.deliver(holder, name, value, **known)

        return msgspec.structs.replace(plan, named=msgspec.structs.replace(plan.named, again=again))

    def attachments(self, job_id: str, *, tenant: str | None = None) -> Plan[Attachments | None]:
        found = [job_id]
        plan = _following(self._attachments.attachments(job_id, tenant=tenant), found)
        return _opened(plan, _maybe(lambda kept: self._sealer.open_attached(found[0], kept)))


class _Records:
    """Documents are as those who write them give them (`sealed_job`); jobs of a change are not."""

    def __init__(self, records: RecordStore, sealer: Sealer) -> None:
        self._records = records
        self._sealer = sealer
        self.record, self.records = records.record, records.records

    def change(
        self,
        changes: Sequence[RecordChange],
        *,
        jobs: Sequence[NewJob] = (),
        not_before: int | None = None,
    ) -> Plan[Changed]:
        own = self._sealer.seal_jobs(jobs)
        return self._records.change(changes, jobs=own, not_before=not_before)


class _Journal:
    """Lines are plain; the jobs that come with a fold are not."""

    def __init__(self, journal: JournalStore, sealer: Sealer) -> None:
        self._journal = journal
        self._sealer = sealer
        self.journal_groups, self.journal = journal.journal_groups, journal.journal

    def fold(
        self,
        group: Group,
        line_ids: Sequence[int],
        changes: Sequence[RecordChange] = (),
        *,
        jobs: Sequence[NewJob] = (),
        carried: Sequence[JournalLine] = (),
    ) -> Plan[Changed]:
        own = self._sealer.seal_jobs(jobs)
        return self._journal.fold(group, line_ids, changes, jobs=own, carried=carried)


class _SealedIntake:
    """What users' transactions ask for: their jobs are sealed as others are."""

    def __init__(self, intake: Intake, sealer: Sealer) -> None:
        self._intake = intake
        self._sealer = sealer
        self.admits_by_itself = intake.admits_by_itself
        self.family = intake.family
        self.probe, self.unfit, self.identity = intake.probe, intake.unfit, intake.identity
        self.notice, self.wake, self.holder = intake.notice, intake.wake, intake.holder
        self.admit, self.give_up = intake.admit, intake.give_up

    def append(self, requests: Sequence[IntakeRequest]) -> UserStatement:
        return self._intake.append(sealed_requests(requests, self._sealer))


def sealed_requests(requests: Sequence[IntakeRequest], sealer: Sealer) -> list[IntakeRequest]:
    """What users' transactions ask for, with the values of its jobs sealed."""
    return [
        one if one.job is None else msgspec.structs.replace(one, job=sealer.seal_job(one.job))
        for one in requests
    ]


def _maybe(opening: Callable[[T], T]) -> Callable[[T | None], T | None]:
    return lambda found: None if found is None else opening(found)
