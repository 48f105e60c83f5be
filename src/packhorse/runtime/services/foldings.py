# SPDX-License-Identifier: MIT
"""The kinds of groups that workers fold."""

from __future__ import annotations

from packhorse.batches.progress import ProgressWatchers
from packhorse.core.clock import Chance
from packhorse.events import EventBus
from packhorse.runtime.services.batch_folding import BatchFolding
from packhorse.runtime.services.groups import Folding
from packhorse.runtime.services.workflow_folding import WorkflowFolding, WorkflowKeeper
from packhorse.stores.protocol import Store


def known_foldings(watchers: ProgressWatchers, bus: EventBus, worker: str) -> tuple[Folding, ...]:
    """One for each kind of group, as a worker begins with them."""
    return (BatchFolding(watchers, bus, worker), WorkflowFolding(bus, worker))


def keepers(store: Store, chance: Chance, bus: EventBus, worker: str) -> tuple[WorkflowKeeper, ...]:
    """What looks after groups when nothing ends in them."""
    return (WorkflowKeeper(store, chance, bus, worker),)
