# SPDX-License-Identifier: MIT
"""What jobs of one kind share is told to the script once, and each keeps what is its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis

from packhorse.core.clock import new_id
from packhorse.core.job import JobOptions, JobStatus, NewJob
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.errors import PayloadError
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.redis.connection import pack, pack_large
from packhorse.stores.redis.scripts import LARGE_BYTES
from packhorse.stores.redis.store import RedisStore
from packhorse.stores.redis.submit import are_of_one_kind
from packhorse.stores.requests import QueueSettings
from packhorse.testing.conformance.samples import new_job, settlement_of
from tests.servers.redis import redis_url
from tests.stores.redis.support import claim


def _plain(**changes: object) -> NewJob:
    job_id = new_id()
    plain = NewJob(job_id, "task", b"{}", trace_id=job_id.replace("-", ""))
    return msgspec.structs.replace(plain, **changes)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_jobs_of_one_kind_are_told_apart_by_id_and_payload(count: int) -> None:
    assert are_of_one_kind([_plain() for _ in range(count)])


@pytest.mark.parametrize(
    "change",
    [
        {"delay_us": 1},
        {"scheduled_us": 1},
        {"deadline_us": 1},
        {"tenant": "acme"},
        {"weight": 2},
        {"ordering_key": "k"},
        {"concurrency_key": "k"},
        {"rate_key": "k"},
    ],
)
def test_a_constrained_job_is_of_no_kind(change: dict[str, object]) -> None:
    assert not are_of_one_kind([_plain(**change)])
    assert not are_of_one_kind([_plain(), _plain(**change)])


@pytest.mark.parametrize(
    "change",
    [
        {"queue": "other"},
        {"task": "other"},
        {"priority": 0},
        {"timeout_us": 7},
        {"tags": ("red",)},
        {"created_by": "anna"},
        {"trace_id": "theirs"},
    ],
)
def test_jobs_of_two_kinds_are_not_of_one_kind(change: dict[str, object]) -> None:
    assert not are_of_one_kind([_plain(), _plain(**change)])


def test_jobs_of_one_foreign_trace_are_of_one_kind() -> None:
    assert are_of_one_kind([_plain(trace_id="theirs"), _plain(trace_id="theirs")])


def test_one_id_twice_is_of_no_kind() -> None:
    job = _plain()

    assert not are_of_one_kind([job, job])


def test_what_is_no_text_is_refused_wherever_it_stands(store: RedisStore) -> None:
    halves = [new_job(payload="é".encode()[:1]), new_job(payload="é".encode()[1:])]

    for jobs in (halves, halves[:1], [new_job(), halves[1]]):
        with pytest.raises(PayloadError, match="not UTF-8"):
            store.run(store.jobs.submit(jobs))
    assert store.run(store.inspection.counts()) == ()


def test_each_job_keeps_its_own_details_and_trace(store: RedisStore) -> None:
    plain = new_job()
    jobs = [
        msgspec.structs.replace(plain, id=new_id(), trace_id=""),
        msgspec.structs.replace(plain, id="a-b", trace_id="ab"),
        new_job(trace_id="theirs", tags=("red",), created_by="anna"),
        new_job(upstream_request_id="r-1", options=JobOptions(max_crashes=9)),
    ]
    single = new_job(trace_id="own", tags=("blue",))
    store.run(store.jobs.submit(jobs))
    store.run(store.jobs.submit([single]))

    for job in (*jobs, single):
        record = store.run(store.inspection.job(job.id))
        assert record is not None
        assert (record.trace_id, record.tags) == (job.trace_id, job.tags)
        assert (record.created_by, record.options) == (job.created_by, job.options)
        assert record.upstream_request_id == job.upstream_request_id
    claimed = {job.id: job.trace_id for job in claim(store)}
    assert claimed == {job.id: job.trace_id for job in (*jobs, single)}


def test_a_job_that_is_there_answers_for_itself(store: RedisStore) -> None:
    old, new = new_job(), new_job()
    store.run(store.jobs.submit([old]))
    (again,) = store.run(store.jobs.submit([old]))
    first, second = store.run(store.jobs.submit([old, new]))

    assert again.deduplicated
    assert (first.deduplicated, second.deduplicated) == (True, False)
    assert second.status is JobStatus.QUEUED


@pytest.mark.parametrize(("ids_are_new", "looks"), [(True, 1), (False, 1 + 2)])
def test_new_ids_are_not_looked_for(store: RedisStore, *, ids_are_new: bool, looks: int) -> None:
    store.run(store.jobs.submit([new_job()]))  # loads the script
    jobs = [new_job() for _ in range(1500)]

    with redis.Redis.from_url(redis_url()) as client:
        client.config_resetstat()
        store.run(store.jobs.submit(jobs, ids_are_new=ids_are_new))
        stats = client.info("commandstats")

    assert stats["cmdstat_exists"]["calls"] == looks
    assert stats["cmdstat_hset"]["calls"] == len(jobs)


def test_jobs_of_one_kind_for_a_constrained_queue_take_one_round_trip(store: RedisStore) -> None:
    jobs = [new_job(), new_job()]
    store.run(store.queues.declare([QueueSettings(jobs[0].queue, max_depth=2)]))
    steps = store.jobs.submit(jobs).steps()
    asked = next(steps)

    answers = store.run(Plan("submit", lambda: _only(asked)))

    assert len(answers) == 2 + len(jobs)
    assert store.run(store.queues.depth(jobs[0].queue)) == len(jobs)


def _only(step: Any) -> Steps[Any]:
    reply = yield step
    return reply


def test_a_large_request_is_packed_as_hiredis_packs_it() -> None:
    parts = ("EVALSHA", "", "a\0\r\nü€", b"\xff\r\n", b"", 0, -7, 2**53, 1.5, "x" * LARGE_BYTES)

    assert pack_large(parts) == pack(parts)


def test_large_values_are_submitted_claimed_and_settled(store: RedisStore) -> None:
    large = '"' + "ü" * 60_000 + '"'
    new = [new_job(f"job-{number}", payload=large.encode()) for number in range(20)]

    store.run(store.jobs.submit(new))
    held = claim(store)
    done = [
        msgspec.structs.replace(settlement_of(SettlementKind.COMPLETED, job), result=large)
        for job in held
    ]
    verdicts = store.run(store.jobs.settle(done))
    stored = store.run(store.inspection.job("job-19"))

    assert {job.payload for job in held} == {large}
    assert verdicts == (Verdict.APPLIED,) * 20
    assert stored is not None
    assert (stored.payload, stored.result) == (large.encode(), large.encode())
