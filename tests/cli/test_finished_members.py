# SPDX-License-Identifier: MIT
"""`copy` and `purge` in the middle of a workflow and of a batch: no result is lost."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packhorse import Packhorse
from packhorse.cli.exits import ExitCode
from packhorse.core.clock import new_id
from packhorse.testing.places import clear_namespace
from tests.cli.project import Project
from tests.servers.redis import redis_url
from tests.servers.schemas import schemas

SOURCE = "sqlite:///jobs.db"


def shop(url: str) -> Packhorse:
    app = Packhorse(url)

    @app.task
    def price(number: int) -> int:
        return 100 * number

    @app.task
    def invoice(order: int, cents: int) -> str:
        return f"{order}: {cents}"

    return app


@pytest.fixture
def project(folder: Path) -> Project:
    """A workflow whose first node has run, and a batch with three of five jobs done."""
    with closing(shop(SOURCE)) as app:
        price, invoice = app.tasks["price"], app.tasks["invoice"]
        flow = app.workflow("w")
        first = flow.add(price.call(1))
        flow.add(invoice.call(1, first.result))
        flow.start()
        app.run(burst=True, max_jobs=1, concurrency=1)
        app.batch(price, range(10), batch_size=2, id="ten", priority="critical")
        app.run(burst=True, max_jobs=3, concurrency=1)
        assert app.workflows.get("w").status() == "running"
        assert app.batches.get("ten").progress().succeeded < 10
    return Project(folder)


def ends_well(url: str) -> None:
    with closing(shop(url)) as app:
        app.run(burst=True)
        assert app.workflows.get("w").result(timeout=5) == "1: 100"
        batch = app.batches.get("ten")
        assert batch.progress().succeeded == 10
        assert list(batch.results()) == [100 * number for number in range(10)]


def test_a_copy_through_every_store_carries_what_nodes_and_batches_need(project: Project) -> None:
    schema, namespace = schemas().take(), f"test-{new_id()}"
    postgres, redis = schemas().url_of(schema), f"{redis_url()}?namespace={namespace}"
    way = (SOURCE, postgres, redis, "sqlite:///target.db")
    try:
        told = [copied(project, *pair) for pair in (*pairwise(way), (SOURCE, redis))]
    finally:
        clear_namespace(redis_url(), namespace)
        schemas().give(schema)

    assert [one["equal"] for one in told] == [True] * 4
    assert [one["leftFinished"] for one in told] == [0] * 4
    assert len({one["target"]["digest"] for one in told}) == 1
    ends_well(way[-1])


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_workflows_and_batches_go_on_in_the_new_store(project: Project, kind: str) -> None:
    schema, namespace = schemas().take(), f"test-{new_id()}"
    redis = f"{redis_url()}?namespace={namespace}"
    url = schemas().url_of(schema) if kind == "postgres" else redis
    try:
        assert copied(project, SOURCE, url)["equal"]
        ends_well(url)
    finally:
        clear_namespace(redis_url(), namespace)
        schemas().give(schema)


def test_a_copy_of_some_queues_leaves_what_has_finished(project: Project) -> None:
    planned = project.document("copy", "--from", SOURCE, "--to", "sqlite:///t.db", "--dry-run")
    told = copied(project, SOURCE, "sqlite:///target.db", "--queue", "default")

    assert planned["wouldCarry"]["completed"] >= 1
    assert (planned["leftFinished"], told["equal"]) == (0, True)
    assert told["leftFinished"] >= 1


def test_a_purge_spares_them_and_says_so(project: Project) -> None:
    result = project.run("jobs", "purge", "--all", "--yes", "--url", SOURCE)
    dead = project.run("dead", "purge", "--all", "--yes", "--url", SOURCE)

    assert result.exit_code == ExitCode.OK
    assert "that have not ended" in result.stderr
    assert dead.exit_code == ExitCode.NOTHING_MATCHED
    ends_well(SOURCE)
    after = project.document("jobs", "purge", "--all", "--yes", "--url", SOURCE)
    assert after["purged"] == after["matched"]


def copied(project: Project, source: str, target: str, *more: str) -> dict[str, Any]:
    result = project.run("copy", "--from", source, "--to", target, "--yes", "--json", *more)
    document: dict[str, Any] = msgspec.json.decode(result.stdout)
    return document
