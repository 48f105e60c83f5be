# SPDX-License-Identifier: MIT
"""Several clients at once, on queues with and without limits: no limit is passed, no job lost."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import psycopg
import pytest

from packhorse.core.job import (
    IdempotencyRule,
    Job,
    JobStatus,
    NewJob,
    OnConflict,
    Progress,
    UniqueRule,
)
from packhorse.core.settlement import Settlement, SettlementKind, Verdict
from packhorse.stores.plan import Plan
from packhorse.stores.postgres.settings import PostgresSettings
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.postgres.wakeups import short
from packhorse.stores.requests import (
    ClaimRequest,
    ProgressNote,
    QueueSettings,
    Renewal,
    TaskSettings,
)
from packhorse.stores.sql.rows import CODE, json_text
from tests.stores.postgres.support import PATIENCE_S, ask, postgres_store, until, waiting_for_locks

_CLIENTS: Final = 4
_TURNS: Final = 25
_QUEUES: Final = ("plain", "limited", "ordered", "shared")
_TASKS: Final = ("free", "slow")
_LIMITED: Final = 3
_SLOW: Final = 2
_LEASE_US: Final = 600_000_000
_DRAIN_MAX: Final = 2000
_WAITING: Final = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"


class _Ledger:
    """Who is known to run: noted after a claim was answered, struck out before it is settled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def begun(self, jobs: tuple[Job, ...]) -> None:
        with self._lock:
            self._running.update(limit for job in jobs for limit in _limits(job))
            self.most |= self._running

    def ending(self, jobs: list[Job]) -> None:
        with self._lock:
            self._running.subtract(limit for job in jobs for limit in _limits(job))


def _limits(job: Job) -> list[str]:
    names = [f"queue {job.queue}"] if job.queue == "limited" else []
    if job.task == "slow":
        names.append(f"slow {job.concurrency_key}")
    if job.queue == "ordered":
        names.append(f"line {job.payload}")
    return names


def _new_job(name: str, chance: random.Random) -> NewJob:
    queue, task = chance.choice(_QUEUES), chance.choice(_TASKS)
    key = chance.choice("xy")
    return NewJob(
        name,
        task,
        f'"{key}"'.encode(),
        queue,
        priority=chance.randrange(5),
        tenant=chance.choice(("ann", "bob")) if queue == "shared" else "",
        ordering_key=key if queue == "ordered" else None,
        concurrency_key=chance.choice("kl") if task == "slow" else None,
        unique=UniqueRule(chance.choice("uv")) if chance.random() < 0.1 else None,
    )


def _completed(job: Job) -> Settlement:
    kind = SettlementKind.COMPLETED
    return Settlement(job.id, job.fence, kind, JobStatus.COMPLETED, result="1")


def _client(store: PostgresStore, number: int, ledger: _Ledger) -> Counter[Verdict]:
    """Submit, claim and settle at random; says how often what was answered."""
    chance, worker, held = random.Random(number), f"w{number}", list[Job]()
    heard: Counter[Verdict] = Counter()
    store.run(store.leases.renew(Renewal(worker, _LEASE_US, _QUEUES, _TASKS)))
    for turn in range(_TURNS):
        names = [f"{number}-{turn}-{index}" for index in range(chance.choice((1, 4)))]
        store.run(store.jobs.submit([_new_job(name, chance) for name in names]))
        queues = tuple(chance.sample(_QUEUES, chance.randrange(1, len(_QUEUES) + 1)))
        claimed = store.run(store.jobs.claim(ClaimRequest(worker, queues, _TASKS, 4, 60_000_000)))
        ledger.begun(claimed.jobs)
        held += claimed.jobs
        chance.shuffle(held)
        ended, held = held[:3], held[3:]
        ledger.ending(ended)
        verdicts = store.run(store.jobs.settle([_completed(job) for job in ended]))
        heard.update(verdicts)
    ledger.ending(held)
    verdicts = store.run(store.jobs.settle([_completed(job) for job in held]))
    heard.update(verdicts)
    return heard


def _drain(store: PostgresStore) -> None:
    store.run(store.leases.renew(Renewal("last", _LEASE_US, _QUEUES, _TASKS)))
    for _ in range(_DRAIN_MAX):
        request = ClaimRequest("last", _QUEUES, _TASKS, 50, 60_000_000)
        jobs = store.run(store.jobs.claim(request)).jobs
        if not jobs:
            return
        store.run(store.jobs.settle([_completed(job) for job in jobs]))


