# SPDX-License-Identifier: MIT
"""A node whose key another job holds is that job: it ends with it, and has its result."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from packhorse import JobStatus, Unique, chain
from packhorse.core.clock import SystemChance
from packhorse.core.workflows import WorkflowState
from packhorse.handle import JobHandle
from packhorse.runtime.services.service import ServiceContext
from packhorse.runtime.services.workflow_folding import WorkflowKeeper
from packhorse.testing import TestApp
from packhorse.workflows.handle import Workflow
from packhorse.workflows.records import StoredWorkflow
from tests.worker.schedule_support import every_store
from tests.worker.workflow_support import Shop, states

__all__ = ["every_store"]  # pytest finds the fixture here


class Doubles(Shop):
    """A shop where a number is doubled, or fails, once at a time."""

    def other(self, *, fails: bool = False, **options: Any) -> JobHandle[int]:
        """The job that holds the key, outside of any workflow."""
        task = self.fail if fails else self.double
        return task.using(unique=Unique(), **options).enqueue(4)

    def start(self, *, fails: bool = False, name: str = "order") -> Workflow:
        flow = self.app.workflow(name)
        task = self.fail if fails else self.double
        same = flow.add(task.using(unique=Unique()).call(4), name="same")
        flow.add(self.label.call(same.result), name="behind")
        return flow.start()


def keep(app: TestApp) -> None:
    """What a worker does now and then."""
    app.clock.advance(30)
    context = ServiceContext(app.store, app.clock, SystemChance(), app.bus, "w")
    asyncio.run(WorkflowKeeper(context).run_once())


def test_a_node_ends_with_the_job_that_holds_its_key_and_has_its_result(
    packhorse_app: TestApp,
) -> None:
    shop = Doubles(packhorse_app)
    holder = shop.other()
    running = shop.start()

    assert running.node("same").same_as == running.job("same").id == holder.id
    packhorse_app.run_jobs()

    assert running.result(timeout=1) == "no 8"
    assert shop.ran == ["double 4", "label 8"]


def test_a_node_whose_key_is_free_has_a_job_of_its_own(packhorse_app: TestApp) -> None:
    shop = Doubles(packhorse_app)
    running = shop.start()
    store = packhorse_app.store

    assert (running.node("same").same_as, running.node("same").state) == ("", "queued")
    assert store.run(store.records.records("workflow", by_order=True, limit=1)).records == ()
    assert shop.other().id == running.job("same").id
    packhorse_app.run_jobs()

    assert running.status() is WorkflowState.COMPLETED


def test_an_idempotency_key_of_a_job_that_is_done_completes_the_node_at_once(
    packhorse_app: TestApp,
) -> None:
    shop = Doubles(packhorse_app)
    call = shop.double.using(idempotency_key="k").call(4)
    packhorse_app.enqueue_many([call])
    packhorse_app.run_jobs()
    flow = packhorse_app.workflow("order")
    first = flow.add(shop.total.call([1, 2]))
    flow.add(call, after=[first])
    running = flow.start()

    packhorse_app.run_jobs()

    assert running.result(timeout=1) == 8
    assert shop.ran == ["double 4", "total [1, 2]"]


def test_a_cancel_lets_the_other_job_go_on_and_a_retry_follows_it_again(
    packhorse_app: TestApp,
) -> None:
    shop = Doubles(packhorse_app)
    holder = shop.other(delay="1h")
    running = shop.start()

    assert running.cancel()
    assert (running.status(), holder.status()) == ("cancelled", "pending")
    assert states(running) == {"same": "cancelled", "behind": "cancelled"}
    assert running.retry() >= 1
    packhorse_app.run_jobs()

    assert (running.status(), running.result(timeout=1)) == ("completed", "no 8")
    assert shop.ran == ["double 4", "label 8"]


def test_a_node_dies_with_the_other_job_and_is_a_job_of_its_own_when_it_is_retried(
    packhorse_app: TestApp,
) -> None:
    shop = Doubles(packhorse_app)
    holder = shop.other(fails=True)
    running = shop.start(fails=True)
    packhorse_app.run_jobs()
    assert states(running) == {"same": "dead", "behind": "cancelled"}
    shop.broken = False

    assert running.retry() == 1
    packhorse_app.run_jobs()

    assert (running.status(), holder.status()) == ("completed", "dead")
    assert running.result(timeout=1) == "no 4"
    assert running.node("same").same_as == ""


@pytest.mark.parametrize("ends_before", [False, True])
def test_what_a_producer_did_not_live_to_note_is_found_by_upkeep(
    packhorse_app: TestApp, monkeypatch: pytest.MonkeyPatch, *, ends_before: bool
) -> None:
    def nothing(*_given: Any) -> Generator[Any, Any, None]:
        yield from ()

    shop = Doubles(packhorse_app)
    holder = shop.other(delay="1h")
    with monkeypatch.context() as killed:
        killed.setattr(StoredWorkflow, "note_answers", nothing)
        running = shop.start()
    if ends_before:  # then the key is free, and the node a job of its own
        holder.cancel()

    keep(packhorse_app)
    assert running.node("same").same_as == ("" if ends_before else holder.id)
    packhorse_app.run_jobs()

    assert running.result(timeout=1) == "no 8"
    assert shop.ran == ["double 4", "label 8"]


def test_a_worker_that_goes_on_looks_after_a_second(packhorse_app: TestApp) -> None:
    shop = Doubles(packhorse_app)
    holder = shop.other(delay="1h")
    running = shop.start()
    holder.cancel()

    keep(packhorse_app)

    assert states(running) == {"same": "cancelled", "behind": "cancelled"}
    assert running.status() is WorkflowState.FAILED


def test_the_end_of_a_workflow_is_told_that_ends_with_a_job_of_others(
    packhorse_app: TestApp,
) -> None:
    told: list[tuple[str, str]] = []
    packhorse_app.on("workflow.*")(lambda event: told.append((event.name, event.workflow)))
    shop = Doubles(packhorse_app)
    call = shop.double.using(idempotency_key="k").call(4)
    [holder] = packhorse_app.enqueue_many([call])
    packhorse_app.workflow("early", chain(call)).start()
    packhorse_app.run_jobs()
    packhorse_app.workflow("late", chain(call)).start()
    packhorse_app.workflow("none").start()
    keep(packhorse_app)

    assert holder.info().status is JobStatus.COMPLETED
    assert told == [("workflow.completed", each) for each in ("early", "late", "none")]


def test_a_job_of_others_that_was_removed_before_it_was_looked_at_has_not_completed_its_node(
    packhorse_app: TestApp,
) -> None:
    shop = Doubles(packhorse_app)
    holder = shop.other(delay="1h")
    running = shop.start()
    holder.cancel()
    packhorse_app.clock.advance(40 * 24 * 3_600)
    while packhorse_app.store.run(packhorse_app.store.upkeep.prune(limit=100)):
        pass

    keep(packhorse_app)

    assert states(running) == {"same": "dead", "behind": "cancelled"}
