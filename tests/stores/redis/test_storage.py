# SPDX-License-Identifier: MIT
"""What is peculiar to how Redis keeps jobs: fences, fast and general routes, bounded scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import pytest
import redis

from packhorse.core.clock import SECOND_US
from packhorse.core.job import Job, NewJob, RateRule
from packhorse.core.policies.retention import GHOST_US
from packhorse.core.settlement import SettlementKind
from packhorse.stores import open_store
from packhorse.stores.protocol import Store
from packhorse.stores.redis.jobs import RedisJobs
from packhorse.stores.redis.settings import RedisSettings
from packhorse.stores.redis.store import RedisStore
from packhorse.stores.requests import ClaimRequest, QueueSettings, Renewal, TaskSettings
from packhorse.testing.conformance.samples import ANNA, LEASE_US, TASK, new_job, settlement_of
from packhorse.testing.places import clear_namespace
from packhorse.testing.virtual_clock import VirtualClock
from tests.servers.redis import redis_url

T = TypeVar("T")


def _claim(store: Store, jobs: RedisJobs | None = None, limit: int = 10) -> tuple[Job, ...]:
    """All that is ready, whatever its task."""
    store.run(store.leases.renew(Renewal(ANNA, LEASE_US)))
    request = ClaimRequest(ANNA, ("default",), ("*",), limit, 30 * SECOND_US)
    return store.run((jobs or store.jobs).claim(request)).jobs


def _keys(namespace: str) -> list[bytes]:
    with redis.Redis.from_url(redis_url()) as client:
        return sorted(client.scan_iter(f"{{{namespace}}}*", count=1000))


@pytest.mark.req("S4-1")
def test_a_fence_that_was_lost_with_its_claim_is_not_given_again(
    store: RedisStore, namespace: str
) -> None:
    store.run(store.jobs.submit([new_job(queue="default")]))
    with redis.Redis.from_url(redis_url()) as client:
        saved = {key: client.dump(key) for key in _keys(namespace)}
        (lost,) = _claim(store)

        client.delete(*_keys(namespace))  # a failover to a replica that has not heard of the claim
        for key, value in saved.items():
            client.restore(key, 0, value)
    (again,) = _claim(store)

    assert again.id == lost.id
    assert again.fence > lost.fence


def test_the_fast_routes_write_what_the_general_ones_write(namespace: str) -> None:
    seen: list[dict[str, Any]] = []
    for fast in (True, False):
        name = f"{namespace}-{fast}"
        store = RedisStore(
            RedisSettings.from_url(f"{redis_url()}?namespace={name}"), clock=VirtualClock()
        )
        jobs = RedisJobs(fast=fast)
        new = [new_job(f"job-{number}", queue="default", timeout_us=5) for number in range(6)]
        store.run(jobs.submit(new[:4]))
        store.run(jobs.submit(new))
        first = new_job("first", queue="default", priority=0)  # the new head of its line
        store.run(jobs.submit([first], ids_are_new=True))
        held = _claim(store, jobs, limit=4)
        store.run(jobs.settle([settlement_of(SettlementKind.COMPLETED, job) for job in held[:3]]))
        store.close()
        seen.append(_contents(name))
        clear_namespace(redis_url(), name)

    assert seen[0] == seen[1]
    assert len(seen[0]) > len(["one hash for each job"] * 6)


_RATE = RateRule(100, 60 * SECOND_US)


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"tenant": "a", "weight": 2},
        {"rate_key": "k"},
        {"concurrency_key": "k"},
        {"ordering_key": "k"},
    ],
)
@pytest.mark.parametrize(
    "queue",
    [
        {},
        {"rate": _RATE, "tenant_rate": _RATE},
        {"max_depth": 100, "on_full": "drop"},
        {"max_bytes": 10_000},
        {"ageing_us": SECOND_US},
        {"concurrency": 3},
    ],
)
@pytest.mark.parametrize("task", [{}, {"rate": _RATE}, {"concurrency": 2}])
def test_constrained_jobs_complete_the_same_on_both_routes(
    namespace: str, job: dict[str, Any], queue: dict[str, Any], task: dict[str, Any]
) -> None:
    seen: list[dict[str, Any]] = []
    for fast in (True, False):
        settings = RedisSettings.from_url(f"{redis_url()}?namespace={namespace}-{fast}")
        store = RedisStore(settings, clock=VirtualClock())
        store.run(store.queues.declare([QueueSettings("default", **queue)]))
        store.run(store.queues.declare_tasks([TaskSettings(TASK, **task)]))
        new = [new_job(f"job-{number}", queue="default", **job) for number in range(4)]
        store.run(store.jobs.submit([*new, new_job("other", queue="default", tenant="b")]))
        held = _claim(store)
        done = [settlement_of(SettlementKind.COMPLETED, each) for each in held]
        with _woken(f"{namespace}-{fast}") as topics:
            store.run(RedisJobs(fast=fast).settle(done))
        store.close()
        seen.append(_contents(f"{namespace}-{fast}") | {"woken": topics})
        clear_namespace(redis_url(), f"{namespace}-{fast}")

    assert seen[0] == seen[1]


@contextmanager
def _woken(namespace: str) -> Iterator[set[bytes]]:
    """The topics that are woken meanwhile."""
    topics: set[bytes] = set()
    with redis.Redis.from_url(redis_url()) as client, client.pubsub() as heard:
        heard.psubscribe(f"{{{namespace}}}*")
        heard.get_message(timeout=5)  # the confirmation
        yield topics
        client.publish(f"{{{namespace}}}:end", "end")
        while b"end" not in topics:
            message = heard.get_message(timeout=5)
            topics.add(message["data"])


def _contents(namespace: str) -> dict[str, Any]:
    """Every key of a namespace and what is in it."""
    found: dict[str, Any] = {}
    with redis.Redis.from_url(redis_url()) as client:
        readers = {
            b"hash": client.hgetall,
            b"set": client.smembers,
            b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
            b"string": client.get,
        }
        for key in _keys(namespace):
            found[key.decode().partition("}")[2]] = readers[client.type(key)](key)
    return found


def test_a_queue_with_very_many_ready_jobs_begins_to_deal_passes_as_the_reference_does(
    namespace: str,
) -> None:
    clock = VirtualClock()
    orders: list[list[str]] = []
    for url in (f"{redis_url()}?namespace={namespace}", "memory://"):
        store = open_store(url, clock=clock)
        plain = [new_job(f"plain-{number}", queue="default") for number in range(1300)]
        keyed = [new_job(f"keyed-{number}", queue="default", rate_key="k") for number in range(100)]
        store.run(store.jobs.submit(plain[:700]))
        store.run(store.jobs.submit(keyed))
        store.run(store.jobs.submit(plain[700:]))
        late = [new_job(f"late-{number}", queue="default", tenant="acme") for number in range(20)]
        store.run(store.jobs.submit(late))
        orders.append([job.id for job in _claim(store, limit=3000)])
        store.close()

    assert orders[0] == orders[1]


def test_a_claim_gets_past_more_lines_than_one_script_sets_aside(store: RedisStore) -> None:
    store.run(store.queues.declare_tasks([TaskSettings("limited", concurrency=1)]))
    limited = [
        NewJob(f"limited-{number}", "limited", b"{}", ordering_key=str(number))
        for number in range(1200)
    ]
    store.run(store.jobs.submit([*limited, NewJob("free", "free", b"{}", priority=4)]))

    assert [job.id for job in _claim(store)] == ["limited-0", "free"]
    assert _claim(store) == ()


def test_nothing_is_left_of_workers_gone_for_long_and_closings_that_are_over(
    namespace: str,
) -> None:
    clock = VirtualClock()
    store = open_store(f"{redis_url()}?namespace={namespace}", clock=clock)
    store.run(store.jobs.submit([new_job("job", queue="default")]))
    (job,) = _claim(store)
    store.run(store.jobs.settle([settlement_of(SettlementKind.LIMITED, job)]))
    kept = {f"{{{namespace}}}:{name}".encode() for name in ("leases", "workers", "shut", "shuts")}
    store.run(store.upkeep.prune(limit=10))
    assert kept <= {*_keys(namespace)}

    clock.advance((LEASE_US + GHOST_US) / SECOND_US)
    assert store.run(store.upkeep.prune(limit=10)) == 1

    assert kept.isdisjoint(_keys(namespace))
    store.close()


@pytest.mark.parametrize("fast", [True, False])
def test_a_payload_is_stored_once_and_sent_once(store: RedisStore, *, fast: bool) -> None:
    large = 64 * 1024
    text = b'"' + b"x" * large + b'"'
    store.run(store.jobs.submit([new_job("job", queue="default", payload=text)]))
    store.run(store.leases.renew(Renewal(ANNA, LEASE_US)))
    request = ClaimRequest(ANNA, ("default",), ("*",), 1, 30 * SECOND_US)
    jobs = RedisJobs(fast=fast)

    store.run(jobs.claim(msgspec.structs.replace(request, limit=0)))  # loads the script
    sent, received, claimed = _traffic(lambda: store.run(jobs.claim(request)).jobs)
    assert sent < large / 10
    assert received < 1.2 * large
    completed = [settlement_of(SettlementKind.COMPLETED, job) for job in claimed]
    store.run(jobs.settle([msgspec.structs.replace(completed[0], fence=0)]))  # so does this
    sent, received, _ = _traffic(lambda: store.run(jobs.settle(completed)))
    assert sent < large / 10
    assert received < large / 10


def _traffic(work: Callable[[], T]) -> tuple[int, int, T]:
    """Bytes that the server received and sent meanwhile, and what the work came to."""
    with redis.Redis.from_url(redis_url()) as client:
        before = client.info("stats")
        done = work()
        after = client.info("stats")
    names = ("total_net_input_bytes", "total_net_output_bytes")
    sent, received = (int(after[name]) - int(before[name]) for name in names)
    return sent, received, done
