# SPDX-License-Identifier: MIT
"""Advance workflows: fold the ends of nodes, and do what is due without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from packhorse.core.generators import adrive
from packhorse.core.policies.journal import WORKFLOW_KIND, Group, JournalLine
from packhorse.core.policies.records import Record
from packhorse.core.workflows import read_head
from packhorse.events import EventBus
from packhorse.runtime.services.groups import Fold
from packhorse.runtime.services.service import (
    Service,
    ServiceContext,
    due_records,
    text_of_id,
)
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed
from packhorse.workflows.info import ends_told
from packhorse.workflows.records import StoredWorkflow

#: Workflows read in one round.
_PAGE: Final = 50


class WorkflowFolding:
    """Submit nodes whose parents have ended, and end workflows."""

    kind = WORKFLOW_KIND

    def __init__(self, bus: EventBus, worker: str) -> None:
        self._ended = ends_told(bus, worker)

    def fold(self, store: Store, group: Group, lines: Sequence[JournalLine]) -> Asking[Fold]:
        """Fold the ends of nodes; if there are many, some of them."""
        return Fold(*(yield from StoredWorkflow(store, group, self._ended).folded(lines)))

    def folded(self, store: Store, group: Group, fold: Fold, changed: Changed) -> Asking[None]:
        """Note which jobs stand in for nodes; refused jobs have lines of their own."""
        if fold.note is not None:
            self._ended(group, fold.note)
        yield from StoredWorkflow(store, group, self._ended).note_answers(fold.jobs, changed)


class WorkflowKeeper(Service):
    """Finish what a producer or an operator has begun, and remove expired workflows."""

    name = "workflows"
    interval_s = 5.0

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._ended = ends_told(context.bus, context.worker)

    async def run_once(self) -> float:
        """Advance or remove the workflows that are due."""
        page = await self._page(WORKFLOW_KIND, limit=_PAGE, by_order=True)
        due = due_records(page)
        kept_up = await self._with_each(due, text_of_id, self._keep_up)
        if len(due) == _PAGE and kept_up:
            return 0.0
        return self._until_due_s(page)

    async def follow(self) -> bool:
        """Check now whether jobs that stand in for nodes have ended, for a burst."""
        moved: list[bool] = []

        async def follow(record: Record) -> None:
            head = read_head(record.document)
            if head.same:
                moved.append(await adrive(self._workflow(record).follow(head), self._store.arun))

        page = await self._page(WORKFLOW_KIND, limit=_PAGE, by_order=True)
        await self._with_each(page.records, text_of_id, follow)
        return any(moved)

    async def _keep_up(self, record: Record) -> None:
        await adrive(self._workflow(record).keep_up(record), self._store.arun)

    def _workflow(self, record: Record) -> StoredWorkflow:
        return StoredWorkflow(self._store, Group.of(record.id.text), self._ended)
