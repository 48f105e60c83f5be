# SPDX-License-Identifier: MIT
"""The workflows of an app: build, start, inspect, cancel and retry them.

    flow = app.workflow("order-17")
    pay = flow.add(charge.call(42))
    ship = flow.add(send.call(pay.result), after=[pay], on_failure="cancel")
    running = flow.start()
    running.result(timeout=60)

Workers advance them (`runtime.services.workflow_folding`); this module only reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from packhorse.call import Call
from packhorse.client.store_access import Asks, Connection
from packhorse.client.submission import Submission, new_job
from packhorse.core.clock import new_id
from packhorse.core.generators import awaited, blocking
from packhorse.core.interpreter import in_event_loop
from packhorse.core.job import NewJob
from packhorse.core.options import name_text
from packhorse.core.policies.records import Record
from packhorse.core.workflows import NAME_BYTES_MAX, name_id, numbers_text
from packhorse.errors import ConfigError, UsageError
from packhorse.group_errors import WorkflowNotFound
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.workflows.changes import WorkflowPlan, started, workflow_group
from packhorse.workflows.graph import FailureChoice, Graph, Node
from packhorse.workflows.handle import RUN_MARK, Workflow
from packhorse.workflows.info import (
    WorkflowInfo,
    WorkflowPage,
    all_workflows,
    ends_told,
    workflow_page,
)
from packhorse.workflows.records import read_workflow

T = TypeVar("T")
R = TypeVar("R")


class _Shape(Protocol):
    """A chain or a group of calls that can add its nodes to a workflow."""

    many: bool

    def add_to(self, graph: Graph, after: Sequence[Node[Any]] = ()) -> list[Node[Any]]: ...


class WorkflowVerbs:
    """The verbs of an app that are about workflows."""

    _connection: Connection
    _submission: Submission

    def workflow(
        self, name: str | None = None, shape: _Shape | None = None, *, tenant: str = ""
    ) -> Flow:
        """Build a workflow node by node, or from a `chain` or `gather`; then start it.

        While one of a name runs, another start of that name returns the running one.
        """
        return Flow(self._submission, name, shape=shape, tenant=tenant)

    def _node_job(self, call: Call[Any], job_id: str) -> NewJob:
        """Make the job of a node from a call; for workers, whose handlers add nodes."""
        job = new_job(call, self._connection.declarations, job_id)
        with self._submission.traced([job]) as jobs:
            return jobs[0]


class Flow(Graph):
    """A workflow that is being built; nothing is stored before it is started."""

    def __init__(
        self,
        submission: Submission,
        name: str | None = None,
        *,
        shape: _Shape | None = None,
        tenant: str = "",
    ) -> None:
        self.name = new_id() if name is None else _checked_name(name)
        super().__init__(f"workflow {self.name!r}", tenant=tenant)
        self._submission = submission
        self._run = _new_run()
        self._is_started = False
        self._last: list[Node[Any]] = []
        self._many = False
        if shape is not None:
            self._last, self._many = shape.add_to(self), shape.many

    def add(
        self,
        call: Call[R],
        *,
        after: Iterable[Node[Any]] = (),
        on_failure: FailureChoice = "cancel",
        name: str | None = None,
    ) -> Node[R]:
        """Add a call behind the nodes of `after`, and those whose results are its arguments.

        If one of them does not complete, it is cancelled too (`cancel`), or runs as if it had
        completed with no result (`ignore`), or runs, and the workflow fails all the same (`run`).
        """
        node = self.place(call, after, on_failure, name)
        self._last, self._many = [node], False
        return node

    def start(self) -> Workflow:
        """Store it, submit the nodes that wait for nothing, and return at once.

        A call after an error of the store continues the call that failed. A call after one that
        succeeded returns the run of this name, or starts another one when it has ended.
        """
        if in_event_loop():
            self._submission.warn_of_blocking("start")
        connection = self._submission.connection
        connection.declare_all()
        with self._planned() as plan:
            return self._handle(connection.drive(self._started(connection.store, plan)))

    async def astart(self) -> Workflow:
        """As `start`, without blocking the event loop."""
        connection = self._submission.connection
        await connection.adeclare_all()
        store = await connection.astore()
        with self._planned() as plan:
            return self._handle(await connection.adrive(self._started(store, plan)))

    @contextmanager
    def _planned(self) -> Iterator[WorkflowPlan]:
        """Yield the plan of the start; its nodes belong to the trace of the caller."""
        group = workflow_group(self.tenant, self.name, self._run)
        nodes = self.documents(group, "", self._job)
        jobs = [node.job for _, node in nodes]
        self._submission.check(jobs)
        last = numbers_text(node.number for node in self._last)
        with self._submission.traced(jobs) as traced:
            carrying = [
                (key, msgspec.structs.replace(node, job=job))
                for (key, node), job in zip(nodes, traced, strict=True)
            ]
            yield WorkflowPlan(group, carrying, last, self._many)

    def _started(self, store: Store, plan: WorkflowPlan) -> Asking[Any]:
        return started(store, plan, ends_told(self._submission.connection.bus))

    def _job(self, call: Call[Any], job_id: str) -> NewJob:
        return new_job(call, self._submission.connection.declarations, job_id)

    def _check(self, call: object) -> None:
        if self._is_started:
            raise UsageError(
                f"{self.where} was started and takes no more nodes; build another with "
                "app.workflow(...), or add nodes from a handler of it with ctx.flow.add(...)"
            )
        super()._check(call)

    def _handle(self, answer: Any) -> Workflow:
        self._is_started, self._run = True, _new_run()
        return Workflow(answer.group, self._submission.connection, answer.deduplicated)


class Workflows(Asks):
    """The workflows that a store holds; of one tenant, if it is a tenant's view."""

    def __init__(self, connection: Connection, tenant: str | None = None) -> None:
        super().__init__(connection)
        self._tenant = tenant

    @blocking
    def get(self, name: str, *, tenant: str = "") -> Asking[Workflow]:
        """Find the newest run of a name, or a run by its id; else raise `WorkflowNotFound`."""
        store = self._connection.store
        own = tenant if self._tenant is None else self._tenant
        key, _, run = name.partition(RUN_MARK)
        if not run:
            record: Record | None = yield store.records.record(name_id(own, key))
            if record is None:
                raise WorkflowNotFound(name)
            run = record.document.decode()
        group = workflow_group(own, key, run)
        if (yield from read_workflow(store, group)) is None:
            raise WorkflowNotFound(name)
        return Workflow(group, self._connection)

    aget = awaited(get)

    @blocking
    def all(self, *, limit: int = 1_000) -> Asking[list[WorkflowInfo]]:
        """List those that run or are still kept, by tenant and name, at most `limit`."""
        return all_workflows(self._connection.store, self._tenant, limit)

    aall = awaited(all)  # noqa: A003 - the verb above

    async def apage(self, *, limit: int = 50, after: str | None = None) -> WorkflowPage:
        """List one page of them, by tenant and name: one query, however many there are."""
        store = await self._connection.astore()
        return await self._connection.adrive(workflow_page(store, self._tenant, limit, after))


def _new_run() -> str:
    return new_id().replace("-", "")


def _checked_name(name: str) -> str:
    text = name_text(name, "the name of a workflow")
    if RUN_MARK in text or len(text.encode()) > NAME_BYTES_MAX:
        raise ConfigError(
            f"{text[:80]!r} cannot name a workflow: at most {NAME_BYTES_MAX} bytes, and no "
            f"'{RUN_MARK}'"
        )
    return text
