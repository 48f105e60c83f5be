# SPDX-License-Identifier: MIT
"""A real server that goes away, stands still, or is cut off: no job lost, none counted twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

import pytest

from faults.proxy import Proxy
from packhorse import JobHandle, JobInfo, JobStatus, Packhorse, StoreUnavailable
from packhorse.core.clock import SECOND_US, SystemClock
from packhorse.core.job import Job, UniqueRule
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.runtime.services.rescuer import Rescuer
from packhorse.stores.postgres.store import PostgresStore
from packhorse.stores.requests import Renewal
from packhorse.testing.conformance.samples import ANNA, LEASE_US, new_job, settlement_of
from packhorse.testing.places import drop_schema
from tests.servers.postgres import PostgresServer
from tests.stores.postgres.support import (
    PATIENCE_S,
    claiming,
    connections_to,
    names_in,
    postgres_store,
    renewing,
    sessions,
    submitting,
    until,
)

#: Jobs of a batch that is interrupted.
_JOBS: Final = 150
_LEASE_S: Final = 1.0
#: Two of two rescuers would be enough to see a lease expired and to take its jobs.
_HASTY_LOOKS: Final = 6
_numbers: Final = count(1)


@pytest.fixture(scope="module")
def careful_server() -> Iterator[PostgresServer]:
    """One that has what it promised on disk, so that it may be killed."""
    server = PostgresServer(careful=True)
    yield server
    server.remove()


@pytest.fixture
def direct(own_server: PostgresServer) -> Iterator[str]:
    """A store on the private server, reached without detours."""
    schema = f"outage_{next(_numbers)}"
    yield f"{own_server.url()}?schema={schema}&connect_timeout=5s"
    drop_schema(own_server.url(), schema)


@pytest.fixture
def remote(direct: str, own_server: PostgresServer, proxy: Proxy) -> Iterator[PostgresStore]:
    """The same store, reached through the proxy."""
    store = postgres_store(direct.replace(str(own_server.port), str(proxy.port)))
    store.migrate()
    yield store
    store.close()


class Shop:
    """An app whose handlers wait at a gate, and what they did."""

    def __init__(self, app: Packhorse) -> None:
        self.app = app
        self.runs: Counter[int] = Counter()
        self.gate = asyncio.Event()
        self.begun = asyncio.Semaphore(0)

        @app.task
        async def work(number: int) -> int:
            self.runs[number] += 1
            self.begun.release()
            await self.gate.wait()
            return number

        self.work = work

    async def until_begun(self, jobs: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(jobs):
                await self.begun.acquire()


class Looks:
    """Counts how often rescuers have looked without trouble."""

    def __init__(self) -> None:
        self.done = 0

    async def more(self, number: int) -> None:
        """Wait until they have looked so often again."""
        wanted = self.done + number
        async with asyncio.timeout(PATIENCE_S):
            while self.done < wanted:
                await asyncio.sleep(0.01)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    made, run_once = Looks(), Rescuer.run_once

    async def counted(rescuer: Rescuer) -> float:
        rest_s = await run_once(rescuer)
        made.done += 1
        return rest_s

    monkeypatch.setattr(Rescuer, "run_once", counted)
    return made


@asynccontextmanager
async def working(*shops: Shop, **options: Any) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Workers of these apps, until they leave by themselves."""
    workers = [
        asyncio.create_task(shop.app.arun(burst=True, handle_signals=False, **options))
        for shop in shops
    ]
    try:
        yield workers
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        for shop in shops:
            shop.app.close()


async def _infos(url: str, jobs: Sequence[JobHandle[int]]) -> list[JobInfo]:
    """What the store knows of these jobs, asked by a stranger."""
    app = Packhorse(url)
    try:
        return [await app.job(job.id).ainfo() for job in jobs]
    finally:
        app.close()


