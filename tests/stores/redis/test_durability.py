# SPDX-License-Identifier: MIT
"""Restarts, lost answers and standstills: no job is lost, and none is counted twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.proxy import Proxy
from packhorse.core.clock import SECOND_US, SystemChance, SystemClock
from packhorse.core.job import JobStatus
from packhorse.core.settlement import SettlementKind, Verdict
from packhorse.errors import StoreUnavailable
from packhorse.events import EventBus
from packhorse.runtime.services.rescuer import Rescuer
from packhorse.runtime.services.service import ServiceContext
from packhorse.stores.redis.settings import RedisSettings
from packhorse.stores.redis.store import RedisStore
from packhorse.testing.conformance.samples import ANNA, BEN, LEASE_US, new_job, settlement_of
from packhorse.testing.virtual_clock import VirtualClock
from tests.servers.redis import RedisServer, free_port
from tests.stores.redis.conftest import Opening
from tests.stores.redis.support import PATIENCE_S, claim, claiming, names_in, renewing, submitting


def rescuer_of(store: RedisStore) -> Rescuer:
    return Rescuer(ServiceContext(store, SystemClock(), SystemChance(1), EventBus(), BEN))


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that loses nothing it has confirmed."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    server = RedisServer(tmp_path / "durable", *options, port=free_port())
    yield server
    server.stop()


def test_a_server_killed_in_the_middle_of_submits_has_lost_none_it_confirmed(
    opening: Opening, durable: RedisServer
) -> None:
    store = opening(durable.url)
    store.run(submitting(store, "first"))
    confirmed: list[str] = ["first"]
    enough, back = threading.Event(), threading.Event()

    def submit_all() -> None:
        for number in range(400):
            name = f"job-{number:03}"
            while True:
                try:
                    store.run(submitting(store, name))
                except StoreUnavailable:
                    assert back.wait(PATIENCE_S)
                else:
                    break
            confirmed.append(name)
            if len(confirmed) == 100:
                enough.set()

    producer = threading.Thread(target=submit_all)
    producer.start()
    assert enough.wait(PATIENCE_S)
    durable.kill()
    durable.start()
    back.set()
    producer.join(PATIENCE_S)

    assert len(confirmed) == 401
    assert names_in(store) == confirmed


def test_a_server_restarted_between_claim_and_settlement_knows_both(
    opening: Opening, durable: RedisServer
) -> None:
    store = opening(durable.url)
    store.run(submitting(store, *(str(number) for number in range(20))))
    jobs = claim(store)
    ends = [settlement_of(SettlementKind.COMPLETED, job) for job in jobs]
    assert store.run(store.jobs.settle(ends[:10])) == (Verdict.APPLIED,) * 10

    durable.kill()
    durable.start()

    assert store.run(store.jobs.settle(ends)) == (Verdict.APPLIED,) * 20
    [counts] = store.run(store.inspection.counts())
    assert counts.by_status == {JobStatus.COMPLETED: 20}
    assert all(len(store.run(store.inspection.history(job.id))) == 1 for job in jobs)


@pytest.mark.parametrize("ids_are_new", [True, False])
@pytest.mark.parametrize("runner", ["run", "arun"])
def test_a_submit_whose_answer_was_lost_is_stored_once(
    opening: Opening, server: RedisServer, proxy: Proxy, runner: str, *, ids_are_new: bool
) -> None:
    store = opening(f"redis://127.0.0.1:{proxy.port}")
    store.run(submitting(store, "before"))
    proxy.lose_answer_to(lambda data: b"EVALSHA" in data and b"in doubt" in data)

    plan = store.jobs.submit([new_job("in doubt")], ids_are_new=ids_are_new)
    [answer] = store.run(plan) if runner == "run" else asyncio.run(store.arun(plan))

    assert answer.job_id == "in doubt"
    assert proxy.answers_lost == 1
    assert names_in(store) == ["before", "in doubt"]
    [counts] = store.run(store.inspection.counts())
    assert counts.by_status == {JobStatus.QUEUED: 2}


@pytest.mark.parametrize("runner", ["run", "arun"])
def test_a_settlement_whose_answer_was_lost_is_applied_once(
    opening: Opening, server: RedisServer, proxy: Proxy, runner: str
) -> None:
    store = opening(f"redis://127.0.0.1:{proxy.port}")
    store.run(submitting(store, "job"))
    [job] = claim(store)
    store.run(store.jobs.settle([]))  # the server knows the script by now
    proxy.lose_answer_to(lambda data: b"EVALSHA" in data)

    plan = store.jobs.settle([settlement_of(SettlementKind.COMPLETED, job)])
    verdicts = store.run(plan) if runner == "run" else asyncio.run(store.arun(plan))

    assert verdicts == (Verdict.APPLIED,)
    assert proxy.answers_lost == 1
    assert len(store.run(store.inspection.history("job"))) == 1


@pytest.mark.parametrize("runner", ["run", "arun"])
def test_a_claim_whose_answer_was_lost_is_given_back_by_the_next_renewal(
    opening: Opening, server: RedisServer, proxy: Proxy, runner: str
) -> None:
    store = opening(f"redis://127.0.0.1:{proxy.port}")
    assert claim(store) == ()  # the server knows the script by now
    store.run(submitting(store, "one", "other"))
    proxy.lose_answer_to(lambda data: b"EVALSHA" in data)

    plan = store.jobs.claim(claiming())
    with pytest.raises(StoreUnavailable) as lost:
        store.run(plan) if runner == "run" else asyncio.run(store.arun(plan))
    assert lost.value.maybe_stored

    renewed = store.run(store.leases.renew(renewing(held=())))
    assert renewed.released == 2
    jobs = claim(store)
    assert [job.id for job in jobs] == ["one", "other"]
    assert {job.attempts for job in jobs} == {0}


def test_what_is_sent_while_the_server_pauses_its_clients_is_done_after(
    opening: Opening, server: RedisServer
) -> None:
    store = opening(server.url)
    store.run(submitting(store, "before"))
    server.ask("CLIENT", "PAUSE", "300")

    store.run(submitting(store, "meanwhile"))

    assert names_in(store) == ["before", "meanwhile"]


async def test_a_standstill_longer_than_the_lease_takes_no_job_from_the_living(
    opening: Opening, server: RedisServer
) -> None:
    """The first look after it starts again, and by the second one the workers have renewed."""
    store = opening(server.url, timeout="100ms", connect_timeout="100ms")
    lease_us = 300_000
    await store.arun(submitting(store, *(str(number) for number in range(50))))
    await store.arun(store.leases.renew(renewing(ANNA, lease_us)))
    claimed = await store.arun(store.jobs.claim(claiming(worker=ANNA)))
    held = tuple((job.id, job.fence) for job in claimed.jobs)
    rescuer = rescuer_of(store)
    await rescuer.run_once()

    server.pause()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await rescuer.run_once()
    await asyncio.sleep(2 * lease_us / 1_000_000)  # longer than the lease, and no worker can renew
    server.resume()

    await rescuer.run_once()  # sees the lease expired, for the first time
    renewed = await store.arun(store.leases.renew(renewing(ANNA, LEASE_US, held=held)))
    assert renewed.lapsed
    await asyncio.sleep(0.15)
    await rescuer.run_once()

    [counts] = await store.arun(store.inspection.counts())
    assert counts.by_status == {JobStatus.PROCESSING: 50}
    ends = [settlement_of(SettlementKind.COMPLETED, job) for job in claimed.jobs]
    assert await store.arun(store.jobs.settle(ends)) == (Verdict.APPLIED,) * 50


async def test_a_step_of_the_clock_takes_no_job_from_the_living(server: RedisServer) -> None:
    clock = VirtualClock()
    store = RedisStore(RedisSettings.from_url(server.url), clock=clock)
    await store.arun(store.jobs.submit([new_job(str(number)) for number in range(20)]))
    await store.arun(store.leases.renew(renewing(ANNA)))
    claimed = await store.arun(store.jobs.claim(claiming(worker=ANNA)))
    rescuer = rescuer_of(store)

    for step_s in (LEASE_US / SECOND_US + 1, -3600.0):
        clock.step(step_s)
        await rescuer.run_once()
        await store.arun(store.leases.renew(renewing(ANNA)))
        await rescuer.run_once()

    ends = [settlement_of(SettlementKind.COMPLETED, job) for job in claimed.jobs]
    assert await store.arun(store.jobs.settle(ends)) == (Verdict.APPLIED,) * 20
    store.close()


def test_fences_rise_even_where_the_server_forgot_the_last_commits(
    opening: Opening, server: RedisServer
) -> None:
    """A server without persistence that was restarted from an older copy, as in a failover."""
    store = opening(server.url)
    store.run(submitting(store, "job"))
    server.ask("SAVE")
    [first] = claim(store)

    server.kill()
    server.start()
    [second] = claim(store, worker=BEN)

    assert second.fence > first.fence
    stale = store.run(store.jobs.settle([settlement_of(SettlementKind.COMPLETED, first)]))
    assert stale == (Verdict.STALE,)
