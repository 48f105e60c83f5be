# SPDX-License-Identifier: MIT
"""The pure part of workflows: graphs, references, and what the ends of nodes come to."""

from __future__ import annotations

import random

import pytest

from packhorse import Node, PayloadError, Unique, UsageError, chain, gather
from packhorse.core.job import NewJob
from packhorse.core.workflows import (
    DEPTH_MAX,
    NodeDocument,
    NodeState,
    OnFailure,
    check_graph,
    next_state,
    numbers_in,
    numbers_text,
)
from packhorse.errors import ConfigError
from packhorse.testing import TestApp
from tests.worker.workflow_support import Shop


def test_numbers_come_back_from_their_text() -> None:
    for seed in range(50):
        numbers = sorted(random.Random(seed).sample(range(1, 200), 80))
        assert numbers_in(numbers_text(numbers)) == numbers
    assert numbers_text([3, 1, 2, 7]) == "1-3,7"
    assert numbers_in("") == []


def test_any_parents_of_the_largest_graph_fit_into_a_document() -> None:
    assert len(numbers_text(range(1, 10_000, 2))) < 40_000


def test_a_cycle_is_refused_with_the_nodes_in_it() -> None:
    with pytest.raises(UsageError, match=r"cycle: a, b wait"):
        check_graph({"a": ["b"], "b": ["a"], "c": []}, "workflow 'x'")


def test_graphs_beyond_the_limits_are_refused() -> None:
    deep = {str(one): [str(one - 1)] if one else [] for one in range(1_001)}
    with pytest.raises(UsageError, match="1001 nodes deep"):
        check_graph(deep, "workflow 'x'")
    assert check_graph({str(one): deep[str(one)] for one in range(1_000)}, "x").longest == 1_000
    with pytest.raises(UsageError, match="has 10001 nodes"):
        check_graph({str(one): [] for one in range(10_001)}, "workflow 'x'")


@pytest.mark.parametrize(
    ("choice", "state"),
    [("cancel", NodeState.BLOCKED), ("ignore", NodeState.SUBMITTED), ("run", NodeState.SUBMITTED)],
)
def test_what_a_failed_parent_makes_of_a_node(choice: str, state: NodeState) -> None:
    node = NodeDocument("n", NewJob("1", "t", b"{}"), waits=2, on_failure=OnFailure(choice))

    assert next_state(node, 1, 0) is NodeState.WAITING
    assert next_state(node, 2, 0) is NodeState.SUBMITTED
    assert next_state(node, 2, 1) is state
    assert next_state(node, 2, 0, halted=True) is NodeState.DROPPED


