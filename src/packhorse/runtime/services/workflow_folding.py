# SPDX-License-Identifier: MIT
"""Goes on with workflows: what the ends of nodes come to, and what is due without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from packhorse.core.clock import SECOND_US, Chance
from packhorse.core.driving import adrive
from packhorse.core.policies.journal import Group, JournalLine
from packhorse.core.workflows import WORKFLOW_KIND, read_head
from packhorse.events import EventBus
from packhorse.runtime.services.groups import Fold
from packhorse.runtime.services.upkeep import spread
from packhorse.stores.plan import Asking
from packhorse.stores.protocol import Store
from packhorse.stores.records import Changed, RecordPage
from packhorse.workflows.info import ends_told
from packhorse.workflows.records import folded, followed, kept_up, noted

#: Workflows looked at in one round.
_PAGE: Final = 50


class WorkflowFolding:
    """Submits nodes whose parents have ended, and ends workflows."""

    kind = WORKFLOW_KIND

    def __init__(self, bus: EventBus, worker: str) -> None:
        self._ended = ends_told(bus, worker)

    def fold(self, store: Store, group: Group, lines: Sequence[JournalLine]) -> Asking[Fold]:
        """What the ends of nodes come to; a part of it, where that is much."""
        return Fold(*(yield from folded(store, group, lines)))

    def folded(self, store: Store, group: Group, fold: Fold, changed: Changed) -> Asking[None]:
        """Keep which jobs answer for nodes; those that were refused have lines of their own."""
        if fold.note is not None:
            self._ended(group, fold.note)
        yield from noted(store, group, fold.jobs, changed, self._ended)


class WorkflowKeeper:
    """Goes on with what a producer or an operator has begun, and removes what is over."""

    name = "workflows"
    interval_s = 5.0

    def __init__(self, store: Store, chance: Chance, bus: EventBus, worker: str) -> None:
        self._store = store
        self._chance = chance
        self._ended = ends_told(bus, worker)

    async def run_once(self) -> float:
        """Look after the workflows that are due."""
        store = self._store
        page: RecordPage = await store.arun(
            store.records.records(WORKFLOW_KIND, by_order=True, limit=_PAGE)
        )
        due = [record for record in page.records if (record.order or 0) <= page.now_us]
        for record in due:
            await adrive(kept_up(store, record, self._ended), store.arun)
        if len(due) == _PAGE:
            return 0.0
        left = [record.order or 0 for record in page.records if record not in due]
        wait_s = (min(left) - page.now_us) / SECOND_US if left else self.interval_s
        return min(wait_s, spread(self.interval_s, self._chance))

    async def follow(self) -> bool:
        """Look now whether jobs have ended that answer for nodes, as a burst does."""
        store, moved = self._store, False
        page: RecordPage = await store.arun(
            store.records.records(WORKFLOW_KIND, by_order=True, limit=_PAGE)
        )
        for record in page.records:
            head = read_head(record.document)
            if head.same:
                group = Group.of(record.id.text)
                moved |= await adrive(followed(store, group, head, self._ended), store.arun)
        return moved
