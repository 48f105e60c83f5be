# SPDX-License-Identifier: MIT
"""An app as one tenant sees it: that tenant's jobs, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any, Final, TypedDict, TypeVar, Unpack

from packhorse.batches.beginning import BatchOptions, NewBatch
from packhorse.batches.handle import Batch, Batches
from packhorse.call import Call, Choices
from packhorse.client.submission import Submission
from packhorse.client.topics import PublishOptions, apublish, publish
from packhorse.core.driving import awaited, blocking
from packhorse.core.info import Explanation, JobInfo, job_info
from packhorse.core.job import JobStatus
from packhorse.core.options import chosen_options, name_text
from packhorse.errors import ConfigError
from packhorse.handle import JobHandle
from packhorse.stores.plan import Asking
from packhorse.stores.requests import JobFilter, Page
from packhorse.task import Task
from packhorse.workflows.verbs import Flow, Workflows

R = TypeVar("R")
T = TypeVar("T")

#: Jobs one search may answer.
PAGE_MAX: Final = 1_000


class SearchOptions(TypedDict, total=False):
    """Filters of a search; what is absent, or None, does not narrow it."""

    queue: str | None
    task: str | None
    statuses: Iterable[JobStatus] | None
    tag: str | None
    created_by: str | None


class TenantView:
    """Sees and acts on the jobs of one tenant; any other job is not found here."""

    def __init__(self, tenant: str, submission: Submission) -> None:
        # None would see the jobs of every tenant, "" those that belong to none.
        self.tenant = name_text(tenant, "a tenant's view: tenant")
        self._submission = submission

    def job(self, job_id: str) -> JobHandle[Any]:
        """Return a handle on this tenant's job; its verbs raise `JobNotFound` for other jobs."""
        return JobHandle(job_id, False, self._submission.connection, tenant=self.tenant)

    def workflow(self, name: str | None = None, shape: Any = None) -> Flow:
        """A workflow of this tenant, as `Packhorse.workflow` makes one; its nodes are its jobs."""
        return Flow(self._submission, name, shape=shape, tenant=self.tenant)

    @property
    def workflows(self) -> Workflows:
        """The workflows of this tenant."""
        return Workflows(self._submission.connection, self.tenant)

    def explain(self, job_id: str) -> Explanation:
        """Say why a job of this tenant is not running; other tenants' jobs are only counted."""
        return self.job(job_id).explain()

    async def aexplain(self, job_id: str) -> Explanation:
        """As `explain`, without blocking the event loop."""
        return await self.job(job_id).aexplain()

    def enqueue_many(
        self, calls: Iterable[Call[Any]], *, atomic: bool = False, tx: object = None
    ) -> list[JobHandle[Any]]:
        """Store calls as this tenant's, as `Packhorse.enqueue_many` does."""
        batch = self._submission.prepared(map(self._own, calls), atomic=atomic, tx=tx)
        return self._submission.store(batch, "enqueue_many", tenant=self.tenant)

    async def aenqueue_many(
        self, calls: Iterable[Call[Any]], *, atomic: bool = False, tx: object = None
    ) -> list[JobHandle[Any]]:
        """As `enqueue_many`, without blocking the event loop."""
        batch = self._submission.prepared(map(self._own, calls), atomic=atomic, tx=tx)
        return await self._submission.astore(batch, tenant=self.tenant)

    def publish(
        self, topic: str, payload: object, *, tx: object = None, **options: Unpack[PublishOptions]
    ) -> list[JobHandle[Any]]:
        """Publish an event whose jobs are this tenant's, as `Topic.publish` does."""
        given = {**options, "tx": tx}
        return publish(self._submission, topic, payload, given, tenant=self.tenant)

    async def apublish(
        self, topic: str, payload: object, *, tx: object = None, **options: Unpack[PublishOptions]
    ) -> list[JobHandle[Any]]:
        """As `publish`, without blocking the event loop."""
        given = {**options, "tx": tx}
        return await apublish(self._submission, topic, payload, given, tenant=self.tenant)

    @property
    def batches(self) -> Batches:
        """This tenant's batches; others are not found here."""
        return Batches(self._submission.connection, self.tenant)

    def batch(
        self, task: Task[..., R], items: Iterable[Any], /, **options: Unpack[BatchOptions]
    ) -> Batch[R]:
        """Run a task for each item as this tenant's, as `Packhorse.batch` does."""
        return self._batch(task, options).begin(items)

    async def abatch(
        self,
        task: Task[..., R],
        items: Iterable[Any] | AsyncIterable[Any],
        /,
        **options: Unpack[BatchOptions],
    ) -> Batch[R]:
        """As `batch`, without blocking the event loop."""
        return await self._batch(task, options).abegin(items)

    @blocking
    def search(self, *, limit: int = 50, **chosen: Unpack[SearchOptions]) -> Asking[list[JobInfo]]:
        """Return this tenant's jobs that match, newest first, at most `limit`."""
        named = chosen_options(chosen, SearchOptions, "search()")
        statuses = tuple(JobStatus(status) for status in named.pop("statuses", ()))
        meant = JobFilter(tenant=self.tenant, statuses=statuses, **named)
        store, bounded = self._submission.connection.store, max(1, min(limit, PAGE_MAX))
        page: Page = yield store.inspection.search(meant, limit=bounded)
        return [job_info(record) for record in page.jobs]

    asearch = awaited(search)

    def _drive(self, work: Asking[T]) -> T:
        return self._submission.connection.drive(work)

    async def _adrive(self, work: Asking[T]) -> T:
        return await self._submission.connection.adrive(work)

    def _batch(self, task: Task[..., Any], options: BatchOptions) -> NewBatch:
        self._require_own(task.name, task.choices)
        choices = task.using(tenant=self.tenant).choices
        return NewBatch(self._submission, task.definition, choices, options)

    def _own(self, call: Call[Any]) -> Call[Any]:
        self._require_own(call.task, call.choices)
        return call.using(tenant=self.tenant)

    def _require_own(self, task: str, choices: Choices) -> None:
        given = choices.values.get("tenant", self.tenant)
        if given != self.tenant:
            raise ConfigError(
                f"a call of task {task} is for tenant {given!r} and was given to the view of "
                f"tenant {self.tenant!r}; submit it through its own, or leave its tenant out"
            )
