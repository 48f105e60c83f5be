# SPDX-License-Identifier: MIT
"""Workflows on every store: each node once, none before those it waits for."""

from __future__ import annotations

import pytest

from packhorse import JobStatus, WorkflowFailed, chain, gather
from packhorse.core.workflows import WorkflowState
from packhorse.errors import JobNotFound
from packhorse.testing import TestApp
from tests.worker.schedule_support import every_store
from tests.worker.workflow_support import Shop, states

__all__ = ["every_store"]  # pytest finds the fixture here


def test_results_of_parents_are_arguments(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("order-17")
    first, second = flow.add(shop.double.call(1)), flow.add(shop.double.call(2))
    both = flow.add(shop.total.call([second.result, first.result, 10]))
    flow.add(shop.label.call(both.result, prefix="no. "))

    running = flow.start()
    assert running.status() is WorkflowState.RUNNING
    packhorse_app.run_jobs()

    assert running.result() == "no. 16"
    assert running.status() is WorkflowState.COMPLETED
    assert shop.ran[2:] == ["total [4, 2, 10]", "label 16"]


def test_chains_and_gathered_calls_follow_one_another(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)

    one = chain(shop.double.call(1), shop.double, shop.label).start()
    two = gather(shop.double.call(1), shop.double.call(5)).then(shop.total).start()
    packhorse_app.run_jobs()

    assert one.result() == "no 4"
    assert two.result() == 12


def test_a_failure_goes_its_way_and_a_retry_goes_after_it(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("order-17")
    bad = flow.add(shop.fail.call(3))
    flow.add(shop.double.call(bad.result), name="cancelled")
    flow.add(shop.label.call(bad.result), on_failure="ignore", name="ignored")
    flow.add(shop.double.call(7), after=[bad], on_failure="run", name="run")
    running = flow.start()
    packhorse_app.run_jobs()

    assert running.status() is WorkflowState.FAILED
    assert states(running) == {
        "fail": "dead",
        "cancelled": "cancelled",
        "ignored": "completed",
        "run": "completed",
    }
    assert running.node("fail").behind == ("cancelled",)
    assert "label None" in shop.ran

    shop.broken = False
    assert running.retry() == 1
    packhorse_app.run_jobs()

    assert running.status() is WorkflowState.COMPLETED
    assert shop.ran[-2:] == ["fail", "double 3"]
    assert shop.ran.count("double 7") == 1


def test_the_result_of_a_node_that_never_began_is_none_as_of_one_that_failed(
    packhorse_app: TestApp,
) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("order-17")
    bad = flow.add(shop.fail.call(3))
    behind = flow.add(shop.double.call(bad.result), name="behind")
    flow.add(shop.label.call(behind.result), on_failure="run")
    running = flow.start()

    packhorse_app.run_jobs()

    assert shop.ran == ["fail", "label None"]
    assert states(running) == {"fail": "dead", "behind": "cancelled", "label": "completed"}


def test_a_failed_workflow_names_the_node_that_died_first(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("order-17")
    bad = flow.add(shop.fail.call(3), name="boom")
    behind = flow.add(shop.double.call(bad.result), name="behind")
    flow.add(shop.double.call(behind.result), name="last")
    running = flow.start()
    packhorse_app.run_jobs()

    with pytest.raises(
        WorkflowFailed, match=r"'boom' is dead.*so that 'last' is cancelled"
    ) as told:
        running.result()

    failed = told.value
    job = running.job("boom")
    error = job.info().error
    assert error is not None
    assert (failed.name, failed.node, failed.state) == (running.id, "boom", "dead")
    assert failed.job_id == job.id
    assert job.id in str(failed)
    assert failed.reason == f"{job.info().dead_reason}: {error.type}: {error.message}"
    assert failed.reason in str(failed)


def test_a_failed_workflow_names_the_job_that_was_cancelled(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("order-17")
    first = flow.add(shop.double.call(3), name="first")
    flow.add(shop.double.call(first.result), name="last")
    running = flow.start()
    job = running.job("first")
    job.cancel()
    packhorse_app.run_jobs()

    with pytest.raises(WorkflowFailed, match="'first' is cancelled") as told:
        running.result()

    assert (told.value.job_id, told.value.reason) == (job.id, "")


def test_a_node_that_has_not_begun_is_explained_by_the_id_of_its_job(
    packhorse_app: TestApp,
) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("order-17")
    first = flow.add(shop.double.call(1), name="first")
    flow.add(shop.double.call(first.result), name="second")
    running = flow.start()

    told = packhorse_app.explain(running.node("second").job_id)

    assert told.codes == ("waits_for_nodes",)
    assert "first" in told.reasons[0].text
    with pytest.raises(JobNotFound):
        packhorse_app.explain("no such job")


def test_a_cancel_ends_what_runs_and_what_waits(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("order-17")
    one = flow.add(shop.double.call(1))
    two = flow.add(shop.double.call(one.result), name="two")
    flow.add(shop.double.call(5), after=[two], on_failure="run", name="three")
    running = flow.start()

    assert running.cancel()
    assert not running.cancel()

    assert set(states(running).values()) == {"cancelled"}
    assert running.status() is WorkflowState.CANCELLED
    assert packhorse_app.run_jobs() == 0
    assert running.retry() == 2
    packhorse_app.run_jobs()
    assert shop.ran == ["double 1", "double 2", "double 5"]
    assert running.status() is WorkflowState.COMPLETED


def test_a_node_adds_nodes_and_who_waits_for_it_waits_for_them(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("grows")
    split = flow.add(shop.split.call(2))
    flow.add(shop.label.call(split.result))

    running = flow.start()
    packhorse_app.run_jobs()

    assert shop.ran[0] == "split 2"
    assert set(shop.ran[1:3]) == {"double 0", "double 1"}
    assert shop.ran[3:] == ["total [0, 2]", "label 2"]
    assert running.info().nodes == 5
    assert running.status() is WorkflowState.COMPLETED


def test_while_one_of_a_name_runs_it_is_the_answer(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    first = packhorse_app.workflow("order-17", chain(shop.double.call(1))).start()
    second = packhorse_app.workflow("order-17", chain(shop.double.call(2))).start()

    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert first.id == second.id
    packhorse_app.run_jobs()
    third = packhorse_app.workflow("order-17", chain(shop.double.call(3))).start()

    assert third.id != first.id
    assert not third.deduplicated
    packhorse_app.run_jobs()
    assert shop.ran == ["double 1", "double 3"]
    assert packhorse_app.workflows.get("order-17").id == third.id
    assert len(packhorse_app.workflows.all()) == 2


def test_a_large_workflow_is_stored_in_parts_and_begins_at_its_end(
    packhorse_app: TestApp,
) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("wide")
    nodes = [flow.add(shop.double.call(number)) for number in range(420)]
    flow.add(shop.total.call([node.result for node in nodes]))

    running = flow.start()
    assert running.job("double").status() is JobStatus.QUEUED
    packhorse_app.run_jobs()

    assert running.result() == 420 * 419
    assert len(shop.ran) == 421
