# SPDX-License-Identifier: MIT
"""When the service that looks after workflows looks again."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.policies.records import Put, RecordId
from packhorse.core.workflows import WORKFLOW_KIND
from packhorse.events import EventBus
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.services.workflow_folding import WorkflowKeeper
from packhorse.stores.memory.store import MemoryStore
from packhorse.testing.virtual_clock import VirtualClock
from tests.worker.support import Even


@pytest.mark.parametrize(
    ("due_in_s", "share"), [((), 1.0), ((0.25, 0.5), 0.25), ((0.5, 2.0), 0.5), ((3.0,), 1.0)]
)
async def test_it_looks_when_the_next_one_is_due_and_after_an_interval_at_the_latest(
    due_in_s: tuple[float, ...], share: float
) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    service = WorkflowKeeper(ServiceContext(store, clock, Even(), EventBus(), "w"))
    for number, part in enumerate(due_in_s):
        order = clock.now_us() + int(part * service.interval_s * SECOND_US)
        put = Put(RecordId(WORKFLOW_KIND, "", str(number)), b"{}", 0, order)
        store.run(store.records.change([put]))

    assert await service.run_once() == pytest.approx(share * service.interval_s)
