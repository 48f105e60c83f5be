# SPDX-License-Identifier: MIT
"""The kinds of groups that workers fold."""

from __future__ import annotations

from packhorse.batches.progress import ProgressWatchers
from packhorse.core.clock import Chance
from packhorse.runtime.services.batch_folding import BatchFolding
from packhorse.runtime.services.groups import Folding
from packhorse.runtime.services.workflow_folding import WorkflowFolding, WorkflowKeeper
from packhorse.stores.protocol import Store

__all__ = ["keepers", "known_foldings"]


def known_foldings(watchers: ProgressWatchers) -> tuple[Folding, ...]:
    """One for each kind of group, as a worker begins with them."""
    return (BatchFolding(watchers), WorkflowFolding())


def keepers(store: Store, chance: Chance) -> tuple[WorkflowKeeper, ...]:
    """What looks after groups when nothing ends in them."""
    return (WorkflowKeeper(store, chance),)
