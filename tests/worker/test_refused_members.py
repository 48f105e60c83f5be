# SPDX-License-Identifier: MIT
"""Jobs of workflows and batches that a store refuses are dead, also if a worker dies meanwhile."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext
from typing import Any

import pytest

from packhorse.batches.changes import Filler
from packhorse.core.batches import batch_group, member_id
from packhorse.core.workflows import WorkflowState
from packhorse.errors import ConfigError
from packhorse.runtime.services.batch_folding import BatchFolding
from packhorse.runtime.services.workflow_folding import WorkflowFolding
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
    """The writer of a change is killed before the answer comes."""

    def nothing(*_given: Any) -> Generator[Any, Any, None]:
        yield from ()

    monkeypatch.setattr(WorkflowFolding, "folded", nothing)
    monkeypatch.setattr(BatchFolding, "folded", nothing)
    monkeypatch.setattr(Filler, "_require_stored", lambda *_given: None)


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


def test_a_retry_runs_what_was_refused_once_that_is_mended(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    running = two_and_a_clean_up(shop)
    shelve(packhorse_app, "shelf")
    packhorse_app.run_jobs()
    shelve(packhorse_app, None)

    assert running.retry() == 1
    packhorse_app.run_jobs()

    assert running.status() is WorkflowState.COMPLETED


def test_nothing_looks_at_a_workflow_that_waits(packhorse_app: TestApp) -> None:
    running = two_and_a_clean_up(Shop(packhorse_app))
    store = packhorse_app.store

    assert store.run(store.records.records("workflow", by_order=True, limit=1)).records == ()
    assert running.status() is WorkflowState.RUNNING


@pytest.mark.parametrize("killed", [False, True])
def test_a_batch_whose_jobs_are_refused_says_so_and_ends_and_can_be_retried(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    shop = Shop(packhorse_app)
    packhorse_app.store.migrate()
    shelve(packhorse_app, "shelf")
    told = pytest.raises(ConfigError, match="2 jobs of batch 'import' were refused")
    if killed:
        die_before_it_is_told(monkeypatch)
    with nullcontext() if killed else told:
        packhorse_app.batch(shop.double, range(15), batch_size=10, queue="shelf", id="import")
    batch = packhorse_app.batches.get("import")

    packhorse_app.run_jobs()

    after = batch.progress()
    assert (after.status, after.total, after.processed, after.failed) == ("failed", 15, 15, 15)
    assert [each.index for each in batch.failures()] == list(range(15))
    assert "shelf" in batch.failures()[0].message
    shelve(packhorse_app, None)
    assert batch.retry_failed() == 2
    packhorse_app.run_jobs()
    assert batch.progress().status == "completed"


@pytest.mark.parametrize("killed", [False, True])
def test_a_callback_that_is_refused_is_a_dead_letter_that_its_batch_shows(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    shop = Shop(packhorse_app)
    batch = packhorse_app.batch(
        *(shop.double, range(15)),
        id="import",
        on_success=shop.double.using(queue="shelf").call(1),
        on_complete=shop.double.call(2),
        on_death=shop.double.call(3),
    )
    shelve(packhorse_app, "shelf")
    if killed:
        die_before_it_is_told(monkeypatch)

    packhorse_app.run_jobs()

    assert batch.progress().status == "completed"
    assert batch.document().callback_states == {
        "on_success": "dead",
        "on_complete": "completed",
        "on_death": "waiting",
    }
    called = packhorse_app.job(member_id(batch_group("import", ""), "on_success")).info()
    assert called.dead_reason == "rejected"
