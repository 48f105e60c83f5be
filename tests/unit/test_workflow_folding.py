# SPDX-License-Identifier: MIT
"""When the service that looks after workflows looks again."""

from __future__ import annotations

import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.policies.journal import WORKFLOW_KIND
from packhorse.core.policies.records import Put, Record, RecordId
from packhorse.errors import StoreUnavailable
from packhorse.events import EventBus
from packhorse.runtime.services import workflow_folding
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.services.workflow_folding import WorkflowKeeper
from packhorse.stores.memory.store import MemoryStore
from packhorse.stores.plan import Asking
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


class Stub:
    """In the place of a stored workflow: it fails as told, or notes that it was looked after."""

    def __init__(self, seen: list[str], error: Exception | None) -> None:
        self._seen = seen
        self._error = error

    def keep_up(self, record: Record) -> Asking[None]:
        if self._error is not None:
            raise self._error
        self._seen.append(record.id.key)
        yield from ()


def keeper_of(
    *keys: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> tuple[WorkflowKeeper, list[str]]:
    """A service with workflows that are due, and those it looked after; bad ones fail."""
    clock, seen = VirtualClock(), list[str]()
    store = MemoryStore(clock=clock)
    service = WorkflowKeeper(ServiceContext(store, clock, Even(), EventBus(), "w"))
    for order, key in enumerate(keys):
        store.run(store.records.change([Put(RecordId(WORKFLOW_KIND, "", key), b"{}", 0, order)]))
    monkeypatch.setattr(
        service,
        "_workflow",
        lambda record: Stub(seen, error if "bad" in record.id.key else None),
    )
    return service, seen


async def test_a_workflow_that_fails_stops_no_other_and_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error = ValueError("it cannot be read")
    service, seen = keeper_of("a", "bad", "c", error=error, monkeypatch=monkeypatch)

    assert await service.run_once() > 0
    assert await service.run_once() > 0

    assert seen == ["a", "c", "a", "c"]
    assert caplog.text.count("it cannot be read") == 1


@pytest.mark.parametrize(("keys", "at_once"), [(("bad", "b"), True), (("bad", "bad 2"), False)])
async def test_after_a_full_page_it_looks_again_at_once_unless_all_of_it_failed(
    monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...], *, at_once: bool
) -> None:
    monkeypatch.setattr(workflow_folding, "_PAGE", 2)
    service, _ = keeper_of(*keys, error=ValueError("no"), monkeypatch=monkeypatch)

    assert (await service.run_once() == 0) is at_once


async def test_a_store_that_is_away_is_no_fault_of_a_workflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service, seen = keeper_of("bad", "b", error=StoreUnavailable("away"), monkeypatch=monkeypatch)

    with pytest.raises(StoreUnavailable):
        await service.run_once()

    assert seen == []