def test_clients_at_once_pass_no_limit_and_leave_nothing_behind(
    url: str, store: PostgresStore
) -> None:
    store.run(store.queues.declare([QueueSettings("limited", concurrency=_LIMITED)]))
    store.run(store.queues.declare_tasks([TaskSettings("slow", concurrency=_SLOW)]))
    ledger, stores = _Ledger(), [postgres_store(url) for _ in range(_CLIENTS)]
    with ThreadPoolExecutor(_CLIENTS) as threads:
        futures = [
            threads.submit(_client, one, number, ledger) for number, one in enumerate(stores)
        ]
        heard = sum((future.result() for future in futures), Counter[Verdict]())
    for one in stores:
        one.close()

    assert set(heard) == {Verdict.APPLIED}
    assert ledger.most["queue limited"] <= _LIMITED
    assert max(ledger.most[f"slow {key}"] for key in "kl") <= _SLOW
    assert max(ledger.most[f'line "{key}"'] for key in "xy") == 1
    _drain(store)
    schema = store._settings.schema
    left = ask(url, f'select id, lane, blocked_by from "{schema}".jobs where finished_us is null')
    assert left == []


def test_a_queue_that_becomes_limited_is_limited_for_claims_already_under_way(
    url: str, store: PostgresStore
) -> None:
    """However declaration and claims interleave, no more than the limit run beside the earlier."""
    jobs = [NewJob(f"j{index}", "free", b"1", "plain") for index in range(100)]
    store.run(store.jobs.submit(jobs))
    stores = [postgres_store(url) for _ in range(_CLIENTS)]

    def claim(number: int) -> int:
        one, worker, given = stores[number], f"w{number}", 0
        one.run(one.leases.renew(Renewal(worker, _LEASE_US, ("plain",), _TASKS)))
        for _ in range(10):
            request = ClaimRequest(worker, ("plain",), _TASKS, 1, 60_000_000)
            given += len(one.run(one.jobs.claim(request)).jobs)
        return given

    def declare() -> int:
        store.run(store.queues.declare([QueueSettings("plain", concurrency=1)]))
        store.run(store.leases.renew(Renewal("late", _LEASE_US, ("plain",), _TASKS)))
        schema = store._settings.schema
        [(running,)] = ask(url, f'select count(*) from "{schema}".jobs where lane = 4')
        return int(running)

    with ThreadPoolExecutor(_CLIENTS + 1) as threads:
        claims = [threads.submit(claim, number) for number in range(_CLIENTS)]
        running = threads.submit(declare).result()
        given = sum(future.result() for future in claims)
    for one in stores:
        one.close()

    assert given <= max(running, 1)


def test_what_follows_the_holder_of_a_unique_key_was_not_created_before_that_ended(
    url: str, store: PostgresStore
) -> None:
    """A submit that waits for the row of a holder that just ends began before that ended."""

    def single(name: str) -> NewJob:
        return NewJob(name, "free", b"1", "plain", unique=UniqueRule("u"))

    store.run(store.jobs.submit([single("first")]))
    jobs = f'"{store._settings.schema}".jobs'
    with (
        psycopg.connect(PostgresSettings.from_url(url).conninfo) as ending,
        ThreadPoolExecutor(1) as threads,
    ):
        ending.execute(f"select from {jobs} where id = 'first' for update".encode())
        submit = threads.submit(store.run, store.jobs.submit([single("second")]))
        until(lambda: ask(url, _WAITING))
        ending.execute(
            f"update {jobs} set status = %s, finished_us = "
            "(extract(epoch from clock_timestamp()) * 1000000)::bigint where id = 'first'".encode(),
            (CODE[JobStatus.COMPLETED],),
        )
        ending.commit()
        submit.result(PATIENCE_S)

    [(ended_us,)] = ask(url, f"select finished_us from {jobs} where id = 'first'")
    [(created_us,)] = ask(url, f"select created_us from {jobs} where id = 'second'")
    assert created_us >= ended_us


@pytest.mark.parametrize("ending", ["completed", "cancelled when lost"])
def test_a_job_stashed_while_an_end_waits_for_the_row_of_its_holder_is_submitted(
    url: str, store: PostgresStore, ending: str
) -> None:
    rule = UniqueRule("u", on_conflict=OnConflict.KEEP_LATEST)
    store.run(store.leases.renew(Renewal("w", _LEASE_US, ("plain",), _TASKS)))
    store.run(store.jobs.submit([NewJob("first", "free", b"1", "plain", unique=rule)]))
    request = ClaimRequest("w", ("plain",), _TASKS, 1, 60_000_000)
    [job] = store.run(store.jobs.claim(request)).jobs
    schema = f'"{store._settings.schema}"'
    again = NewJob("second", "free", b"2", "plain", unique=rule)
    plan: Any = store.jobs.settle([_completed(job)])
    if ending == "cancelled when lost":
        ask(url, f"update {schema}.workers set expires_us = 1")
        plan = store.jobs.cancel("first")

    conninfo = PostgresSettings.from_url(url).conninfo
    with psycopg.connect(conninfo) as other, ThreadPoolExecutor(1) as threads:
        other.execute(f"select 1 from {schema}.jobs where id = 'first' for update".encode())
        ended = threads.submit(store.run, plan)
        until(lambda: ask(url, _WAITING))
        stashed = f"insert into {schema}.stash select seq, %s from {schema}.jobs"
        other.execute(stashed.encode(), (json_text(again),))
        other.commit()
        ended.result(PATIENCE_S)

    assert ask(url, f"select count(*) from {schema}.stash") == [(0,)]
    assert ask(url, f"select id from {schema}.jobs order by seq") == [("first",), ("second",)]


