# SPDX-License-Identifier: MIT
"""An app as one tenant sees it: that tenant's jobs, and no others."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any, Final, TypedDict, TypeVar, Unpack

from packhorse.batches.beginning import BatchOptions, NewBatch
from packhorse.batches.handle import Batch, Batches
from packhorse.call import Call, Choices
from packhorse.client.submission import Submission
from packhorse.client.topics import Publisher, PublishOptions
from packhorse.core.generators import awaited, blocking
from packhorse.core.job import JobStatus
from packhorse.core.job_info import Explanation, JobInfo, job_info
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


class JobVerbs:
    """What an app does with jobs, and the view of a tenant with those that are its own."""

    _submission: Submission
    _tenant: str | None = None  #: None: of all tenants

    def job(self, job_id: str) -> JobHandle[Any]:
        """Return a handle on a job by its id; nothing is read before one of its verbs is called."""
        return JobHandle(job_id, False, self._submission.connection, tenant=self._tenant)

    def explain(self, job_id: str) -> Explanation:
        """Say why a job is not running now, or what it does instead."""
        return self.job(job_id).explain()

    async def aexplain(self, job_id: str) -> Explanation:
        """As `explain`, without blocking the event loop."""
        return await self.job(job_id).aexplain()

    def enqueue_many(
        self, calls: Iterable[Call[Any]], *, atomic: bool = False, tx: object = None
    ) -> list[JobHandle[Any]]:
        """Store calls of any tasks, in parts that are each stored all or none; a handle for each.

        `atomic` stores all of them or none, up to 5,000. With `tx`, a connection of yours, they are
        stored when its transaction commits.
        """
        batch = self._submission.prepared(self._own(calls), atomic=atomic, tx=tx)
        return self._submission.store(batch, "enqueue_many", tenant=self._tenant)

    async def aenqueue_many(
        self, calls: Iterable[Call[Any]], *, atomic: bool = False, tx: object = None
    ) -> list[JobHandle[Any]]:
        """As `enqueue_many`, without blocking the event loop."""
        batch = self._submission.prepared(self._own(calls), atomic=atomic, tx=tx)
        return await self._submission.astore(batch, tenant=self._tenant)

    def batch(
        self, task: Task[..., R], items: Iterable[Any], /, **options: Unpack[BatchOptions]
    ) -> Batch[R]:
        """Run a task for each item, in jobs of `batch_size` items.

        An item is a mapping of arguments, or the value of the only parameter. Any iterator will
        do: it is read as the jobs are stored, and never held whole. Items that fail are tried
        again by the task's retry policy.
        """
        return self._new_batch(task, options).begin(items)

    async def abatch(
        self,
        task: Task[..., R],
        items: Iterable[Any] | AsyncIterable[Any],
        /,
        **options: Unpack[BatchOptions],
    ) -> Batch[R]:
        """As `batch`, without blocking the event loop; also of async iterators."""
        return await self._new_batch(task, options).abegin(items)

    @property
    def batches(self) -> Batches:
        """The batches that the store holds, to look at and to end."""
        return Batches(self._submission.connection, self._tenant)

    @property
    def workflows(self) -> Workflows:
        """The workflows that the store holds: `get(name)`, `all()`."""
        return Workflows(self._submission.connection, self._tenant)

    def _new_batch(self, task: Task[..., Any], options: BatchOptions) -> NewBatch:
        choices = task.choices if self._tenant is None else self._own_choices(task)
        return NewBatch(self._submission, task.definition, choices, options)

    def _own(self, calls: Iterable[Call[Any]]) -> Iterable[Call[Any]]:
        """Return the calls as this tenant's; one that is for another is refused."""
        return calls if self._tenant is None else map(self._own_call, calls)

    def _own_call(self, call: Call[Any]) -> Call[Any]:
        self._require_own(call.task, call.choices)
        return call.using(tenant=self._tenant)

    def _own_choices(self, task: Task[..., Any]) -> Choices:
        self._require_own(task.name, task.choices)
        return task.using(tenant=self._tenant).choices

    def _require_own(self, task: str, choices: Choices) -> None:
        given = choices.values.get("tenant", self._tenant)
        if given != self._tenant:
            raise ConfigError(
                f"a call of task {task} is for tenant {given!r} and was given to the view of "
                f"tenant {self._tenant!r}; submit it through its own, or leave its tenant out"
            )


class TenantView(JobVerbs):
    """Sees and acts on the jobs of one tenant; any other job is not found here."""

    def __init__(self, tenant: str, submission: Submission) -> None:
        # None would see the jobs of every tenant, "" those that belong to none.
        self.tenant = self._tenant = name_text(tenant, "a tenant's view: tenant")
        self._submission = submission

    def workflow(self, name: str | None = None, shape: Any = None) -> Flow:
        """A workflow of this tenant, as `Packhorse.workflow` makes one; its nodes are its jobs."""
        return Flow(self._submission, name, shape=shape, tenant=self.tenant)

    def publish(
        self, topic: str, payload: object, *, tx: object = None, **options: Unpack[PublishOptions]
    ) -> list[JobHandle[Any]]:
        """Publish an event whose jobs are this tenant's, as `Topic.publish` does."""
        publisher = Publisher(topic, self._submission, self.tenant)
        return publisher.publish(payload, tx=tx, **options)

    async def apublish(
        self, topic: str, payload: object, *, tx: object = None, **options: Unpack[PublishOptions]
    ) -> list[JobHandle[Any]]:
        """As `publish`, without blocking the event loop."""
        publisher = Publisher(topic, self._submission, self.tenant)
        return await publisher.apublish(payload, tx=tx, **options)

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
