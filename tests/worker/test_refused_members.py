# SPDX-License-Identifier: MIT
"""Jobs of workflows and batches that the store refuses are dead, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from packhorse.core.batches import batch_group, read_batch
from packhorse.core.clock import SystemChance
from packhorse.core.workflows import WorkflowState
from packhorse.errors import ConfigError
from packhorse.runtime.services import workflow_folding
from packhorse.runtime.services.workflow_folding import WorkflowKeeper
from packhorse.stores.requests import QueueSettings
from packhorse.testing import TestApp
from packhorse.workflows.handle import Workflow
from tests.worker.schedule_support import every_store
from tests.worker.workflow_support import Shop, states

__all__ = ["every_store"]  # pytest finds the fixture here


def shelve(app: TestApp, shelf: str | None) -> None:
    """From now on no job goes to the queue `shelf`, which is where dead ones stand."""
    app.store.run(app.store.queues.declare([QueueSettings("mail", dead_letter=shelf)]))


def two_and_a_clean_up(shop: Shop) -> Workflow:
    flow = shop.app.workflow("order-17")
    first = flow.add(shop.double.call(1), name="first")
    second = flow.add(shop.double.using(queue="shelf").call(first.result), name="second")
    flow.add(shop.double.call(3), after=[second], name="behind")
    flow.add(shop.double.call(4), after=[second], on_failure="run", name="clean up")
    return flow.start()


def die_before_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_given: Any) -> Generator[Any, Any, None]:
        yield from ()

    monkeypatch.setattr(workflow_folding, "refused_nodes", nothing)


def test_a_node_whose_job_is_refused_is_dead_and_the_others_go_their_way(
    packhorse_app: TestApp,
) -> None:
    shop = Shop(packhorse_app)
    running = two_and_a_clean_up(shop)
    shelve(packhorse_app, "shelf")

    packhorse_app.run_jobs()

    assert states(running) == {
        "first": "completed",
        "second": "dead",
        "behind": "cancelled",
        "clean up": "completed",
    }
    assert running.status() is WorkflowState.FAILED
    assert "shelf" in running.node("second").reason


def test_a_refusal_that_its_worker_did_not_live_to_tell_is_found_by_upkeep(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(packhorse_app)
    running = two_and_a_clean_up(shop)
    shelve(packhorse_app, "shelf")
    with monkeypatch.context() as killed:
        die_before_it_is_told(killed)
        packhorse_app.run_jobs()
    assert states(running)["second"] == "submitted"

    packhorse_app.clock.advance(30)
    asyncio.run(keep(packhorse_app))
    packhorse_app.run_jobs()

    assert states(running)["second"] == "dead"
    assert states(running)["clean up"] == "completed"
    assert running.status() is WorkflowState.FAILED


def test_a_retry_submits_what_was_refused_and_never_told(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(packhorse_app)
    running = two_and_a_clean_up(shop)
    shelve(packhorse_app, "shelf")
    with monkeypatch.context() as killed:
        die_before_it_is_told(killed)
        packhorse_app.run_jobs()
    shelve(packhorse_app, None)

    assert running.retry() == 1
    packhorse_app.run_jobs()

    assert running.status() is WorkflowState.COMPLETED


def test_what_was_stored_is_looked_for_once_and_then_never(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    running = two_and_a_clean_up(shop)
    store = packhorse_app.store
    waits = store.run(store.records.records("workflow", by_order=True, limit=1)).records
    packhorse_app.clock.advance(30)

    asyncio.run(keep(packhorse_app))

    assert len(waits) == 1
    assert store.run(store.records.records("workflow", by_order=True, limit=1)).records == ()
    assert running.status() is WorkflowState.RUNNING


def test_a_batch_whose_jobs_are_refused_says_so_and_can_end(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    packhorse_app.store.migrate()
    shelve(packhorse_app, "shelf")

    with pytest.raises(ConfigError, match="2 jobs of batch 'import' were not stored"):
        packhorse_app.batch(shop.double, range(15), batch_size=10, queue="shelf", id="import")

    after = packhorse_app.batches.get("import").progress()
    assert (after.status, after.total, after.processed, after.failed) == ("failed", 15, 15, 15)


def test_a_callback_that_is_refused_is_noted_with_its_batch(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    called = shop.double.using(queue="shelf").call(1)
    batch = packhorse_app.batch(shop.double, range(15), id="import", on_success=called)
    shelve(packhorse_app, "shelf")

    packhorse_app.run_jobs()

    assert batch.progress().status == "completed"
    record = packhorse_app.store.run(
        packhorse_app.store.records.record(batch_group("import", "").record)
    )
    assert record is not None
    assert "shelf" in read_batch(record.document).refused["success"]


async def keep(app: TestApp) -> None:
    await WorkflowKeeper(app.store, SystemChance()).run_once()