# ------------------------------------------------------------------------------------ server gone


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_server_restarted_in_the_middle_of_a_batch_loses_no_job(
    careful_server: PostgresServer, end: str
) -> None:
    url = f"{careful_server.url()}?schema=restarted_{end}&connect_timeout=5s"
    shop = Shop(Packhorse(url))
    jobs = await shop.work.aenqueue_many([{"number": number} for number in range(_JOBS)])

    async with working(shop, concurrency=10, lease="10s"):
        await shop.until_begun(10)
        await asyncio.to_thread(getattr(careful_server, end))
        shop.gate.set()  # they end while no server can be told
        await asyncio.to_thread(careful_server.start)
        await shop.until_begun(_JOBS - 10)

    infos = await _infos(url, jobs)
    assert {info.status for info in infos} == {JobStatus.COMPLETED}
    # Those that ran when it went away were settled when it came back, and not run again.
    assert {info.attempts for info in infos} == {1}
    assert {info.crashes for info in infos} == {0}
    assert set(shop.runs.values()) == {1}


def test_a_submit_without_a_server_fails_in_time_and_succeeds_later(
    own_server: PostgresServer, direct: str
) -> None:
    store = postgres_store(direct)
    store.run(submitting(store, "before"))
    own_server.stop()
    try:
        for run in (store.run, lambda plan: asyncio.run(store.arun(plan))):
            with pytest.raises(StoreUnavailable) as refused:
                run(submitting(store, "meanwhile"))
            assert not refused.value.maybe_stored
    finally:
        own_server.start()

    store.run(submitting(store, "after"))
    assert names_in(direct) == ["before", "after"]
    store.close()


# ------------------------------------------------------------------------------ lost answers


def _asks(word: str) -> Callable[[bytes], bool]:
    return lambda data: word.encode() in data


@pytest.mark.parametrize("runner", ["run", "arun"])
def test_a_submit_whose_answer_is_lost_may_be_stored_and_is_not_stored_twice(
    remote: PostgresStore, proxy: Proxy, direct: str, runner: str
) -> None:
    def run(name: str) -> Any:
        plan = submitting(remote, name)
        return remote.run(plan) if runner == "run" else asyncio.run(remote.arun(plan))

    run("before")
    proxy.lose_answer_to(_asks("precious"))

    with pytest.raises(StoreUnavailable) as refused:
        run("precious")

    assert proxy.answers_lost == 1
    assert refused.value.maybe_stored
    assert names_in(direct) == ["before", "precious"]
    [again] = run("precious")
    assert again.deduplicated
    assert names_in(direct) == ["before", "precious"]


def test_a_connection_on_which_the_server_said_goodbye_is_replaced(
    remote: PostgresStore, proxy: Proxy, direct: str
) -> None:
    """It is not used any more, also before the server has hung up."""
    remote.run(submitting(remote, "before"))
    before = {pid for (pid,) in sessions(direct)}
    words = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0"
    proxy.say(b"E" + (len(words) + 4).to_bytes(4, "big") + words)
    until(lambda: not any(one.usable for one in connections_to(before)))

    remote.run(submitting(remote, "after"))

    assert names_in(direct) == ["before", "after"]
    assert before.isdisjoint({pid for (pid,) in sessions(direct)})


async def test_submits_that_share_a_commit_are_all_told_when_its_answer_is_lost(
    remote: PostgresStore, proxy: Proxy, direct: str
) -> None:
    await asyncio.gather(*(remote.arun(submitting(remote, f"before-{n}")) for n in range(10)))
    names = [f"precious-{number}" for number in range(10)]
    proxy.lose_answer_to(_asks("precious-5"))

    answers = await asyncio.gather(
        *(remote.arun(submitting(remote, name)) for name in names), return_exceptions=True
    )

    lost = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    assert lost
    assert all(error.maybe_stored for error in lost)
    await asyncio.gather(*(remote.arun(submitting(remote, name)) for name in names))
    assert sorted(names_in(direct))[10:] == sorted(names)


