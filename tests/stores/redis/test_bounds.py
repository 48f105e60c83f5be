# SPDX-License-Identifier: MIT
"""No script reads, or goes through, as much as there happens to be: everything is in parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

import msgspec
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.core.clock import SECOND_US, new_id
from packhorse.core.job import Job, JobStatus, NewJob, RateRule
from packhorse.core.policies.depth import turned_away
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.plan import Plan, Steps
from packhorse.stores.protocol import Store
from packhorse.stores.redis.jobs import RedisJobs
from packhorse.stores.redis.settings import RedisSettings
from packhorse.stores.redis.store import RedisStore
from packhorse.stores.requests import Claimed, ClaimRequest, QueueSettings, Renewal, TaskSettings
from packhorse.testing.conformance.samples import ANNA, LEASE_US, new_job
from packhorse.testing.virtual_clock import VirtualClock
from tests.servers.redis import redis_url

FOLDER = files("packhorse.stores.redis") / "lua"
SOURCES: Final = {file.name: file.read_text("utf-8") for file in FOLDER.iterdir()}

#: Commands that read or go through all of something, and what it may be: never jobs or their keys.
WHOLE: Final = re.compile(
    r"'(?:SMEMBERS|HGETALL|HKEYS|HVALS|SUNION|SINTER|SDIFF|LRANGE|KEYS|[SHZ]?SCAN|SORT|ZUNION|"
    r"ZINTER|ZDIFF|ZUNIONSTORE|ZINTERSTORE|SUNIONSTORE)', (?P<of>[^,)]+)"
)
BOUNDED: Final = {
    "key": "fields of one job",
    "tag .. KEY.queues": "queues that something is known of",
    "tag .. KEY.declared": "queues that were declared",
    "tag .. KEY.overrides": "queues that an operator has set",
    "tag .. key": "either of those two",
    "tag .. KEY.pauses": "keys and tenants that an operator has paused",
    "tag .. KEY.tasks": "tasks with limits",
    "tag .. KEY.counts": "queues, and the eight statuses of each",
    "tag .. KEY.bytes": "queues",
    "tag .. KEY.suspended": "queues",
    "tag .. KEY.holders": "workers that hold jobs",
    "tag .. KEY.workers": "workers",
    "tag .. KEY.due_queues": "queues",
    "tag .. KEY.parked_pairs": "queues, and the tasks of each",
    "tag .. KEY.ready_tasks .. queue": "tasks of a queue",
    "tag .. KEY.ready_tasks .. job.queue": "tasks of a queue",
    "tag .. KEY.suspect_tasks .. job.queue": "tasks of a queue",
    "tag .. KEY.overdue_tasks .. job.queue": "tasks of a queue",
    "set": "tasks of a queue",
    "tag .. KEY.task_queues .. task": "queues of a task",
    "tag .. KEY.gate_pairs .. gate": "queues, and the tasks of each",
    "keys.job(id": "the fields of one job, of whose history at most 50 lines are kept",
    "keys.job(job.id": "the same, with at most 1,000 values attached",
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_read_as_a_whole_does_not_grow_with_jobs(name: str) -> None:
    assert [
        found["of"] for found in WHOLE.finditer(SOURCES[name]) if found["of"] not in BOUNDED
    ] == []


@pytest.mark.parametrize("name", SOURCES)
def test_no_range_is_open_at_its_end(name: str) -> None:
    calls = re.findall(
        r"'Z(?:REV)?RANGE',.*?(?=\bdo\b|\n *(?:local|for|if|end|return)\b)",
        SOURCES[name],
        re.DOTALL,
    )

    assert [call for call in calls if re.search(r", -\d", call)] == []


@pytest.mark.parametrize("name", SOURCES)
def test_every_range_by_score_says_how_many(name: str) -> None:
    calls = re.findall(r"'Z(?:REV)?RANGEBYSCORE',(?:[^;]*?)(?:\)\)|\)\n|\)\[)", SOURCES[name])
    whole = [call for call in calls if "'LIMIT'" not in call]

    assert [
        call for call in whole if "KEY.leases" not in call
    ] == []  # as many as there are workers


def test_the_looks_above_find_what_they_look_for() -> None:
    assert WHOLE.search("redis.call('HKEYS', tag .. KEY.heads .. pair)")
    assert "tag .. KEY.heads .. pair" not in BOUNDED


def _claim(store: Store, limit: int) -> list[Job]:
    store.run(store.leases.renew(Renewal(ANNA, LEASE_US)))
    request = ClaimRequest(ANNA, ("default",), ("*",), limit, 30 * SECOND_US)
    return list(store.run(store.jobs.claim(request)).jobs)


def test_a_cancel_is_found_among_more_jobs_than_one_script_looks_at(store: RedisStore) -> None:
    store.run(store.jobs.submit([new_job(queue="default") for _ in range(1200)]))
    held = _claim(store, 1200)
    store.run(store.jobs.cancel(held[0].id))
    store.run(store.jobs.cancel(held[-1].id))

    wanted = store.run(store.leases.cancelled(ANNA))
    assert sorted(wanted) == sorted([held[0].id, held[-1].id])


def test_a_raised_limit_lets_go_more_lines_than_one_script_opens(store: RedisStore) -> None:
    once, twice = (
        TaskSettings("limited", rate=RateRule(most, 3600 * SECOND_US)) for most in (1, 2)
    )
    store.run(store.queues.declare_tasks([once]))
    store.run(
        store.jobs.submit(
            [
                NewJob(f"{turn}-{key}", "limited", b"{}", rate_key=f"key-{key}")
                for turn in range(2)
                for key in range(1100)
            ]
        )
    )
    assert len(_claim(store, 3000)) == 1100
    assert _claim(store, 3000) == []

    store.run(store.queues.declare_tasks([twice]))

    assert len(_claim(store, 3000)) + len(_claim(store, 3000)) == 1100


@given(
    waiting=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50))),
    arriving=st.lists(st.integers(0, 4), max_size=40),
    room=st.integers(0, 20),
    size=st.integers(0, 200),
)
@settings(max_examples=200, deadline=None)
def test_a_full_queue_turns_away_what_the_policy_does(
    waiting: list[tuple[int, int]], arriving: list[int], room: int, size: int
) -> None:
    standing = [(*one, f"waiting-{at}", 1 + at % 7) for at, one in enumerate(waiting)]
    coming = [(priority, 100 + at, f"job-{at}", at % 9) for at, priority in enumerate(arriving)]
    text = SOURCES["depth.lua"] + (
        "local away, told, given = {}, {}, cjson.decode(ARGV[1])\n"
        "depth.turned_away(given[1], given[2], given[3], given[4], away)\n"
        "for id in pairs(away) do told[#told + 1] = id end return told"
    )
    with redis.Redis.from_url(redis_url()) as client:
        told = client.eval(text, 0, msgspec.json.encode([standing, coming, room, size]))

    assert {one.decode() for one in told} == turned_away(standing, coming, room, size)


@pytest.mark.parametrize("fast", [True, False])
def test_jobs_of_unknown_tasks_cost_a_claim_nothing(store: RedisStore, *, fast: bool) -> None:
    steps: list[int] = []
    for foreign in (1_000, 29_000):
        for first in range(0, foreign, 10_000):
            count = min(10_000, foreign - first)
            store.run(store.jobs.submit([NewJob(new_id(), "foreign", b"{}") for _ in range(count)]))
        store.run(store.jobs.submit([NewJob(new_id(), "known", b"{}", priority=0)]))
        steps.append(_commands_of_a_claim(store, fast=fast))

    few, many = steps
    assert many <= 1.3 * few


def _commands_of_a_claim(store: RedisStore, *, fast: bool = False) -> int:
    """Claim the one job of a known task; says how many commands that took inside the server."""
    store.run(store.leases.renew(Renewal(ANNA, LEASE_US)))
    request = ClaimRequest(ANNA, ("default",), ("known",), 10, 30 * SECOND_US)
    with redis.Redis.from_url(redis_url()) as client:
        client.config_resetstat()
        claimed = store.run(RedisJobs(fast=fast).claim(request)).jobs
        stats = client.info("commandstats")
    assert [job.task for job in claimed] == ["known"]
    return sum(each["calls"] for each in stats.values())


def test_parking_nothing_at_most_parks_nothing(store: RedisStore) -> None:
    store.run(store.leases.renew(Renewal(ANNA, LEASE_US, queues=("default",), tasks=("known",))))
    store.run(store.jobs.submit([new_job("job", queue="default")]))

    assert store.run(store.upkeep.park(after_us=SECOND_US, limit=0)).tasks == ()
    assert store.run(store.upkeep.park(after_us=SECOND_US, limit=1)).tasks != ()


#: Suspects that wait, few and many.
_FEW: Final = 100
_MANY: Final = 400
#: What a claim says to the server beside its looks at suspects.
_COMMANDS_MAX: Final = 100
_RESCUED: Final = Settlement(
    "", 0, SettlementKind.RESCUED, JobStatus.QUEUED, ended=False, crashes=1, suspect=True
)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def clocked(namespace: str, clock: VirtualClock) -> Iterator[RedisStore]:
    settings = RedisSettings.from_url(f"{redis_url()}?namespace={namespace}")
    opened = RedisStore(settings, clock=clock)
    yield opened
    opened.close()


def _make_suspects(store: RedisStore, clock: VirtualClock, count: int, tenant: str) -> None:
    jobs = [NewJob(new_id(), "known", b"{}", tenant=tenant) for _ in range(count)]
    store.run(store.jobs.submit(jobs))
    held = _claim(store, count)
    clock.advance(2 * LEASE_US / SECOND_US)
    lost = [msgspec.structs.replace(_RESCUED, job_id=job.id, fence=job.fence) for job in held]
    assert store.run(store.jobs.settle(lost)) == (Verdict.APPLIED,) * count


@pytest.mark.parametrize("paused", [False, True])
def test_suspects_that_wait_cost_an_ordinary_claim_little(
    clocked: RedisStore, clock: VirtualClock, *, paused: bool
) -> None:
    steps: list[int] = []
    for more in (_FEW, _MANY - _FEW):
        _make_suspects(clocked, clock, more, "acme")
        clocked.run(clocked.queues.pause("default", tenant="acme", paused=paused))
        clocked.run(clocked.jobs.submit([NewJob(new_id(), "known", b"{}")]))
        steps.append(_commands_of_a_claim(clocked))
        clocked.run(clocked.queues.pause("default", tenant="acme", paused=False))

    few, many = steps
    assert many <= 1.3 * few
    assert few < _FEW + _COMMANDS_MAX


def test_a_suspect_behind_many_that_may_not_run_is_told_of(
    clocked: RedisStore, clock: VirtualClock
) -> None:
    """A claim looks at some of them, another one at others."""
    _make_suspects(clocked, clock, _MANY, "acme")
    _make_suspects(clocked, clock, 1, "other")
    clocked.run(clocked.queues.pause("default", tenant="acme", paused=True))
    clocked.run(clocked.leases.renew(Renewal(ANNA, LEASE_US)))
    request = ClaimRequest(ANNA, ("default",), ("*",), 10, 30 * SECOND_US)

    told = 0
    for _ in range(_MANY):
        clock.advance(0.000_037)
        told += clocked.run(clocked.jobs.claim(request)).suspects

    assert told > 0
    quarantine = msgspec.structs.replace(request, limit=1, quarantine=True)
    assert [job.tenant for job in clocked.run(clocked.jobs.claim(quarantine)).jobs] == ["other"]


def test_a_claim_lets_scripts_in_between_when_very_many_jobs_of_a_line_have_expired(
    clocked: RedisStore, clock: VirtualClock
) -> None:
    soon = clock.now_us() + SECOND_US
    late = [new_job(new_id(), queue="default", deadline_us=soon) for _ in range(2_500)]
    clocked.run(clocked.jobs.submit([*late, new_job("last", queue="default", priority=4)]))
    clock.advance(2)

    with redis.Redis.from_url(redis_url()) as client:
        client.config_resetstat()
        claimed = _claim(clocked, 10)
        stats = client.info("commandstats")

    assert [job.id for job in claimed] == ["last"]
    assert stats["cmdstat_evalsha"]["calls"] > 1 + len(late) / 1_000  # the renewal is one


#: Lines of other tenants before and behind those of a consumer's own, and its jobs.
_TENANTS: Final = 3_000
_OWN: Final = [f"own-{number:02}" for number in range(30)]
#: What one script may say to the server: others wait for it.
_SCRIPT_MAX: Final = 3_000


def _for_tenants(store: RedisStore) -> Plan[Claimed]:
    """Submit jobs of many tenants, and claim those of two."""
    store.run(store.queues.declare([QueueSettings("default", fair=True)]))
    others = [NewJob(new_id(), "known", b"{}", tenant=f"t{number}") for number in range(_TENANTS)]
    own = [NewJob(name, "known", b"{}", tenant=f"own{at % 2}") for at, name in enumerate(_OWN)]
    store.run(store.jobs.submit([*others[::2], *own, *others[1::2]]))
    store.run(store.leases.renew(Renewal(ANNA, LEASE_US)))
    request = ClaimRequest(ANNA, ("default",), ("known",), 2 * len(_OWN), 30 * SECOND_US)
    return store.jobs.claim(msgspec.structs.replace(request, tenants=("own0", "own1")))


def test_a_claim_for_some_tenants_looks_at_the_others_once_and_lets_scripts_in_between(
    store: RedisStore,
) -> None:
    claim = _for_tenants(store)

    with redis.Redis.from_url(redis_url()) as client:
        client.config_resetstat()
        claimed = store.run(claim).jobs
        stats = client.info("commandstats")

    assert [job.id for job in claimed] == _OWN
    total = sum(each["calls"] for each in stats.values())
    scripts = stats["cmdstat_evalsha"]["calls"]
    assert total < 2 * _TENANTS
    assert total / scripts < _SCRIPT_MAX


def test_a_claim_for_some_tenants_goes_on_where_it_was_when_those_before_have_gone(
    store: RedisStore,
) -> None:
    claim = _for_tenants(store)
    scripts: list[object] = []

    def interrupted() -> Steps[Claimed]:
        steps, reply = claim.steps(), None
        while True:
            try:
                script = steps.send(reply)
            except StopIteration as finished:
                claimed: Claimed = finished.value
                return claimed
            reply = yield script
            scripts.append(script)
            tenants = tuple(f"t{number}" for number in range(_TENANTS))
            other = ClaimRequest(
                ANNA, ("default",), ("known",), 2_000, 30 * SECOND_US, tenants=tenants
            )
            store.run(store.jobs.claim(other))

    claimed = store.run(Plan("claim", interrupted)).jobs

    assert len(scripts) > 1
    assert [job.id for job in claimed] == _OWN