def test_results_are_arguments_inside_one_workflow_only(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow, other = packhorse_app.workflow("a"), packhorse_app.workflow("b")
    node = flow.add(shop.double.call(1))

    with pytest.raises(UsageError, match="of another workflow"):
        other.add(shop.double.call(node.result))
    with pytest.raises(UsageError, match="only its workflow knows"):
        shop.double.enqueue(node.result)
    with pytest.raises(PayloadError, match="prefix"):
        shop.label.call(node.result, prefix=3)  # type: ignore[arg-type]


def test_calls_whose_keys_cannot_be_known_or_kept_are_no_nodes(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("a")
    node = flow.add(shop.double.call(1))

    with pytest.raises(ConfigError, match="trace_id"):
        flow.add(shop.double.using(trace_id="0" * 32).call(1))
    with pytest.raises(ConfigError, match="idempotency key"):
        flow.add(shop.double.using(idempotency_key="k").call(node.result))
    with pytest.raises(ConfigError, match="keep_latest"):
        flow.add(shop.double.using(unique=Unique(on_conflict="keep_latest")).call(1))
    with pytest.raises(ConfigError, match="on_failure"):
        flow.add(shop.double.call(1), on_failure="never")  # type: ignore[arg-type]


def test_gathered_calls_alone_need_to_be_told_their_app(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    calls = gather(shop.double.call(1), shop.double.call(2))

    with pytest.raises(UsageError, match="which app"):
        calls.start()
    running = packhorse_app.workflow("both", calls).start()
    packhorse_app.run_jobs()

    assert running.result() == [2, 4]


def test_a_tenant_sees_its_own_workflows_only(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    acme, other = packhorse_app.tenant("acme"), packhorse_app.tenant("other")
    running = acme.workflow("w", chain(shop.double.call(1), shop.label)).start()
    other.workflow("w", chain(shop.double.call(5))).start()
    packhorse_app.run_jobs()

    assert running.result() == "no 2"
    assert [each.tenant for each in acme.workflows.all()] == ["acme"]
    assert acme.workflows.get("w").id == running.id
    assert other.workflows.get("w").id != running.id
    assert running.job("double").info().tenant == "acme"


def test_a_producer_that_stops_half_way_leaves_nothing_that_runs(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("wide")
    for number in range(420):
        flow.add(shop.double.call(number))
    with flow._planned() as plan:
        steps = flow._started(packhorse_app.store, plan)
    asked = next(steps)
    for _ in range(6):  # the name, the clock, the head, some nodes
        asked = steps.send(packhorse_app.store.run(asked))
    steps.close()

    assert packhorse_app.workflows.get("wide").status() == "building"
    assert packhorse_app.run_jobs() == 0
    again = packhorse_app.workflow("wide", chain(shop.double.call(1))).start()
    packhorse_app.run_jobs()

    assert (again.deduplicated, again.result()) == (False, 2)
    assert shop.ran == ["double 1"]


def test_a_second_call_of_start_is_the_same_run(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("w", chain(shop.double.call(1)))

    assert flow.start().id == flow.start().id
    assert packhorse_app.run_jobs() == 1


def test_a_workflow_that_was_started_takes_no_more_nodes(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("w")
    flow.add(shop.double.call(1))
    flow.start()

    with pytest.raises(UsageError, match=r"was started .* build another"):
        flow.add(shop.double.call(2))
    with pytest.raises(UsageError, match="was started"):
        chain(shop.double.call(2)).add_to(flow)


async def test_a_start_after_the_end_is_another_run(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)
    flow = packhorse_app.workflow("w", chain(shop.double.call(1)))
    first = await flow.astart()
    await packhorse_app.arun_jobs()

    second = await flow.astart()
    third = await flow.astart()
    await packhorse_app.arun_jobs()

    assert second.id != first.id
    assert (second.deduplicated, third.deduplicated, third.id) == (False, True, second.id)
    assert shop.ran == ["double 1"] * 2


def test_a_random_graph_runs_each_node_once_and_behind_its_parents(
    packhorse_app: TestApp,
) -> None:
    app, ran = packhorse_app, []

    @app.task
    def note(node: int, parents: list[int]) -> int:
        ran.append((node, parents))
        return node

    chance = random.Random(17)
    flow = app.workflow("random")
    nodes: list[Node[int]] = []
    for number in range(200):
        parents = chance.sample(nodes, min(len(nodes), chance.randrange(4)))
        nodes.append(flow.add(note.call(number, [each.result for each in parents])))
    running = flow.start()
    app.run_jobs()

    order = {node: at for at, (node, _) in enumerate(ran)}
    assert len(ran) == len(order) == 200
    assert all(order[one] < order[node] for node, parents in ran for one in parents)
    assert running.status() == "completed"


def test_a_chain_of_sixty_nodes_runs_to_its_end(packhorse_app: TestApp) -> None:
    app = packhorse_app

    @app.task(result_ttl="1h")
    async def count(number: int) -> int:
        return number + 1

    shape = chain(count.call(0), *[count] * 59)
    running = app.workflow("deep", shape).start()
    app.run_jobs()

    assert running.result() == 60


def test_a_chain_may_be_as_long_as_a_workflow_is_deep(packhorse_app: TestApp) -> None:
    shop = Shop(packhorse_app)

    running = chain(shop.double.call(1), *[shop.double] * (DEPTH_MAX - 1)).start()

    assert running.info().nodes == DEPTH_MAX


def test_the_ends_of_workflows_and_batches_are_told_and_told_again_after_a_retry(
    packhorse_app: TestApp,
) -> None:
    app, shop, told = packhorse_app, Shop(packhorse_app), list[tuple[str, str, int]]()
    app.on("workflow.*")(lambda event: told.append((event.name, event.workflow, event.failed)))
    app.on("batch.*")(lambda event: told.append((event.name, event.batch, event.failed)))
    failing = app.workflow("order", chain(shop.fail.call(1), shop.double)).start()
    cancelled = app.workflow("other", chain(shop.double.call(1), shop.double)).start()
    cancelled.cancel()
    app.batch(shop.double, [], id="none")
    app.batch(shop.double, [1, 2], id="gone").cancel()
    batch = app.batch(shop.fail, [1, 2], id="some", on_complete=shop.double.call(1))
    app.run_jobs()
    before = sorted(told)
    told.clear()
    shop.broken = False
    failing.retry()
    batch.retry_failed()
    app.run_jobs()

    assert before == [
        ("batch.cancelled", "gone", 0),
        ("batch.completed", "none", 0),
        ("batch.failed", "some", 2),
        ("workflow.cancelled", "other", 2),
        ("workflow.failed", "order", 2),
    ]
    assert sorted(told) == [("batch.completed", "some", 0), ("workflow.completed", "order", 0)]


def test_an_end_is_told_again_where_a_retry_and_the_end_after_it_are_folded_together(
    packhorse_app: TestApp,
) -> None:
    app, shop, told = packhorse_app, Shop(packhorse_app), list[str]()
    app.on("workflow.*")(lambda event: told.append(event.name))
    running = app.workflow("order", chain(shop.fail.call(1))).start()
    app.run_jobs()
    before = running.info().ended_at
    app.clock.advance(60)

    running.job("fail").retry()
    app.run_jobs()

    assert told == ["workflow.failed", "workflow.failed"]
    after = running.info().ended_at
    assert after is not None
    assert before is not None
    assert after > before


def test_a_name_that_is_given_twice_is_refused(packhorse_app: TestApp) -> None:
    @packhorse_app.task
    def work() -> None: ...

    flow = packhorse_app.workflow("order")
    flow.add(work.call(), name="two")

    with pytest.raises(UsageError, match="a node has the name 'two' already"):
        flow.add(work.call(), name="two")
    assert [flow.add(work.call()).name for _ in range(2)] == ["work", "work-2"]
