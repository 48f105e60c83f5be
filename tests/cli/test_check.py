# SPDX-License-Identifier: MIT
"""`packhorse check`: the waiting jobs that new code could not run, before it is deployed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from packhorse import Packhorse
from packhorse.cli import check as command
from packhorse.core.clock import new_id
from packhorse.core.job import JobOptions, JobStatus, NewJob, UniqueRule
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.protocol import Store
from packhorse.testing.places import clear_namespace
from tests.cli.project import Project
from tests.servers.redis import redis_url
from tests.servers.schemas import schemas
from tests.unit.app_support import HandWorker

NEW_CODE = """
from packhorse import Contract, Packhorse

app = Packhorse("sqlite:///elsewhere.db")

@app.task
def add(a: int, b: int = 0) -> int:
    return a + b

@app.task(contract=Contract(version="3", inputs={"cents": "integer", "note?": "string"}))
def pay(cents: int, note: str = "") -> int:
    return cents

@pay.upcast("2", "3")
def in_cents(payload):
    return {"cents": payload["euros"] * 100}

@app.task(contract=Contract(idempotency_key="required"))
def mail(to: str) -> str:
    return to
"""
SECRET = "hunter2"


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if request.param == "postgres":
        schema = schemas().take()
        yield schemas().url_of(schema)
        schemas().give(schema)
    elif request.param == "redis":
        name = f"test-{new_id()}"
        yield f"{redis_url()}?namespace={name}"
        clear_namespace(redis_url(), name)
    else:
        yield f"sqlite:///{folder}/jobs.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    app = Packhorse(url)
    app.store.migrate()
    yield app.store
    app.close()


@pytest.fixture
def shop(folder: Path) -> Project:
    made = Project(folder)
    made.write("new_code.py", NEW_CODE)
    return made


def put(store: Store, task: str, payload: str, version: str | None = None, **more: Any) -> str:
    options = None if version is None else JobOptions(version=version)
    job = NewJob(new_id(), task, payload.encode(), options=options, **more)
    store.run(store.jobs.submit([job]))
    return job.id


def groups(shop: Project, url: str, *more: str, code: int = 1) -> dict[tuple[Any, ...], Any]:
    found = shop.document("check", "new_code:app", "--url", url, *more, code=code)
    assert found["misfits"] == sum(one["count"] for one in found["groups"])
    return {
        (one["problem"], one["task"], one["version"], one["detail"]): one["examples"]
        for one in found["groups"]
    }


def test_a_store_whose_jobs_all_fit_is_passed(shop: Project, store: Store, url: str) -> None:
    put(store, "add", '{"a": 1}')
    put(store, "pay", '{"euros": 1}', "2")
    put(store, "pay", '{"cents": 1}', "3", delay_us=60_000_000)

    result = shop.run("check", "new_code:app", "--url", url)

    assert result.exit_code == 0, result.output
    assert "3 waiting jobs: this code could not run 0 of them" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_jobs_of_transactions_are_looked_at_though_no_worker_took_them_in(
    shop: Project, store: Store, url: str
) -> None:
    app = Packhorse(url)

    @app.task
    def gone() -> None: ...

    conninfo = PostgresSettings.from_url(url).conninfo
    with psycopg.connect(conninfo) as connection, connection.transaction():
        gone.using(tx=connection, job_id="asked").enqueue()
    app.close()

    assert groups(shop, url) == {("unknown_task", "gone", None, ""): ["asked"]}


def test_jobs_that_could_not_run_are_grouped_by_what_is_wrong(
    shop: Project, store: Store, url: str
) -> None:
    gone = [put(store, "gone", "{}"), put(store, "gone", "{}", queue="other")]
    wrong = put(store, "add", f'{{"a": "{SECRET}"}}')
    strange = put(store, "add", f'{{"a": 1, "{SECRET}": 1}}')
    newer = put(store, "pay", '{"wei": 1}', "4")
    unmoved = put(store, "pay", f'{{"pounds": "{SECRET}"}}', "2")
    older = put(store, "pay", f'{{"note": "{SECRET}"}}', "1")
    bad = put(store, "pay", f'{{"cents": "{SECRET}"}}', "3")
    keyless = put(store, "mail", f'{{"to": "{SECRET}"}}')
    put(store, "add", '{"a": 1}')

    assert groups(shop, url) == {
        ("unknown_task", "gone", None, ""): gone,
        ("invalid_request", "add", None, "argument 'a'"): [wrong],
        ("invalid_request", "add", None, "an argument that it does not take"): [strange],
        ("other_version", "pay", "4", "this code has '3', and no upcaster leads there"): [newer],
        ("other_version", "pay", "2", "this code has '3'; KeyError"): [unmoved],
        ("other_version", "pay", "1", "this code has '3', and no upcaster leads there"): [older],
        ("invalid_request", "pay", "3", "argument 'cents'"): [bad],
        ("invalid_request", "mail", None, "argument 'idempotency_key'"): [keyless],
    }
    told = shop.run("check", "-A", "new_code:app", "--url", url)
    assert told.exit_code == 1
    assert gone[0] in told.stdout
    assert "10 waiting jobs: this code could not run 9 of them" in told.stderr
    assert SECRET not in told.output


def test_every_job_that_waits_is_looked_at_and_no_other(
    shop: Project, store: Store, url: str
) -> None:
    hands = HandWorker(store, "gone")
    put(store, "gone", "{}")
    failed = hands.fail().id  # waits for a retry
    rule = UniqueRule("k")
    for _ in range(2):
        put(store, "gone", "{}", unique=rule)  # the second one is not stored
    running = hands.claim().id
    put(store, "gone", "{}")
    done = hands.complete().id
    pending = put(store, "gone", "{}", delay_us=3_600_000_000)

    [examples] = groups(shop, url).values()

    assert sorted(examples) == sorted([failed, pending])
    assert not {running, done} & set(examples)
    waits = store.run(store.inspection.job(failed))
    assert waits is not None
    assert waits.status is JobStatus.FAILED


def test_undecodable_payloads_are_told(shop: Project, folder: Path) -> None:
    url = f"sqlite:///{folder}/jobs.db"
    app = Packhorse(url)
    app.store.migrate()
    job = put(app.store, "add", f"[1, {SECRET}")
    app.close()

    assert groups(shop, url) == {("undecodable", "add", None, ""): [job]}


def test_only_queues_that_are_asked_for_are_looked_at(
    shop: Project, store: Store, url: str
) -> None:
    put(store, "gone", "{}")
    other = put(store, "gone", "{}", queue="other")

    assert list(groups(shop, url, "-q", "other").values()) == [[other]]
    assert groups(shop, url, "-q", "nothing,here", code=0) == {}


def test_many_jobs_are_read_in_pages_and_few_are_named(
    shop: Project, store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_PAGE", 7)
    jobs = [NewJob(new_id(), f"gone_{at % 3}", b"{}") for at in range(60)]
    store.run(store.jobs.submit(jobs))
    monkeypatch.setattr(command, "_GROUPS_MAX", 2)

    found = shop.document("check", "new_code:app", "--url", url, code=1)

    assert (found["jobs"], found["misfits"]) == (60, 60)
    assert [one["count"] for one in found["groups"]] == [20, 20, 20]
    assert {one["task"] for one in found["groups"]} == {"gone_0", "gone_1", "and others"}
    assert all(len(one["examples"]) == 5 for one in found["groups"])


def test_a_store_that_is_not_there_and_an_app_named_twice_are_refused(shop: Project) -> None:
    missing = shop.run("check", "new_code:app", "--url", "sqlite:///none.db")
    assert missing.exit_code == 5
    assert not Path("none.db").exists()
    twice = shop.run("check", "new_code:app", "-A", "new_code:app")
    assert twice.exit_code == 2