def test_a_submit_with_keys_whose_commit_is_lost_is_told_so_too(
    remote: PostgresStore, proxy: Proxy, direct: str
) -> None:
    job = new_job("precious", unique=UniqueRule("key"))
    statement = remote._texts.statement("commit")
    remote.run(remote.jobs.submit([new_job("before", unique=UniqueRule("other"))]))
    proxy.lose_answer_to(lambda data: statement.name in data)

    with pytest.raises(StoreUnavailable) as refused:
        remote.run(remote.jobs.submit([job]))

    assert refused.value.maybe_stored
    [again] = remote.run(remote.jobs.submit([job]))
    assert again.deduplicated
    assert names_in(direct) == ["before", "precious"]


def test_the_app_names_the_job_whose_answer_was_lost(
    proxy: Proxy, remote: PostgresStore, direct: str
) -> None:
    app = Packhorse(store=remote)

    @app.task
    def send(address: str) -> None: ...

    send.enqueue("before@example")
    proxy.lose_answer_to(_asks("precious@example"))

    with pytest.raises(StoreUnavailable) as refused:
        send.enqueue("precious@example")

    assert refused.value.maybe_stored
    assert refused.value.job_id in names_in(direct)
    assert app.job(refused.value.job_id or "").status() is JobStatus.QUEUED
    app.close()


@pytest.mark.parametrize("kind", [SettlementKind.COMPLETED, SettlementKind.FAILED])
def test_a_settlement_whose_answer_is_lost_is_counted_once(
    remote: PostgresStore, proxy: Proxy, kind: SettlementKind
) -> None:
    def taken(name: str) -> Job:
        remote.run(submitting(remote, name))
        (job,) = remote.run(remote.jobs.claim(claiming())).jobs
        return job

    remote.run(remote.leases.renew(renewing()))
    remote.run(remote.jobs.settle([settlement_of(kind, taken("before"))]))
    job = taken("job")
    settlement = settlement_of(kind, job)
    commits = remote._texts.statement("commit").name
    # A plain one commits by itself, with the first thing that is said.
    proxy.lose_answer_to(lambda data: kind is SettlementKind.COMPLETED or commits in data)

    with pytest.raises(StoreUnavailable) as refused:
        remote.run(remote.jobs.settle([settlement]))
    verdicts = remote.run(remote.jobs.settle([settlement]))

    assert proxy.answers_lost == 1
    assert refused.value.maybe_stored
    assert verdicts == (Verdict.APPLIED,)
    found = remote.run(remote.inspection.job(job.id))
    assert found is not None
    assert found.counters.attempts == 1
    assert found.counters.failures == (kind is SettlementKind.FAILED)
    assert len(remote.run(remote.inspection.history(job.id))) == 1


def test_a_claim_whose_answer_is_lost_gives_its_jobs_back_at_the_next_renewal(
    remote: PostgresStore, proxy: Proxy
) -> None:
    remote.run(remote.leases.renew(renewing()))
    remote.run(remote.jobs.claim(claiming()))
    remote.run(submitting(remote, "job"))
    proxy.lose_answer_to(_asks(ANNA))

    with pytest.raises(StoreUnavailable) as refused:
        remote.run(remote.jobs.claim(claiming()))
    assert refused.value.maybe_stored
    remote.run(remote.leases.renew(Renewal(ANNA, LEASE_US, held=())))
    (job,) = remote.run(remote.jobs.claim(claiming())).jobs

    found = remote.run(remote.inspection.job("job"))
    assert found is not None
    counters = found.counters
    assert (counters.attempts, counters.crashes, counters.releases) == (0, 0, 1)
    assert job.fence == 2


