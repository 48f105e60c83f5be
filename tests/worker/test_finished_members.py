# SPDX-License-Identifier: MIT
"""Results that a workflow or batch still needs, on every store: there, or an error; never None."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from packhorse import JobConflict, Packhorse, ResultTimeout, RetryPolicy
from packhorse.cli.store_copy import Copier, CopyTally, carry_records
from packhorse.core.job import TERMINAL, JobStatus
from packhorse.core.policies.records import Remove
from packhorse.core.workflows import WorkflowState
from packhorse.group_errors import BatchConflict
from packhorse.runtime.consumer import FetchedJob
from packhorse.stores import open_store
from packhorse.stores.requests import JobFilter
from packhorse.testing import TestApp
from packhorse.workflows.handle import Workflow
from tests.worker.schedule_support import every_store
from tests.worker.workflow_support import Shop, states

__all__ = ["every_store"]  # pytest finds the fixture here


def purge(app: Packhorse, *statuses: JobStatus) -> int:
    chosen = JobFilter(statuses=statuses or tuple(TERMINAL))
    return app.store.run(app.store.jobs.delete(chosen, limit=1_000)).removed


class Interrupted(Shop):
    """A shop that does something in the middle of a workflow: `double`, `interrupt`, `label`."""

    def __init__(self, app: TestApp) -> None:
        super().__init__(app)
        self.broken = False
        self.action = partial(purge, app)

        @app.task(retry=RetryPolicy(max_retries=0))
        def interrupt() -> int:
            if self.broken:
                raise ValueError("it fails")
            return int(self.action())

        self.interrupt = interrupt

    def start(self) -> Workflow:
        flow = self.app.workflow("order-17")
        first = flow.add(self.double.call(1))
        middle = flow.add(self.interrupt.call(), after=[first])
        flow.add(self.label.call(first.result), after=[middle])
        return flow.start()


def test_a_purge_in_the_middle_of_a_workflow_spares_its_nodes(packhorse_app: TestApp) -> None:
    shop = Interrupted(packhorse_app)
    shop.double.enqueue(7)
    running = shop.start()

    packhorse_app.run_jobs()

    assert running.result() == "no 2"
    assert running.job("interrupt").result() == 1  # it removed the job beside the workflow
    assert purge(packhorse_app) == 3


def test_a_copy_in_the_middle_of_a_workflow_carries_what_its_nodes_need(
    packhorse_app: TestApp,
) -> None:
    shop = Interrupted(packhorse_app)
    shop.broken = True
    running = shop.start()
    packhorse_app.run_jobs()
    assert states(running) == {"double": "completed", "interrupt": "dead", "label": "cancelled"}

    target = open_store("memory://", clock=packhorse_app.clock)
    for way in ((packhorse_app.store, target), (target, packhorse_app.store)):
        copier = Copier(*way, (), 1)
        tally = CopyTally(conflicts=[])
        copier.carry_jobs(tally, lambda _seen: None)
        carry_records(*way)
        compared = copier.compare(())
        assert (compared.equal, compared.source.jobs, tally.finished) == (True, 2, 1)
        empty(way[0])
    shop.broken = False
    assert running.retry() == 1
    packhorse_app.run_jobs()

    assert running.result() == "no 2"


def empty(store: object) -> None:
    """Remove all records and finished jobs of a store."""
    found = store.run(store.records.records(None, limit=100)).records  # type: ignore[attr-defined]
    store.run(store.records.change([Remove(one.id) for one in found]))  # type: ignore[attr-defined]
    chosen = JobFilter(statuses=tuple(TERMINAL))
    store.run(store.jobs.delete(chosen, limit=100))  # type: ignore[attr-defined]


def test_a_result_that_is_gone_is_an_error_that_names_the_node(packhorse_app: TestApp) -> None:
    shop = Interrupted(packhorse_app)
    shop.broken = True
    running = shop.start()
    packhorse_app.run_jobs()
    assert purge(packhorse_app, JobStatus.COMPLETED) == 1  # the workflow has ended

    shop.broken = False
    running.retry()
    packhorse_app.run_jobs()

    error = running.job("label").info().error
    assert error is not None
    assert error.type == "JobConflict"
    assert "node 'double' has completed" in error.message
    assert not [line for line in shop.ran if line.startswith("label")]


def test_a_node_that_has_completed_does_not_run_again(packhorse_app: TestApp) -> None:
    shop = Interrupted(packhorse_app)
    running = shop.start()
    packhorse_app.run_jobs()

    for name in ("label", "double"):
        with pytest.raises(JobConflict, match="node of a workflow"):
            running.job(name).retry()

    assert packhorse_app.run_jobs() == 0
    assert running.status() is WorkflowState.COMPLETED


def test_the_result_of_a_parent_that_is_run_again_is_an_error_until_it_is_there(
    packhorse_app: TestApp,
) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("order-17")
    bad = flow.add(shop.fail.using(queue="first").call(3))
    flow.add(shop.label.using(queue="second").call(bad.result), on_failure="run")
    packhorse_app.pause("second")
    running = flow.start()
    packhorse_app.run_jobs()
    packhorse_app.pause("first")
    running.job("fail").retry()

    packhorse_app.resume("second")
    packhorse_app.run_jobs()

    error = running.job("label").info().error
    assert error is not None
    assert "node 'fail' is being run again" in error.message
    shop.broken = False
    packhorse_app.resume("first")
    packhorse_app.run_jobs()
    running.job("label").retry()
    packhorse_app.run_jobs()
    assert shop.ran == ["fail", "fail", "label 3"]


def test_a_retry_submits_nodes_whose_jobs_were_deleted(packhorse_app: TestApp) -> None:
    shop = Interrupted(packhorse_app)
    shop.broken = True
    running = shop.start()
    packhorse_app.run_jobs()
    assert purge(packhorse_app, JobStatus.DEAD) == 1

    shop.broken = False
    assert running.retry() == 1
    packhorse_app.run_jobs()

    assert running.result() == "no 2"
    assert running.retry() == 0


@pytest.mark.parametrize("lost", [False, True])
def test_a_consumer_is_given_results_of_other_nodes_or_no_job(
    packhorse_app: TestApp, *, lost: bool
) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("order-17")
    first = flow.add(shop.fail.call(3))
    flow.add(shop.label.using(queue="second").call(first.result), on_failure="run")
    packhorse_app.pause("second")
    shop.broken = lost
    running = flow.start()
    packhorse_app.run_jobs()
    if lost:  # for the time being: its parent is to run again
        packhorse_app.pause("default")
        running.job("fail").retry()
    packhorse_app.resume("second")

    fetched = asyncio.run(fetch_one(packhorse_app))

    assert (fetched is None) is lost
    assert fetched is None or fetched.payload["text"] == 3
    error = running.job("label").info().error
    assert lost is (error is not None and "is being run again" in error.message)


async def fetch_one(app: Packhorse) -> FetchedJob | None:
    async with app.consumer(queues=["second"]) as consumer:
        return await consumer.fetch(timeout=1.0)


def test_a_purge_in_the_middle_of_a_batch_spares_its_jobs(packhorse_app: TestApp) -> None:
    @packhorse_app.task(retry=RetryPolicy(max_retries=0))
    def check(number: int) -> int:
        if number in (4, 7):
            purge(packhorse_app)
        if number == 3:
            raise ValueError("not three")
        return number

    batch = packhorse_app.batch(check, range(10), batch_size=2, parallel=False)
    packhorse_app.run_jobs()

    assert batch.progress().succeeded == 9
    assert list(batch.results()) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.DEAD])
def test_results_that_are_counted_and_gone_are_an_error(
    packhorse_app: TestApp, status: JobStatus
) -> None:
    @packhorse_app.task(retry=RetryPolicy(max_retries=0))
    def check(number: int) -> int:
        if number == 3:
            raise ValueError("not three")
        return number

    batch = packhorse_app.batch(check, range(6), batch_size=2)
    packhorse_app.run_jobs()
    assert purge(packhorse_app, status)

    assert batch.progress().succeeded == 5
    for ordered in (True, False):
        with pytest.raises(BatchConflict, match="deleted"):
            list(batch.results(ordered=ordered))
    assert len(batch.failures()) == (status is JobStatus.COMPLETED)


def test_a_wait_that_is_over_names_what_it_waited_for(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    batch = shop.double.map([1, 2])
    flow = packhorse_app.workflow("order-17")
    flow.add(shop.double.call(1))
    running = flow.start()

    with pytest.raises(ResultTimeout, match=rf"^batch {batch.id} .* progress\(\)$"):
        batch.wait_ended(timeout=0.01)
    with pytest.raises(ResultTimeout, match=rf"^workflow {running.id} .* status\(\)$"):
        running.wait(timeout=0)