_ALIKE: Final = NewJob(
    "again",
    "free",
    b"1",
    "plain",
    tenant="ann",
    unique=UniqueRule("u"),
    idempotency=IdempotencyRule("i", "digest", 60_000_000),
)


@pytest.mark.parametrize(
    "locking",
    [
        lambda store: store.jobs.submit([msgspec.structs.replace(_ALIKE, unique=None)]),
        lambda store: store.jobs.submit([msgspec.structs.replace(_ALIKE, idempotency=None)]),
        lambda store: store.jobs.settle(
            [Settlement("ready", 1, SettlementKind.FAILED, JobStatus.FAILED)]
        ),
        lambda store: store.jobs.cancel("ready", tenant="bob"),
    ],
    ids=["idempotency key", "unique key", "stale settlement", "cancel by another tenant"],
)
def test_who_locks_a_ready_job_and_leaves_it_ready_lets_claims_look_again(
    store: PostgresStore, locking: Callable[[PostgresStore], Plan[Any]]
) -> None:
    """Claims skip locked rows; one that found nothing else sleeps."""
    store.run(store.jobs.submit([msgspec.structs.replace(_ALIKE, id="ready")]))
    with psycopg.connect(store._settings.conninfo, autocommit=True) as listening:
        listening.execute(f'listen "{store._channel}"'.encode())
        store.run(locking(store))
        heard = list(listening.notifies(timeout=PATIENCE_S / 10, stop_after=1))

    assert [notice.payload for notice in heard] == [short("queue:plain")]


def test_progress_is_noted_in_the_order_in_which_settlements_lock_their_jobs(
    url: str, store: PostgresStore
) -> None:
    """Else each may hold a job that the other one waits for."""
    names = ("a", "b")
    store.run(store.leases.renew(Renewal("w", _LEASE_US, ("plain",), _TASKS)))
    store.run(store.jobs.submit([NewJob(name, "free", b"1", "plain") for name in names]))
    claimed = store.run(store.jobs.claim(ClaimRequest("w", ("plain",), _TASKS, 2, 60_000_000)))
    fences = {job.id: job.fence for job in claimed.jobs}
    notes = [
        ProgressNote("b", fences["b"], Progress(1)),
        ProgressNote("a", 0, Progress(1)),
        ProgressNote("a", fences["a"], Progress(2)),
    ]
    jobs = f'"{store._settings.schema}".jobs'
    conninfo = PostgresSettings.from_url(url).conninfo
    with psycopg.connect(conninfo) as settling, ThreadPoolExecutor(1) as threads:
        settling.execute(f"select from {jobs} where id = 'a' for update".encode())
        noted = threads.submit(store.run, store.jobs.note_progress(notes))
        until(lambda: waiting_for_locks(url, store._settings.schema))
        settling.execute(f"select from {jobs} where id = 'b' for update nowait".encode())
        settling.rollback()

        assert noted.result(PATIENCE_S) == (Verdict.APPLIED, Verdict.STALE, Verdict.APPLIED)


def _keyed(name: str, *, unique: str | None = None, idempotency: str | None = None) -> NewJob:
    return NewJob(
        name,
        "free",
        b"1",
        "plain",
        unique=None if unique is None else UniqueRule(unique),
        idempotency=None
        if idempotency is None
        else IdempotencyRule(idempotency, "digest", 60_000_000),
    )


@pytest.mark.parametrize(
    "wanting",
    [
        [_keyed("c", unique="v"), _keyed("d", unique="u")],
        [_keyed("c", idempotency="j"), _keyed("d", unique="u")],
        [_keyed("c", unique="u", idempotency="j")],
    ],
    ids=["unique keys", "keys of both kinds", "both keys of one job"],
)
@pytest.mark.parametrize("by", ["submit", "change"])
def test_holders_of_keys_are_locked_in_the_order_in_which_settlements_lock_their_jobs(
    url: str, store: PostgresStore, wanting: list[NewJob], by: str
) -> None:
    """Else two submits, or one and a settlement, may each hold a job that the other waits for."""
    holders = [_keyed("a", unique="u", idempotency="i"), _keyed("b", unique="v", idempotency="j")]
    store.run(store.jobs.submit(holders))
    plan: Any = store.jobs.submit(wanting)
    if by == "change":
        plan = store.records.change((), jobs=wanting)
    jobs = f'"{store._settings.schema}".jobs'
    conninfo = PostgresSettings.from_url(url).conninfo
    with psycopg.connect(conninfo) as settling, ThreadPoolExecutor(1) as threads:
        settling.execute(f"select from {jobs} where id = 'a' for update".encode())
        submitted = threads.submit(store.run, plan)
        until(lambda: waiting_for_locks(url, store._settings.schema))
        settling.execute(f"select from {jobs} where id = 'b' for update nowait".encode())
        settling.rollback()

        submitted.result(PATIENCE_S)
    assert ask(url, f"select count(*) from {jobs}") == [(2,)]
