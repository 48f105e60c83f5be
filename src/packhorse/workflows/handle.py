# SPDX-License-Identifier: MIT
"""A handle on one run of a workflow: inspect, wait, cancel, retry. Every verb has an a-twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Final, TypeVar

from packhorse.client.store_access import Asks, Connection
from packhorse.client.waiting import left_s, next_look
from packhorse.core.clock import SECOND_US
from packhorse.core.durations import Duration, microseconds
from packhorse.core.generators import adrive, awaited, blocking
from packhorse.core.interpreter import in_event_loop
from packhorse.core.job_info import Explanation
from packhorse.core.policies.journal import Group
from packhorse.core.workflows import HeadDocument, WorkflowState, node_job_id, numbers_in
from packhorse.errors import ResultTimeout, UsageError
from packhorse.group_errors import WorkflowNotFound
from packhorse.handle import JobHandle, explained
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.workflows.changes import cancelled, retried
from packhorse.workflows.info import (
    NodeInfo,
    WorkflowInfo,
    ends_told,
    explained_node,
    failure_of,
    node_infos,
    workflow_info,
)
from packhorse.workflows.records import Ended, read_workflow

T = TypeVar("T")
R = TypeVar("R")

#: Stands between the name and the run in an id.
RUN_MARK: Final = "#"


class Workflow(Asks):
    """One run of a workflow; it reads nothing before a verb is called."""

    def __init__(self, group: Group, connection: Connection, deduplicated: bool = False) -> None:  # noqa: FBT001, FBT002 - as of jobs
        super().__init__(connection)
        self._group = group
        #: A run of this name was running already, and was returned instead of a new one; its nodes
        #: and their arguments may be others than those that were to be started.
        self.deduplicated = deduplicated

    @property
    def name(self) -> str:
        """The name it was started with."""
        return self._group.key

    @property
    def id(self) -> str:
        """The name and this run of it."""
        return f"{self._group.key}{RUN_MARK}{self._group.run}"

    def __repr__(self) -> str:
        return f"Workflow(id={self.id!r})"

    @blocking
    def info(self) -> Asking[WorkflowInfo]:
        """Return its state and counts."""
        return workflow_info(self._group, (yield from self._head()))

    ainfo = awaited(info)

    @blocking
    def status(self) -> Asking[WorkflowState]:
        """`running`, `completed`, `failed` or `cancelled`."""
        return (yield from self._head()).state

    astatus = awaited(status)

    @blocking
    def nodes(self) -> Asking[list[NodeInfo]]:
        """List its nodes and their states, in the order they were added."""
        return self._nodes()

    anodes = awaited(nodes)

    @blocking
    def node(self, name: str) -> Asking[NodeInfo]:
        """Find a node by its name."""
        return _node((yield from self._nodes()), name, self.name)

    anode = awaited(node)

    @blocking
    def job(self, name: str) -> Asking[JobHandle[Any]]:
        """Return a handle on the job of a node; a node that has not begun has none yet."""
        return self._job(_node((yield from self._nodes()), name, self.name))

    ajob = awaited(job)

    @blocking
    def explain(self, name: str) -> Asking[Explanation]:
        """Explain why a node does not run: which nodes it waits for, or what holds its job back."""
        nodes = yield from self._nodes()
        node = _node(nodes, name, self.name)
        if node.has_job:
            return (yield from explained(self._job(node)))
        return explained_node(node, nodes, self._connection.clock.now_us())

    aexplain = awaited(explain)

    @blocking
    def cancel(self) -> Asking[bool]:
        """Cancel its jobs and the nodes behind them; False if it had ended."""
        return self._changed(cancelled)

    acancel = awaited(cancel)

    @blocking
    def retry(self) -> Asking[int]:
        """Retry dead and cancelled nodes, and revive those behind them; return how many."""
        return self._changed(retried)

    aretry = awaited(retry)

    def wait(self, timeout: Duration | None = None) -> WorkflowState:
        """Wait until it has ended; `ResultTimeout` after `timeout`, and it goes on regardless."""
        self._may_block("wait")
        return self._connection.wait(lambda store: self._wait(store, timeout))

    async def await_end(self, timeout: Duration | None = None) -> WorkflowState:
        """As `wait`, without blocking the event loop."""
        return await self._wait(await self._connection.astore(), timeout)

    def result(self, timeout: Duration | None = None) -> Any:
        """Return what the last node returned; wait for the workflow to end if necessary.

        Several last nodes give a list. `WorkflowFailed` if one of them did not complete.
        """
        self._may_block("result")
        self._connection.wait(lambda store: self._wait(store, timeout))
        head, handles = self._connection.drive(self._last())
        results = [handle.result(0) for handle in handles]
        return results if head.many else results[0]

    async def aresult(self, timeout: Duration | None = None) -> Any:
        """As `result`, without blocking the event loop."""
        await self._wait(await self._connection.astore(), timeout)
        head, handles = await self._connection.adrive(self._last())
        results = [await handle.aresult(0) for handle in handles]
        return results if head.many else results[0]

    # ------------------------------------------------------------------------------------ asking

    def _head(self) -> Asking[HeadDocument]:
        found = yield from read_workflow(self._connection.store, self._group)
        if found is None:
            raise WorkflowNotFound(self.id)
        return found[0]

    def _nodes(self) -> Asking[list[NodeInfo]]:
        yield from self._head()
        return (yield from node_infos(self._connection.store, self._group))

    def _changed(self, change: Callable[[Store, Group, Ended], Asking[T]]) -> Asking[T]:
        yield from self._head()
        ended = ends_told(self._connection.bus)
        return (yield from change(self._connection.store, self._group, ended))

    def _last(self) -> Asking[tuple[HeadDocument, list[JobHandle[Any]]]]:
        """Return the jobs of the last nodes; raise if one has not completed."""
        head = yield from self._head()
        nodes = yield from node_infos(self._connection.store, self._group)
        keys = [str(number) for number in numbers_in(head.last)]
        last = [node for node in nodes if node.key in keys]
        if not last:
            raise UsageError(f"workflow {self.name!r} has no node, so it has no result")
        wrong = next((node for node in last if node.state != "completed"), None)
        if wrong is not None:
            raise (yield from failure_of(self._connection.store, self.id, nodes, wrong))
        return head, [self._job(node) for node in last]

    def _job(self, node: NodeInfo) -> JobHandle[Any]:
        job_id = node.same_as or node_job_id(self._group, node.key)
        return JobHandle(job_id, False, self._connection, tenant=self._group.tenant or None)

    async def _wait(self, store: Store, timeout: Duration | None) -> WorkflowState:
        timeout_s = None
        if timeout is not None:
            timeout_s = microseconds(timeout, setting="timeout") / SECOND_US
        clock = self._connection.clock
        begun = clock.monotonic()
        with closing(store.wakeups.listen(frozenset({"record:workflow"}))) as listener:
            while True:
                state = (await adrive(self._head(), store.arun)).state
                if state.is_final:
                    return state
                if not await next_look(listener, clock, left_s(begun, timeout_s, clock)):
                    raise ResultTimeout(self.id, waited_s=timeout_s or 0, what="workflow")

    def _may_block(self, verb: str) -> None:
        if in_event_loop():
            other = "await_end" if verb == "wait" else f"a{verb}"
            raise UsageError(
                f"{verb}() of workflow {self.name!r} would block the running event loop, and its "
                f"nodes may need that very loop: use 'await workflow.{other}()'"
            )


def _node(nodes: Sequence[NodeInfo], name: str, workflow: str) -> NodeInfo:
    for node in nodes:
        if name in (node.name, node.key):
            return node
    raise UsageError(f"workflow {workflow!r} has no node {name!r}; see 'packhorse workflows show'")
