# SPDX-License-Identifier: MIT
"""The shorter ways of submitting plain jobs do what the longer one does, with less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packhorse.core.clock import SECOND_US
from packhorse.core.job import (
    IdempotencyRule,
    JobOptions,
    JobStatus,
    NewJob,
    RateRule,
    UniqueRule,
)
from packhorse.errors import ConfigError, PackhorseError, PayloadError, QueueClosed, QueueFull
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.requests import QueueSettings, Submitted, TaskSettings
from packhorse.stores.sqlite import submit as submitting
from packhorse.stores.sqlite.connection import connect
from packhorse.stores.sqlite.store import SqliteStore
from packhorse.stores.sqlite.submit import alike, short_submit
from packhorse.testing.conformance.samples import QUEUE, TASK, new_job
from packhorse.testing.virtual_clock import VirtualClock
from tests.unit.sqlite_support import sqlite_store

SetUp = Callable[[SqliteStore], object]

PLAIN: dict[str, dict[str, Any]] = {
    "ready": {},
    "delayed": {"delay_us": SECOND_US},
    "scheduled": {"scheduled_us": 5},
    "urgent": {"priority": 0},
    "timed": {"timeout_us": 7},
    "traced": {"trace_id": "a-trace"},
    "traced by its id": {"trace_id": None},
    "with options": {"options": JobOptions(max_crashes=9), "created_by": "anna"},
    "usual": {"trace_id": None, "timeout_us": 7},
    "elsewhere": {"queue": "other"},
}


def declared(**settings: Any) -> SetUp:
    return lambda store: store.run(
        store.queues.declare([QueueSettings(QUEUE, dead_letter="shelf", **settings)])
    )


def limited(store: SqliteStore) -> None:
    limits = TaskSettings(TASK, rate=RateRule(1, SECOND_US))
    store.run(store.queues.declare_tasks([limits]))


def tenanted(store: SqliteStore) -> None:
    store.run(store.jobs.submit([new_job("theirs", tenant="acme")]))


def outgrown(store: SqliteStore) -> None:
    """Places were given out beyond the last number."""
    store.run(store.jobs.submit([new_job("due", delay_us=1)]))
    with closing(connect(store._settings)) as connection:
        connection.execute("update packhorse_sequence set value = 40")


SETUPS: dict[str, SetUp] = {
    "nothing": lambda _: None,
    "declared": declared(),
    "deep enough": declared(max_depth=10),
    "ageing": declared(ageing_us=SECOND_US),
    "rated": declared(rate=RateRule(1, SECOND_US)),
    "rated by tenant": declared(tenant_rate=RateRule(1, SECOND_US)),
    "limited task": limited,
    "tenanted": tenanted,
    "outgrown": outgrown,
}


def plain_job(job_id: str, fields: dict[str, Any]) -> NewJob:
    job = new_job(job_id, **fields)
    if job.trace_id is None:
        job = msgspec.structs.replace(job, trace_id=job_id.replace("-", ""))
    return job


def rows(store: SqliteStore) -> list[tuple[Any, ...]]:
    with closing(connect(store._settings)) as connection:
        return connection.execute("select * from packhorse_jobs order by seq").fetchall()


def opened(folder: Path, set_up: SetUp) -> SqliteStore:
    folder.mkdir()
    store = sqlite_store(folder, "?synchronous=OFF", VirtualClock())
    set_up(store)
    return store


def the_long_way(store: SqliteStore, jobs: Sequence[NewJob]) -> tuple[Submitted, ...]:
    plan = msgspec.structs.replace(store.jobs.submit(jobs), short=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submitting, "alike", lambda _: None)
        return store.run(plan)


@pytest.mark.parametrize("set_up", SETUPS.values(), ids=SETUPS)
@pytest.mark.parametrize("fields", PLAIN.values(), ids=PLAIN)
def test_the_intake_comes_to_the_same_rows(
    tmp_path: Path, set_up: SetUp, fields: dict[str, Any]
) -> None:
    """Both ways into it, and what is submitted between them."""
    jobs = [plain_job(f"job-{number}", fields) for number in range(4)]
    short, long = opened(tmp_path / "short", set_up), opened(tmp_path / "long", set_up)
    with closing(short), closing(long):
        answers = [short.run(short.jobs.submit((job,), ids_are_new=True)) for job in jobs[:2]]
        answers += [short.run(short.jobs.submit([jobs[2]]))]
        answers += [short.run(short.jobs.submit([jobs[3]], ids_are_new=True))]
        short.run(short.queues.depth(QUEUE))

        assert answers == [the_long_way(long, [job]) for job in jobs]
        assert rows(short) == rows(long)


@pytest.mark.parametrize("set_up", SETUPS.values(), ids=SETUPS)
@pytest.mark.parametrize("fields", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("count", [1, 3, 250])
def test_a_short_way_writes_the_same_rows(
    tmp_path: Path, set_up: SetUp, fields: dict[str, Any], count: int
) -> None:
    if count == 250 and set_up is SETUPS["deep enough"]:
        count = 10
    jobs = [plain_job(f"job-{number}", fields) for number in range(count)]
    short, long = opened(tmp_path / "short", set_up), opened(tmp_path / "long", set_up)
    with closing(short), closing(long):
        answers = short.run(short.jobs.submit(jobs))

        assert answers == the_long_way(long, jobs)
        assert rows(short) == rows(long)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("set_up", "queue", "error"),
    [
        (declared(max_depth=1), QUEUE, QueueFull),
        (declared(), "shelf", ConfigError),
        (lambda store: store.run(store.queues.close_queue(QUEUE, closed=True)), QUEUE, QueueClosed),
    ],
    ids=["full", "shelf", "closed"],
)
def test_a_queue_that_has_a_say_is_asked(
    tmp_path: Path, set_up: SetUp, queue: str, error: type[PackhorseError], count: int
) -> None:
    with closing(opened(tmp_path / "store", set_up)) as store:
        if error is QueueFull:
            store.run(store.jobs.submit([new_job("first")]))
        before = rows(store)

        with pytest.raises(error):
            store.run(store.jobs.submit([new_job(str(n), queue=queue) for n in range(count)]))

        assert rows(store) == before


def test_a_known_id_is_answered_by_the_job_it_names(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "store", SETUPS["nothing"])) as store:
        store.run(store.jobs.submit([new_job("known", delay_us=SECOND_US)]))

        alone = store.run(store.jobs.submit([new_job("known")]))
        batch = store.run(store.jobs.submit([new_job(name) for name in ("new", "known", "new")]))

        known, new = JobStatus.PENDING, JobStatus.QUEUED
        assert alone == (Submitted("known", True, known),)
        assert batch == (
            Submitted("new", False, new),
            Submitted("known", True, known),
            Submitted("new", True, new),
        )


def test_one_plain_job_is_one_statement(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "store", declared())) as store:
        store.run(store.jobs.submit([new_job("first")]))
        said: list[str] = []
        connection = store._local.own.runner._connected()
        connection.set_trace_callback(said.append)

        store.run(store.jobs.submit([new_job("second")], ids_are_new=True))

        assert [text.split()[0] for text in said if not text.startswith("--")] in ([], ["insert"])
        assert len(said) == 1


@pytest.mark.parametrize("rule", ["unique", "idempotency"])
def test_a_bulk_of_new_keys_asks_no_more_often_than_one(tmp_path: Path, rule: str) -> None:
    with closing(opened(tmp_path / "store", declared())) as store:
        one = _asked(store, [_keyed("first", rule)])
        many = _asked(store, [_keyed(f"many-{number}", rule) for number in range(50)])
        again = store.run(store.jobs.submit([_keyed("other", rule, of="many-7")]))

    assert many == one
    assert again == (Submitted("many-7", True, JobStatus.QUEUED),)


def _keyed(name: str, rule: str, of: str | None = None) -> NewJob:
    key = of or name
    if rule == "unique":
        return new_job(name, unique=UniqueRule(key))
    return new_job(name, idempotency=IdempotencyRule(key, "digest", SECOND_US))


def _asked(store: SqliteStore, jobs: Sequence[NewJob]) -> int:
    """How often the plan of a submit asks the store."""
    plan, asked = store.jobs.submit(jobs), 0

    def counted() -> Steps[Any]:
        nonlocal asked
        steps, answer = plan.steps(), None
        while True:
            try:
                wanted = steps.send(answer)
            except StopIteration as end:
                return end.value
            asked += 1
            answer = yield wanted

    store.run(Plan("submit", counted))
    return asked


def test_jobs_with_keys_take_the_long_way() -> None:
    for fields in (
        {"tenant": "acme"},
        {"ordering_key": "k"},
        {"concurrency_key": "k"},
        {"rate_key": "k"},
        {"weight": 2},
        {"tags": ("a",)},
        {"deadline_us": 1},
    ):
        jobs = [new_job("a", **fields), new_job("b", **fields)]
        assert short_submit(jobs[:1], ids_are_new=True) is None
        assert alike(jobs) is None


def test_jobs_that_differ_are_not_alike() -> None:
    assert alike([new_job("a"), new_job("b")]) is not None
    for fields in PLAIN.values():
        if fields:
            assert alike([new_job("a"), new_job("b", **fields)]) is None
    assert alike([new_job(name, trace_id=name) for name in "ab"]) is not None


@pytest.mark.parametrize("count", [1, 2])
def test_a_payload_that_is_no_text_is_refused(tmp_path: Path, count: int) -> None:
    with closing(opened(tmp_path / "store", SETUPS["nothing"])) as store:
        jobs = [new_job(str(number), payload=b"\xff") for number in range(count)]

        with pytest.raises(PayloadError):
            store.run(store.jobs.submit(jobs))

        assert rows(store) == []