async def test_workers_whose_connections_are_cut_again_and_again_lose_nothing(
    proxy: Proxy, remote: PostgresStore, direct: str
) -> None:
    shop, desk = Shop(Packhorse(store=remote)), Shop(Packhorse(direct))
    shop.gate.set()
    jobs = []
    for part in range(5):
        numbers = range(part * 30, part * 30 + 30)
        jobs += await desk.work.aenqueue_many([{"number": number} for number in numbers])

    async with working(shop, concurrency=10, lease="10s"):
        for _ in range(5):
            await shop.until_begun(20)
            proxy.cut()
        await shop.until_begun(50)

    infos = await _infos(direct, jobs)
    assert {info.status for info in infos} == {JobStatus.COMPLETED}
    assert {info.attempts for info in infos} == {1}
    assert {info.crashes for info in infos} == {0}
    desk.app.close()


# --------------------------------------------------------------------------- pauses and clocks


async def test_a_server_that_stands_still_longer_than_the_lease_makes_no_job_run_twice(
    own_server: PostgresServer, direct: str, looks: Looks
) -> None:
    shops = [Shop(Packhorse(direct)) for _ in range(2)]
    jobs = await shops[0].work.aenqueue_many([{"number": number} for number in range(6)])

    async with working(*shops, concurrency=3, lease=f"{_LEASE_S}s"):
        for shop in shops:
            await shop.until_begun(3)
        own_server.pause()
        try:
            await asyncio.sleep(2.5 * _LEASE_S)
        finally:
            own_server.resume()
        await looks.more(_HASTY_LOOKS)  # with which a hasty rescuer would take them away
        for shop in shops:
            shop.gate.set()

    for info in await _infos(direct, jobs):
        assert (info.status, info.attempts, info.crashes) == (JobStatus.COMPLETED, 1, 0)
    assert shops[0].runs + shops[1].runs == Counter(range(6))


class SteppedClock(SystemClock):
    """The machine's own, but for the steps it makes."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


async def test_a_clock_that_is_set_back_causes_no_mass_rescue(direct: str, looks: Looks) -> None:
    clock = SteppedClock()
    shops = [Shop(Packhorse(direct, clock=clock)) for _ in range(2)]
    jobs = await shops[0].work.aenqueue_many([{"number": number} for number in range(6)])

    async with working(*shops, concurrency=3, lease=f"{_LEASE_S}s"):
        for shop in shops:
            await shop.until_begun(3)
        clock.ahead_us = -3600 * SECOND_US
        await looks.more(_HASTY_LOOKS)
        for shop in shops:
            shop.gate.set()

    for info in await _infos(direct, jobs):
        assert (info.status, info.crashes) == (JobStatus.COMPLETED, 0)
    assert shops[0].runs + shops[1].runs == Counter(range(6))


def test_a_renewal_after_the_clock_was_set_ahead_saves_what_the_worker_holds(direct: str) -> None:
    clock = SteppedClock()
    store = postgres_store(direct, clock)
    store.run(store.leases.renew(renewing()))
    store.run(submitting(store, "job"))
    (job,) = store.run(store.jobs.claim(claiming())).jobs

    clock.ahead_us = 2 * LEASE_US
    (expired,) = store.run(store.leases.expired()).leases  # one look; a rescuer wants two
    renewed = store.run(store.leases.renew(renewing()))
    orphans = store.run(store.leases.orphans([expired.worker], limit=10))
    rescued = store.run(store.jobs.settle([settlement_of(SettlementKind.RESCUED, job)]))
    settled = store.run(store.jobs.settle([settlement_of(SettlementKind.COMPLETED, job)]))
    store.close()

    assert renewed.lapsed
    assert orphans == ()
    assert (rescued, settled) == ((Verdict.STALE,), (Verdict.APPLIED,))


async def test_an_answer_that_never_comes_is_given_up_also_after_others_came(
    direct: str, proxy: Proxy, own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.stores.postgres.connection.GRACE_S", 0.2)
    url = direct.replace(str(own_server.port), str(proxy.port))
    store = postgres_store(f"{url}&statement_timeout=3s")
    for name in ("one", "two"):
        await store.arun(submitting(store, name))

    proxy.hold()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreUnavailable, match=r"no answer within 3\.2 s"):
            await store.arun(submitting(store, "three"))
    proxy.let_go()
    store.close()
